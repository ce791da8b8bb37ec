"""Frozen weights: one copy for all networks of a machine, the same in other processes, and what other weights meet."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from idiolect.core import frozen, keys, tree
from idiolect.core.errors import InputError
from idiolect.core.network import Network

linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux has descriptors as files")


class Shift(nn.Module):
    """Adds a number that does not train."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.full((3,), by), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


def parts(by: float = 2.0) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(2, 3), Shift(by)), nn.Linear(3, 2)


def other_parts() -> tuple[nn.Module, nn.Module]:
    return parts(3.0)


def tied() -> tuple[nn.Module, nn.Module]:
    body, head = parts()
    head.add_module("again", body[1])
    return body, head


def place(network: Network) -> int:
    return network._frozen.tensors["body.1.by"].data_ptr()  # type: ignore[union-attr]


def test_the_digest() -> None:
    """SHA-256 over name, type, shape and bytes, by hand."""
    hasher = hashlib.sha256(b"body.1.by torch.float32 (3,)" + torch.full((3,), 2.0).numpy().tobytes())
    assert Network(parts, (2,)).frozen_digest == hasher.hexdigest()
    assert Network(parts, (2,)).frozen_bytes == 12
    plain = Network(lambda: (nn.Linear(2, 3), nn.Linear(3, 2)), (2,))
    assert (plain.frozen_digest, plain.frozen_bytes) == ("", 0)


def test_networks_share_one_copy_as_long_as_one_is_there() -> None:
    one, two, other = Network(parts, (2,)), Network(parts, (2,)), Network(other_parts, (2,))
    assert place(one) == place(two) != place(other)
    assert one._parts[0]._module[1].by.data_ptr() == place(one)  # type: ignore[index, union-attr]
    digest = one.frozen_digest
    del one, two
    gc.collect()
    assert digest not in frozen._HELD


def test_what_body_and_head_share() -> None:
    network = Network(tied, (2,))
    model = network.init(keys.key(0))
    assert list(model.head) == ["weight", "bias"]
    assert network(model, torch.zeros(1, 2)).shape == (1, 2)


def test_a_network_travels_with_its_weights() -> None:
    network = Network(parts, (2,))
    again = pickle.loads(pickle.dumps(network))
    model, x_B = network.init(keys.key(0)), torch.randn(4, 2)
    assert place(again) == place(network)
    assert torch.equal(again(model, x_B), network(model, x_B))


CHILD = """
import pickle, sys
sys.path.insert(0, {folder!r})
from idiolect.core import frozen
for handle in pickle.load(open({file!r}, "rb")):
    held = frozen.adopt(handle)
    print("none" if held is None else held.tensors["body.1.by"].tolist(), frozen.adopt(handle) is held)
    if held is not None:
        held.tensors["body.1.by"].zero_()
"""


def child(handles: list[frozen.Handle], folder: Path) -> list[str]:
    """What another process finds by each handle."""
    (folder / "handles").write_bytes(pickle.dumps(handles))
    code = CHILD.format(folder=str(folder), file=str(folder / "handles"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@linux
def test_another_process_maps_them_and_cannot_change_them(tmp_path: Path) -> None:
    network = Network(parts, (2,))
    handle = network._frozen.handle  # type: ignore[union-attr]
    assert child([handle], tmp_path) == ["[2.0, 2.0, 2.0] True"]
    assert network._frozen.tensors["body.1.by"].tolist() == [2.0] * 3  # type: ignore[union-attr]


@linux
def test_what_is_not_there_is_not_mapped(tmp_path: Path) -> None:
    """After another boot, another file, one that is gone, and none."""
    network = Network(parts, (2,))
    handle = network._frozen.handle  # type: ignore[union-attr]
    with (tmp_path / "other").open("wb") as file:
        replaced = [
            handle._replace(identity=("x", *handle.identity[1:])),
            handle._replace(path=f"/proc/{os.getpid()}/fd/{file.fileno()}"),
            handle._replace(path=f"/proc/{os.getpid()}/fd/987654"),
            handle._replace(path=""),
        ]
        assert [said.partition(" ")[0] for said in child(replaced, tmp_path)] == ["none"] * 4


def test_other_weights_are_refused() -> None:
    handle = Network(parts, (2,))._frozen.handle  # type: ignore[union-attr]
    for make, here in ((other_parts, Network(other_parts, (2,)).frozen_digest), (None, "")):
        with pytest.raises(InputError, match=rf"not those with which this began .*here {here[:8] or 'none'}") as error:
            frozen.rebuilt(handle, Network, make or (lambda: (nn.Linear(2, 3), nn.Linear(3, 2))), (2,))
        assert "\n" not in str(error.value)


def test_a_full_disk_costs_nothing_but_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    network = Network(partial(parts, 4.0), (2,))
    assert network._frozen.handle.path == ""  # type: ignore[union-attr]
    assert tree.leaves(network._frozen.tensors)[0].tolist() == [4.0] * 3  # type: ignore[union-attr]
