"""A worker process of the processes engine: ``python -m idiolect.engines.worker PIPE ROWS``, two descriptors."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from idiolect.data import FederatedData, memory
from idiolect.engines import wire
from idiolect.engines.site import Job, Site
from idiolect.errors import IdiolectError, RunError
from idiolect.method import Down


class Worker:
    """What a worker holds between messages: the data, the job's site, and what the server sent to all."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.data: FederatedData | None = None
        self.site: Site | None = None
        self.shared: Any = ()

    def answer(self, message: bytes) -> tuple[IdiolectError | None, Any]:
        """Do what a message says; the error or the answer, where there is one."""
        try:
            kind, *content = wire.load(message)
            return None, getattr(self, kind)(*content)
        except IdiolectError as error:
            return error, None
        except Exception as error:  # noqa: BLE001  a worker never ends by itself, so that the engine can say what failed
            what = f"a worker process failed ({type(error).__name__}: {error})"
            return RunError(
                f"{what}: put the method in a module that can be imported, or use --engine sequential"
            ), None

    def start(self, data: FederatedData, rows: int) -> bool:
        """Map the rows that the engine stored; ``data`` comes with an empty tensor of their kind and shape."""
        x_R = memory.mapped(self._rows, (rows, *data.x_R.shape[1:]), data.x_R.dtype)
        self.data = replace(data, x_R=x_R)
        return True

    def job(self, job: Job) -> None:
        """Build the job's method."""
        assert self.data is not None
        self.site = Site(job._replace(data=self.data))

    def down(self, shared: Any) -> None:
        """Keep what all clients of a stage get."""
        self.shared = shared

    def run(self, place: int, stage: Any, round: int, id: int, own: Any, client: Any) -> tuple[int, Any]:
        """One stage of one client, and where its result belongs."""
        assert self.site is not None
        return place, self.site.run(stage, round, id, Down(self.shared, own), client)


def main() -> None:
    """Answer until the engine is gone, on one thread: two threads on small batches wait for each other."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine says when to stop
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    connection = Connection(int(sys.argv[1]))
    inbox: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        """Take messages as they come, so that the engine never waits to send one, and end when it is gone."""
        with suppress(EOFError, OSError):
            while True:
                inbox.put(connection.recv_bytes())
        os._exit(0)

    Thread(target=read, daemon=True).start()
    worker = Worker(int(sys.argv[2]))
    with suppress(OSError):
        while True:
            answer = worker.answer(inbox.get())
            if answer != (None, None):
                wire.send(connection, answer)


if __name__ == "__main__":
    main()
