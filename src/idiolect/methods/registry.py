"""One file per published method. A method is found by listing this folder: nothing central knows its name.

The file ``<name>.py`` holds the function ``<name>(task, *, option=default, ...) -> Method``, whose docstring begins
with ``Title: what it is (source)``, and may hold ``PRESETS``, named sets of options, ``VARIANTS``, the options of
variants that have a name of their own in the literature, ``PERSONAL``, the names of the options that change nothing but
the personal model, ``SEARCH``, sensible ranges to tune options in, and ``REPORTS``, the metrics that a run's page
draws. To add a method, copy ``_skeleton.py``. Elsewhere it is such a function too: one of your own is named by its
import path, and a package names its functions under the entry point group ``idiolect.methods``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from idiolect.core import keys, option_spec, reports, tree
from idiolect.core.errors import IdiolectError, InputError, nearest
from idiolect.core.import_path import by_path, is_dotted
from idiolect.core.method import Method, Rounds, Task, unchanged
from idiolect.core.reduction import Reduction
from idiolect.core.reports import Report
from idiolect.training.batchnorm import with_statistics
from idiolect.training.personal_weights import with_personal_weights
from idiolect.training.server_optimisers import AVERAGE, ServerOptimiser, with_server_optimiser
from idiolect.training.sharing import shared
from idiolect.training.trial import samples, trial

_FOLDER = os.path.dirname(__file__)
_NO_METHODS = {"registry", "profile"}  # of the folder's modules
_SOUND: set[tuple[str, str, str]] = set()  # methods of others whose declaration fits what they send


class Entry(NamedTuple):
    """What a method's file says about it."""

    name: str
    title: str
    summary: str
    build: Callable[..., Method]
    options: dict[str, Any]
    presets: dict[str, dict[str, Any]]
    variants: dict[str, dict[str, Any]]
    """Title of a variant: its options."""
    reports: dict[str, Report]
    """Metric: how a page draws it."""
    personal: tuple[str, ...] = ()
    """The options that change nothing but the personal model."""
    search: Mapping[str, str] = {}
    """Option: a sensible range to search for it, as ``0.1..10:log``."""

    @property
    def forms(self) -> dict[str, dict[str, Any]]:
        """The method and its variants by title, each once: the options that differ from the defaults."""
        others = {t: o for t, o in self.variants.items() if self.options | o != self.options}
        return {self.title: {}, **others}


def ours() -> frozenset[str]:
    """The methods of this folder."""
    return _modules(_FOLDER, os.stat(_FOLDER).st_mtime_ns)


@lru_cache(maxsize=1)
def _modules(folder: str, time: int) -> frozenset[str]:
    """The modules in a folder that changed at this time. Cached, because names are needed often."""
    return frozenset(m.name for m in pkgutil.iter_modules([folder]) if not m.name.startswith("_")) - _NO_METHODS


def _packages() -> dict[str, importlib.metadata.EntryPoint]:
    return _entry_points(tuple(sys.path))


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> dict[str, importlib.metadata.EntryPoint]:
    """By name. Cached: reading the metadata of all packages takes milliseconds, and names are needed often."""
    return {e.name: e for e in importlib.metadata.entry_points(group="idiolect.methods")}


def _duplicates() -> list[str]:
    return sorted(ours() & set(_packages()))


def names() -> list[str]:
    """The methods of this folder and of installed packages; of two with the same name, ours is used."""
    return sorted(ours() | set(_packages()))


def is_path(name: str) -> bool:
    """Whether a method is named by an import path."""
    return is_dotted(name) and name not in names()


def working() -> tuple[dict[str, Entry], list[str]]:
    """All methods that can be loaded, by name, and one sentence for each installed one that cannot."""
    entries = {}
    problems = [f"method {name} of a package is not used: idiolect has one of this name" for name in _duplicates()]
    for name in names():
        try:
            entries[name] = get(name)
        except InputError as error:
            if name in ours():
                raise
            problems.append(str(error))
    return entries, problems


