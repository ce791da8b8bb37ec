"""The examples in the docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import idiolect

MODULES = ["idiolect", *(m.name for m in pkgutil.walk_packages(idiolect.__path__, "idiolect."))]


def imported(name: str) -> ModuleType | None:
    """A module; None if it needs Flower, which dev leaves out, and Flower is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "flwr":
            raise
        return None


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if (module := imported(name)) is None:
        pytest.skip("needs the extra flower")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [module for name in MODULES if (module := imported(name)) is not None]
    assert len(modules) > len(MODULES) - 10
    assert sum(bool(test.examples) for module in modules for test in finder.find(module)) > 10
