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
from idiolect.engines.ray.nodes import Node, Sent, Todo
from idiolect.simulation.adding import BRANCH, Places
from idiolect.simulation.client_runner import PAUSE, EvaluationResult, Job, LocalResult, Phase, Stop, groups

if TYPE_CHECKING:
    from idiolect.engines.ray.engine import Ray

PART = 2**26  # bytes of models and states of these groups, unless one is larger
_AHEAD = 2  # parts of a phase that are sent to a node before it answers, so that it never waits for the next one


class Spread:
    """A job on the nodes of a cluster."""

    def __init__(self, engine: Ray, number: int, job: Job) -> None:
        ray = import_ray()
        self.seconds = 0.0
        self._engine, self._number, self._data = engine, number, job.data
        try:
            told = pack(job._replace(data=None))  # type: ignore[arg-type]
        except Exception as error:
            what = f"{job.name} cannot be sent to a node ({one_line(error)})"
            raise RunError(
                f"{what}: put the method in a module that can be imported, or use the sequential engine"
            ) from error
        self._job = ray.put(told)
        self._home_K = np.full(job.data.clients, -1, np.int32)
        self._version_K = np.zeros(job.data.clients, np.int64)
        self._spent: dict[int, float] = {}
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
        owned = self._data.train if phase in ("local", "stand_by") else self._data.test
        size = tree.nbytes((down.shared, list(clients[:1])))
        todo = Todo(lambda group: sum(len(owned[ids[k]]) for k in group), max(1, PART // max(1, size)))
        node_of = {node.number: node for node in nodes}
        every = groups(phase, self._data, ids)
        if places is not None:  # a node gets whole branches of the tree of additions, and sends their sums
            branches: dict[int, list[int]] = {}
            for [k] in every:
                branches.setdefault(places.at[k] >> BRANCH, []).append(k)
            every = list(branches.values())
        todo.plan(every, nodes, lambda group: node_of.get(self._home([ids[k] for k in group])))
        shared = ray.put(pack(down.shared))
        self._maps += 1
        results: list[Any] = [None] * len(ids)
        asked: dict[Any, Sent] = {}

        def ask(node: Node, mine: list[list[int]]) -> None:
            part = Sent(node, mine, sorted(k for group in mine for k in group))
            some = [ids[k] for k in part.places]  # in this order the node makes the same groups
            kept = [self._kept(node, ids[k], clients[k]) for k in part.places]
            states = [None if version else clients[k] for k, version in zip(part.places, kept, strict=True)]
            at = places and Places([places.at[k] for k in part.places], places.total)
            message = pack((some, tree.rows(down.own, torch.tensor(part.places)), states, kept, at))
            asked[node.actor.run.remote(self._number, self._job, phase, round, self._maps, shared, message)] = part

        def answered(ref: Any) -> None:
            part = asked.pop(ref)
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayError as error:
                gone = [part] + [asked.pop(r) for r, other in list(asked.items()) if other.node is part.node]
                lost = [ids[k] for one in gone for k in one.places]
                self._engine.lose(part.node, round, lost, type(error).__name__)
                nodes.remove(part.node)
                if not nodes:
                    raise self._engine.none_left(when) from error
                again = [group for one in gone for group in one.groups]
                todo.plan(again + todo.drop(part.node), nodes, lambda group: None)
                return
            failure, found = unpack(answer)
            if failure is not None:
                raise failure
            if found.missing:
                self._version_K[found.missing] = 0
                todo.plan(part.groups, [part.node], lambda group: None)
                return
            for k, result, version in zip(part.places, found.results, found.versions, strict=True):
                results[k] = result
                if version:
                    self._home_K[ids[k]], self._version_K[ids[k]] = part.node.number, version
            self._worked(part.node, found.seconds)

        while todo or asked:
            for ahead in range(_AHEAD):
                under_way = Counter(part.node for part in asked.values())
                for node in nodes:
                    if under_way[node] <= ahead and (mine := todo.take(node)):
                        ask(node, mine)
            if stop():
                raise Interrupted
            done, _ = ray.wait(list(asked), num_returns=1, timeout=PAUSE)
            for ref in done:
                if ref in asked:
                    answered(ref)
        return results

    def close(self) -> None:
        """Remove the job from the nodes."""
        self._engine.closed(self._number)

    def _home(self, ids: list[int]) -> int:
        """The number of the node that has the states of most of these clients."""
        ((home, _),) = Counter(self._home_K[ids].tolist()).most_common(1)
        return int(home)

    def _kept(self, node: Node, id: int, state: Tree) -> int:
        """The version of a state that the node has; 0 if it has to be sent."""
        if self._home_K[id] != node.number or not (known := int(self._version_K[id])):
            return 0
        return known if version_of(state) == known else 0

    def _worked(self, node: Node, seconds: float) -> None:
        before = self._spent.get(node.number, 0.0)
        more = max(0.0, seconds - before)  # answers may arrive in another order
        self._spent[node.number] = before + more
        self.seconds += more
        self._engine.work(more)
