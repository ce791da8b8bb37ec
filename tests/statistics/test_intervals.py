"""Intervals against other ways to compute them: scikit-learn, a plain double loop, a bootstrap, and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from idiolect.statistics.intervals import auroc, rate_at

Z = 1.959963984540054


def drawn(rng: np.random.Generator, classes: int, samples: int, better: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, rounded so that there are ties, and labels, at least two of each class."""
    y_N = np.concatenate([np.repeat(np.arange(classes), 2), rng.integers(0, classes, samples - 2 * classes)])
    logit_NC = rng.normal(size=(samples, classes)) + better * np.eye(classes)[y_N]
    p_NC = np.exp(logit_NC) / np.exp(logit_NC).sum(1, keepdims=True)
    return np.round(p_NC, 2), y_N


def by_pairs(p_NC: np.ndarray, y_N: np.ndarray) -> tuple[float, float]:
    """Area and standard error of two classes as DeLong, DeLong and Clarke-Pearson write them: a mean over pairs."""
    case_M, control_N = p_NC[y_N == 1, 1], p_NC[y_N == 0, 1]
    pair_MN = (case_M[:, None] > control_N) + 0.5 * (case_M[:, None] == control_N)
    of_case_M, of_control_N = pair_MN.mean(1), pair_MN.mean(0)
    variance = of_case_M.var(ddof=1) / len(case_M) + of_control_N.var(ddof=1) / len(control_N)
    return float(pair_MN.mean()), math.sqrt(variance)


def centre_and_error(ends: tuple[float, float]) -> tuple[float, float]:
    """The area and the standard error that an interval on the logit scale came from."""
    low, high = (math.log(end / (1 - end)) for end in ends)
    area = 1 / (1 + math.exp(-(low + high) / 2))
    return area, (high - low) / 2 / Z * area * (1 - area)


@pytest.mark.parametrize(("samples", "better", "seed"), [(6, 0.2, 0), (25, 1.0, 1), (80, 0.5, 2), (400, 2.0, 3)])
def test_delong_of_two_classes(samples: int, better: float, seed: int) -> None:
    p_NC, y_N = drawn(np.random.default_rng(seed), 2, samples, better)
    ends = auroc(p_NC, y_N)
    assert ends is not None
    area, error = centre_and_error(ends)
    assert (area, error) == pytest.approx(by_pairs(p_NC, y_N), rel=1e-9)
    assert area == pytest.approx(roc_auc_score(y_N, p_NC[:, 1]))


@pytest.mark.thorough(but=["2-0"])
@pytest.mark.parametrize(("classes", "seed"), [(2, 0), (3, 1), (5, 2)])
def test_its_error_is_the_bootstraps(classes: int, seed: int) -> None:
    """Each class drawn again by itself; scikit-learn computes the area."""
    rng = np.random.default_rng(seed)
    p_NC, y_N = drawn(rng, classes, 150, 0.8)
    ends = auroc(p_NC, y_N)
    assert ends is not None
    of = [1] if classes == 2 else range(classes)
    areas = []
    for _ in range(400):
        again = np.concatenate([rng.choice(np.flatnonzero(y_N == c), (y_N == c).sum()) for c in range(classes)])
        areas.append(np.mean([roc_auc_score(y_N[again] == c, p_NC[again, c]) for c in of]))
    area, error = centre_and_error(ends)
    assert area == pytest.approx(np.mean([roc_auc_score(y_N == c, p_NC[:, c]) for c in of]))
    assert error == pytest.approx(np.std(areas), rel=0.12)


def test_classes_that_the_samples_lack() -> None:
    """Three of five: as if there were three."""
    p_NC, y_N = drawn(np.random.default_rng(4), 3, 60, 0.7)
    wide_NC = np.zeros((60, 5))
    wide_NC[:, [0, 2, 4]] = p_NC
    assert auroc(wide_NC, 2 * y_N) == pytest.approx(auroc(p_NC, y_N))


@pytest.mark.parametrize(
    ("score", "label"),
    [
        ([0.1, 0.2, 0.3], [0, 0, 0]),  # one class
        ([0.1, 0.2, 0.3], [0, 0, 1]),  # a single sample of a class
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]),  # no error
        ([0.8, 0.9, 0.1, 0.2], [0, 0, 1, 1]),  # nothing else
        ([0.5, 0.5, 0.5, 0.5], [0, 0, 1, 1]),  # all equal: no variance
        ([], []),
    ],
)
def test_no_interval(score: list[float], label: list[int]) -> None:
    p_N = np.array(score, float)
    assert auroc(np.stack([1 - p_N, p_N], 1), np.array(label, int)) is None


def test_the_area_is_in_its_interval_in_95_of_100_draws() -> None:
    rng, missed, shift = np.random.default_rng(0), 0, 1.0
    true = 0.5 * (1 + math.erf(shift / 2))
    for _ in range(600):
        y_N = np.repeat([0, 1], [25, 35])
        p_N = 1 / (1 + np.exp(-rng.normal(shift * y_N)))
        ends = auroc(np.stack([1 - p_N, p_N], 1), y_N)
        assert ends is not None
        missed += not ends[0] <= true <= ends[1]
    assert 0.02 * 600 <= missed <= 0.08 * 600


@pytest.mark.parametrize(("cases", "controls", "share"), [(20, 30, 0.9), (15, 100, 0.8), (60, 20, 0.95), (8, 10, 0.9)])
def test_a_sensitivity_is_in_its_interval_in_95_of_100_draws(cases: int, controls: int, share: float) -> None:
    """Normal scores, whose true sensitivity at a specificity is known; the threshold is chosen on the samples."""
    from scipy.stats import norm

    rng = np.random.default_rng(1)
    true, missed = norm.sf(norm.ppf(share) - 1.5), 0
    for _ in range(400):
        _, (low, high) = rate_at(rng.normal(1.5, 1, cases), rng.normal(0, 1, controls), share)
        missed += not low <= true <= high
    assert missed <= 0.06 * 400


def test_with_many_samples_it_is_the_bootstraps() -> None:
    """Cases and controls drawn again one by one."""
    rng = np.random.default_rng(2)
    case_M, control_N = rng.normal(1.2, 1, 800), rng.normal(0, 1, 700)
    again = []
    for _ in range(3000):
        cases, controls = rng.choice(case_M, 800), np.sort(rng.choice(control_N, 700))
        again.append((cases > controls[700 - 1 - 70]).mean())  # 70 of 700 may exceed it
    rate, ends = rate_at(case_M, control_N, 0.9)
    assert rate == (case_M > np.sort(control_N)[629]).mean()
    assert ends == pytest.approx(np.percentile(again, [2.5, 97.5]), abs=0.02)


@pytest.mark.parametrize(
    ("case", "control", "share", "want"),
    [
        ([0.9, 0.8], [0.1, 0.2], 0.9, 1.0),
        ([0.1, 0.2], [0.8, 0.9], 0.9, 0.0),
        ([0.5, 0.5], [0.5, 0.5], 0.5, 0.0),  # all equal: none is above
        ([0.5], [0.1], 0.001, 1.0),
        ([0.3, 0.6], [0.1, 0.5], 0.5, 1.0),
    ],
)
def test_by_hand(case: list[float], control: list[float], share: float, want: float) -> None:
    rate, (low, high) = rate_at(np.array(case), np.array(control), share)
    assert rate == want
    assert 0 <= low <= rate <= high <= 1
    assert high - low > 0.3, "two samples say little"
