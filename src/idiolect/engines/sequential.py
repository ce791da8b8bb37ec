"""The plain loop: the reference for the other engines, and the one for debugging."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from idiolect.core import tree
from idiolect.core.errors import InputError, Interrupted
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.engines.threads import OneThread
from idiolect.simulation.adding import Adder, Places
from idiolect.simulation.client_runner import ClientRunner, EvaluationResult, Job, LocalResult, Phase, Stop, groups


class Sequential:
    """One client after another in this process, on one thread.

    Raises:
        InputError: more or fewer than one worker.
    """

    name = "sequential"
    workers = lanes = 1

    def __init__(self, workers: int | None = None) -> None:
        if workers not in (None, 1):
            raise InputError(f"workers={workers} is not possible with the sequential engine: leave it out")
        self.seconds, self.options = 0.0, dict[str, object]()
        self._one = OneThread()

    def __enter__(self) -> Sequential:
        self._one.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._one.__exit__()

    def open(self, job: Job) -> Loop:
        """Start a job."""
        return Loop(job, self)


class Loop:
    """A job in this process."""

    def __init__(self, job: Job, engine: Sequential) -> None:
        self.seconds, self._engine = 0.0, engine
        self._runner = ClientRunner(job)

    def map(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop,
        places: Places | None = None,
    ) -> list[LocalResult] | list[EvaluationResult]:  # fmt: skip
        """One phase for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

        Raises:
            RunError: a client failed.
            Interrupted: ``stop`` returned true.
        """
        start = time.perf_counter()
        shared = tree.copy(down.shared)
        results: list[Any] = [None] * len(ids)
        adder = Adder(self._runner.job, self._runner.method, places.total) if places else None
        for group in sorted(groups(phase, self._runner.job.data, ids)):
            if stop():
                raise Interrupted
            some = Down(shared, tree.rows(down.own, torch.tensor(group)))
            answers: Any = self._runner.run(phase, round, [ids[k] for k in group], some, [clients[k] for k in group])
            for k, result in zip(group, answers, strict=True):
                results[k] = adder.take(round, ids[k], places.at[k], result) if adder and places else result
        if adder:
            results[-1] = results[-1].with_sums(adder.rest())
        elapsed = time.perf_counter() - start
        self.seconds += elapsed
        self._engine.seconds += elapsed
        return results

    def close(self) -> None:
        """Do nothing: there is nothing to end."""
