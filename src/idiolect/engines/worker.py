"""A worker process of the processes engine: ``python -m idiolect.engines.worker DESCRIPTOR``."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from idiolect.data import FederatedData
from idiolect.engines import wire
from idiolect.engines.site import Job, Site
from idiolect.errors import IdiolectError
from idiolect.method import Down


class Worker:
    """What a worker holds between messages: the rows, the job's site, and what the server sent to all."""

    def __init__(self) -> None:
        self.data: FederatedData | None = None
        self.site: Site | None = None
        self.shared: Any = ()

    def rows(self, path: str, dtype: torch.dtype, data: FederatedData) -> None:
        """Map the rows that the engine stored; ``data`` comes with an empty tensor of their row shape."""
        count = data.x_R.shape[1:].numel() * len(data.y_R)
        x_R = torch.from_file(path, shared=True, size=count, dtype=dtype).view(-1, *data.x_R.shape[1:])
        self.data = replace(data, x_R=x_R)

    def ready(self) -> bool:
        """All messages before this one have been dealt with."""
        return True

    def job(self, job: Job) -> None:
        """Build the job's method."""
        assert self.data is not None
        self.site = Site(job._replace(data=self.data))

    def down(self, shared: Any) -> None:
        """Keep what all clients of a stage get."""
        self.shared = shared

    def run(self, place: int, stage: Any, round: int, id: int, own: Any, client: Any) -> tuple[int, Any, IdiolectError | None]:
        """One stage of one client; an error travels back instead of the result."""
        assert self.site is not None
        try:
            return place, self.site.run(stage, round, id, Down(self.shared, own), client), None
        except IdiolectError as error:
            return place, None, error


def main() -> None:
    """Answer until the other side is gone, on one thread: two threads on small batches wait for each other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    worker = Worker()
    with Connection(int(sys.argv[1])) as connection:
        try:
            while True:
                kind, *content = wire.receive(connection)
                answer = getattr(worker, kind)(*content)
                if answer is not None:
                    wire.send(connection, answer)
        except (EOFError, ConnectionError):
            pass


if __name__ == "__main__":
    main()
