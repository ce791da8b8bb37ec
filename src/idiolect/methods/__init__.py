"""One file per published method. A method is found by listing this folder: nothing central knows its name.

The file ``<name>.py`` holds the function ``<name>(task, *, option=default, ...) -> Method``, whose docstring begins
with ``Title: what it is (source)``, and may hold ``PRESETS``, named sets of options, and ``VARIANTS``, the options of
systems that the literature gives a name of their own. To add a method, copy ``_skeleton.py``; a package of your own
names its functions under the entry point group ``idiolect.methods``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

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
    variants: dict[str, dict[str, Any]]
    """Title of a variant: its options."""

    @property
    def forms(self) -> dict[str, dict[str, Any]]:
        """The method and its variants by title, each once: what differs from the defaults."""
        others = {t: o for t, o in self.variants.items() if self.options | o != self.options}
        return {self.title: {}, **others}


def _ours() -> set[str]:
    return {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}


def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    return _entry_points(tuple(sys.path))


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """By name. Reading the metadata of all on the path takes milliseconds, and names are asked for often."""
    return {e.name: e for e in importlib.metadata.entry_points(group="idiolect.methods")}


def names() -> list[str]:
    """The methods of this folder, and those that installed packages bring; ours outdo another of the same name."""
    return sorted(_ours() | set(_installed()))


def working() -> tuple[dict[str, Entry], list[str]]:
    """All methods by name, but for those of installed packages that cannot be had; of these, a sentence each."""
    entries, broken = {}, []
    for name in names():
        try:
            entries[name] = get(name)
        except InputError as error:
            if name in _ours():
                raise
            broken.append(str(error))
    return entries, broken


def get(name: str) -> Entry:
    """A method by name.

    Raises:
        InputError: there is none of this name (the message has the nearest), or its package is broken.
    """
    if name not in names():
        raise InputError(f"unknown method {name!r}; {nearest(name, names())}")
    build = _find(name)
    module = sys.modules[build.__module__]
    title, _, summary = (inspect.getdoc(build) or name).partition("\n")[0].partition(": ")
    options = {k: p.default for k, p in spec.options_of(build).items()}
    presets, variants = (getattr(module, table, {}) for table in ("PRESETS", "VARIANTS"))
    return Entry(name, title, summary, build, options, presets, variants)


def _find(name: str) -> Callable[..., Method]:
    if name in _ours():
        build = getattr(importlib.import_module(f"{__name__}.{name}"), name, None)
        if build is None:
            raise InputError(f"methods/{name}.py holds no function {name}: give its function the name of the file")
    else:
        entry = _installed()[name]
        package = entry.dist.name if entry.dist else "an installed package"
        where = f"method {name} of {package}"
        try:
            build = entry.load()
            if inspect.isfunction(build):
                spec.options_of(build)
        except Exception as error:
            what = " ".join(f"{entry.value}: {error}".split())
            raise InputError(f"{where} cannot be loaded ({what}): mend or uninstall {package}") from error
        if not inspect.isfunction(build):
            raise InputError(f"{where}: {entry.value} is no function; name a function (task, *, options) -> Method")
    return cast(Callable[..., Method], build)


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
