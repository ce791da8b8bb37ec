"""Shifted rows that took long are kept, found again by what they are made of, and never trusted when broken."""

import dataclasses
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core import keys, option_spec
from idiolect.core.option_spec import Spec
from idiolect.data import Source, new_clients, plan, shifted, shifts
from idiolect.data.datasets import cache
from idiolect.data.shifts import Shifted, corruptions, selection, transforms

NOISE = "noise:std=0.2,clients=0-2"


@pytest.fixture(autouse=True)
def all_are_worth_it(monkeypatch):
    monkeypatch.setattr(shifted, "_WORTH_KEEPING", 0)
    shifted._code.cache_clear()


@pytest.fixture
def worked(monkeypatch):
    """The clients whose rows noise was really added to."""
    clients, real = [], shifts.noise

    def noise(x_N: shifts.Images, y_N, who, rng, *, std: float = 0.1) -> Shifted:
        clients.append(who.client)
        return real(x_N, y_N, who, rng, std=std)

    monkeypatch.setitem(data.SHIFTS, "noise", noise)
    return clients


def toy():
    x_R = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (80, 1, 4, 4)).astype(np.uint8))
    return Source("toy", x_R, torch.arange(80) % 4, 4, tuple("abcd"), (0.5,), (0.5,), 80)


def build(*shift, seed=0, source=None, clients=4, **more):
    return data.build(source or toy(), Spec(name="iid"), [Spec.parse(s) for s in shift], clients, seed, **more)


def same(a, b):
    return torch.equal(a.x_R, b.x_R) and torch.equal(a.y_R, b.y_R) and a.shifts == b.shifts


def test_the_second_time_nothing_is_computed(worked, own_cache):
    first = build(NOISE, "permute_labels:to=1+2+3+0")
    assert worked == [0, 1, 2]
    assert len(list(own_cache.iterdir())) == 1
    second = build(NOISE, "permute_labels:to=1+2+3+0")
    assert worked == [0, 1, 2]
    assert same(first, second)
    assert first.shifts[0] == "noise:std=0.2,permute_labels:to=1+2+3+0"
    assert second.file is not None
    second.x_R.zero_()
    assert same(first, build(NOISE, "permute_labels:to=1+2+3+0")), "the cache was written to"


def test_new_clients_conditions_are_kept_too(worked):
    arguments = {"new_clients": 1, "new_shifts": [Spec.parse("noise:std=0.5")]}
    first, second = build(**arguments), build(**arguments)
    assert worked == [3]
    assert same(first, second)
    build(**arguments | {"new_shifts": [Spec.parse("noise:std=0.4")]})
    assert worked == [3, 3]


@pytest.mark.parametrize("other", ["seed", "option", "members", "rows", "labels", "order", "code", "sizes"])
def test_anything_else_is_something_else(worked, other, monkeypatch):
    build(NOISE, "invert:clients=3")
    changed = toy()
    if other == "rows":
        changed.x_R[7, 0, 3, 3] ^= 1
    if other == "labels":
        changed = dataclasses.replace(changed, y_R=(changed.y_R + 1) % 4)
    if other == "code":
        monkeypatch.setattr(shifted, "_code", lambda: b"other code")
    listed = [NOISE, "invert:clients=3"]
    if other == "option":
        listed[0] = "noise:std=0.3,clients=0-2"
    if other == "members":
        listed[1] = "invert:clients=2"
    if other == "order":
        listed = listed[::-1]
    more = {"sizes": [10]} if other == "sizes" else {}
    found = build(*listed, source=changed, seed=int(other == "seed"), **more)
    assert worked == [0, 1, 2] * 2
    monkeypatch.setattr(cache, "place", lambda name: None)
    assert same(found, build(*listed, source=changed, seed=int(other == "seed"), **more)), "not what is computed"


