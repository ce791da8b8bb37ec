"""Engines: where clients run. ``ENGINES`` maps a name to a class taking the number of workers."""

from __future__ import annotations

import os
from collections.abc import Callable

from idiolect.engines.loop import Engine, Record, Session, State, begin, fit
from idiolect.engines.processes import Processes, cores
from idiolect.engines.sequential import Sequential
from idiolect.engines.site import Job
from idiolect.errors import InputError, nearest

ENGINES: dict[str, Callable[[int | None], Engine]] = {"sequential": Sequential, "processes": Processes}

__all__ = [
    "ENGINES", "Engine", "Job", "Processes", "Record", "Sequential", "Session", "State", "begin", "engine", "fit",
]  # fmt: skip


def engine(name: str = "auto", workers: int | None = None) -> Engine:
    """An engine by name; ``auto`` is processes where there is more than one core, else sequential.

    Raises:
        InputError: unknown name, or a number of workers that the engine cannot have.
    """
    if name == "auto":
        alone = os.name != "posix" or (cores() if workers is None else workers) == 1
        name = "sequential" if alone else "processes"
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; {nearest(name, ['auto', *ENGINES])}")
    return ENGINES[name](workers)
