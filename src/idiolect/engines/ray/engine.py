"""The nodes of a Ray cluster, an engine on each of them."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from importlib.util import find_spec
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect.core import tree
from idiolect.core.errors import IdiolectError, InputError, Interrupted, RunError, printable
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.data import FederatedData, shared_memory
from idiolect.engines import serialization
from idiolect.engines.processes import Processes, cores
from idiolect.engines.sequential import Sequential
from idiolect.engines.threads import OneThread
from idiolect.simulation.client_runner import Job, Measured, Stage, Stop, Trained, groups
from idiolect.simulation.rounds import Engine, Session

_INNER = {"processes": 8, "sequential": 8, "vectorised": 256}  # groups of clients that a worker is sent at a time
_PART = 2**26  # bytes of models and states of these groups, where one is not larger
_AHEAD = 2  # parts of a stage sent to a node before it has answered, so that it never waits for the next one
_PAUSE = 0.2  # seconds between two questions whether to stop
_REACHED = 15.0  # seconds after which a cluster that does not answer is not there
_STARTED = 60.0  # seconds after which a node that is not ready is left to come later
_AGAIN = 30.0  # seconds after which a node that was lost, if it is still there, is tried again
_SMALL = 4096  # bytes up to which a state is sent each time
_KEPT = 2**31  # bytes of states that a node keeps


class Lost(NamedTuple):
    """Work that was lost with a node, and that others did again."""

    node: str
    round: int
    clients: list[int]


class Ray:
    """Clients over the nodes of a Ray cluster, with the bits of ``Sequential`` unless ``inner`` is vectorised.

    Each node holds one copy of the rows, an engine, and the states of the clients that it trained last, to which these
    clients come back. The caller's states stay the truth: losing a node loses the work under way there, which the
    others do again. A node that joins is used from the next round on.

    Args:
        workers: how many on each node, at most; None takes the cores that Ray has there.
        address: of the cluster (``auto``, or host:port), whose nodes have this package installed, and of which this
            machine is one; None starts Ray on this machine alone, which no other machine can reach.
        inner: the engine on each node; ``vectorised`` where it has a GPU, ``processes`` on the others.

    Attributes:
        lost: what was lost with nodes so far.

    Raises:
        InputError: Ray is not installed, an option cannot be, or (``with``) no cluster answers at the address.
    """

    name = "ray"
    lanes = 2  # while one job is at its server, the other's clients are trained

    def __init__(self, workers: int | None = None, *, address: str | None = None, inner: str = "processes") -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers={workers} is not possible: ask for at least 1")
        if inner not in _INNER:
            raise InputError(f"inner={inner!r} is not an engine for a node: choose {', '.join(_INNER)}")
        if address is not None and not re.fullmatch(r"auto|[^/\s:]+:\d+|\[[\da-fA-F:]+\]:\d+", address):
            raise InputError(f"address={address!r} is not the address of a Ray cluster: give auto, or host:port")
        if find_spec("ray") is None:
            raise InputError('the ray engine needs Ray: pip install "idiolect[ray]"')
        self.workers = workers or 1
        self.seconds = 0.0
        self.lost: list[Lost] = []
        self._asked, self._address, self._inner = workers, address, inner
        self._nodes: dict[str, _Node] = {}
        self._refused: dict[str, str] = {}
        self._again: dict[str, float] = {}
        self._data: FederatedData | None = None
        self._open: set[int] = set()
        self._lock, self._opened, self._started = threading.RLock(), 0, 0
        self._ours = False
        self._one = OneThread()

    def __enter__(self) -> Ray:
        ray = _ray()
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(self._address, self._asked)
        self._one.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray = _ray()
        self._stop()
        if self._ours:
            ray.shutdown()
        self._one.__exit__()

    def open(self, job: Job) -> Spread:
        """Take up a job.

        Raises:
            RunError: the cluster cannot hold the rows.
            InputError: a job on other data is open.
        """
        with self._lock:
            if self._data is not job.data:
                if self._open:
                    raise InputError(f"{job.name} is on other data than the job that is open: close that first")
                self._stop()
                self._data = job.data
                self._refresh()
            self._opened += 1
            spread = Spread(self, self._opened, job)
            self._open.add(self._opened)
            return spread

    def ready(self, when: str, stop: Stop) -> list[_Node]:
        """The nodes to work on now; at the start, those that are coming are waited for.

        Raises:
            RunError: there is none.
            Interrupted: ``stop`` said so.
        """
        ray = _ray()
        with self._lock:
            self._refresh()
        while True:
            with self._lock:
                here = [n for n in self._nodes.values() if n.starting is None]
                coming = [n for n in self._nodes.values() if n.starting is not None and time.monotonic() < n.until]
                if here and not any(n.first for n in coming):
                    return here
                if not coming:
                    raise self.none_left(when)
            if stop():
                raise Interrupted
            ray.wait([n.starting for n in coming], num_returns=len(coming), timeout=_PAUSE)
            with self._lock:
                self._settle()

    def lose(self, node: _Node, round: int, clients: Sequence[int], why: str) -> None:
        """Note what was lost with a node, and do without it."""
        with self._lock:
            self.lost.append(Lost(node.name, round, sorted(clients)))
            self._drop(node, _AGAIN)
        _say(f"the node {node.name} was lost in round {round} ({why}) with {len(clients)} clients under way")

    def none_left(self, when: str) -> RunError:
        """What to say where no node is left."""
        why = [f"{lost.node} was lost" for lost in self.lost[-1:]]
        why += [f"{name} {reason}" for name, reason in self._refused.items()]
        why += [f"{node.name} has no free cores" for node in self._nodes.values()]
        what = f"no node of the Ray cluster is left {when} ({'; '.join(why) or 'none started'})"
        return RunError(f"{what}: start nodes with ray start --address=...")

    def work(self, seconds: float) -> None:
        """Add to the seconds of work done."""
        with self._lock:
            self.seconds += seconds

    def closed(self, number: int) -> None:
        """Let the nodes forget a job."""
        with self._lock:
            self._open.discard(number)
            for node in self._nodes.values():
                node.actor.close.remote(number)

    def _refresh(self) -> None:
        """Start an actor on every node that has none, and let go of those that are gone."""
        ray = _ray()
        self._settle()
        alive = {n["NodeID"]: n for n in ray.nodes() if n["Alive"]}
        for gone in [n for n in self._nodes.values() if n.id not in alive]:
            _say(f"the node {gone.name} has left")
            self._drop(gone)
        new = [n for key, n in alive.items() if n["Resources"].get("CPU", 0) >= 1 and key not in self._nodes]
        new = [n for n in new if _called(n) not in self._refused]
        if self._nodes:  # Ray takes a while to see that a node is gone
            new = [n for n in new if time.monotonic() >= self._again.get(n["NodeID"], 0.0)]
        if new and self._data is not None:
            self._start(new, self._data)

    def _start(self, found: list[dict[str, Any]], data: FederatedData) -> None:
        ray = _ray()
        try:  # freed when the last of these nodes has its own copy
            rows = ray.put(data.x_R.numpy())
            rest = ray.put(_array(replace(data, x_R=data.x_R[:0], file=None)))
        except ray.exceptions.RayError as error:
            what = f"Ray cannot hold {tree.nbytes(data.x_R) / 1e6:,.0f} MB of rows ({_line(error)})"
            raise RunError(f"{what}: start it with more --object-store-memory") from error
        first, until = not self._nodes, time.monotonic() + _STARTED
        pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        for one in found:
            gpu = self._inner == "vectorised" and one["Resources"].get("GPU", 0) >= 1
            inner = "processes" if self._inner == "vectorised" and not gpu else self._inner
            has = int(one["Resources"]["CPU"])
            workers = min(self._asked or has, has) if inner == "processes" else 1
            actor = (
                ray.remote(Host)
                .options(
                    num_cpus=workers, num_gpus=int(gpu), max_restarts=0, max_task_retries=0, max_concurrency=16,
                    scheduling_strategy=pinned(one["NodeID"], soft=False),
                )
                .remote([p or os.getcwd() for p in sys.path])
            )  # fmt: skip
            starting = actor.start.remote(inner, workers, rows, rest)
            self._nodes[one["NodeID"]] = _Node(
                self._started, one["NodeID"], _called(one), workers, _INNER[inner], actor, starting, first, until
            )
            self._started += 1
        self._count()

    def _settle(self) -> None:
        """See which of the nodes that were coming are there."""
        ray = _ray()
        for node in [n for n in self._nodes.values() if n.starting is not None]:
            if not ray.wait([node.starting], timeout=0)[0]:
                continue
            try:
                theirs, why = ray.get(node.starting), ""
                if theirs != _versions():
                    why = f"has {theirs}, this program {_versions()}"
            except ray.exceptions.RayActorError:
                self._drop(node, _AGAIN)
                continue
            except Exception as error:  # noqa: BLE001  what a node cannot do is said, and the others go on
                why = f"cannot start ({_line(error)})"
            node.starting = None
            if why:
                self._refused[node.name] = why
                self._drop(node)
                _say(f"the node {node.name} is left out: it {why}")

    def _drop(self, node: _Node, again: float = 0.0) -> None:
        ray = _ray()
        self._again[node.id] = time.monotonic() + again
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
            self._refused.clear()
            self._open.clear()
            self._data = None


class Spread:
    """A job on the nodes of a cluster."""

    def __init__(self, engine: Ray, number: int, job: Job) -> None:
        ray = _ray()
        self.seconds = 0.0
        self._engine, self._number, self._data = engine, number, job.data
        try:
            told = _array(job._replace(data=None))  # type: ignore[arg-type]
        except Exception as error:
            what = f"{job.name} cannot be told to a node ({_line(error)})"
            raise RunError(
                f"{what}: put the method in a module that can be imported, or use the sequential engine"
            ) from error
        self._job = ray.put(told)
        self._home_K = np.full(job.data.clients, -1, np.int32)
        self._version_K = np.zeros(job.data.clients, np.int64)
        self._spent: dict[int, float] = {}
        self._maps = 0

    def map(
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop
    ) -> list[Trained] | list[Measured]:
        """One stage for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

        A client goes to the node that keeps its state, others to where there is least to do; a node that has done all
        its own takes from the one with most left.

        Raises:
            RunError: a client failed, or no node is left.
            Interrupted: ``stop`` said so.
        """
        ray = _ray()
        when = f"in round {round} ({stage})"
        nodes = self._engine.ready(when, stop)
        owned = self._data.train if stage == "local" else self._data.test
        size = tree.nbytes((down.shared, list(clients[:1])))
        todo = _Todo(lambda group: sum(len(owned[ids[k]]) for k in group), max(1, _PART // max(1, size)))
        at = {node.number: node for node in nodes}
        todo.plan(groups(stage, self._data, ids), nodes, lambda group: at.get(self._home([ids[k] for k in group])))
        shared = ray.put(_array(down.shared))
        self._maps += 1
        results: list[Any] = [None] * len(ids)
        asked: dict[Any, _Part] = {}

        def ask(node: _Node, mine: list[list[int]]) -> None:
            part = _Part(node, mine, sorted(k for group in mine for k in group))
            some = [ids[k] for k in part.places]  # in this order the node makes the same groups of them
            kept = [self._kept(node, ids[k], clients[k]) for k in part.places]
            states = [None if version else clients[k] for k, version in zip(part.places, kept, strict=True)]
            message = _array((some, tree.rows(down.own, torch.tensor(part.places)), states, kept))
            asked[node.actor.run.remote(self._number, self._job, stage, round, self._maps, shared, message)] = part

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
            failure, found = _said(answer)
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
            done, _ = ray.wait(list(asked), num_returns=1, timeout=_PAUSE)
            for ref in done:
                if ref in asked:
                    answered(ref)
        return results

    def close(self) -> None:
        """Let the nodes forget the job."""
        self._engine.closed(self._number)

    def _home(self, ids: list[int]) -> int:
        """The number of the node that has the states of most of these clients."""
        ((home, _),) = Counter(self._home_K[ids].tolist()).most_common(1)
        return int(home)

    def _kept(self, node: _Node, id: int, state: Tree) -> int:
        """The version of a state that the node has; 0 where it has to be sent."""
        if self._home_K[id] != node.number or not (known := int(self._version_K[id])):
            return 0
        return known if _version(state) == known else 0

    def _worked(self, node: _Node, seconds: float) -> None:
        before = self._spent.get(node.number, 0.0)
        more = max(0.0, seconds - before)  # of two answers the earlier one may come last
        self._spent[node.number] = before + more
        self.seconds += more
        self._engine.work(more)


@dataclass(eq=False)
class _Node:
    """A node as the caller knows it."""

    number: int
    id: str
    name: str
    workers: int
    groups: int
    """That a worker is sent at a time."""
    actor: Any
    starting: Any
    """The answer that it waits for; None once it is there."""
    first: bool
    """Whether no other was there before it, so that it is waited for."""
    until: float
    """When it should be there, on the monotonic clock."""


class _Part(NamedTuple):
    """What a node was asked: groups of clients, and their places in ``ids``, ascending."""

    node: _Node
    groups: list[list[int]]
    places: list[int]


class _Todo:
    """Groups of clients that wait, by the node that is to have them, the most work first."""

    def __init__(self, work: Callable[[list[int]], int], most: int) -> None:
        self._work, self._most = work, most
        self._queues: dict[_Node, deque[list[int]]] = {}
        self._left: Counter[_Node] = Counter()

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def plan(
        self, groups: Sequence[list[int]], nodes: Sequence[_Node], home: Callable[[list[int]], _Node | None]
    ) -> None:
        """Give each group a node: its home, or the one with the least to do for each of its workers."""
        groups = sorted(groups, key=self._work, reverse=True)
        homes = [home(group) for group in groups]
        for group, node in sorted(zip(groups, homes, strict=True), key=lambda pair: pair[1] is None):
            node = node or min(nodes, key=lambda n: self._left[n] / n.workers)
            self._queues.setdefault(node, deque()).append(group)
            self._left[node] += self._work(group)
        for node, queue in self._queues.items():
            self._queues[node] = deque(sorted(queue, key=self._work, reverse=True))

    def take(self, node: _Node) -> list[list[int]]:
        """The next groups for a node: fewer and fewer, so that all nodes end together."""
        queue, of = self._queues.get(node), node
        if not queue:
            others = [n for n, queue in self._queues.items() if queue]
            of = max(others, key=lambda n: self._left[n] / n.workers, default=node)
            queue = self._queues.get(of, deque())
        most = max(node.workers, min(min(node.groups, self._most) * node.workers, len(queue) // 2))
        part = [queue.popleft() for _ in range(min(most, len(queue)))]
        self._left[of] -= sum(map(self._work, part))
        return part

    def drop(self, node: _Node) -> list[list[int]]:
        """Take all that a node was to have."""
        del self._left[node]
        return list(self._queues.pop(node, ()))


class _Answer(NamedTuple):
    """What a node made of a part: results with the versions of the states that it keeps of them (0 for none)."""

    results: list[Any]
    versions: list[int]
    missing: list[int]
    """Clients whose state it was to have and has not; then there are no results."""
    seconds: float
    """That the node has worked for the job in all."""


class _Held:
    """A job on a node, and how many calls use it."""

    def __init__(self, session: Session) -> None:
        self.session, self.users = session, 0
        self.stamp = 0
        self.shared: Tree = None


class Host:
    """What runs on a node: an engine, and of each open job its session and the latest states of its clients."""

    def __init__(self, path: list[str]) -> None:
        sys.path.extend(p for p in path if p not in sys.path)
        self._lock = threading.Lock()
        self._jobs: dict[int, _Held] = {}
        self._closed: set[int] = set()
        self._states: dict[tuple[int, int], tuple[int, Tree]] = {}
        self._bytes = 0

    def start(self, inner: str, workers: int, rows: NDArray[Any], rest: NDArray[np.uint8]) -> str:
        """Copy the rows out of Ray's store into a file that workers map, and say which versions this node has."""
        data: FederatedData = _said(rest)
        x_R, file = shared_memory.shared(rows.shape, data.x_R.dtype)
        np.copyto(x_R.numpy(), rows)
        self._data = replace(data, x_R=x_R, file=file)
        self._engine = _engine(inner, workers).__enter__()
        self._turn: AbstractContextManager[Any] = nullcontext() if inner == "processes" else threading.Lock()
        return _versions()

    def run(
        self, number: int, job: NDArray[np.uint8], stage: Stage, round: int, stamp: int, shared: NDArray[np.uint8],
        message: NDArray[np.uint8],
    ) -> NDArray[np.uint8]:  # fmt: skip
        """One stage of some clients: the error or the answer."""
        torch.set_num_threads(1)  # of this thread
        try:
            with self._using(number, job) as held:
                return _array((None, self._run(held, number, stage, round, stamp, shared, message)))
        except IdiolectError as error:
            return _array((error, None))
        except Exception as error:  # noqa: BLE001  a node never ends by itself, so that the engine can say what failed
            what = f"a node failed ({type(error).__name__}: {_line(error)})"
            mend = "put the method in a module that every node can import, or use the sequential engine"
            return _array((RunError(f"{what}: {mend}"), None))

    def close(self, number: int) -> None:
        """Let go of a job; what is under way of it ends."""
        with self._lock:
            self._closed.add(number)
            self._forget(number)

    def _run(
        self, held: _Held, number: int, stage: Stage, round: int, stamp: int, shared: NDArray[np.uint8],
        message: NDArray[np.uint8],
    ) -> _Answer:  # fmt: skip
        ids, own, states, kept = _said(message)
        with self._lock:
            if held.stamp != stamp:
                held.stamp, held.shared = stamp, _said(shared)
            down = Down(held.shared, own)
            missing = []
            for k, (id, version) in enumerate(zip(ids, kept, strict=True)):
                if version:
                    has, states[k] = self._states.get((number, id), (0, None))
                    missing += [id] if has != version else []
        if missing:
            return _Answer([], [], missing, held.session.seconds)
        with self._turn:
            found = held.session.map(stage, round, ids, down, states, lambda: number in self._closed)
        versions = [
            self._keep(number, id, f.client) if isinstance(f, Trained) else 0 for id, f in zip(ids, found, strict=True)
        ]
        return _Answer(list(found), versions, [], held.session.seconds)

    def _keep(self, number: int, id: int, state: Tree) -> int:
        """Keep a state; its version, or 0 where it is not worth it."""
        if tree.nbytes(state) <= _SMALL:
            return 0
        version = _version(state)
        with self._lock:
            _, old = self._states.pop((number, id), (0, ()))
            self._states[number, id] = version, state
            self._bytes += tree.nbytes(state) - tree.nbytes(old)
            while self._bytes > _KEPT:
                _, old = self._states.pop(next(iter(self._states)))
                self._bytes -= tree.nbytes(old)
        return version

    @contextmanager
    def _using(self, number: int, job: NDArray[np.uint8]) -> Iterator[_Held]:
        with self._lock:
            if number in self._closed:
                raise Interrupted
            if number not in self._jobs:
                self._jobs[number] = _Held(self._engine.open(_said(job)._replace(data=self._data)))
            held = self._jobs[number]
            held.users += 1
        try:
            yield held
        finally:
            with self._lock:
                held.users -= 1
                if number in self._closed:
                    self._forget(number)

    def _forget(self, number: int) -> None:
        if number in self._jobs and not self._jobs[number].users:
            self._jobs.pop(number).session.close()
            for key in [k for k in self._states if k[0] == number]:
                self._bytes -= tree.nbytes(self._states.pop(key)[1])


