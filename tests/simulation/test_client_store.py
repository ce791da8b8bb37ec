"""Clients' states in memory and on disk behave alike and come back as a checkpoint left them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.core.errors import InputError, RunError
from idiolect.runs.checkpoint import load, save
from idiolect.simulation import State
from idiolect.simulation import client_store as clients_module
from idiolect.simulation.client_store import Clients, InMemory, OnDisk, store


class Own(NamedTuple):
    weight: torch.Tensor
    rounds: torch.Tensor
    none: Any = ()
    empty: torch.Tensor = torch.zeros(0, 3)


def _own(value: float) -> Own:
    return Own(torch.full((2, 3), float(value)), torch.tensor(int(value)))


def _values(clients: Clients) -> list[float]:
    for c in clients:
        assert isinstance(c, Own)
        assert c.weight.shape == (2, 3)
        assert c.empty.shape == (0, 3)
        assert c.weight.unique().tolist() == [float(c.rounds)]
    return [float(c.rounds) for c in clients]


@pytest.fixture(params=["memory", "disk"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Clients:
    return InMemory(_own(7), 4) if request.param == "memory" else OnDisk(_own(7), 4, tmp_path / "clients")


def test_what_is_put_is_there(made: Clients) -> None:
    assert _values(made) == [7] * 4
    made.put([3, 1], [_own(30), _own(10)])
    made.put([3], [_own(31)])
    made.put([], [])
    assert _values(made) == [7, 10, 7, 31]
    assert int(made[-1].rounds) == 31
    assert len(made) == 4
    with pytest.raises(IndexError):
        made[4]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 3), unique=True, min_size=1), st.just("save"), st.just("restart")
        ), max_size=12,
    )
)  # fmt: skip
def test_a_restart_goes_back_to_the_checkpoint(tmp_path_factory: pytest.TempPathFactory, history: list[Any]) -> None:
    """Whatever was put since, in whatever order, on disk as in memory."""
    folder = tmp_path_factory.mktemp("clients")

    def fresh() -> tuple[State, State]:
        return State((), OnDisk(_own(7), 4, folder / "disk"), 0), State((), InMemory(_own(7), 4), 0)

    disk, memory = fresh()
    saved, want, count = [7.0] * 4, [7.0] * 4, 100.0
    for n, event in enumerate(history):
        if event == "save":
            save(disk._replace(round=n), folder / "d")
            save(memory._replace(round=n), folder / "m")
            saved = list(want)
        elif event == "restart":
            disk, memory = fresh()
            if (folder / "d").exists():
                disk, memory = load(folder / "d", disk), load(folder / "m", memory)
            want = list(saved)
        else:
            for i in event:
                want[i] = count = count + 1
            for state in (disk, memory):
                state.clients.put(event, [_own(want[i]) for i in event])
        assert _values(disk.clients) == _values(memory.clients) == want


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """SIGKILL at any moment after a checkpoint: the checkpoint holds."""
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from idiolect.simulation import State\n"
        "from idiolect.runs.checkpoint import save\n"
        "from idiolect.simulation.client_store import OnDisk\n"
        "folder = Path(sys.argv[1])\n"
        "clients = OnDisk(torch.zeros(1000), 50, folder / 'c')\n"
        "clients.put(range(50), [torch.full((1000,), float(i)) for i in range(50)])\n"
        "save(State((), clients, 1), folder / 'd')\n"
        "print('saved', flush=True)\n"
        "while True: clients.put(range(50), [torch.full((1000,), -1.0) for i in range(50)])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"saved\n"
        process.kill()
    got = load(tmp_path / "d", State((), OnDisk(torch.zeros(1000), 50, tmp_path / "c"), 0))
    assert all(torch.equal(c, torch.full((1000,), float(i))) for i, c in enumerate(got.clients))


def test_large_states_stand_on_disk_where_there_is_a_folder(tmp_path: Path) -> None:
    megabyte = torch.zeros(2**18)
    assert isinstance(store(megabyte, 256, tmp_path / "a"), InMemory)
    assert isinstance(store(megabyte, 257, tmp_path / "b"), OnDisk)
    assert isinstance(store(megabyte, 257), InMemory)
    assert not (tmp_path / "a").exists()


def test_what_was_never_put_takes_no_room(tmp_path: Path) -> None:
    clients = OnDisk(torch.zeros(2**18), 10_000, tmp_path / "c")
    clients.put([9_999], [torch.ones(2**18)])
    clients.snapshot()
    (file,) = (tmp_path / "c").iterdir()
    assert file.stat().st_blocks * 512 < 2 * 2**20
    assert float(clients[9_999].sum()) == 2**18


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_reading_leaves_nothing_resident(tmp_path: Path) -> None:
    clients = OnDisk(torch.zeros(2**20), 40, tmp_path / "c")
    clients.put(range(40), [torch.ones(2**20)] * 40)
    before = _resident()
    assert sum(float(c[0]) for c in clients) == 40
    assert _resident() - before < 40 * 2**20, "160 MB were read"


@pytest.mark.parametrize("other", [_own(1)._replace(weight=torch.zeros(9)), {"other": torch.zeros(2)}])
def test_other_clients(tmp_path: Path, made: Clients, other: Any) -> None:
    made.put([1], [_own(1)])
    save(State((), made, 1), tmp_path / "saved")
    for clients in (InMemory(other, 4), InMemory(_own(0), 1), OnDisk(_own(0), 3, tmp_path / "three")):
        with pytest.raises(InputError, match="another method, model or version"):
            load(tmp_path / "saved", State((), clients, 0))


def _fails_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """The disk is full after some writes."""
    real, count = clients_module._File.write, [0]

    def write(self: Any, row: int, value: torch.Tensor) -> None:
        count[0] += 1
        if count[0] > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, row, value)

    monkeypatch.setattr(clients_module._File, "write", write)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = OnDisk(_own(7), 4, tmp_path / "c")
    _fails_after(monkeypatch, 0)
    with pytest.raises(
        RunError, match=r"cannot keep the clients' states in .*No space left on device.*free some space"
    ):
        clients.put([0], [_own(1)])
    assert int(clients[0].rounds) == 7


def test_a_put_that_fails_midway_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some clients are a round ahead then: a checkpoint of them would be of no round."""
    clients = OnDisk(_own(7), 4, tmp_path / "c")
    clients.put([0, 1], [_own(1), _own(1)])
    save(State((), clients, 1), tmp_path / "saved")
    clients.put([0, 1], [_own(2), _own(2)])
    with monkeypatch.context() as patched:
        _fails_after(patched, 5)
        with pytest.raises(RunError, match="No space"):
            clients.put([0, 1], [_own(3), _own(3)])
    with pytest.raises(RunError, match="are from two rounds: continue from the last checkpoint"):
        save(State((), clients, 2), tmp_path / "saved")
    again = load(tmp_path / "saved", State((), OnDisk(_own(7), 4, tmp_path / "c"), 0))
    assert _values(again.clients) == [1, 1, 7, 7]


