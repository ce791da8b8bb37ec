"""The only round loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import torch

from idiolect import keys, tree
from idiolect.engines.site import Job, Measured, Stage, Stop, Trained
from idiolect.errors import Diverged, blame
from idiolect.method import Down, Info, Method, Up
from idiolect.tree import Tree


class Engine(Protocol):
    """Runs a stage for some clients. Engines know no method."""

    def __enter__(self) -> Self:
        """Take what the engine needs."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""

    def open(self, job: Job) -> None:
        """Take up a job; ``map`` works on the one opened last."""

    def map(
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop
    ) -> list[Trained | Measured]:
        """One stage for some clients, in the order of ``ids``."""


class State(NamedTuple):
    """All that a run continues from."""

    server: Tree
    clients: list[Tree]
    round: int
    """Rounds done."""


class Record(NamedTuple):
    """One measured number of one client in one round."""

    round: int
    client: int
    moment: str
    """``adapted``: the personal model on test rows; ``joined``: that of a client that did not train; ``local`` and
    ``server``: what these report; ``wire``: bytes."""
    metric: str
    value: float


def begin(method: Method, clients: int, seed: int) -> State:
    """The state before the first round."""
    key = keys.key(seed, "enrol")
    return State(
        tree.copy(method.init(keys.key(seed, "init"))), [tree.copy(method.enrol(key)) for _ in range(clients)], 0
    )


def participants(seed: int, round: int, clients: int, participation: float) -> list[int]:
    """The clients of a round, ascending: a uniform draw of round(participation * clients), at least one."""
    count = max(1, int(participation * clients + 0.5))
    return sorted(keys.generator(seed, round, "participation").choice(clients, count, replace=False).tolist())


def fit(
    job: Job,
    engine: Engine,
    *,
    rounds: int,
    participation: float = 1.0,
    evaluate_every: int = 1,
    state: State | None = None,
    on_round: Callable[[State, list[Record]], None] = lambda state, records: None,
    stop: Stop = lambda: False,
) -> State:
    """Run a job to round ``rounds``, from the start or from a state.

    A round: draw participants; ``send``; ``local`` for each; ``aggregate`` their uploads in the order of their
    numbers. At evaluation rounds and after the last, every client's personal model (``adapt``, then ``predict``) is
    measured on its test rows; what ``adapt`` made is not kept. After the last round the clients that did not train join
    (``enrol``, ``send``, ``adapt``) and are measured too.

    Args:
        job: method, data, seed.
        engine: runs the clients.
        rounds: in total, those of ``state`` included.
        participation: share of the clients that take part in a round.
        evaluate_every: rounds between evaluations.
        state: where to continue.
        on_round: called after each round with the new state and the round's records.
        stop: asked between clients; True ends the run at the last whole round.

    Raises:
        RunError: a client or the server failed or diverged.
        Interrupted: ``stop`` said so.
    """
    method = job.build()
    state = state or begin(method, job.data.trained, job.seed)
    engine.open(job)
    everyone = list(range(job.data.trained))
    for number in range(state.round + 1, rounds + 1):
        ids = participants(job.seed, number, len(everyone), participation)
        down = _send(job, method, state.server, ids, number)
        clients, ups, reports = list(state.clients), list[Up](), list[Info]()
        for i, t in zip(ids, engine.map("local", number, ids, down, [clients[i] for i in ids], stop), strict=True):
            assert isinstance(t, Trained)
            clients[i] = t.client
            ups.append(t.up)
            reports.append(t.info)
        del t  # with it the only other hold on an upload
        with blame(f"{job.name}: server, round {number}, uploads"):
            up = tree.gather(ups)
        server, info = _aggregate(job, method, state.server, up, ids, number)
        state = State(server, clients, number)

        evaluating = number % evaluate_every == 0 or number == rounds
        with blame(f"{job.name}: round {number}, info"):
            records = _reported(number, ids, reports)
            records += _wired(number, ids, down, up)
            records += _from_server(number, ids, info) if evaluating else []
        del up, down
        if evaluating:
            records += _evaluated(job, method, engine, state, everyone, "adapted", stop)
        if number == rounds:
            fresh = method.enrol(keys.key(job.seed, "enrol"))
            newcomers = range(job.data.trained, job.data.clients)
            for ids in (list(newcomers[k : k + len(everyone)]) for k in range(0, len(newcomers), len(everyone))):
                joining = state._replace(clients=[fresh] * len(ids))
                records += _evaluated(job, method, engine, joining, ids, "joined", stop)
        on_round(state, records)
    return state


def _evaluated(
    job: Job, method: Method, engine: Engine, state: State, ids: Sequence[int], moment: str, stop: Stop
) -> list[Record]:
    """What the personal models of some clients, whose states these are, do on their test rows."""
    down = _send(job, method, state.server, ids, state.round)
    found = engine.map("evaluate", state.round, ids, down, state.clients, stop)
    records = []
    for i, measured in zip(ids, found, strict=True):
        assert isinstance(measured, Measured)
        records += [Record(state.round, i, moment, metric, value) for metric, value in measured._asdict().items()]
    return records


def _send(job: Job, method: Method, server: Tree, ids: Sequence[int], number: int) -> Down:
    with blame(f"{job.name}: server, round {number}, send"):
        return method.send(server, torch.tensor(ids))


def _aggregate(job: Job, method: Method, server: Tree, up: Tree, ids: Sequence[int], number: int) -> tuple[Tree, Info]:
    where = f"{job.name}: server, round {number}, aggregate"
    with blame(where):
        server, info = method.aggregate(server, up, torch.tensor(ids))
    if (path := tree.not_finite(server)) is not None:
        raise Diverged(f"{where}: training diverged ({path} is not a finite number); lower the learning rate")
    return tree.copy(server), info


def _reported(number: int, ids: Sequence[int], infos: Sequence[Info]) -> list[Record]:
    return [
        Record(number, i, "local", name, float(value))
        for i, info in zip(ids, infos, strict=True)
        for name, value in info.items()
    ]


def _wired(number: int, ids: Sequence[int], down: Down, up: Tree) -> list[Record]:
    sent = tree.nbytes(down.shared) + tree.nbytes(down.own) // len(ids)
    received = tree.nbytes(up) // len(ids)
    pairs = (("bytes_down", sent), ("bytes_up", received))
    return [Record(number, i, "wire", metric, float(value)) for i in ids for metric, value in pairs]


def _from_server(number: int, ids: Sequence[int], info: Info) -> list[Record]:
    """A value per participant, or a row per participant with one column for each (``name[client]``)."""
    records = []
    for name, value in info.items():
        for i, row in zip(ids, value.tolist(), strict=True):
            columns = zip(ids, row, strict=True) if isinstance(row, list) else [(None, row)]
            records += [
                Record(number, i, "server", name if j is None else f"{name}[{j}]", float(v)) for j, v in columns
            ]
    return records
