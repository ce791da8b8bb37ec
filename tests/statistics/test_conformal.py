"""Intervals around predicted numbers: their width, how often they hold the truth, and their score."""

from __future__ import annotations

import math

import numpy as np
import pytest

from idiolect.statistics import conformal


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("count", [1, 8, 9, 19, 100, 257])
def test_the_quantile_is_the_one_of_numpy_with_one_infinite_error_more(count: int, level: float) -> None:
    sizes = np.sort(np.random.default_rng(count).exponential(size=count))
    wanted = np.quantile([*sizes, np.inf], level, method="inverted_cdf")
    assert conformal.quantile(tuple(sizes), level) == wanted
    assert math.isinf(wanted) == (count < conformal.least(level))


@pytest.mark.parametrize(("level", "count"), [(0.9, 40), (0.8, 25), (0.95, 60)])
def test_intervals_hold_the_number_as_often_as_asked(level: float, count: int) -> None:
    rng = np.random.default_rng(count)
    inside = []
    for _ in range(1500):
        size_N = np.abs(rng.standard_t(3, count + 1))
        inside.append(size_N[-1] <= conformal.quantile(tuple(np.sort(size_N[:-1])), level))
    assert np.mean(inside) == pytest.approx(math.ceil((count + 1) * level - 1e-9) / (count + 1), abs=0.03)


@pytest.mark.parametrize(("groups", "most"), [(20, 3), (20, 12), (40, 1)])
def test_intervals_hold_the_number_for_samples_of_new_groups(groups: int, most: int) -> None:
    """Errors of one group are alike; the level is about a sample of a group that is new."""
    rng = np.random.default_rng(groups + most)
    inside, as_samples = [], []
    for _ in range(300):
        scale_G = rng.lognormal(0, 1.5, groups + 1)
        count_G = rng.integers(1, most + 1, groups + 1)
        size_N = [np.abs(scale * rng.normal(size=n)) for scale, n in zip(scale_G, count_G, strict=True)]
        own_N = np.concatenate(size_N[:-1])
        order_N = np.argsort(own_N)
        sizes = tuple(own_N[order_N])
        weights = tuple(np.repeat(1 / ((groups + 1) * count_G[:-1]), count_G[:-1])[order_N])
        inside.append((size_N[-1] <= conformal.quantile(sizes, 0.9, weights)).mean())
        as_samples.append((size_N[-1] <= conformal.quantile(sizes, 0.9)).mean())
    assert np.mean(inside) > 0.9 - 0.03
    assert np.mean(inside) <= 0.9 + 1 / (groups + 1) + 0.03
    if most == 12:
        assert np.mean(as_samples) < np.mean(inside), "samples alone say too much of a new group"


@pytest.mark.parametrize("half", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_width_and_score_are_those_of_their_definitions(half: float, level: float) -> None:
    rng = np.random.default_rng(3)
    value_N, y_N = rng.normal(size=50), rng.normal(size=50)
    score, inside = 0.0, 0
    for value, y in zip(value_N, y_N, strict=True):
        low, high = value - half, value + half
        inside += low <= y <= high
        score += (high - low) + 2 / (1 - level) * max(low - y, 0) + 2 / (1 - level) * max(y - high, 0)
    quality = conformal.quality(value_N, half, y_N, level)
    assert quality.coverage == inside / 50
    assert quality.width == 2 * half
    assert quality.score == pytest.approx(score / 50)


def test_an_infinite_interval_holds_everything() -> None:
    quality = conformal.quality(np.zeros(3), math.inf, np.array([1.0, -9.0, 1e300]), 0.9)
    assert (quality.coverage, quality.width, quality.score) == (1.0, math.inf, math.inf)
