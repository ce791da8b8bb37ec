"""What the program knows about a node, and the clients that are not sent yet."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class NodeFailure(NamedTuple):
    """Work that was lost with a node and that others did again."""

    node: str
    round: int
    clients: list[int]


@dataclass(eq=False)
class Node:
    """What the caller knows about a node."""

    number: int
    id: str
    name: str
    workers: int
    groups: int
    """Groups of clients that are sent to a worker at a time."""
    actor: Any
    starting: Any
    """The answer of a node that is starting; None when the node is ready."""
    first: bool
    """Whether no other node was ready before it, so that the run waits for it."""
    until: float
    """When it should be ready, on the monotonic clock."""


class Request(NamedTuple):
    """A request to a node: groups of clients, and their places in ``ids``, ascending."""

    node: Node
    groups: list[list[int]]
    places: list[int]


class Todo:
    """Groups of clients that wait, by their node, the most work first."""

    def __init__(self, work: Callable[[list[int]], int], most: int) -> None:
        self._work, self._most = work, most
        self._queues: dict[Node, deque[list[int]]] = {}
        self._left: Counter[Node] = Counter()

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def plan(
        self, groups: Sequence[list[int]], nodes: Sequence[Node], home: Callable[[list[int]], Node | None]
    ) -> None:
        """Give each group a node: its home, or the one with the least work per worker."""
        groups = sorted(groups, key=self._work, reverse=True)
        homes = [home(group) for group in groups]
        for group, node in sorted(zip(groups, homes, strict=True), key=lambda pair: pair[1] is None):
            node = node or min(nodes, key=lambda n: self._left[n] / n.workers)
            self._queues.setdefault(node, deque()).append(group)
            self._left[node] += self._work(group)
        for node, queue in self._queues.items():
            self._queues[node] = deque(sorted(queue, key=self._work, reverse=True))

    def take(self, node: Node) -> list[list[int]]:
        """The next groups for a node: fewer each time, so that all nodes end together."""
        queue, of = self._queues.get(node), node
        if not queue:
            others = [n for n, queue in self._queues.items() if queue]
            of = max(others, key=lambda n: self._left[n] / n.workers, default=node)
            queue = self._queues.get(of, deque())
        most = max(node.workers, min(min(node.groups, self._most) * node.workers, len(queue) // 2))
        part = [queue.popleft() for _ in range(min(most, len(queue)))]
        self._left[of] -= sum(map(self._work, part))
        return part

    def drop(self, node: Node) -> list[list[int]]:
        """Take back all groups of a node."""
        del self._left[node]
        return list(self._queues.pop(node, ()))
