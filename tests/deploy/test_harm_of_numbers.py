"""The weights of a site's models of numbers, and the interval of a difference of errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import RunError
from idiolect.deploy import harm, harm_of_numbers
from idiolect.deploy.schema import TargetPart

NAMES = ("global", "personal", "local")


def models(seed: int, numbers: int = 2, count: int = 50) -> tuple[dict[str, Tensor], Tensor]:
    """Predictions of three models with errors of unlike size, and the truth."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(count, numbers))
    sizes = rng.permutation([0.4, 0.6, 1.5])
    return {n: torch.from_numpy(y + s * rng.normal(size=y.shape)) for n, s in zip(NAMES, sizes, strict=True)}, (
        torch.from_numpy(y)
    )


FIRST = [0.2, 0.5, 0.3]


def best_weights(values: dict[str, Tensor], y: Tensor) -> np.ndarray:
    """By a search over the simplex."""
    first = np.array(FIRST)
    f = np.stack([values[name].numpy() for name in NAMES])
    noise = ((f - y.numpy()) ** 2).mean(1).min(0)
    grid = np.array([(a, b, 1 - a - b) for a, b in itertools.product(np.linspace(0, 1, 201), repeat=2) if a + b <= 1])
    loss = [(((y.numpy() - np.tensordot(w, f, 1)) ** 2) / noise).sum() / 2 + 2 * ((w - first) ** 2).sum() for w in grid]
    best = grid[int(np.argmin(loss))]
    return np.where(best < 0.02, 0, best)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("numbers", [1, 3])
def test_the_weights_are_those_that_predict_best(seed: int, numbers: int) -> None:
    values, y = models(seed, numbers)
    weight = harm_of_numbers.weights(values, y)
    assert sum(weight.values()) == pytest.approx(1)
    np.testing.assert_allclose([weight.get(name, 0.0) for name in NAMES], best_weights(values, y), atol=0.02)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e6])
def test_the_unit_does_not_matter(scale: float) -> None:
    """But errors of 1e-9 of a number's spread are rounding, and teach nothing."""
    values, y = models(5)
    weight = harm_of_numbers.weights({name: v * scale for name, v in values.items()}, y * scale)
    assert sum(weight.values()) == pytest.approx(1)
    best = best_weights(values, y) if scale > 1e-6 else FIRST
    np.testing.assert_allclose([weight.get(name, 0.0) for name in NAMES], best, atol=0.02)
    if scale > 1e-6:
        assert weight == pytest.approx(harm_of_numbers.weights(values, y), abs=1e-3)


@pytest.mark.parametrize("harmful", ["personal", "local"])
def test_a_model_that_is_far_off_is_left_out(harmful: str) -> None:
    values, y = models(0)
    weight = harm_of_numbers.weights(values | {harmful: y + 50}, y)
    assert harmful not in weight


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_is_that_of_a_paired_t_test(seed: int) -> None:
    values, y = models(seed)
    judge = harm_of_numbers.judge_of([TargetPart(name="a", mean=0, std=3), TargetPart(name="b", mean=7, std=0.5)])
    std = np.array([3, 0.5])
    square = {n: ((std * (v - y).numpy()) ** 2).mean(1) for n, v in values.items()}
    merit = {n: judge.merit(v, y) for n, v in values.items()}
    difference = judge.paired(merit["personal"], merit["global"], None)
    test = scipy.stats.ttest_rel(square["personal"], square["global"])
    ends = test.confidence_interval(0.95)
    assert difference.mean == pytest.approx(square["personal"].mean() - square["global"].mean())
    assert difference[1:] == pytest.approx((ends.low, ends.high))


@pytest.mark.parametrize("most", [1, 4, 15])
def test_the_interval_covers_the_truth_where_samples_are_of_groups(most: int) -> None:
    rng = np.random.default_rng(most)
    inside = []
    for _ in range(200):
        count = rng.integers(1, most + 1, 25)
        step = np.repeat(rng.normal(size=25), count) + 0.2 * rng.normal(size=count.sum())
        difference = harm_of_numbers.paired(
            torch.from_numpy(-step), torch.zeros(len(step)), torch.from_numpy(np.repeat(np.arange(25), count))
        )
        inside.append(difference.low <= 0 <= difference.high)
    assert np.mean(inside) > 0.9


def fits(y: Tensor, seen: list[set[int]], sizes: dict[str, float]) -> dict:
    """Models that are off by a fixed amount, and check that they do not predict what they were made from."""

    def of(size: float):
        def fit(rows: Tensor):
            seen.append(set(rows.tolist()))

            def predict(held: Tensor) -> Tensor:
                assert not set(held.tolist()) & set(rows.tolist())
                noise = torch.randn(len(held), y.shape[1], generator=torch.Generator().manual_seed(int(held[0])))
                return (y[held] + size * noise).double()

            return predict

        return fit

    return {name: of(size) for name, size in sizes.items()}


def test_no_sample_is_predicted_by_a_model_or_weights_made_with_it() -> None:
    y = torch.randn(60, 1, generator=torch.Generator().manual_seed(0)).double()
    judge, seen = harm_of_numbers.judge_of([TargetPart(name="a", mean=0, std=1)]), list[set[int]]()
    choice = harm.compare(fits(y, seen, {"global": 1.0, "personal": 0.2}), y, keys.key(0), None, judge)
    assert len(seen) == 20, "ten folds of each model"
    assert all(len(rows) == 54 for rows in seen)
    assert choice.weights["personal"] > choice.weights.get("global", 0)
    assert choice.difference["personal"].mean < 0
    assert "its mean squared error differs by -" in choice.why
    error = {n: float(((v - y) ** 2).mean()) for n, v in choice.outputs.items()}
    assert choice.difference["blend"].mean == pytest.approx(error["blend"] - error["global"])


def test_a_model_that_diverges_is_left_out() -> None:
    y = torch.randn(20, 1, generator=torch.Generator().manual_seed(0)).double()
    judge = harm_of_numbers.judge_of([TargetPart(name="a", mean=0, std=1)])
    for bad in (float("nan"), float("inf"), float("-inf")):
        both = fits(y, [], {"global": 0.5, "personal": bad})
        assert set(harm.compare(both, y, keys.key(0), None, judge).weights) == {"global"}
        with pytest.raises(RunError, match="the global model's predictions of these samples are not numbers"):
            harm.compare(fits(y, [], {"global": bad}), y, keys.key(0), None, judge)
