"""The examples in the docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import idiolect

MODULES = ["idiolect", *(m.name for m in pkgutil.walk_packages(idiolect.__path__, "idiolect."))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert sum(bool(t.examples) for n in MODULES for t in finder.find(importlib.import_module(n))) > 10
