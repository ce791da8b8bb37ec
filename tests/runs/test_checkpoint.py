"""A state comes back from disk bit for bit, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from idiolect.core import files, tree
from idiolect.core.errors import InputError, RunError
from idiolect.runs.checkpoint import load, save
from idiolect.simulation import State
from idiolect.simulation.client_store import InMemory


class Server(NamedTuple):
    weight: torch.Tensor
    count: torch.Tensor


def _state(width: int = 3, value: float = 1.0, dtype: torch.dtype = torch.float32, round: int = 4) -> State:
    server = Server(torch.full((2, width), value, dtype=dtype), torch.tensor(7))
    clients = InMemory({"head": torch.full((width,), value), "none": ()}, 3)
    clients.put([2, 0], [{"head": torch.full((width,), value + k), "none": ()} for k in (2, 0)])
    return State(server, clients, round)


def _nothing(round: int) -> State:
    return State((), InMemory((), 2), round)


def test_round_trip(tmp_path: Path) -> None:
    state = _state(value=0.1)
    save(state, tmp_path / "new" / "checkpoint")
    got = load(tmp_path / "new" / "checkpoint", _state(value=0.0, round=0))
    assert type(got.server) is Server
    assert got.round == 4
    assert [float(c["head"][0]) for c in got.clients] == pytest.approx([0.1, 0.0, 2.1])
    ours, theirs = ((s.server, [s.clients[0], s.clients[2]]) for s in (got, state))
    for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_stateless_method(tmp_path: Path) -> None:
    state = _nothing(2)
    state.clients.put([0, 1], [(), ()])
    save(state, tmp_path / "c")
    got = load(tmp_path / "c", _nothing(0))
    assert (got.server, list(got.clients), got.round) == ((), [(), ()], 2)


@pytest.mark.parametrize("other", [_state(width=4), _state(dtype=torch.float64), _nothing(0)])
def test_other_method(tmp_path: Path, other: State) -> None:
    save(_state(), tmp_path / "c")
    with pytest.raises(InputError, match=r"another method, model or version: delete it"):
        load(tmp_path / "c", other)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, b"not a checkpoint at all", None], ids=["empty", "nul", "text", "cut"]
)
def test_broken_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "c"
    save(_state(), path)
    path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    with pytest.raises(InputError, match=r"not a readable checkpoint .* delete it") as caught:
        load(path, _state())
    assert str(path) in str(caught.value)


def test_safetensors_of_somebody_else(tmp_path: Path) -> None:
    import safetensors.torch

    safetensors.torch.save_file({"server/weight": torch.zeros(2, 3)}, tmp_path / "c")
    with pytest.raises(InputError, match="not a readable checkpoint"):
        load(tmp_path / "c", _state())


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    save(_state(value=1.0), path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device.*free some space"):
        save(_state(value=2.0), path)
    assert torch.equal(load(path, _state()).server.weight, torch.ones(2, 3))
    assert [p.name for p in tmp_path.iterdir()] == ["c"], "a draft is left behind"