def get(name: str) -> Entry:
    """A method by name.

    Raises:
        InputError: there is none of this name (the message has the nearest), or that of a package or of an import path
            cannot be used.
    """
    if is_path(name):
        return _own(name)
    if name not in names():
        raise InputError(
            f"unknown method {name!r}; {_hint(name)}. One of another package is found once that package is installed, "
            "and one of your own by its import path, my_module.my_method"
        )
    if name in ours():
        build = getattr(importlib.import_module(f"{__package__}.{name}"), name, None)
        if build is None:
            raise InputError(f"methods/{name}.py has no function {name}: give its function the name of the file")
        return _entry(name, build)
    return _of_package(name, _packages()[name])


def _entry(name: str, build: Callable[..., Method]) -> Entry:
    module = sys.modules.get(build.__module__)
    line = (inspect.getdoc(build) or "").partition("\n")[0]
    title, colon, summary = line.partition(": ")
    if not colon:
        title, summary = name.rpartition(".")[2], line
    options = {k: p.default for k, p in option_spec.options_of(build).items()}
    presets, variants, figures = (getattr(module, table, {}) for table in ("PRESETS", "VARIANTS", "REPORTS"))
    personal, search = getattr(module, "PERSONAL", ()), getattr(module, "SEARCH", {})
    return Entry(name, title, summary, build, options, presets, variants, figures, personal, search)


def _of_package(name: str, point: importlib.metadata.EntryPoint) -> Entry:
    """The entry of an installed package, checked: an error names the package."""
    package = point.dist.name if point.dist else "an installed package"
    try:
        return _of_others(name, point.load())
    except (Exception, SystemExit) as error:
        what = " ".join(f"{point.value}: {error}".split())
        raise InputError(f"method {name} of {package} cannot be used ({what}): fix or uninstall {package}") from error


def _own(path: str) -> Entry:
    """The entry of a function at an import path, checked."""
    build = by_path(path, "method")
    try:
        return _of_others(path, build)
    except (Exception, SystemExit) as error:
        what = " ".join(str(error).split())
        raise InputError(f"method {path} cannot be used ({what}): fix it") from error


def _of_others(name: str, build: Any) -> Entry:
    """The entry of a function that others wrote.

    Raises:
        Exception: of any kind, if something about it is wrong.
    """
    if not inspect.isfunction(build):
        raise TypeError("it is not a function (task, *, options) -> Method")
    _check_options(build)
    entry = _entry(name, build)
    option_spec.check(build, entry.options, "a default")
    json.dumps(entry.options)
    for what, table in (("preset", entry.presets), ("variant", entry.variants)):
        for title, options in dict(table).items():
            option_spec.check(build, options, f"its {what} {title}")
    reports.check(dict(entry.reports))
    return entry


def _check_options(build: Callable[..., Method]) -> None:
    """Check that a method's options can be checked: keyword-only, with an annotation and a default."""
    for option, about in list(inspect.signature(build).parameters.items())[1:]:
        if about.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"{option} is no option, because it is not keyword-only: write *, before it")
        if about.annotation is about.empty:
            raise TypeError(f"option {option} has no annotation: write {option}: float, or another type")
        if about.default is about.empty:
            raise TypeError(f"option {option} has no default: give it one")


def code(name: str) -> str:
    """Which code a method is: its package with the version, if it is installed, and a digest of its file.

    Raises:
        InputError: unknown method.
    """
    source = inspect.getsourcefile(get(name).build)
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()[:12] if source else "unknown"
    package = _packages()[name].dist if name in names() and name not in ours() else None
    return f"{package.name} {package.version}, code {digest}" if package else f"code {digest}"


def _hint(name: str) -> str:
    """How to write a title such as FedEM-FT (M=5); else the nearest name."""

    def fold(text: str) -> str:
        return re.sub(r"[\W_]", "", text.casefold())

    for own in sorted(ours()):
        for title, options in get(own).forms.items():
            if fold(name) and fold(title).startswith(fold(name)):
                return f"{title} is written {option_spec.Spec(name=own, options=options)}"
    return nearest(name, names())


