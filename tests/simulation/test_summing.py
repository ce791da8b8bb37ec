"""Uploads as whole numbers: their sums against numpy, within the step of rounding."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from idiolect.core import reduce, tree
from idiolect.core.errors import Diverged
from idiolect.core.method import Reduced, Up
from idiolect.core.reduction import Reduction, Sums, reduced
from idiolect.methods import profile
from idiolect.simulation import summing

RNG = np.random.default_rng(0)
DECLARED = {"a": reduce.mean("1"), "b": reduce.sum()}  # by class, and a plain sum, as no method here has both


def _ups(clients: int = 5) -> list[Up]:
    draws = torch.from_numpy(RNG.normal(size=(clients, 4, 3)))
    return [
        Up({"a": a, "b": a[0] * 100}, (torch.tensor(7.0 + k), torch.tensor([k, 2.0, 0, 1])))
        for k, a in enumerate(draws)
    ]


def _added(ups: Sequence[Up]) -> Sums:
    return functools.reduce(lambda a, b: tree.map(torch.add, a, b), map(summing.sums_of, ups))


def _opened(reduction: Reduction, whole: Sequence[Up]) -> Reduced:
    return reduction.reduced(summing.decode(_added(whole)))


def test_sums_and_means_agree_with_numpy_within_half_a_step() -> None:
    ups = _ups()
    reduction = Reduction(DECLARED, ups[0])
    one = _opened(reduction, [summing.encode(reduction, up, len(ups)) for up in ups])
    n_mC = np.stack([up.weight[1].numpy() for up in ups])
    a = np.stack([up.value["a"].numpy() for up in ups])
    mean = (n_mC[:, :, None] * a).sum(0) / np.where(n_mC.sum(0) > 0, n_mC.sum(0), 1)[:, None]
    half = len(ups) * summing.STEP / 2
    np.testing.assert_allclose(one.value["a"].numpy(), mean, atol=half + 1e-12)
    np.testing.assert_allclose(one.value["b"].numpy(), sum(up.value["b"].numpy() for up in ups), rtol=1e-12, atol=half)
    assert one.weight[1].tolist() == n_mC.sum(0).tolist()
    assert bool((one.value["a"][2] == 0).all())  # a class that nobody has


def test_the_sum_is_exact_whatever_the_order() -> None:
    ups = _ups()
    reduction = Reduction(DECLARED, ups[0])
    whole = [summing.encode(reduction, up, len(ups)) for up in ups]
    one, other = (tree.leaves(_added(some)) for some in (whole, whole[::-1]))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcr", "fedlda", "pfedfda", "fedproto", "fedrod"])
def test_methods_give_the_same_server(name: str) -> None:
    with profile.precision(torch.float64):
        r = profile.small_round(name, {})
        ups, ids = r.trial.ups, torch.arange(3)
        reduction = Reduction(r.method.reduce, ups[0])
        one = _opened(reduction, [summing.encode(reduction, up, 3) for up in ups])
        plain = reduced(r.method.reduce, tree.stack(ups))
        one, plain = (r.method.aggregate(r.trial.server, up, ids)[0] for up in (one, plain))
    for a, b in zip(tree.leaves(plain), tree.leaves(one), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8 * (1 + float(a.abs().max())))


def test_the_form_is_that_of_the_upload() -> None:
    up = _ups()[0]
    whole = summing.encode(Reduction(DECLARED, up), up, 5)
    like = summing.like(whole)
    assert tree.named(like).keys() == tree.named(up).keys()
    assert {a.dtype for a in tree.leaves(like)} == {torch.get_default_dtype()}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 2.0**32])
def test_a_number_without_room(wrong: float) -> None:
    up = Up(torch.tensor([1.0, wrong]), torch.tensor(1.0))
    with pytest.raises(Diverged, match="not finite, or above"):
        summing.encode(Reduction(reduce.mean(), up), up, 3)