def _connect(address: str | None, workers: int | None) -> None:
    """Start Ray on this machine, or join a cluster, without a word on the terminal.

    Raises:
        InputError: no cluster answers, or this machine is none of its nodes.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _ray()
    mend = "start one with ray start --head, or leave the address out for this machine alone"
    if address is not None and not _answers(address):
        raise InputError(f"no Ray cluster answers at {address}: {mend}")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            with _on_loopback():
                ray.init("local", num_cpus=workers or cores(), include_dashboard=False, **quiet)
        else:
            ray.init(address, **quiet)
    except Exception as error:
        what = f"cannot join the Ray cluster at {address}" if address is not None else "cannot start Ray"
        raise InputError(f"{what} ({_line(error)}): {mend}") from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, handler)  # Ray has taken it


@contextmanager
def _on_loopback() -> Iterator[None]:
    """What of Ray starts inside listens on the loopback address, as it does on Windows and macOS; Linux has no option.

    Raises:
        RuntimeError: this version of Ray would listen elsewhere; it is shut down.
    """
    ray = _ray()
    constants: Any = import_module("ray._private.ray_constants")
    usual = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = usual
    at = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(at).is_loopback:
        ray.shutdown()
        raise RuntimeError(f"Ray {ray.__version__} listens on {at}, where other machines can reach it")


def _answers(address: str) -> bool:
    """Whether a cluster is there; ``ray.init`` itself would ask for minutes."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(command, timeout=_REACHED, capture_output=True, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _say(what: str) -> None:
    print(printable(f"idiolect: {what}"), file=sys.stderr, flush=True)


def _ray() -> Any:
    """Ray, which is not always installed."""
    return import_module("ray")


def _engine(inner: str, workers: int) -> Engine:
    if inner == "processes":
        return Processes(workers)
    if inner == "sequential":
        return Sequential()
    from idiolect.engines.vectorised import Vectorised

    return Vectorised()


def _array(message: Any) -> NDArray[np.uint8]:
    """Anything that pickles, as Ray keeps it without another copy."""
    return np.frombuffer(serialization.pack(message), np.uint8)


def _said(array: NDArray[np.uint8]) -> Any:
    return pickle.loads(array.data)


def _version(state: Tree) -> int:
    """A number that no other state has: a digest of its bytes, so that what a node keeps is never wrong."""
    digest = hashlib.sha256()
    for leaf in tree.leaves(state):
        digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
        digest.update(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest()[:8], "little") >> 1 | 1


def _versions() -> str:
    return f"idiolect {metadata.version('idiolect')} and torch {torch.__version__}"


def _called(node: dict[str, Any]) -> str:
    return f"{node['NodeName']} ({node['NodeID'][:8]})"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
