"""idiolect: personalised federated learning.

>>> import idiolect as idl
>>> study = idl.Study(dataset="digits", methods=["fedavg", "fedpac"], rounds=2)
>>> result = idl.run(study, out="runs/first")  # doctest: +SKIP
>>> result.table(), result.report()  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from idiolect.core.errors import IdiolectError, InputError, Interrupted, RunError
from idiolect.core.version import __version__ as __version__

if TYPE_CHECKING:
    from idiolect import data
    from idiolect.studies import Result, Study, Use, run, use

__all__ = ["IdiolectError", "InputError", "Interrupted", "Result", "RunError", "Study", "Use", "data", "run", "use"]


def __getattr__(name: str) -> Any:
    """Import on first use: a worker process needs none of what draws and reads."""
    if name == "data":
        return import_module("idiolect.data")
    if name in __all__:
        return getattr(import_module("idiolect.studies"), name)
    raise AttributeError(f"module 'idiolect' has no attribute {name!r}")