def settle(name: str, options: Mapping[str, Any], beside: Sequence[str] = ()) -> dict[str, Any]:
    """The options of a method, checked and complete: a preset's values where ``preset`` names one, the defaults
    elsewhere. ``beside`` are names that are handled elsewhere, which a misspelt option may have meant.

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
    presets = ["preset"] if entry.presets else []
    values = option_spec.check(entry.build, options, f"method {name}", beside=[*presets, *beside])
    return entry.options | entry.presets.get(preset or "", {}) | values


def build(
    name: str,
    options: Mapping[str, Any],
    task: Task,
    *,
    personal: bool = True,
    server: ServerOptimiser = AVERAGE,
    personal_weights: str | None = None,
) -> Method:
    """A method for a task.

    Args:
        name: of the method.
        options: by name; those left out have their defaults. ``preset`` names a set of them.
        task: the problem.
        personal: with False, ``personalise`` leaves clients as they are.
        server: the optimiser of the server's step.
        personal_weights: a pattern over the names of the weights that stay at each client; None: those that the method
            itself keeps.

    Raises:
        InputError: unknown method or option, a value out of range, the method cannot take this task, this server or
            this pattern, or that of a package or of an import path fails.
    """
    entry, values = get(name), settle(name, options)
    task.network.prepare()
    core = entry.build(task, **values) if name in ours() else _foreign(entry, task, values)
    if entry.personal:
        usual = {option: entry.options[option] for option in entry.personal}
        core = core._replace(**_rounds(name, task, values | usual)._asdict())
    core = with_personal_weights(core, name, personal_weights, task)
    method = with_server_optimiser(core, name, server, task)
    return with_statistics(method if personal else method._replace(personalise=unchanged), task)


@shared
def _rounds(name: str, task: Task, options: Mapping[str, Any]) -> Rounds[Any, Any]:
    """The rounds of a method whose ``PERSONAL`` options have their defaults: all its uses train once."""
    method = get(name).build(task, **options)
    return Rounds(*(getattr(method, part) for part in Rounds._fields))


def _foreign(entry: Entry, task: Task, options: Mapping[str, Any]) -> Method:
    """A method that others wrote, for a task."""
    try:
        method = entry.build(task, **options)
    except IdiolectError:
        raise
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        if "Method.__new__()" in what:
            raise InputError(
                f"method {entry.name} does not make a whole Method: it takes {', '.join(Method._fields[:8])}, in this "
                "order; reduce declares how the server reduces uploads, such as reduce.increment()"
            ) from error
        raise InputError(f"method {entry.name} cannot be built ({what}): fix it") from error
    if not isinstance(method, Method):
        raise InputError(f"method {entry.name} gives a {type(method).__name__}: it should give a Method")
    key = entry.name, repr(sorted(options.items())), code(entry.name)
    if key not in _SOUND:
        _check_start(entry.name, method)
        _check_round(entry.name, method, task)
        _SOUND.add(key)
    return method


def _check_start(name: str, method: Method) -> None:
    """Check what is used before the first round."""
    rounds = method.full_rounds
    if not isinstance(rounds, tuple) or not all(type(n) is int and n > 0 for n in rounds):
        raise InputError(f"method {name}: full_rounds={rounds!r} are no numbers of rounds: write (1, 5)")
    try:
        one, other = (method.init_client(keys.start(0), torch.tensor(id)) for id in (0, 1))
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"method {name}: init_client fails ({what}): it takes (key, id)") from error
    if not method.own_start and not tree.same(one, other):
        raise InputError(f"method {name}: init_client depends on the client's number: give Method own_start=True")


def _check_round(name: str, method: Method, task: Task) -> None:
    """Check the states and messages of two clients; whatever else fails there is said where it is run."""
    try:
        one = trial(method, samples(task.network.form, task.classes, 2 * task.classes, clients=2))
        other = tree.other_form(one.clients[0], one.starts[0])
    except Exception:  # noqa: BLE001
        return
    if other is not None:
        what = f"local does not return the client's state in the form that it got ({other})"
        raise InputError(f"method {name} cannot be used: {what}: let init_client return that form too")
    for up in one.ups:
        try:
            Reduction(method.reduce, up)
        except InputError as error:
            raise InputError(f"method {name} cannot be used: {error}") from None
