"""Tuning: a search for the settings and options of every method of a study, judged on validation samples alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idiolect.tuning.outcome import Chosen, Tuning
    from idiolect.tuning.search import tune

__all__ = ["Chosen", "Tuning", "tune"]
_MODULES = {"tune": "search", "Tuning": "outcome", "Chosen": "outcome"}


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'idiolect.tuning' has no attribute {name!r}")
    return getattr(import_module(f"idiolect.tuning.{_MODULES[name]}"), name)
