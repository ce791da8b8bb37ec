"""Rows that processes share stand in a file that has no name, and nothing of it stays."""

import errno
import gc
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core import shared_memory
from idiolect.core.errors import RunError
from idiolect.core.option_spec import Spec
from idiolect.data import Source, federated

DESCRIPTORS = Path("/proc/self/fd")
linux = pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="no /proc here")


def build(**more):
    x_R = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (60, 1, 3, 5)).astype(np.uint8))
    source = Source("toy", x_R, torch.arange(60) % 3, 3, tuple("abc"), (0.5,), (0.5,), 60)
    return data.build(source, Spec(name="iid"), [], 3, 0, **more)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("shape", [(7, 2), (5, 3, 4, 4), (1,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_another_mapping_sees_the_rows_and_cannot_change_them(shape, dtype, folder):
    rows, file = shared_memory.shared(torch.empty(0, *shape[1:], dtype=dtype), shape[0])
    assert (rows.shape, rows.dtype) == (shape, dtype)
    rows[:] = 1 + torch.arange(rows.numel()).view(shape).to(dtype)
    other = shared_memory.mapped(file.fileno(), rows, shape[0])
    assert torch.equal(other, rows)
    other.zero_()
    assert rows.any()
    assert torch.equal(shared_memory.mapped(file.fileno(), rows, shape[0]), rows)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_several_tensors_share_a_file(rows, folder):
    like = {"ids": torch.empty(0, 3, dtype=torch.int32), "image": torch.empty(0, 1, 5, 5, dtype=torch.uint8),
            "age": torch.empty(0, 2), "one": torch.empty(0, dtype=torch.int64)}  # fmt: skip
    own, file = shared_memory.shared(like, rows)
    for k, leaf in enumerate(own.values()):
        leaf.copy_((torch.arange(leaf.numel()) % 80 * 3 + k).view(leaf.shape))
    other = shared_memory.mapped(file.fileno(), like, rows)
    assert list(other) == list(like)
    for k, (name, leaf) in enumerate(other.items()):
        assert leaf.dtype == like[name].dtype
        assert leaf.shape == (rows, *like[name].shape[1:])
        assert leaf.flatten().tolist() == [n % 80 * 3 + k for n in range(leaf.numel())]


def test_the_rows_of_a_federation_stand_in_its_file(folder):
    d = build()
    assert d.file is not None
    assert torch.equal(shared_memory.mapped(d.file.fileno(), d.x_R, d.samples), d.x_R)
    assert list(folder.iterdir()) == []


@linux
def test_descriptors_are_given_back(folder):
    build()
    gc.collect()
    before = len(list(DESCRIPTORS.iterdir()))
    for _ in range(50):
        build(new_clients=1)
    gc.collect()
    assert len(list(DESCRIPTORS.iterdir())) <= before
    kept = [build() for _ in range(3)]
    assert len(list(DESCRIPTORS.iterdir())) > before, "the test could not fail"
    del kept


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_file_systems_that_cannot_set_room_aside(number, monkeypatch, folder):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    rows, file = shared_memory.shared(torch.empty(0, 5), 3)
    rows[:] = 7.0
    assert torch.equal(shared_memory.mapped(file.fileno(), rows, 3), rows)


def test_no_rows(folder):
    rows, file = shared_memory.shared(torch.empty(2, 3, 4, dtype=torch.uint8), 0)
    other = shared_memory.mapped(file.fileno(), rows, 0)
    for empty in (rows, other):
        assert (empty.shape, empty.dtype) == ((0, 3, 4), torch.uint8)


def full(*arguments):
    raise OSError(28, "No space left on device")


@linux
@pytest.mark.parametrize(("module", "name"), [(tempfile, "TemporaryFile"), (os, "posix_fallocate"), (mmap, "mmap")])
def test_a_full_disk_costs_nothing_but_sharing(module, name, monkeypatch, folder):
    whole = build()
    gc.collect()
    before = len(list(DESCRIPTORS.iterdir()))
    with monkeypatch.context() as patched:
        patched.setattr(module, name, full)
        with pytest.raises(
            RunError, match=r"cannot put 6 MB of samples into a temporary file \(No space left on device\)"
        ):
            shared_memory.shared(torch.empty(0, dtype=torch.uint8), 6_000_000)
        d = build()
    gc.collect()
    assert d.file is None
    assert torch.equal(d.x_R, whole.x_R)
    assert data.manifest(d)["hash"] == data.manifest(whole)["hash"]
    assert len(list(DESCRIPTORS.iterdir())) <= before


def test_rows_outlive_their_file():
    rows = federated.room(torch.empty(0, 2), 4)[0]
    gc.collect()
    rows[:] = 3.0
    assert rows.sum() == 24
