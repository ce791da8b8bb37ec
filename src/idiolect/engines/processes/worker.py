"""A worker process: ``python -m idiolect.engines.processes.worker PIPE ROWS``, two descriptors."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from idiolect.core import shared_memory
from idiolect.core.errors import CodeError, IdiolectError
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.data import FederatedData
from idiolect.engines import serialization
from idiolect.simulation.adding import Adder, Places
from idiolect.simulation.client_runner import ClientRunner, Phase


class Worker:
    """What a worker keeps between messages: the data, and for each open job its site and what the server sent to all.

    Only ``start``, ``run`` and ``rest`` are answered, so content that may be unreadable here is read when it is run.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.data: FederatedData | None = None
        self.jobs: dict[int, bytes | ClientRunner] = {}
        self.downs: dict[int, bytes | Tree] = {}
        self.adders: dict[int, tuple[int, Adder]] = {}

    def answer(self, message: bytes) -> tuple[IdiolectError | None, Any]:
        """Do what a message says; return the error or the answer, if there is one."""
        try:
            kind, *content = serialization.load(message)
            return None, getattr(self, kind)(*content)
        except IdiolectError as error:
            return error, None
        except Exception as error:  # noqa: BLE001  a worker never ends by itself, so that the engine can say what failed
            what = f"a worker process failed ({type(error).__name__}: {error})"
            return CodeError(
                f"{what}: put the method in a module that can be imported, or use the sequential engine"
            ), None

    def start(self, data: FederatedData, rows: int, dtype: torch.dtype) -> bool:
        """Map the samples that the engine stored; ``data`` comes with empty tensors of their kind and shape.

        ``dtype`` is the caller's: of new tensors of torch.
        """
        torch.set_default_dtype(dtype)
        self.data = replace(data, x_R=shared_memory.mapped(self._rows, data.x_R, rows))
        return True

    def job(self, number: int, job: bytes) -> None:
        """Keep a job."""
        self.jobs[number] = job

    def close(self, number: int) -> None:
        """Remove a job."""
        self.jobs.pop(number, None)
        self.downs.pop(number, None)
        self.adders.pop(number, None)

    def down(self, number: int, shared: bytes) -> None:
        """Keep the part of a phase that all clients get."""
        self.downs[number] = shared

    def run(
        self, number: int, batch: int, phase: Phase, round: int, ids: list[int], own: Tree, clients: list[Tree],
        places: Places | None,
    ) -> tuple[Any, float]:  # fmt: skip
        """One phase of a group of clients, and the seconds that it took."""
        start = time.perf_counter()
        runner, shared = self.jobs[number], self.downs[number]
        if isinstance(runner, bytes):
            runner = self.jobs[number] = ClientRunner(serialization.load(runner)._replace(data=self.data))
        if isinstance(shared, bytes):
            shared = self.downs[number] = serialization.load(shared)
        results: Any = runner.run(phase, round, ids, Down(shared, own), clients)
        if places is not None:
            if self.adders.get(number, (None, None))[0] != batch:
                self.adders[number] = batch, Adder(runner.job, runner.method, places.total)
            adder = self.adders[number][1]
            results = [adder.take(round, i, k, one) for i, k, one in zip(ids, places.at, results, strict=True)]
        return results, time.perf_counter() - start

    def rest(self, number: int) -> tuple[Any, float]:
        """The branches that are left of what was added up last."""
        return self.adders.pop(number)[1].rest(), 0.0


def main(pipe: int, rows: int) -> None:
    """Answer until the engine has ended, on one thread: with small batches, two threads wait for each other."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine decides when to stop
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    connection = Connection(pipe)
    inbox: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        """Receive messages at once, so that the engine never waits to send one; end when the engine has ended."""
        with suppress(EOFError, OSError):
            while True:
                inbox.put(connection.recv_bytes())
        os._exit(0)

    Thread(target=read, daemon=True).start()
    worker = Worker(rows)
    with suppress(OSError):
        while True:
            answer = worker.answer(inbox.get())
            if answer != (None, None):
                serialization.send(connection, serialization.pack(answer))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