def test_a_checkpoint_without_its_files(tmp_path: Path) -> None:
    clients = OnDisk(_own(7), 4, tmp_path / "c")
    save(State((), clients, 0), tmp_path / "none")
    clients.put([1], [_own(1)])
    save(State((), clients, 1), tmp_path / "saved")
    file = sorted((tmp_path / "c").iterdir())[0]
    content = file.read_bytes()
    for change in (lambda: file.write_bytes(content + b"0"), file.unlink):
        change()
        with pytest.raises(InputError, match="another method, model or version"):
            load(tmp_path / "saved", State((), OnDisk(_own(7), 4, tmp_path / "c"), 0))
    assert _values(load(tmp_path / "none", State((), OnDisk(_own(7), 4, tmp_path / "c"), 0)).clients) == [7] * 4


def test_states_of_another_shape_on_disk(tmp_path: Path) -> None:
    clients = OnDisk(_own(7), 4, tmp_path / "c")
    clients.put([1], [_own(1)])
    save(State((), clients, 1), tmp_path / "saved")
    with pytest.raises(InputError, match="another method, model or version"):
        load(tmp_path / "saved", State((), OnDisk(_own(7)._replace(weight=torch.zeros(9)), 4, tmp_path / "c"), 0))
    assert _values(load(tmp_path / "saved", State((), OnDisk(_own(7), 4, tmp_path / "c"), 0)).clients) == [7, 1, 7, 7]


def test_a_state_that_changes_its_shape(tmp_path: Path) -> None:
    clients = OnDisk(_own(7), 4, tmp_path / "c")
    with pytest.raises(
        ValueError, match=r"from \(2, 3\) torch.float32 to \(2, 4\) torch.float32: init_client must return"
    ):
        clients.put([0], [_own(1)._replace(weight=torch.zeros(2, 4))])
