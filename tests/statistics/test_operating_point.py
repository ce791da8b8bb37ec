"""Rates at thresholds against scikit-learn, and Bayes' theorem."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import precision_score, recall_score, roc_curve

from idiolect.statistics.operating_point import OperatingPoint, at_sensitivity, at_specificity, of_calls


def sample(seed: int, count: int = 150, digits: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    is_case = rng.random(count) < 0.3
    return (1 / (1 + np.exp(-rng.normal(is_case * 1.5 - 0.5)))).round(digits), is_case


def test_calls_have_the_rates_of_scikit_learn_with_intervals_of_scipy() -> None:
    p, y = sample(0)
    point = of_calls(p > 0.4, y, 0.4)
    np.testing.assert_allclose(point.sensitivity.value, recall_score(y, p > 0.4))
    np.testing.assert_allclose(point.specificity.value, recall_score(y, p > 0.4, pos_label=False))
    np.testing.assert_allclose(point.ppv.value, precision_score(y, p > 0.4))
    np.testing.assert_allclose(point.npv.value, precision_score(y, p > 0.4, pos_label=False))
    ends = binomtest(int((y & (p > 0.4)).sum()), int((p > 0.4).sum())).proportion_ci(method="wilson")
    np.testing.assert_allclose(point.ppv[1:], (ends.low, ends.high))
    np.testing.assert_allclose(point.positive.value, np.mean(p > 0.4))


@pytest.mark.parametrize("digits", [12, 1])  # 1: many equal probabilities
@pytest.mark.parametrize("least", [0.5, 0.9, 0.95])
def test_the_best_rate_is_that_of_the_roc_curve(least: float, digits: int) -> None:
    p, y = sample(1, digits=digits)
    false, true, _ = roc_curve(y, p, drop_intermediate=False)
    high, low = at_specificity(p, y, least), at_sensitivity(p, y, least)
    np.testing.assert_allclose(high.sensitivity.value, true[1 - false >= least - 1e-12].max())
    np.testing.assert_allclose(low.specificity.value, (1 - false)[true >= least - 1e-12].max())
    for point in (high, low):
        again = of_calls(p > point.threshold, y)  # the threshold that is told gives these rates
        np.testing.assert_allclose(again.sensitivity.value, point.sensitivity.value)
        np.testing.assert_allclose(again.specificity.value, point.specificity.value)
        assert point.threshold not in p, "no sample's own probability"
    assert high.sensitivity.low < high.sensitivity.value < high.sensitivity.high
    assert np.isnan(high.specificity.low)
    assert np.isnan(low.sensitivity.low)


def test_thresholds_beyond_all_samples() -> None:
    p, y = np.array([0.2, 0.4, 0.6, 0.9]), np.array([True, False, True, False])
    none = at_specificity(p, y, 0.9)
    assert (none.sensitivity.value, none.specificity.value) == (0, 1)
    assert 0.9 < none.threshold <= 1
    assert np.isnan(none.ppv.value)
    everyone = at_sensitivity(p, y, 0.9)
    assert (everyone.sensitivity.value, everyone.specificity.value) == (1, 0)
    assert everyone.threshold < 0
    assert np.isnan(everyone.npv.value)


def test_a_prevalence_changes_predictive_values_by_bayes_theorem() -> None:
    p, y = sample(2)
    own: OperatingPoint = of_calls(p > 0.5, y)
    same = of_calls(p > 0.5, y, prevalence=float(y.mean()))
    np.testing.assert_allclose([same.ppv.value, same.npv.value], [own.ppv.value, own.npv.value])
    rare, sens, spec = of_calls(p > 0.5, y, prevalence=0.01), own.sensitivity.value, own.specificity.value
    np.testing.assert_allclose(rare.ppv.value, 0.01 * sens / (0.01 * sens + 0.99 * (1 - spec)))
    np.testing.assert_allclose(rare.npv.value, 0.99 * spec / (0.99 * spec + 0.01 * (1 - sens)))
    np.testing.assert_allclose(rare.positive.value, 0.01 * sens + 0.99 * (1 - spec))
    assert np.isnan(rare.ppv.low)
    assert rare.sensitivity == own.sensitivity
