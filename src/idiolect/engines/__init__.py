"""Where clients run: one after another, in processes, together on a GPU, or on a cluster.

``ENGINES`` maps a name to a class taking the number of workers, and options."""

from __future__ import annotations

import os
from collections.abc import Callable
from numbers import Integral

from idiolect.core.errors import InputError, nearest
from idiolect.core.option_spec import Spec, check
from idiolect.core.processor import cores
from idiolect.engines.processes import Processes
from idiolect.engines.ray import Ray
from idiolect.engines.sequential import Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.simulation import Engine

ENGINES: dict[str, Callable[..., Engine]] = {
    "sequential": Sequential,
    "processes": Processes,
    "vectorised": Vectorised,
    "ray": Ray,
}

__all__ = ["ENGINES", "Processes", "Ray", "Sequential", "Vectorised", "engine", "engine_of"]


def engine_of(given: str | Engine, workers: int | None = None) -> Engine:
    """An engine by name, as ``engine``, or the one that is given.

    Raises:
        InputError: as ``engine``, or what is given is none.
    """
    if isinstance(given, str):
        return engine(given, workers)
    if isinstance(given, type) or not hasattr(given, "open"):
        names = ", ".join(("auto", *ENGINES))
        raise InputError(
            f"engine={given!r} is not an engine: give one of {names}, or an object of one of their classes"
        )
    return given


def engine(name: str = "auto", workers: int | None = None) -> Engine:
    """An engine by name, with options as in ``vectorised:device=cuda:1,chunk=20``.

    ``auto`` is processes if there is more than one core, else sequential. It is never vectorised, with which small
    studies take longer: that engine is taken where its name is given.

    Raises:
        InputError: unknown name or option, or a number of workers that the engine cannot have.
    """
    if workers is not None:
        workers = _whole(workers)
    spec = Spec.parse(name)
    if spec.name == "auto":
        if spec.options:
            raise InputError(f"engine auto has no options ({name}): give the name of the engine that has them")
        is_single = os.name != "posix" or (cores() if workers is None else workers) == 1
        spec = Spec(name="sequential" if is_single else "processes")
    if spec.name not in ENGINES:
        raise InputError(f"unknown engine {spec.name!r}; {nearest(spec.name, ['auto', *ENGINES])}")
    make = ENGINES[spec.name]
    return make(workers, **check(make, spec.options, f"engine {spec.name}"))


def _whole(workers: object) -> int:
    if isinstance(workers, bool) or not isinstance(workers, Integral):
        raise InputError(f"workers={workers!r} is not a number of workers: give a whole number")
    return int(workers)