def test_the_seed_tells_the_same_rows_apart(worked, monkeypatch):
    def blocks(source, clients, rng):
        hands = np.arange(80).reshape(clients, -1)
        return data.Split(list(hands[:, :-5]), list(hands[:, -5:]))

    monkeypatch.setitem(data.PARTITIONS, "blocks", blocks)
    x = [data.build(toy(), Spec(name="blocks"), [Spec.parse(NOISE)], 4, seed).x_R for seed in (0, 1, 0)]
    assert worked == [0, 1, 2] * 2
    assert torch.equal(x[0], x[2])
    assert not torch.equal(x[0], x[1])


def test_the_code_is_all_that_decides_shifted_samples():
    modules = (shifted, plan, new_clients, transforms, corruptions, selection, keys, option_spec)
    assert all(Path(module.__file__).read_bytes() in shifted._code() for module in modules)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "text"])
def test_a_broken_file_is_built_again(worked, own_cache, damage):
    first = build(NOISE)
    (path,) = own_cache.iterdir()
    content = path.read_bytes()
    bit = bytearray(content)
    bit[-5] ^= 1
    path.write_bytes({"cut": content[:-9], "bit": bytes(bit), "empty": b"", "text": b"not a tensor"}[damage])
    assert same(first, build(NOISE))
    assert worked == [0, 1, 2] * 2
    assert cache.load(path) is not None
    build(NOISE)
    assert len(worked) == 6


def test_quick_shifts_and_none_leave_nothing(monkeypatch, own_cache):
    build()
    monkeypatch.setattr(shifted, "_WORTH_KEEPING", 60)
    build(NOISE)
    assert not own_cache.exists()


def test_no_room_for_a_cache(monkeypatch, tmp_path, worked):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert same(build(NOISE), build(NOISE))
    assert worked == [0, 1, 2] * 2


def test_no_home(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.place("x") is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert str(cache.place("x")) == "/there/idiolect/x.safetensors"


def test_what_is_saved_is_loaded(tmp_path):
    tensors = {"a": torch.arange(6).view(2, 3), "b": torch.tensor([1.5, float("nan")])}
    path = tmp_path / "new" / "x.safetensors"
    assert cache.load(path) is None
    assert cache.save(path, tensors, {"says": "ä"})
    kept = cache.load(path)
    assert kept.about == {"says": "ä"}
    assert torch.equal(kept.tensors["a"], tensors["a"])
    np.testing.assert_array_equal(kept.tensors["b"].numpy(), tensors["b"].numpy())
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]


@pytest.fixture
def store(tmp_path):
    """Makes a file of 10 bytes that is so many seconds old."""

    def make(name, age):
        path = tmp_path / name
        path.write_bytes(bytes(10))
        os.utime(path, (time.time() - age,) * 2)
        return path

    return make


def left(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("most", "stay"), [(30, "abc"), (29, "bc"), (20, "bc"), (10, "c"), (0, "c")])
def test_the_oldest_go_first_and_the_new_one_stays(store, tmp_path, most, stay):
    for age, name in enumerate("cba"):
        store(f"x-{name}.safetensors", 100 * age)
    store("y-d.safetensors", 999)
    cache.trim(tmp_path / "x-c.safetensors", "x-", most)
    assert left(tmp_path) == [*(f"x-{name}.safetensors" for name in stay), "y-d.safetensors"]


def test_drafts_of_a_day_ago_go(store, tmp_path):
    store("x-a.11.tmp", 90_000)
    store("y-a.11.tmp", 90_000)
    store("x-b.12.tmp", 80_000)
    cache.trim(tmp_path / "x-c.safetensors", "x-", 100)
    assert left(tmp_path) == ["x-b.12.tmp"]


def test_a_file_that_another_process_removes_stops_nothing(store, tmp_path):
    (tmp_path / "x-gone.safetensors").symlink_to(tmp_path / "nowhere")
    store("x-a.safetensors", 100)
    store("x-b.11.tmp", 90_000)
    cache.trim(tmp_path / "x-c.safetensors", "x-", 0)
    assert left(tmp_path) == ["x-gone.safetensors"]
    cache.trim(tmp_path / "no" / "folder", "x-", 0)
