"""What a run asks of an engine, and what it passes on after each round."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import torch

from idiolect.core import tree
from idiolect.core.errors import Diverged
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.simulation.adding import Places
from idiolect.simulation.client_runner import EvaluationResult, Job, LocalResult, Phase, Stop
from idiolect.simulation.client_store import Clients

Keep = Callable[[str, int, torch.Tensor], None]
"""Takes predictions: the stage, the client, and the class probabilities of its test samples (N, C), float64."""


class Session(typing.Protocol):
    """A job that an engine has started."""

    seconds: float
    """Seconds of work in ``map`` so far, summed over all workers."""

    def map(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop,
        places: Places | None = None,
    ) -> Sequence[LocalResult | None] | Sequence[EvaluationResult | None]:  # fmt: skip
        """One phase for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

        With ``places``, where these clients stand among a round's participants, uploads may be added up on their way
        (see ``Adder``): results then have branches of sums, in any order, in place of uploads.

        None is for a client that did not answer, where clients are other machines. The round goes on without it.

        Raises:
            RunError: a client failed, or its worker.
            Interrupted: ``stop`` returned true.
        """

    def close(self) -> None:
        """End the job."""


class Engine(typing.Protocol):
    """Runs phases of jobs for some clients. Engines do not depend on methods."""

    name: str
    workers: int
    """How many clients, or groups of them, can run at once."""
    lanes: int
    """How many jobs it takes to keep the workers busy; ``map`` of each is called from a thread of its own."""
    seconds: float
    """Seconds of work for all jobs so far, summed over the workers."""
    options: dict[str, object]
    """What was asked of it, by the names of its options; those that are as usual may be left out."""

    def __enter__(self) -> Self:
        """Start what the engine needs."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""

    def open(self, job: Job) -> Session:
        """Start a job. Jobs that are open together have the same data."""


class State(NamedTuple):
    """All that is needed to continue a run; the clients are changed in place."""

    server: Tree
    clients: Clients
    round: int
    """Rounds that are done."""

    def equals(self, other: State) -> bool:
        """Whether both are equal to the bit: round, server and all clients."""
        pairs = [(self.server, other.server), *zip(self.clients, other.clients, strict=True)]
        return self.round == other.round and all(tree.same(a, b) for a, b in pairs)


class Record(NamedTuple):
    """One measured number of one client, or of a pair of clients, in one round."""

    round: int
    client: int
    stage: str
    """``received``, ``trained`` or ``personalised``: that model of a client (see ``Protocol``) on its test samples;
    ``new``: the personal model of a client that did not train; ``local`` and ``server``: what these report; ``wire``:
    bytes, and ``answered``, 0, for a client that was asked to train and whose upload does not count."""
    metric: str
    value: float
    other: int | None = None
    """The second client, for a value between two."""


class TrainingJob(NamedTuple):
    """A job of a training that several jobs share, from its own state, whose clients are changed in place."""

    job: Job
    state: State
    on_round: Callable[[State, list[Record], float], None]
    """Called after each round with the new state, the job's records of the round and its seconds: see ``fit``."""
    on_divergence: Callable[[Diverged], None]
    """Called when the training, or the measuring of this job alone, has diverged; the job is over then."""
    keep: Keep | None = None
    stops: Callable[[int, list[Record]], bool] = lambda round, records: False
    """Asked in each evaluated round before the last, with its records, whether training ends with it."""
