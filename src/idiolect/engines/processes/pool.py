"""Persistent worker processes, one thread each, with samples in one shared file."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Pipe, wait
from threading import Lock, Thread
from types import TracebackType
from typing import Any

import torch

from idiolect.core import heap, shared_memory, tree
from idiolect.core.errors import InputError, Interrupted, RunError
from idiolect.core.method import Down
from idiolect.core.processor import cores
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.engines import serialization
from idiolect.engines.processes.batch import Batch
from idiolect.engines.processes.fork_server import ChildProcess, ForkServer
from idiolect.engines.processes.turns import Line
from idiolect.engines.threads import OneThread
from idiolect.simulation.adding import Places
from idiolect.simulation.client_runner import PAUSE, EvaluationResult, Job, LocalResult, Phase, Stop, groups

_QUEUE = 2  # groups of clients sent to a worker before it has answered, so that it never waits for the next one
_LINUX = platform.system() == "Linux"
_SERVER: ForkServer | None = None
_SERVER_LOCK = Lock()


class Processes:
    """Clients in worker processes; results have the same bits as with ``Sequential``, for any number of workers.

    Workers are not copies of the calling program, so a script or a notebook needs no ``if __name__ == "__main__"``. On
    Linux they are copies of one process that has imported this package and is kept for later runs of the program; on
    other systems they are new interpreters. They share one copy of the samples through a memory-mapped file, and end
    with the calling program, however it ends. Jobs that are open together share the workers.

    Args:
        workers: how many, at most; None takes the number of cores. There are never more than clients.

    Raises:
        InputError: fewer than one worker, or a system without POSIX pipes.
    """

    name = "processes"
    lanes = 2  # while one job's server works, the other's clients are trained

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"workers={workers} is not possible: give at least 1")
        if os.name != "posix":
            raise InputError("the processes engine needs Linux or macOS: use the sequential engine")
        self.workers = self._worker_limit = workers or cores()
        self.seconds, self.options = 0.0, dict[str, object]()
        self._pool: _Pool | None = None
        self._data: FederatedData | None = None
        self._one = OneThread()
        self._job_count, self.lock = 0, Lock()
        if _LINUX:
            with suppress(OSError):  # whoever then needs a worker says so
                _server()  # it imports while the caller loads the data

    def __enter__(self) -> Processes:
        self._one.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._one.__exit__()

    def open(self, job: Job) -> PoolJob:
        """Take up a job.

        Raises:
            RunError: workers cannot start, or die.
            InputError: a job with other data is open.
        """
        with self.lock:
            if self._pool is None or self._pool.dead or self._data is not job.data:
                if self._pool is not None and self._pool.jobs and not self._pool.dead:
                    raise InputError(f"{job.name} has other data than the job that is open: close that job first")
                self._stop()
                self.workers = min(self._worker_limit, job.data.clients)
                self._pool, self._data = _Pool(self.workers, job.data), job.data
            self._job_count += 1
            return PoolJob(self, self._pool, self._job_count, job)

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.stop()
        self._pool = self._data = None


class PoolJob:
    """A job on worker processes."""

    def __init__(self, engine: Processes, pool: _Pool, number: int, job: Job) -> None:
        self.seconds = 0.0
        self.number = number
        self._engine, self._pool, self.data = engine, pool, job.data
        try:
            message = serialization.pack(job._replace(data=None))  # type: ignore[arg-type]
        except Exception as error:
            what = f"{job.name} cannot be sent to a worker ({' '.join(str(error).split())})"
            raise RunError(
                f"{what}: put the method in a module that can be imported, or use the sequential engine"
            ) from error
        self.message = serialization.pack(("job", number, bytes(message)))
        pool.jobs.add(number)

    def map(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree], stop: Stop,
        places: Places | None = None,
    ) -> list[LocalResult] | list[EvaluationResult]:  # fmt: skip
        """One phase for some clients, in the order of ``ids``; row k of ``down.own`` and ``clients`` is ``ids[k]``'s.

        The largest clients are first, and each worker gets the next when it has answered, so that all end together.
        With ``places`` a worker keeps to a branch of the tree of additions and sends its sum.

        Raises:
            RunError: a client failed, or a worker died.
            Interrupted: ``stop`` said so.
        """
        batch = Batch(self, phase, round, ids, down, clients, groups(phase, self.data, ids), places)
        self._pool.add(batch)
        try:
            while not batch.over.is_set():
                if stop():
                    raise Interrupted
                batch.over.wait(PAUSE)
        finally:
            self._pool.drop(batch)
        if batch.error is not None:
            raise batch.error
        self.seconds += batch.seconds
        with self._engine.lock:
            self._engine.seconds += batch.seconds
        return batch.results

    def close(self) -> None:
        """Remove the job from the workers."""
        self._pool.close(self.number)


def _environment() -> dict[str, str]:
    """A worker's environment: the caller's packages, and settings of glibc that keep memory, if it has none."""
    packages = os.pathsep.join(p or os.getcwd() for p in sys.path)
    tunables = ":".join(filter(None, (heap.TUNABLES, os.environ.get("GLIBC_TUNABLES"))))
    return os.environ | {"PYTHONPATH": packages, "GLIBC_TUNABLES": tunables}


def _start_worker(descriptors: list[int]) -> ChildProcess | subprocess.Popen[bytes]:
    """A worker process with these descriptors: its connection and the samples."""
    if _LINUX:
        return _server().start(descriptors)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.worker", *map(str, descriptors)],
        pass_fds=descriptors,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # only the engine handles Ctrl-C
    )


def _server() -> ForkServer:
    """The program's one server; a new one if the last has ended."""
    global _SERVER
    with _SERVER_LOCK:
        if _SERVER is None or not _SERVER.usable:
            _SERVER = ForkServer(_environment())
        return _SERVER


