"""The clients of one call of ``map``, and what workers have answered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

import torch

from idiolect.core import tree
from idiolect.core.method import Down
from idiolect.core.reduction import Branch
from idiolect.core.tree import Tree
from idiolect.engines import serialization
from idiolect.engines.processes.turns import Branches, Line, Turns
from idiolect.simulation.adding import Places
from idiolect.simulation.client_runner import Phase

if TYPE_CHECKING:
    from idiolect.engines.processes.pool import PoolJob, Worker

_NUMBERS = itertools.count()  # a worker that kept the last batch itself would keep its results


class Batch:
    """The clients of one ``map``."""

    def __init__(
        self, job: PoolJob, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree],
        groups: list[list[int]], places: Places | None,
    ) -> None:  # fmt: skip
        self.number = next(_NUMBERS)
        self.job, self.shared = job, serialization.pack(("down", job.number, bytes(serialization.pack(down.shared))))
        self.when = f"in round {round} ({phase})"
        self._about = phase, round, ids, down.own, clients
        self.todo: Turns = Line(groups)
        if places is not None:
            train = job.data.train
            self.todo = Branches(places.branches(k for [k] in groups), lambda k: len(train[ids[k]]))
        self._places, self._left = places, len(groups)
        self._holders: set[Worker] = set()  # workers that have added up uploads, and may have some left
        self._rest: list[Branch] = []
        self.results: list[Any] = [None] * len(ids)
        self.seconds, self.over = 0.0, Event()
        self.error: BaseException | None = None
        if not groups:
            self.over.set()

    def message(self, group: list[int]) -> memoryview:
        """The message to a worker about a group of clients."""
        phase, round, ids, own, clients = self._about
        own_rows = tree.rows(own, torch.tensor(group))
        places = self._places and self._places.of(group)
        some = [ids[k] for k in group], own_rows, [clients[k] for k in group]
        return serialization.pack(("run", self.job.number, self.number, phase, round, *some, places))

    def take(self, group: list[int], answers: Sequence[Any], seconds: float) -> None:
        """A group's results; without a group the branches that a worker had left."""
        for k, result in zip(group, answers, strict=bool(group)):
            self.results[k] = result
        if not group:
            self._rest += answers
        self.seconds += seconds
        self._left -= 1
        if not self._left:
            if self._rest:
                self.results[0] = self.results[0].with_sums(self._rest)
            self.over.set()

    def add_holder(self, worker: Worker) -> None:
        """A worker has got a client."""
        if self._places is not None:
            self._holders.add(worker)

    def ask_rests(self) -> None:
        """Once all clients are with workers, ask these for the branches that are left."""
        if not self.todo and not self.over.is_set():
            self._left += len(self._holders)
            for worker in self._holders:
                worker.ask_rest(self)
            self._holders = set()

    def fail(self, error: BaseException) -> None:
        """End it, unless it has ended."""
        if not self.over.is_set():
            self.todo, self.error = Line([]), error
            self.over.set()
