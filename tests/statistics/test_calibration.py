"""Calibration against scikit-learn's logistic regression, scipy's roots and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import binomtest, norm, t
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from idiolect.statistics.calibration import LEAST_P, bins, brier, recalibration


def sample(seed: int, count: int, intercept: float = 0.0, slope: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 2, count)
    return p, rng.random(count) < expit(intercept + slope * logit(p))


@pytest.mark.parametrize(("intercept", "slope"), [(0, 1), (0.7, 0.4), (-0.5, 2.5)])
def test_recalibration_is_the_logistic_regression_on_the_log_odds(intercept: float, slope: float) -> None:
    p, y = sample(3, 300, intercept, slope)
    made = recalibration(p, y)
    fit = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(logit(p)[:, None], y)
    np.testing.assert_allclose(made.slope.value, fit.coef_[0, 0], rtol=1e-5)
    np.testing.assert_allclose(made.intercept.value, fit.intercept_[0], atol=1e-5)
    x = np.stack((np.ones(len(p)), logit(p)), 1)
    fitted = fit.predict_proba(logit(p)[:, None])[:, 1]
    error = np.sqrt(np.diag(np.linalg.inv((x.T * fitted * (1 - fitted)) @ x)))
    for estimate, e in zip((made.intercept, made.slope), error, strict=True):
        np.testing.assert_allclose(estimate[1:], estimate.value + norm.ppf([0.025, 0.975]) * e, rtol=1e-4, atol=1e-5)
    root = brentq(lambda a: (y - expit(a + logit(p))).sum(), -9, 9, xtol=1e-13)
    np.testing.assert_allclose(made.in_the_large.value, root, atol=1e-7)
    moved = expit(root + logit(p))
    half = norm.ppf(0.975) / np.sqrt((moved * (1 - moved)).sum())
    np.testing.assert_allclose(made.in_the_large[1:], (root - half, root + half), atol=1e-6)


def test_intervals_of_the_slope_hold_the_truth_as_often_as_they_say() -> None:
    inside = large = 0
    for seed in range(200):
        made = recalibration(*sample(seed, 150))
        inside += made.slope.low <= 1 <= made.slope.high
        large += made.in_the_large.low <= 0 <= made.in_the_large.high
    assert 180 <= inside <= 199
    assert 180 <= large <= 199


@pytest.mark.parametrize("p", [[0.1, 0.2, 0.8, 0.9], [0.9, 0.8, 0.2, 0.1], [0.1, 0.5, 0.5, 0.9], [0.4] * 4])
def test_what_has_no_finite_slope_has_none(p: list[float]) -> None:
    made = recalibration(np.array(p), np.array([False, False, True, True]))
    assert np.isnan(made.slope.value)
    assert np.isnan(made.intercept.value)
    assert np.isfinite(made.in_the_large).all()


def test_probabilities_of_0_and_1_are_taken_as_nearly_so() -> None:
    p, y = sample(5, 80)
    p[:2], y[:2] = [0, 1], [True, False]
    near = np.clip(p, LEAST_P, 1 - LEAST_P)
    assert recalibration(p, y) == recalibration(near, y)
    assert np.isfinite(recalibration(p, y).slope).all()


@pytest.mark.parametrize(("count", "expected"), [(9, 1), (19, 1), (20, 2), (57, 5), (100, 10), (1003, 10)])
def test_bins_are_of_about_equal_size_and_never_small(count: int, expected: int) -> None:
    p, y = sample(6, count)
    made = bins(p, y)
    assert len(made) == expected
    assert sum(b.samples for b in made) == count
    assert min(b.samples for b in made) >= min(10, count)
    assert max(b.samples for b in made) - min(b.samples for b in made) <= 10
    order, start = np.argsort(p), 0
    for b in made:
        mine = order[start : start + b.samples]
        np.testing.assert_allclose(b.predicted, p[mine].mean())
        ends = binomtest(int(y[mine].sum()), b.samples).proportion_ci(method="wilson")
        np.testing.assert_allclose(b.observed, (y[mine].mean(), ends.low, ends.high), atol=1e-12)
        start += b.samples


@pytest.mark.parametrize("seed", range(20))
def test_equal_probabilities_are_in_one_bin(seed: int) -> None:
    p, y = sample(seed, 60 + seed)
    p = p.round(1)
    made = bins(p, y)
    assert sum(b.samples for b in made) == len(p)
    assert min(b.samples for b in made) >= 10
    ends = np.cumsum([b.samples for b in made])[:-1]
    ordered = np.sort(p)
    assert all(ordered[end - 1] < ordered[end] for end in ends)


def test_the_brier_score_is_that_of_scikit_learn() -> None:
    p, y = sample(7, 120)
    loss = (p - y) ** 2
    ends = t.interval(0.95, 119, loss.mean(), loss.std(ddof=1) / np.sqrt(120))
    np.testing.assert_allclose(brier(p, y), (brier_score_loss(y, p), *ends))