class Worker:
    """One worker process, what it has and what it was asked to do."""

    def __init__(self, rows: int) -> None:
        self.connection, other_end = Pipe()
        try:
            self.process = _start_worker([other_end.fileno(), rows])
        except OSError as error:
            self.connection.close()
            raise RunError(f"cannot start a worker process ({error.strerror}): try fewer workers") from error
        finally:
            other_end.close()
        self.holds: dict[int, int] = {}
        self.requests: deque[tuple[Batch, list[int]]] = deque()

    def send(self, when: str, message: memoryview) -> None:
        """Send a message."""
        try:
            serialization.send(self.connection, message)
        except OSError:
            raise _death(when) from None

    def receive(self, when: str) -> Any:
        """Receive an answer."""
        try:
            return serialization.receive(self.connection)
        except (EOFError, OSError):
            raise _death(when) from None

    def ask(self, batch: Batch, group: list[int]) -> None:
        """Send a group of clients, after what the worker needs to know about their job and phase."""
        number = batch.job.number
        if number not in self.holds:
            self.send(batch.when, batch.job.message)
            self.holds[number] = -1
        if self.holds[number] != batch.number:
            self.send(batch.when, batch.shared)
            self.holds[number] = batch.number
        self.send(batch.when, batch.message(group))
        self.requests.append((batch, group))

    def ask_rest(self, batch: Batch) -> None:
        """Ask for the branches that are left, after all that was asked before."""
        self.send(batch.when, serialization.pack(("rest", batch.job.number)))
        self.requests.append((batch, []))


class _Pool:
    """Worker processes for one federation, and the thread that gives them clients of all open jobs."""

    def __init__(self, workers: int, data: FederatedData) -> None:
        self.dead = False
        self._lock = Lock()
        self.jobs: set[int] = set()
        self._batches: list[Batch] = []
        self._workers: list[Worker] = []
        self._bell, self._ear = Pipe()
        self._thread = Thread(target=self._serve, daemon=True)
        file = data.file
        if file is None or file.address != tree.leaves(data.x_R)[0].data_ptr():  # samples that the caller made
            rows, file = shared_memory.shared(data.x_R, data.samples)
            tree.map(lambda own, given: own.copy_(given), rows, data.x_R)
        try:
            for _ in range(workers):
                self._workers.append(Worker(file.fileno()))
            none = replace(data, x_R=tree.rows(data.x_R, slice(0)), file=None)
            start = serialization.pack(("start", none, data.samples, torch.get_default_dtype()))
            for worker in self._workers:
                worker.send("at the start", start)
            for worker in self._workers:
                error, _ = worker.receive("at the start")
                if error is not None:
                    raise error
        except BaseException:
            self.stop()
            raise
        self._thread.start()

    def add(self, batch: Batch) -> None:
        """Add clients for the workers."""
        with self._lock:
            if self.dead:
                raise _death(batch.when)
            self._batches.append(batch)
            self._bell.send_bytes(b"!")

    def drop(self, batch: Batch) -> None:
        """Remove what is left of a batch."""
        with self._lock:
            batch.todo = Line([])
            if batch in self._batches:
                self._batches.remove(batch)

    def close(self, number: int) -> None:
        """Remove a job from the workers."""
        with self._lock:
            self.jobs.discard(number)
            for worker in self._workers:
                if number in worker.holds and not self.dead:
                    del worker.holds[number]
                    with suppress(RunError):  # the next call will notice that the worker has ended
                        worker.send("at the end", serialization.pack(("close", number)))

    def stop(self) -> None:
        """End the workers; running work fails."""
        with self._lock:
            self._end(_death("at the end"))
        if self._thread.is_alive():
            self._bell.send_bytes(b"!")
            self._thread.join()
        for worker in self._workers:
            worker.process.wait()
            worker.connection.close()
        self._bell.close()
        self._ear.close()

    def _end(self, error: Exception) -> None:
        self.dead = True
        for worker in self._workers:
            worker.process.kill()
        for batch in self._batches:
            batch.fail(error)

    def _serve(self) -> None:
        """Give clients to workers and take results, until a worker dies or the pool is stopped."""
        connections: dict[Any, Worker] = {w.connection: w for w in self._workers}
        while not self.dead:
            ready = wait([self._ear, *connections])
            with self._lock:
                try:
                    for one in ready if not self.dead else ():
                        if one is self._ear:
                            self._ear.recv_bytes()
                        else:
                            self._take_answer(connections[one])
                    self._hand_out()
                except Exception as error:  # noqa: BLE001  whoever waits for this thread must hear of it
                    self._end(error)

    def _take_answer(self, worker: Worker) -> None:
        batch, group = worker.requests[0] if worker.requests else (None, [])
        error, answer = worker.receive(batch.when if batch else "between two rounds")
        assert batch is not None
        worker.requests.popleft()
        if error is not None:
            batch.fail(error)
        else:
            batch.take(group, *answer)

    def _hand_out(self) -> None:
        """The oldest batch is first, and goes to the worker with the least to do."""
        for batch in self._batches:
            while batch.todo and not self.dead:
                worker = min(self._workers, key=lambda w: len(w.requests))
                if len(worker.requests) >= _QUEUE:
                    return
                worker.ask(batch, batch.todo.take(worker))
                batch.add_holder(worker)
            batch.ask_rests()


def _death(when: str) -> RunError:
    return RunError(f"a worker process died {when}, perhaps because memory was full: try fewer workers")
