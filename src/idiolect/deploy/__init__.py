"""Personal models outside of the simulator: bundles, joining, predicting, validating, exporting and watching."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idiolect.deploy.bundle import Bundle
    from idiolect.deploy.estimator import PersonalClassifier, PersonalMultilabelClassifier, PersonalRegressor, load

__all__ = ["Bundle", "PersonalClassifier", "PersonalMultilabelClassifier", "PersonalRegressor", "load"]
_MODULES = {"Bundle": "bundle"} | dict.fromkeys(__all__[1:], "estimator")


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's help needs no PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'idiolect.deploy' has no attribute {name!r}")
    return getattr(import_module(f"idiolect.deploy.{_MODULES[name]}"), name)
