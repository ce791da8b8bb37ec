"""idiolect: personalised federated learning.

>>> import idiolect as idl
>>> study = idl.Study(dataset="digits", methods=["fedavg", "fedpac"], rounds=2)
>>> result = idl.run(study, out="runs/first")  # doctest: +SKIP
>>> result.table(), result.report()  # doctest: +SKIP

The names of this module are the public interface:

- ``Study``, ``use``, ``Use``: what is compared on what; a method with options.
- ``run``, ``Result``: running a study, and what it measured.
- ``tune``, ``Tuning``: choosing settings for every method on validation samples, and what was chosen.
- ``data``: your own data (``data.from_arrays``, ``from_frame``, ``from_dataset``, ``open_data``), data sets by name,
  partitions and shifts.
- ``methods``: which methods there are, and building one for a task.
- ``load``, ``Bundle``, ``PersonalClassifier``, ``PersonalMultilabelClassifier``, ``PersonalRegressor``: personal models
  outside of a run, as estimators of scikit-learn.
- ``report``: pages, tables, comparisons and exports from run folders.
- ``Method``, ``Down``, ``Up``, ``Data``, ``Task``, ``Training``, ``SGD``, ``Adam``, ``AdamW``: the contract that a
  method fulfils.
- ``IdiolectError``, ``InputError``, ``RunError``, ``Interrupted``: what is raised.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from idiolect.core.errors import IdiolectError, InputError, Interrupted, RunError
from idiolect.core.version import __version__ as __version__

if TYPE_CHECKING:
    from idiolect import data, methods, report
    from idiolect.core.method import SGD, Adam, AdamW, Data, Down, Method, Task, Training, Up
    from idiolect.deploy import Bundle, PersonalClassifier, PersonalMultilabelClassifier, PersonalRegressor, load
    from idiolect.studies import Result, Study, Use, run, use
    from idiolect.tuning import Tuning, tune

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Bundle",
    "Data",
    "Down",
    "IdiolectError",
    "InputError",
    "Interrupted",
    "Method",
    "PersonalClassifier",
    "PersonalMultilabelClassifier",
    "PersonalRegressor",
    "Result",
    "RunError",
    "Study",
    "Task",
    "Training",
    "Tuning",
    "Up",
    "Use",
    "data",
    "load",
    "methods",
    "report",
    "run",
    "tune",
    "use",
]
_FOLDERS = ("data", "methods", "report")
_TUNING = ("Tuning", "tune")
_DEPLOY = ("Bundle", "PersonalClassifier", "PersonalMultilabelClassifier", "PersonalRegressor", "load")
_CONTRACT = ("SGD", "Adam", "AdamW", "Data", "Down", "Method", "Task", "Training", "Up")


def __getattr__(name: str) -> Any:
    """Import on first use: a worker process needs none of what draws and reads."""
    if name in _FOLDERS:
        return import_module(f"idiolect.{name}")
    if name in __all__:
        rooms = {"core.method": _CONTRACT, "deploy": _DEPLOY, "tuning": _TUNING}
        room = next((room for room, names in rooms.items() if name in names), "studies")
        return getattr(import_module(f"idiolect.{room}"), name)
    raise AttributeError(f"module 'idiolect' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names too that are not imported yet: completion asks for them."""
    return sorted({*globals(), *__all__})
