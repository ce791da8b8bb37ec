"""Persistent worker processes, one thread each, on the rows of one shared file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any

import torch

from idiolect import tree
from idiolect.data import FederatedData, memory
from idiolect.engines import wire
from idiolect.engines.site import Job, Measured, Stage, Stop, Trained
from idiolect.errors import InputError, Interrupted, RunError
from idiolect.method import Down
from idiolect.tree import Tree

_AHEAD = 2  # clients sent to a worker before it has answered, so that it never waits for the next one


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """Clients over worker processes; the bits of a result are those of ``Sequential``, whatever the number of workers.

    Workers are fresh interpreters that import this package, not copies of the calling program, so a script or a
    notebook needs no ``if __name__ == "__main__"``. They share one copy of the rows through a memory-mapped file, and
    end with the calling program, however that ends.

    Args:
        workers: how many, at most; None takes the number of cores. There are never more than clients.

    Raises:
        InputError: fewer than one worker, or a system without POSIX pipes.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers={workers} is not possible: ask for at least 1")
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        torch.set_num_threads(self._threads)

    def open(self, job: Job) -> None:
        """Take up a job; ``map`` works on the one opened last.

        Raises:
            RunError: workers cannot start, or die.
        """
        try:
            if self._data is not job.data:
                self._stop()
                self._start(job.data)
            self._tell("at the start", "job", job._replace(data=None))  # type: ignore[arg-type]
        except BaseException:
            self._stop()
            raise

    def _start(self, data: FederatedData) -> None:
        file = data.file
        if file is None or file.address != data.x_R.data_ptr():  # rows of the caller's own making
            rows, file = memory.shared(tuple(data.x_R.shape), data.x_R.dtype)
            rows.copy_(data.x_R)
        for _ in range(min(self.workers, data.clients)):
            self._spawn(file.fileno())
        self._tell("at the start", "start", replace(data, x_R=data.x_R[:0], file=None), len(data.x_R))
        for connection in self._connections:
            self._receive("at the start", connection)
        self._data = data

    def _spawn(self, rows: int) -> None:
        ours, theirs = Pipe()
        self._connections.append(ours)
        descriptors = [theirs.fileno(), rows]
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.worker", *map(str, descriptors)],
                pass_fds=descriptors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the engine alone
            )
        except OSError as error:
            raise RunError(f"cannot start a worker process ({error.strerror}): try fewer --workers") from error
        finally:
            theirs.close()
        self._processes.append(process)

    def _stop(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._connections, self._processes, self._data = [], [], None

    def _tell(self, when: str, *message: Any) -> None:
        for connection in self._connections:
            self._send(when, connection, *message)

    def _send(self, when: str, connection: Connection, *message: Any) -> None:
        try:
            wire.send(connection, message)
        except OSError:
            raise _died(when) from None

    def _receive(self, when: str, connection: Connection) -> Any:
        try:
            error, answer = wire.receive(connection)
        except (EOFError, OSError):
            raise _died(when) from None
        if error is not None:
            raise error
        return answer

    def map(
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop
    ) -> list[Trained | Measured]:
        """One stage for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

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
        self, stage: Stage, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop
    ) -> list[Trained | Measured]:
        assert self._data is not None
        when = f"in round {round} ({stage})"
        self._tell(when, "down", down.shared)
        train = self._data.train
        todo = sorted(range(len(ids)), key=lambda k: len(train[ids[k]]))
        results: dict[int, Any] = {}

        def give(connection: Connection) -> None:
            if todo:
                k = todo.pop()
                self._send(when, connection, "run", k, stage, round, ids[k], tree.rows(down.own, k), clients[k])

        for _ in range(_AHEAD):
            for connection in self._connections:
                give(connection)
        while len(results) < len(ids):
            if stop():
                raise Interrupted
            ready = wait(self._connections, timeout=0.5)
            for connection in (c for c in self._connections if c in ready):
                place, result = self._receive(when, connection)
                results[place] = result
                give(connection)
        return [results[k] for k in range(len(ids))]


def _died(when: str) -> RunError:
    return RunError(f"a worker process died {when}, perhaps for want of memory: try fewer --workers")
