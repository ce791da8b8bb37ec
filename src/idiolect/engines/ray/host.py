"""The code on a node: its own engine, and the clients' states that it keeps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from idiolect.core import shared_memory, tree
from idiolect.core.errors import IdiolectError, Interrupted, RunError
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.engines.processes import Processes
from idiolect.engines.ray.cluster import versions
from idiolect.engines.ray.messages import one_line, pack, unpack, version_of
from idiolect.engines.sequential import Sequential
from idiolect.simulation.client_runner import LocalResult, Phase
from idiolect.simulation.interfaces import Engine, Session

_SMALL = 4096  # bytes up to which a state is sent each time
_ROOM = 2**31  # bytes of states that a node keeps


class _Answer(NamedTuple):
    """A node's answer for a part: results, with the versions of the states that it keeps (0 for none)."""

    results: list[Any]
    versions: list[int]
    missing: list[int]
    """Clients whose state the node should have but does not; then there are no results."""
    seconds: float
    """Seconds that the node has worked for the job in all."""


class _OpenJob:
    """A job on a node, and the number of calls that use it."""

    def __init__(self, session: Session) -> None:
        self.session, self.users = session, 0
        self.stamp = 0
        self.shared: Tree = None


class Host:
    """The code on a node: an engine, and for each open job its session and the latest states of its clients."""

    def __init__(self, path: list[str]) -> None:
        sys.path.extend(p for p in path if p not in sys.path)
        self._lock = threading.Lock()
        self._jobs: dict[int, _OpenJob] = {}
        self._former_jobs: set[int] = set()
        self._states: dict[tuple[int, int], tuple[int, Tree]] = {}
        self._bytes = 0

    def start(self, inner: str, workers: int, rows: Any, rest: NDArray[np.uint8], dtype: torch.dtype) -> str:
        """Copy the samples from Ray's store into a file that workers map; return the versions of this node.

        ``dtype`` is the caller's: of new tensors of torch.
        """
        torch.set_default_dtype(dtype)
        data: FederatedData = unpack(rest)
        x_R, file = shared_memory.shared(data.x_R, len(data.y_R))
        tree.map(lambda own, stored: np.copyto(own.numpy(), stored), x_R, rows)
        self._data = replace(data, x_R=x_R, file=file)
        self._engine = _engine(inner, workers).__enter__()
        self._turn: AbstractContextManager[Any] = nullcontext() if inner == "processes" else threading.Lock()
        return versions()

    def run(
        self, number: int, job: NDArray[np.uint8], phase: Phase, round: int, stamp: int, shared: NDArray[np.uint8],
        message: NDArray[np.uint8],
    ) -> NDArray[np.uint8]:  # fmt: skip
        """One phase of some clients: returns the error or the answer."""
        torch.set_num_threads(1)  # for this thread
        try:
            with self._using(number, job) as entry:
                return pack((None, self._run(entry, number, phase, round, stamp, shared, message)))
        except IdiolectError as error:
            return pack((error, None))
        except Exception as error:  # noqa: BLE001  a node never ends by itself, so that the engine can say what failed
            what = f"a node failed ({type(error).__name__}: {one_line(error)})"
            fix = "put the method in a module that every node can import, or use the sequential engine"
            return pack((RunError(f"{what}: {fix}"), None))

    def close(self, number: int) -> None:
        """Remove a job; its running work ends."""
        with self._lock:
            self._former_jobs.add(number)
            self._forget(number)

    def _run(
        self, entry: _OpenJob, number: int, phase: Phase, round: int, stamp: int, shared: NDArray[np.uint8],
        message: NDArray[np.uint8],
    ) -> _Answer:  # fmt: skip
        ids, own, states, state_versions, places = unpack(message)
        with self._lock:
            if entry.stamp != stamp:
                entry.stamp, entry.shared = stamp, unpack(shared)
            down = Down(entry.shared, own)
            missing = []
            for k, (id, version) in enumerate(zip(ids, state_versions, strict=True)):
                if version:
                    has, states[k] = self._states.get((number, id), (0, None))
                    missing += [id] if has != version else []
        if missing:
            return _Answer([], [], missing, entry.session.seconds)
        with self._turn:
            results = entry.session.map(phase, round, ids, down, states, lambda: number in self._former_jobs, places)
        versions = [
            self._keep(number, id, f.client) if isinstance(f, LocalResult) else 0
            for id, f in zip(ids, results, strict=True)
        ]
        return _Answer(list(results), versions, [], entry.session.seconds)

    def _keep(self, number: int, id: int, state: Tree) -> int:
        """Keep a state and return its version, or 0 if it is too small to keep."""
        if tree.nbytes(state) <= _SMALL:
            return 0
        version = version_of(state)
        with self._lock:
            _, old = self._states.pop((number, id), (0, ()))
            self._states[number, id] = version, state
            self._bytes += tree.nbytes(state) - tree.nbytes(old)
            while self._bytes > _ROOM:
                _, old = self._states.pop(next(iter(self._states)))
                self._bytes -= tree.nbytes(old)
        return version

    @contextmanager
    def _using(self, number: int, job: NDArray[np.uint8]) -> Iterator[_OpenJob]:
        with self._lock:
            if number in self._former_jobs:
                raise Interrupted
            if number not in self._jobs:
                self._jobs[number] = _OpenJob(self._engine.open(unpack(job)._replace(data=self._data)))
            entry = self._jobs[number]
            entry.users += 1
        try:
            yield entry
        finally:
            with self._lock:
                entry.users -= 1
                if number in self._former_jobs:
                    self._forget(number)

    def _forget(self, number: int) -> None:
        if number in self._jobs and not self._jobs[number].users:
            self._jobs.pop(number).session.close()
            for key in [k for k in self._states if k[0] == number]:
                self._bytes -= tree.nbytes(self._states.pop(key)[1])


def _engine(inner: str, workers: int) -> Engine:
    if inner == "processes":
        return Processes(workers)
    if inner == "sequential":
        return Sequential()
    from idiolect.engines.vectorised import Vectorised

    return Vectorised()
