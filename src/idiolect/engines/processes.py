"""Persistent worker processes, one thread each, on the rows of one shared file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from idiolect import tree
from idiolect.data import FederatedData
from idiolect.engines import wire
from idiolect.engines.site import Job, Measured, Stage, Trained
from idiolect.errors import InputError, Interrupted, RunError
from idiolect.method import Down
from idiolect.tree import Tree

_AHEAD = 2  # clients sent to a worker before it has answered, so that it never waits for the next one


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """Clients over worker processes; the bits of a result are those of ``Sequential``, whatever the number of workers.

    Workers are fresh interpreters that import this package, not copies of the calling program, so a script or a notebook
    needs no ``if __name__ == "__main__"``. They share one copy of the rows through a memory-mapped file.

    Args:
        workers: how many; None takes the number of cores.

    Raises:
        InputError: fewer than one worker, or a system without POSIX pipes.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers={workers}: the processes engine needs at least 1")
        if os.name != "posix":
            raise InputError("the processes engine needs Linux or macOS: use --engine sequential here")
        self.workers = workers or cores()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._data: FederatedData | None = None
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Processes:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        torch.set_num_threads(self._threads)

    def _start(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        for _ in range(self.workers):
            ours, theirs = Pipe()
            command = [sys.executable, "-m", f"{__package__}.worker", str(theirs.fileno())]
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL))
            theirs.close()
            self._connections.append(ours)

    def _stop(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._connections, self._processes, self._data = [], [], None

    def _tell(self, *message: Any) -> None:
        for connection in self._connections:
            try:
                wire.send(connection, message)
            except ConnectionError:
                raise RunError("a worker process did not start or died, perhaps for want of memory: try fewer --workers") from None

    def open(self, job: Job) -> None:
        """Take up a job; ``map`` works on the one opened last."""
        if not self._connections:
            self._start()
        try:
            if self._data is not job.data:
                self._share(job.data)
            self._tell("job", job._replace(data=None))  # type: ignore[arg-type]
        except BaseException:
            self._stop()
            raise

    def _share(self, data: FederatedData) -> None:
        with tempfile.TemporaryDirectory(prefix="idiolect-") as folder:
            path = Path(folder, "rows")
            data.x_R.numpy().tofile(path)
            self._tell("rows", str(path), data.x_R.dtype, replace(data, x_R=data.x_R[:0]))
            self._tell("ready")
            for connection in self._connections:  # each has mapped the file: its name may go
                self._receive(connection, "at the start")
        self._data = data

    def _receive(self, connection: Connection, when: str) -> Any:
        try:
            return wire.receive(connection)
        except (EOFError, ConnectionError):
            raise RunError(f"a worker process died {when}, perhaps for want of memory: continue with --resume and fewer --workers") from None

    def map(
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Callable[[], bool]
    ) -> list[Trained | Measured]:
        """One stage for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` belongs to ``ids[k]``.

        The largest clients go first and each worker takes the next when it has answered, so that all end together.

        Raises:
            RunError: a client failed, or a worker died.
            Interrupted: ``stop`` said so.
        """
        try:
            return self._map(stage, round, ids, down, clients, stop)
        except BaseException:
            self._stop()  # answers still under way belong to nobody; the next job starts afresh
            raise

    def _map(
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Callable[[], bool]
    ) -> list[Trained | Measured]:
        assert self._data is not None
        self._tell("down", down.shared)
        rows = self._data.train if stage == "local" else self._data.test
        todo = sorted(range(len(ids)), key=lambda k: len(rows[ids[k]]))
        results: dict[int, Any] = {}

        def give(connection: Connection) -> None:
            if todo:
                k = todo.pop()
                wire.send(connection, ("run", k, stage, round, ids[k], tree.rows(down.own, k), clients[k]))

        for _ in range(_AHEAD):
            for connection in self._connections:
                give(connection)
        while len(results) < len(ids):
            if stop():
                raise Interrupted("stopped")
            for connection in wait(self._connections, timeout=0.5):
                assert isinstance(connection, Connection)
                place, result, error = self._receive(connection, f"in round {round} ({stage})")
                if error is not None:
                    raise error
                results[place] = result
                give(connection)
        return [results[k] for k in range(len(ids))]
