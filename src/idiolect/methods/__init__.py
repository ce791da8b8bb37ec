"""One file per published method. A method is found by listing this folder: nothing central knows its name.

The file ``<name>.py`` holds the function ``<name>(task, *, option=default, ...) -> Method``, whose docstring begins
with ``Title: what it is (source)``, and may hold ``PRESETS``, named sets of options. To add a method, copy
``_skeleton.py``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from idiolect import spec
from idiolect.errors import InputError, nearest
from idiolect.method import Method, Task


class Entry(NamedTuple):
    """What a method's file says of it."""

    name: str
    title: str
    summary: str
    build: Callable[..., Method]
    options: dict[str, Any]
    presets: dict[str, dict[str, Any]]


def names() -> list[str]:
    """The methods of this folder."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def get(name: str) -> Entry:
    """A method by name.

    Raises:
        InputError: there is none of this name (the message has the nearest).
    """
    if name not in names():
        raise InputError(f"unknown method {name!r}; {nearest(name, names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    build = getattr(module, name, None)
    if build is None:
        raise InputError(f"methods/{name}.py holds no function {name}: give its function the name of the file")
    title, _, summary = (inspect.getdoc(build) or name).partition("\n")[0].partition(": ")
    options = {k: p.default for k, p in spec.options_of(build).items()}
    return Entry(name, title, summary, build, options, getattr(module, "PRESETS", {}))


def settle(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method, checked and complete: a preset's values where ``preset`` names one, the defaults
    elsewhere.

    Raises:
        InputError: unknown method, preset or option, or a value out of range.
    """
    entry = get(name)
    if not isinstance(options, Mapping) or not all(isinstance(k, str) for k in options):
        raise InputError(f"method {name}: options={options!r} is not valid: write a mapping, such as ridge: 1.0")
    options = dict(options)
    preset = options.pop("preset", None)
    if preset is not None and (not isinstance(preset, str) or preset not in entry.presets):
        raise InputError(f"method {name} has no preset {preset!r}; {nearest(str(preset), entry.presets)}")
    return entry.options | entry.presets.get(preset or "", {}) | spec.check(entry.build, options, f"method {name}")


def build(name: str, options: Mapping[str, Any], task: Task) -> Method:
    """The seven functions of a method for a task."""
    return get(name).build(task, **settle(name, options))
