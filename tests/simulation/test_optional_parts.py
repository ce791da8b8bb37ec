"""What a method may say besides: clients that stand by, rounds of all clients, starts of their own."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.method import Data, Down, Method, Task, Up, reduce
from idiolect.engines import Processes, Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.federation.events import Events
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.engine import Remote, Sites
from idiolect.runs.checkpoint import load, save
from idiolect.simulation import Job, Record, State, begin, fit
from idiolect.simulation.client_store import store


def counting(
    task: Task, *, waits: bool = True, full: tuple[int, ...] = (), own: bool = False, personal: bool = True
) -> Method:
    """A client counts the rounds in which it trained and those in which it waited, with what it was told of them."""

    def init_client(key: Tensor, id: Tensor) -> Tensor:
        return torch.stack([id.double() if own else torch.zeros((), dtype=torch.float64), *torch.zeros(4).double()])

    def send(server: Tensor, ids: Tensor) -> Down:
        return Down(server, ids)

    def local(down: Down, client: Tensor, data: Data, key: Tensor) -> Any:
        return client + torch.tensor([0.0, 1, 0, 0, 0]).double(), Up(torch.ones(1)), {"trained": data.round.double()}

    def stand_by(down: Down, client: Tensor, data: Data, key: Tensor) -> Tensor:
        zero = torch.zeros((), dtype=torch.float64)
        draw = (keys.bits(key, 1)[0] & 0xFFFF).double()
        seen = torch.stack([zero, zero, zero + 1, down.shared[0].double() * 100 + down.own, draw])
        return client + seen + 10**7 * (data.round * (data.rounds + 1)).double() * torch.eye(5).double()[3]

    def aggregate(server: Tensor, up: Any, ids: Tensor) -> Any:
        return server + 1, {}

    def predict(down: Down, client: Tensor, x_B: Tensor) -> Tensor:
        return torch.full((len(x_B), toy.CLASSES), 1 / toy.CLASSES).log()

    return Method(
        lambda key: torch.zeros(1), init_client, send, local, reduce.sum(), aggregate,
        lambda down, client, data, key: client, predict, stand_by if waits else None, full, own,
    )  # fmt: skip


def run(engine: Any, rounds: int = 3, share: float = 0.4, state: State | None = None, **how: Any) -> Any:
    job = Job("counting", partial(counting, toy.task(), **how), toy.shared(), 3)
    log: list[Record] = []
    with engine as runs_on:
        end = fit(
            job, runs_on, rounds=rounds, participation=share, state=state,
            on_round=lambda state, records, seconds: log.extend(records),
        )  # fmt: skip
    return end, log


def drawn(log: list[Record]) -> dict[int, set[int]]:
    """The participants of each round."""
    return {n: {r.client for r in log if r.round == n and r.metric == "trained"} for n in {r.round for r in log}}


@pytest.mark.parametrize("engine", [Sequential, partial(Processes, 2), partial(Vectorised, device="cpu")])
def test_clients_that_are_not_drawn_stand_by(engine: Any) -> None:
    """They get the round's message, their own row of it, the number of the round, and a key of their own."""
    end, log = run(engine())
    rounds = drawn(log)
    assert all(0 < len(some) < len(toy.SIZES) for some in rounds.values())
    for k, state in enumerate(end.clients):
        waiting = [n for n, some in rounds.items() if k not in some]
        assert state[1:3].tolist() == [3 - len(waiting), len(waiting)]
        # the server counts the rounds before; the last round is 3
        assert float(state[3]) == sum(100 * (n - 1) + k + 10**7 * n * 4 for n in waiting)
        draws = [int(keys.bits(keys.key(3, n, k, "stand_by"), 1)[0] & 0xFFFF) for n in waiting]
        assert float(state[4]) == sum(draws)


def test_nobody_waits_where_all_take_part_or_a_method_does_not_say_so() -> None:
    end, _ = run(Sequential(), share=1.0)
    assert [state[1:3].tolist() for state in end.clients] == [[3, 0]] * len(toy.SIZES)
    end, log = run(Sequential(), waits=False)
    assert all(float(state[2]) == 0 for state in end.clients)
    assert {len(some) for some in drawn(log).values()} == {2}


@pytest.mark.parametrize("full", [(1,), (2, 3), (7,)])
def test_all_take_part_in_the_rounds_that_a_method_names(full: tuple[int, ...]) -> None:
    _, log = run(Sequential(), full=full)
    sizes = {n: len(some) for n, some in drawn(log).items()}
    assert sizes == {n: len(toy.SIZES) if n in full else 2 for n in (1, 2, 3)}


def test_clients_start_from_their_own(tmp_path: Path) -> None:
    """Also those that are never drawn, after a resume, and where states are on disk."""
    end, _ = run(Sequential(), own=True)
    assert [float(state[0]) for state in end.clients] == list(range(len(toy.SIZES)))
    half, _ = run(Sequential(), 2, own=True, waits=False)
    save(half, tmp_path / "half")
    state = load(tmp_path / "half", begin(counting(toy.task(), own=True), len(toy.SIZES), 3))
    resumed, _ = run(Sequential(), 3, own=True, waits=False, state=state)
    whole, _ = run(Sequential(), 3, own=True, waits=False)
    assert resumed.equals(whole)
    on_disk = store(torch.zeros(2**26), 9, tmp_path / "states", lambda k: torch.full((2**26,), float(k)))
    on_disk.put([4], [torch.full((2**26,), 0.5)])
    assert [float(on_disk[k][0]) for k in (0, 3, 4, 8)] == [0, 3, 0.5, 8]


def test_new_clients_start_from_their_own() -> None:
    method = counting(toy.task(), own=True)
    assert float(method.init_client(keys.start(3), torch.tensor(11))[0]) == 11


def test_resuming_is_exact(tmp_path: Path) -> None:
    whole, _ = run(Sequential(), 4)
    half, _ = run(Sequential(), 2)
    save(half, tmp_path / "half")
    # the number of the last round is part of what a waiting client sees here
    assert not half.equals(whole)
    state = load(tmp_path / "half", begin(counting(toy.task()), len(toy.SIZES), 3))
    again, _ = run(Processes(2), 4, state=state)
    other, _ = run(Sequential(), 4, state=load(tmp_path / "half", begin(counting(toy.task()), len(toy.SIZES), 3)))
    assert again.equals(other)
    counts = [[state[1:3].tolist() for state in some.clients] for some in (whole, again)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("share", "waits"), [(0.5, True), (1.0, True), (0.5, False)])
def test_a_federation_asks_only_sites_that_are_drawn(share: float, waits: bool) -> None:
    sites: Any = Sites(None, {}, Patience(), 10.0, Events(quiet=True), samples=lambda k: 1)  # type: ignore[arg-type]
    sites.participation = share
    job = Job("counting", Remote(partial(counting, toy.task(), waits=waits)), toy.shared(), 3)
    if share < 1 and waits:
        with pytest.raises(InputError, match=r"method counting cannot run at sites with participation 0\.5"):
            sites.open(job)
    else:
        assert sites.open(job) is not None
