"""The nodes of a Ray cluster, with an engine on each of them."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import torch

from idiolect.core import tree
from idiolect.core.errors import InputError, Interrupted, RunError, printable
from idiolect.data import FederatedData
from idiolect.engines.ray.cluster import connect, import_ray, name_of, versions
from idiolect.engines.ray.host import Host
from idiolect.engines.ray.messages import one_line, pack
from idiolect.engines.ray.nodes import Node, NodeFailure
from idiolect.engines.ray.session import Spread
from idiolect.engines.threads import OneThread
from idiolect.simulation.client_runner import PAUSE, Job, Stop

_INNER = {"processes": 8, "sequential": 8, "vectorised": 256}  # groups of clients that are sent to a worker at a time
_START_SECONDS = 60.0  # seconds after which the run starts without a node that is not ready
_FIRST_SECONDS = 300.0  # the same if no other node is ready; a busy machine takes minutes to start Python and PyTorch
_RETRY_SECONDS = 30.0  # seconds after which a lost node is tried again, if it still exists


class Ray:
    """Clients on the nodes of a Ray cluster, with the same bits as ``Sequential`` unless ``inner`` is vectorised.

    Each node has one copy of the samples, an engine, and the states of the clients that it trained last. Clients return
    to the node that has their state. The caller's states stay authoritative: if a node is lost, only its running work
    is lost, and the others do it again. A node that joins is used from the next round on.

    Args:
        workers: how many on each node, at most; None takes all cores that Ray has there.
        address: of the cluster (``auto``, or host:port). This machine is one of its nodes, and all nodes have this
            package installed. None starts Ray on this machine only; no other machine can reach it.
        inner: the engine on each node. ``vectorised`` is for those with a GPU; the others then take ``processes``.

    Attributes:
        failures: the nodes that were lost so far, and their work.

    Raises:
        InputError: Ray is not installed, an option is not possible, or (``with``) no cluster answers at the address.
    """

    name = "ray"
    lanes = 2  # while one job's server works, the other's clients are trained

    def __init__(self, workers: int | None = None, *, address: str | None = None, inner: str = "processes") -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers={workers} is not possible: give at least 1")
        if inner not in _INNER:
            raise InputError(f"inner={inner!r} is not an engine for a node: choose {', '.join(_INNER)}")
        if address is not None and not re.fullmatch(r"auto|[^/\s:]+:\d+|\[[\da-fA-F:]+\]:\d+", address):
            raise InputError(f"address={address!r} is not the address of a Ray cluster: give auto, or host:port")
        if find_spec("ray") is None:
            raise InputError('the ray engine needs Ray: pip install "idiolect[ray]"')
        self.workers = workers or 1
        self.seconds = 0.0
        self.failures: list[NodeFailure] = []
        self._worker_limit, self._address, self._inner = workers, address, inner
        self.options: dict[str, object] = {} if inner == "processes" else {"inner": inner}
        self.options |= {} if address is None else {"address": address}
        self._nodes: dict[str, Node] = {}
        self._refusals: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._data: FederatedData | None = None
        self._open: set[int] = set()
        self._lock, self._job_count, self._node_count = threading.RLock(), 0, 0
        self._ours = False
        self._one = OneThread()

    def __enter__(self) -> Ray:
        ray = import_ray()
        self._ours = not ray.is_initialized()
        if self._ours:
            connect(self._address, self._worker_limit)
        self._one.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray = import_ray()
        self._stop()
        if self._ours:
            ray.shutdown()
        self._one.__exit__()

    def open(self, job: Job) -> Spread:
        """Take up a job.

        Raises:
            RunError: the cluster cannot hold the samples.
            InputError: a job with other data is open.
        """
        with self._lock:
            if self._data is not job.data:
                if self._open:
                    raise InputError(f"{job.name} has other data than the job that is open: close that job first")
                self._stop()
                self._data = job.data
                self._refresh()
            self._job_count += 1
            spread = Spread(self, self._job_count, job)
            self._open.add(self._job_count)
            return spread

    def ready(self, when: str, stop: Stop) -> list[Node]:
        """The nodes to use now; at the start, this waits for nodes that are starting.

        Raises:
            RunError: there is none.
            Interrupted: ``stop`` returned true.
        """
        ray = import_ray()
        with self._lock:
            self._refresh()
        while True:
            with self._lock:
                nodes = [n for n in self._nodes.values() if n.starting is None]
                patience = 0.0 if nodes else _FIRST_SECONDS - _START_SECONDS
                starting = [n for n in self._nodes.values() if n.starting is not None]
                coming = [n for n in starting if time.monotonic() < n.until + patience]
                if nodes and not any(n.first for n in coming):
                    return nodes
                if not coming:
                    raise self.none_left(when)
            if stop():
                raise Interrupted
            ray.wait([n.starting for n in coming], num_returns=len(coming), timeout=PAUSE)
            with self._lock:
                self._settle()

    def lose(self, node: Node, round: int, clients: Sequence[int], why: str) -> None:
        """Record what was lost with a node, and continue without it."""
        with self._lock:
            self.failures.append(NodeFailure(node.name, round, sorted(clients)))
            self._drop(node, _RETRY_SECONDS)
        _say(f"the node {node.name} was lost in round {round} ({why}) with {len(clients)} clients under way")

    def none_left(self, when: str) -> RunError:
        """The error if no node is left."""
        why = [f"{failure.node} was lost" for failure in self.failures[-1:]]
        why += [f"{name} {reason}" for name, reason in self._refusals.items()]
        why += [f"{node.name} has no free cores" for node in self._nodes.values()]
        what = f"no node of the Ray cluster is left {when} ({'; '.join(why) or 'none started'})"
        return RunError(f"{what}: start nodes with ray start --address=...")

    def work(self, seconds: float) -> None:
        """Add to the seconds of work done."""
        with self._lock:
            self.seconds += seconds

    def close_job(self, number: int) -> None:
        """Remove a job from the nodes."""
        with self._lock:
            self._open.discard(number)
            for node in self._nodes.values():
                node.actor.close.remote(number)

    def _refresh(self) -> None:
        """Start an actor on every node that has none, and remove nodes that have left."""
        ray = import_ray()
        self._settle()
        alive = {n["NodeID"]: n for n in ray.nodes() if n["Alive"]}
        for node in [n for n in self._nodes.values() if n.id not in alive]:
            _say(f"the node {node.name} has left")
            self._drop(node)
        new = [n for key, n in alive.items() if n["Resources"].get("CPU", 0) >= 1 and key not in self._nodes]
        new = [n for n in new if name_of(n) not in self._refusals]
        if self._nodes:  # Ray takes a while to notice that a node has left
            new = [n for n in new if time.monotonic() >= self._retry_at.get(n["NodeID"], 0.0)]
        if new and self._data is not None:
            self._start(new, self._data)

    def _start(self, records: list[dict[str, Any]], data: FederatedData) -> None:
        ray = import_ray()
        try:  # freed when all these nodes have their own copy
            rows = ray.put(tree.map(lambda a: a.numpy(), data.x_R))
            rest = ray.put(pack(replace(data, x_R=tree.rows(data.x_R, slice(0)), file=None)))
        except ray.exceptions.RayError as error:
            what = f"Ray cannot hold {tree.nbytes(data.x_R) / 1e6:,.0f} MB of samples ({one_line(error)})"
            raise RunError(f"{what}: start it with more --object-store-memory") from error
        first, until = not self._nodes, time.monotonic() + _START_SECONDS
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        for one in records:
            gpu = self._inner == "vectorised" and one["Resources"].get("GPU", 0) >= 1
            inner = "processes" if self._inner == "vectorised" and not gpu else self._inner
            has = int(one["Resources"]["CPU"])
            workers = min(self._worker_limit or has, has) if inner == "processes" else 1
            actor = (
                ray.remote(Host)
                .options(
                    num_cpus=workers, num_gpus=int(gpu), max_restarts=0, max_task_retries=0, max_concurrency=16,
                    scheduling_strategy=affinity(one["NodeID"], soft=False),
                )
                .remote([p or os.getcwd() for p in sys.path])
            )  # fmt: skip
            starting = actor.start.remote(inner, workers, rows, rest, torch.get_default_dtype())
            self._nodes[one["NodeID"]] = Node(
                self._node_count, one["NodeID"], name_of(one), workers, _INNER[inner], actor, starting, first, until
            )
            self._node_count += 1
        self._count()

    def _settle(self) -> None:
        """Find the nodes that have finished starting."""
        ray = import_ray()
        for node in [n for n in self._nodes.values() if n.starting is not None]:
            if not ray.wait([node.starting], timeout=0)[0]:
                continue
            try:
                node_versions, why = ray.get(node.starting), ""
                if node_versions != versions():
                    why = f"has {node_versions}, this program {versions()}"
            except ray.exceptions.RayActorError:
                self._drop(node, _RETRY_SECONDS)
                continue
            except Exception as error:  # noqa: BLE001  what a node cannot do is said, and the others go on
                why = f"cannot start ({one_line(error)})"
            node.starting = None
            if why:
                self._refusals[node.name] = why
                self._drop(node)
                _say(f"the node {node.name} is left out: it {why}")

    def _drop(self, node: Node, delay: float = 0.0) -> None:
        ray = import_ray()
        self._retry_at[node.id] = time.monotonic() + delay
        if self._nodes.get(node.id) is node:
            del self._nodes[node.id]
            ray.kill(node.actor)
            self._count()

    def _count(self) -> None:
        self.workers = sum(n.workers for n in self._nodes.values()) or self.workers

    def _stop(self) -> None:
        with self._lock:
            for node in list(self._nodes.values()):
                self._drop(node)
            self._refusals.clear()
            self._open.clear()
            self._data = None


def _say(what: str) -> None:
    print(printable(f"idiolect: {what}"), file=sys.stderr, flush=True)
