"""Every published method against every check of the contract, and every check against a method that breaks it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # specimens and toy travel to other processes by name

import checks
import toy
from specimens import SPECIMENS

from idiolect import methods

EXACT = {"engines_agree", "resumes_exactly"}  # bits, so in float32 as users run; the rest compares sums, in float64
OPTIONS: dict[str, dict[str, object]] = {"pfedhn": {"steps": 16}}  # so that 50 steps a client do not take their time


@pytest.fixture(autouse=True)
def _precision(request: pytest.FixtureRequest) -> Iterator[None]:
    exact = getattr(request.node, "callspec", None) and request.node.callspec.params["check"] in EXACT
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32 if exact else torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _apply(check: str, build: toy.Build, folder: Path) -> None:
    function: Callable[..., None] = getattr(checks, check)
    function(build, folder) if check == "resumes_exactly" else function(build)


@pytest.mark.parametrize("check", SPECIMENS)
@pytest.mark.parametrize("name", methods.names())
def test_method_satisfies(name: str, check: str, tmp_path: Path) -> None:
    _apply(check, toy.builder(name, **OPTIONS.get(name, {})), tmp_path)


@pytest.mark.parametrize(("check", "specimen"), [(c, s) for c, every in SPECIMENS.items() for s in every])
def test_check_finds(check: str, specimen: toy.Build, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        _apply(check, specimen, tmp_path)
    assert caught.type is AssertionError or check == "maps_over_clients", "only vmap itself may refuse otherwise"


def test_every_check_has_a_specimen() -> None:
    written = {
        n for n, f in vars(checks).items() if callable(f) and getattr(f, "__module__", "") == "checks" and n[0] != "_"
    }
    assert written == set(SPECIMENS)
