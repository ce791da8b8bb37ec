"""Engines: where clients run. ``ENGINES`` maps a name to a factory taking the number of workers."""

from __future__ import annotations

import os
from collections.abc import Callable

from idiolect.engines.loop import Engine, Record, State, begin, fit
from idiolect.engines.processes import Processes, cores
from idiolect.engines.sequential import Sequential
from idiolect.engines.site import Job
from idiolect.errors import InputError, nearest

ENGINES: dict[str, Callable[[int | None], Engine]] = {
    "sequential": lambda workers: Sequential(),
    "processes": lambda workers: Processes(workers),
}

__all__ = ["ENGINES", "Engine", "Job", "Processes", "Record", "Sequential", "State", "begin", "engine", "fit"]


def engine(name: str = "auto", workers: int | None = None) -> Engine:
    """An engine by name; ``auto`` is processes where there is more than one core, else sequential.

    Raises:
        InputError: unknown name, or fewer than one worker.
    """
    if name == "auto":
        many = os.name == "posix" and (workers or cores()) > 1
        name = "processes" if many or (workers is not None and workers < 1) else "sequential"
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; {nearest(name, ['auto', *ENGINES])}")
    return ENGINES[name](workers)
