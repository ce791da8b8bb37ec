"""Decision curves against the equation of Vickers and Elkin, and how often their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from idiolect.statistics.decision_curve import decision_curve
from idiolect.statistics.intervals import Estimate, difference, share

THRESHOLDS = [0.05, 0.2, 0.5, 0.8]


def sample(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    is_case = rng.random(count) < 0.4
    return norm.cdf(rng.normal(is_case * 1.2 - 0.8)), is_case


def test_net_benefit_is_that_of_the_equation() -> None:
    p, y = sample(0, 90)
    for t, point in zip(THRESHOLDS, decision_curve(p, y, THRESHOLDS), strict=True):
        true, false = np.sum((p >= t) & y), np.sum((p >= t) & ~y)
        benefit = true / 90 - false / 90 * t / (1 - t)
        everyone = y.mean() - (1 - y.mean()) * t / (1 - t)
        np.testing.assert_allclose(
            (point.model.value, point.everyone.value, point.gain.value), (benefit, everyone, benefit - everyone)
        )
        ends = binomtest(int(y.sum()), 90).proportion_ci(method="wilson")
        expected = [end - (1 - end) * t / (1 - t) for end in (ends.low, ends.high)]
        np.testing.assert_allclose(point.everyone[1:], expected)


def test_a_prevalence_weighs_cases_and_controls() -> None:
    p, y = sample(1, 90)
    for t, point in zip(THRESHOLDS, decision_curve(p, y, THRESHOLDS, 0.1), strict=True):
        odds = t / (1 - t)
        benefit = 0.1 * np.mean(p[y] >= t) - 0.9 * np.mean(p[~y] >= t) * odds
        np.testing.assert_allclose(point.model.value, benefit)
        np.testing.assert_allclose(point.everyone, [0.1 - 0.9 * odds] * 3)
        np.testing.assert_allclose(point.gain, np.array(point.model) - point.everyone.value, atol=1e-12)
    own, same = decision_curve(p, y, THRESHOLDS), decision_curve(p, y, THRESHOLDS, float(y.mean()))
    np.testing.assert_allclose([a.model.value for a in own], [b.model.value for b in same])


def test_intervals_of_many_samples_are_those_of_a_mean() -> None:
    p, y = sample(2, 20_000)
    for t, point in zip(THRESHOLDS, decision_curve(p, y, THRESHOLDS), strict=True):
        odds = t / (1 - t)
        worth = np.where(p >= t, np.where(y, 1.0, -odds), 0.0)
        left = worth - np.where(y, 1.0, -odds)
        for estimate, value in ((point.model, worth), (point.gain, left)):
            half = norm.ppf(0.975) * value.std() / np.sqrt(len(value))
            np.testing.assert_allclose(estimate[1:], (value.mean() - half, value.mean() + half), atol=0.08 * half)


@pytest.mark.parametrize("prevalence", [None, 0.4])
def test_intervals_hold_the_truth_as_often_as_they_say(prevalence: float | None) -> None:
    high = norm.sf(norm.ppf(0.3), loc=np.array([0.4, -0.8]))  # the shares of cases and of controls above 0.3
    truth = 0.4 * high[0] - 0.6 * high[1] * 0.3 / 0.7
    curves = [decision_curve(*sample(seed, 60), [0.3], prevalence)[0] for seed in range(600)]
    inside = np.mean([point.model.low <= truth <= point.model.high for point in curves])
    assert 0.925 <= inside <= 0.98
    gain = truth - (0.4 - 0.6 * 0.3 / 0.7)
    assert 0.925 <= np.mean([point.gain.low <= gain <= point.gain.high for point in curves]) <= 0.985


def test_without_a_positive_sample_there_is_an_interval_too() -> None:
    [point] = decision_curve(np.full(30, 0.2), np.arange(30) < 10, [0.5])
    assert point.model.value == 0
    assert point.model.low < 0 < point.model.high
    assert not point.is_best
    [everyone] = decision_curve(np.full(30, 0.9), np.arange(30) < 10, [0.5])
    np.testing.assert_allclose(everyone.model.value, everyone.everyone.value)


def test_a_probability_of_the_threshold_is_treated() -> None:
    [point] = decision_curve(np.full(30, 0.5), np.arange(30) < 10, [0.5])
    np.testing.assert_allclose(point.model.value, 10 / 30 - 20 / 30)
    np.testing.assert_allclose(point.gain.value, 0, atol=1e-12)


def test_a_difference_is_zou_and_donners() -> None:
    one, other = Estimate(0.5, 0.3, 0.6), Estimate(0.2, 0.1, 0.4)
    np.testing.assert_allclose(difference(one, other), (0.3, 0.3 - np.hypot(0.2, 0.2), 0.3 + np.hypot(0.1, 0.1)))
    low = 0.3 - np.sqrt(0.04 + 0.04 + 2 * 0.5 * 0.04)
    np.testing.assert_allclose(difference(one, other, -0.5).low, low)
    assert np.isnan(share(0, 0).value)
