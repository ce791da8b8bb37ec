"""A method that cannot be computed for several clients at once: the vectorised engine says where, and what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import RunError
from idiolect.core.method import Data, Method
from idiolect.engines import Sequential, Vectorised
from idiolect.simulation import Job, fit

BRANCH, NUMBER, SIZE = "decides by a tensor", "takes a number out of a tensor", "whose size depends on the data"
KINDS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "if": (lambda a: a if a.sum() > 0 else -a, BRANCH),
    "bool": (lambda a: bool(a.sum()), BRANCH),
    "and": (lambda a: a.sum() > 0 and a.sum() > 1, BRANCH),
    "max": (lambda a: max(a[0], a[0] + 1), BRANCH),
    "break": (lambda a: next(n for n in range(9) if a.sum() < n), BRANCH),
    "item": (lambda a: a.sum().item(), NUMBER),
    "float": (lambda a: float(a.sum()), NUMBER),
    "int": (lambda a: int(a.sum()), NUMBER),
    "range": (lambda a: list(range(a.sum().long())), NUMBER),
    "place in a list": (lambda a: [1, 2][(a.sum() > 0).long()], NUMBER),
    "slice": (lambda a: a[: (a.sum() > 0).long()], NUMBER),
    "text": (lambda a: f"{a.sum():.2f}", NUMBER),
    "list": (lambda a: a.tolist(), NUMBER),
    "numpy": (lambda a: np.asarray(a.detach()), NUMBER),
    "boolean index": (lambda a: a[a > 0], SIZE),
    "boolean place": (lambda a: a.clone().__setitem__(a > 0, 0.0), SIZE),
    "nonzero": (lambda a: a.nonzero(), SIZE),
    "nonzero of numpy": (lambda a: torch.nonzero(a, as_tuple=True), SIZE),
    "where": (lambda a: torch.where(a > 0), SIZE),
    "select": (lambda a: torch.masked_select(a, a > 0), SIZE),
    "unique": (lambda a: a.long().unique(), SIZE),
    "equal": (lambda a: torch.equal(a, a), "asks whether tensors are equal"),
    "close": (lambda a: torch.allclose(a, a), "asks whether tensors are equal"),
    "draw": (lambda a: torch.rand(3) + a.sum(), "draws without its key"),
    "in place": (lambda a: torch.zeros(3).__setitem__(0, a.sum()), "writes into a tensor"),
    "another": (
        lambda a: torch.nn.functional.one_hot(a.long()), "does what torch.func.vmap cannot"
    ),
}  # fmt: skip


def build(function: str, does: Callable[[Tensor], Any]) -> Method:
    """FedPer, one of whose functions also does something with a client's own numbers."""
    method = methods.build("fedper", {}, toy.task())
    plain = getattr(method, function)

    def doing(down: Any, client: Any, data: Data | Tensor, *key: Tensor) -> Any:
        does(data.real_N if isinstance(data, Data) else data.flatten().float())
        return plain(down, client, data, *key)

    return method._replace(**{function: doing})


def refusal(function: str, does: Callable[[Tensor], Any]) -> str:
    job = Job("fedown", partial(build, function, does), toy.data(), 0)
    with Vectorised(device="cpu") as engine, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's speed
        with pytest.raises(RunError) as caught:
            fit(job, engine, rounds=1)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_says_where_and_what_to_do(kind: str) -> None:
    does, what = KINDS[kind]
    said = refusal("local", does)
    assert said.startswith("fedown: client"), said
    assert ", round 1, local: the method does not map over clients, because local " in said
    assert what in said
    assert "(test_refusals.py, line " in said, "the method's own line"
    assert said.endswith("; or choose engine='sequential' or processes")
    assert "issue" not in said
    assert "bug report" not in said
    if what in (BRANCH, NUMBER, SIZE):
        assert "use tree.when, or a mask" in said


@pytest.mark.parametrize("kind", ["if", "item", "boolean index"])
@pytest.mark.parametrize("function", ["personalise", "predict"])
def test_every_function_is_named(function: str, kind: str) -> None:
    does, what = KINDS[kind]
    assert f", round 1, evaluate: the method does not map over clients, because {function} {what}" in refusal(
        function, does
    ).replace("makes a tensor ", "")


def test_other_engines_compute_it() -> None:
    with Sequential() as engine:
        assert fit(Job("fedown", partial(build, "local", KINDS["if"][0]), toy.data(), 0), engine, rounds=1).round == 1


def test_what_it_says_to_do_maps() -> None:
    """``tree.when`` and masks, in the places of a branch, a number and an index."""

    def does(a: Tensor) -> None:
        tree.when(a.sum() > 2, lambda: a, lambda: -a)
        torch.where(a > 0, a, 0).sum()

    with Vectorised(device="cpu") as engine:
        assert fit(Job("fedown", partial(build, "local", does), toy.data(), 0), engine, rounds=1).round == 1


@pytest.mark.parametrize("error", [ValueError("vmapless"), RuntimeError("no room"), KeyError("vmap")])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    def does(a: Tensor) -> None:
        raise error

    assert f"local: {type(error).__name__}: " in refusal("local", does)
