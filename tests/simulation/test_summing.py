"""Uploads as whole numbers: their sums against numpy, within the step of rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from idiolect.core import tree
from idiolect.core.errors import Diverged, InputError
from idiolect.core.method import Up
from idiolect.core.reduction import reduced
from idiolect.methods import profile
from idiolect.simulation import summing
from idiolect.training import combine_mean

RNG = np.random.default_rng(0)


def _method(combine: Any) -> Any:
    return profile.small_round("fedavg", {}).method._replace(combine=combine)


def _ups(clients: int = 5) -> list[Up]:
    draws = torch.from_numpy(RNG.normal(size=(clients, 4, 3)))
    return [
        Up({"a": a, "b": a[0] * 100}, (torch.tensor(7.0 + k), torch.tensor([k, 2.0, 0, 1])))
        for k, a in enumerate(draws)
    ]


def _combine(up: Up) -> Up:
    """``a`` is a mean by class, ``b`` a sum, as no method here has both."""
    n_mC = up.weight[1]
    share_mC = n_mC / torch.where(n_mC.sum(0) > 0, n_mC.sum(0), 1)
    value = {"a": (share_mC[:, :, None] * up.value["a"]).sum(0), "b": up.value["b"].sum(0)}
    return Up(value, tree.map(lambda w: w.sum(0), up.weight))


def test_sums_and_means_agree_with_numpy_within_half_a_step() -> None:
    ups, method = _ups(), _method(_combine)
    by = summing.weighting(method, ups[0])
    assert by == (1, None)
    one = summing.opened(summing.added([summing.encoded(up, by, len(ups)) for up in ups]), by)
    n_mC = np.stack([up.weight[1].numpy() for up in ups])
    a = np.stack([up.value["a"].numpy() for up in ups])
    mean = (n_mC[:, :, None] * a).sum(0) / np.where(n_mC.sum(0) > 0, n_mC.sum(0), 1)[:, None]
    half = len(ups) * summing.STEP / 2
    np.testing.assert_allclose(one.value["a"].double().numpy(), mean, atol=half + 1e-7)  # and float32
    np.testing.assert_allclose(
        one.value["b"].double().numpy(), sum(up.value["b"].numpy() for up in ups), rtol=1e-6, atol=half
    )
    assert one.weight[1].tolist() == n_mC.sum(0).tolist()
    assert bool((one.value["a"][2] == 0).all())  # a class that nobody has


def test_the_sum_is_exact_whatever_the_order() -> None:
    ups = _ups()
    whole = [summing.encoded(up, (1, None), len(ups)) for up in ups]
    one, other = (tree.leaves(summing.added(some)) for some in (whole, whole[::-1]))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcr", "fedlda", "pfedfda", "fedproto", "fedrod"])
def test_methods_give_the_same_server(name: str) -> None:
    with profile.precision(torch.float64):
        r = profile.small_round(name, {})
        ups = [Up(*(tree.rows(part, k) for part in r.ups)) for k in range(3)]
        by = summing.weighting(r.method, ups[0])
        one = summing.opened(summing.added([summing.encoded(up, by, 3) for up in ups]), by)
        ids = torch.arange(3)
        plain, summed = (
            r.method.aggregate(r.server, reduced(r.method.reduce, up), ids)[0]
            for up in (r.ups, tree.map(lambda a: a[None], one))
        )
    for a, b in zip(tree.leaves(plain), tree.leaves(summed), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8 * (1 + float(a.abs().max())))


@pytest.mark.parametrize(
    ("combine", "said"),
    [
        (None, "needs the upload of each"),
        (lambda up: Up(tree.map(lambda a: a.amax(0), up.value), tree.map(lambda w: w.sum(0), up.weight)), "other than"),
        (lambda up: combine_mean(up)._replace(weight=up.weight.amax(0)), "weights that its combine"),
    ],
)
def test_what_is_not_a_sum(combine: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        summing.weighting(_method(combine), Up({"a": torch.zeros(3)}, torch.tensor(1.0)))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 2.0**32])
def test_a_number_without_room(wrong: float) -> None:
    with pytest.raises(Diverged, match="not finite, or above"):
        summing.encoded(Up(torch.tensor([1.0, wrong]), torch.tensor(1.0)), (0,), 3)
