"""A job on the nodes of a cluster: which clients go where, and what happens when a node is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from idiolect.core import tree
from idiolect.core.errors import Interrupted, RunError
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.engines.ray.cluster import import_ray
from idiolect.engines.ray.messages import one_line, pack, unpack, version_of
from idiolect.engines.ray.nodes import Node, Request, Todo
from idiolect.simulation.adding import Places
from idiolect.simulation.client_runner import PAUSE, EvaluationResult, Job, LocalResult, Phase, Stop, groups

if TYPE_CHECKING:
    from idiolect.engines.ray.engine import Ray

PART = 2**26  # bytes of models and states of these groups, unless one is larger
_QUEUE = 2  # parts of a phase that are sent to a node before it answers, so that it never waits for the next one


class Spread:
    """A job on the nodes of a cluster."""

    def __init__(self, engine: Ray, number: int, job: Job) -> None:
        ray = import_ray()
        self.seconds = 0.0
        self._engine, self._number, self._data = engine, number, job.data
        try:
            content = pack(job._replace(data=None))  # type: ignore[arg-type]
        except Exception as error:
            what = f"{job.name} cannot be sent to a node ({one_line(error)})"
            raise RunError(
                f"{what}: put the method in a module that can be imported, or use the sequential engine"
            ) from error
        self._job = ray.put(content)
        self._home_K = np.full(job.data.clients, -1, np.int32)
        self._version_K = np.zeros(job.data.clients, np.int64)
        self._seconds_of: dict[int, float] = {}
        self._maps = 0

    def map(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop,
        places: Places | None = None,
    ) -> list[LocalResult] | list[EvaluationResult]:  # fmt: skip
        """One phase for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

        A client goes to the node that keeps its state, or to the node with the least work. A node without work left
        takes some from the node with the most.

        Raises:
            RunError: a client failed, or no node is left.
            Interrupted: ``stop`` returned true.
        """
        ray = import_ray()
        when = f"in round {round} ({phase})"
        nodes = self._engine.ready(when, stop)
        rows_of = self._data.train if phase in ("local", "stand_by") else self._data.test
        size = tree.nbytes((down.shared, list(clients[:1])))
        todo = Todo(lambda group: sum(len(rows_of[ids[k]]) for k in group), max(1, PART // max(1, size)))
        node_of = {node.number: node for node in nodes}
        every = groups(phase, self._data, ids)
        if places is not None:  # a node gets whole branches of the tree of additions, and sends their sums
            every = places.branches(k for [k] in every)
        todo.plan(every, nodes, lambda group: node_of.get(self._home([ids[k] for k in group])))
        shared = ray.put(pack(down.shared))
        self._maps += 1
        results: list[Any] = [None] * len(ids)
        requests: dict[Any, Request] = {}

        def ask(node: Node, part_groups: list[list[int]]) -> None:
            part = Request(node, part_groups, sorted(k for group in part_groups for k in group))
            some = [ids[k] for k in part.places]  # in this order the node makes the same groups
            versions = [self._version_at(node, ids[k], clients[k]) for k in part.places]
            states = [None if version else clients[k] for k, version in zip(part.places, versions, strict=True)]
            at = places and places.of(part.places)
            message = pack((some, tree.rows(down.own, torch.tensor(part.places)), states, versions, at))
            requests[node.actor.run.remote(self._number, self._job, phase, round, self._maps, shared, message)] = part

        def take_answer(ref: Any) -> None:
            part = requests.pop(ref)
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayError as error:
                orphans = [part] + [requests.pop(r) for r, other in list(requests.items()) if other.node is part.node]
                client_ids = [ids[k] for one in orphans for k in one.places]
                self._engine.lose(part.node, round, client_ids, type(error).__name__)
                nodes.remove(part.node)
                if not nodes:
                    raise self._engine.none_left(when) from error
                orphan_groups = [group for one in orphans for group in one.groups]
                todo.plan(orphan_groups + todo.drop(part.node), nodes, lambda group: None)
                return
            failure, report = unpack(answer)
            if failure is not None:
                raise failure
            if report.missing:
                self._version_K[report.missing] = 0
                todo.plan(part.groups, [part.node], lambda group: None)
                return
            for k, result, version in zip(part.places, report.results, report.versions, strict=True):
                results[k] = result
                if version:
                    self._home_K[ids[k]], self._version_K[ids[k]] = part.node.number, version
            self._count_seconds(part.node, report.seconds)

        while todo or requests:
            for depth in range(_QUEUE):
                under_way = Counter(part.node for part in requests.values())
                for node in nodes:
                    if under_way[node] <= depth and (part_groups := todo.take(node)):
                        ask(node, part_groups)
            if stop():
                raise Interrupted
            ready, _ = ray.wait(list(requests), num_returns=1, timeout=PAUSE)
            for ref in ready:
                if ref in requests:
                    take_answer(ref)
        return results

    def close(self) -> None:
        """Remove the job from the nodes."""
        self._engine.close_job(self._number)

    def _home(self, ids: list[int]) -> int:
        """The number of the node that has the states of most of these clients."""
        ((home, _),) = Counter(self._home_K[ids].tolist()).most_common(1)
        return int(home)

    def _version_at(self, node: Node, id: int, state: Tree) -> int:
        """The version of a state that the node has; 0 if it has to be sent."""
        if self._home_K[id] != node.number or not (version := int(self._version_K[id])):
            return 0
        return version if version_of(state) == version else 0

    def _count_seconds(self, node: Node, seconds: float) -> None:
        before = self._seconds_of.get(node.number, 0.0)
        more = max(0.0, seconds - before)  # answers may arrive in another order
        self._seconds_of[node.number] = before + more
        self.seconds += more
        self._engine.work(more)
