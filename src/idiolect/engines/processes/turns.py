"""Which clients of a batch a worker gets next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol


class Turns(Protocol):
    """Groups of clients that wait for a worker."""

    def __bool__(self) -> bool:
        """Whether some wait."""

    def take(self, worker: Hashable) -> list[int]:
        """The next group for a worker."""


class Line:
    """Any worker gets the next group."""

    def __init__(self, groups: Sequence[list[int]]) -> None:
        self._groups = deque(groups)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def take(self, worker: Hashable) -> list[int]:
        """The next group."""
        return self._groups.popleft()


class Branches:
    """Each worker keeps to a branch of the tree of additions, so that it can add up what it trains.

    The branch with the most work is taken first. A worker that finds none takes clients from the branch in which the
    most work is left. Which worker trains a client changes no bit of the sum.

    Args:
        branches: the clients of each branch, the most work first.
        work: of a client.
    """

    def __init__(self, branches: Sequence[list[int]], work: Callable[[int], int]) -> None:
        self._work = work
        self._free = deque(sorted(map(deque, branches), key=self._left, reverse=True))
        self._branch_of: dict[Hashable, deque[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._free) or any(self._branch_of.values())

    def take(self, worker: Hashable) -> list[int]:
        """The next client for a worker."""
        branch = self._branch_of.get(worker)
        if not branch and self._free:
            branch = self._branch_of[worker] = self._free.popleft()
        return [(branch or max(self._branch_of.values(), key=self._left)).popleft()]

    def _left(self, clients: deque[int]) -> int:
        return sum(map(self._work, clients))
