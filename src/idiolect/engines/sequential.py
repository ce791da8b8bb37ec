"""The plain loop: the oracle that other engines are held to, and the one to debug with."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import torch

from idiolect import tree
from idiolect.engines.site import Job, Measured, Site, Stage, Stop, Trained
from idiolect.errors import InputError, Interrupted
from idiolect.method import Down
from idiolect.tree import Tree


class Sequential:
    """One client after another in this process, on one thread.

    Raises:
        InputError: more or fewer than one worker.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers not in (None, 1):
            raise InputError(f"workers={workers} is not possible with the sequential engine: leave it out")
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Sequential:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_num_threads(self._threads)

    def open(self, job: Job) -> None:
        """Take up a job; ``map`` works on the one opened last."""
        self._site = Site(job)

    def map(
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop
    ) -> list[Trained | Measured]:
        """One stage for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

        Raises:
            RunError: a client failed.
            Interrupted: ``stop`` said so.
        """
        results = []
        for k, id in enumerate(ids):
            if stop():
                raise Interrupted
            one = Down(down.shared, tree.rows(down.own, k))
            results.append(self._site.run(stage, round, id, one, clients[k]))
        return results
