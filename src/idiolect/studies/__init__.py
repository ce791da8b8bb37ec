"""Studies: which methods are compared on which data, the table of all settings, running a study, and its result."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idiolect.studies.config import Study
    from idiolect.studies.method_use import Use, use
    from idiolect.studies.progress import watcher
    from idiolect.studies.result import Result
    from idiolect.studies.runner import run

__all__ = ["Result", "Study", "Use", "run", "use", "watcher"]
_MODULES = {
    "Study": "config",
    "Use": "method_use",
    "use": "method_use",
    "watcher": "progress",
    "Result": "result",
    "run": "runner",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's help needs only ``settings``, without PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'idiolect.studies' has no attribute {name!r}")
    return getattr(import_module(f"idiolect.studies.{_MODULES[name]}"), name)
