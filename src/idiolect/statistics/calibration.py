"""Whether probabilities can be believed: bins of samples, and a logistic regression on the log-odds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from idiolect.statistics.intervals import Estimate, Z, share

# N samples, K parameters

LEAST_P = 1e-9
"""Probabilities nearer to 0 or 1 are taken to be that near, so that their log-odds are finite."""


class Bin(NamedTuple):
    """Samples with neighbouring probabilities."""

    samples: int
    predicted: float
    """Their mean probability."""
    observed: Estimate
    """The share of cases."""


class Recalibration(NamedTuple):
    """Log-odds of being a case = intercept + slope x the model's log-odds."""

    in_the_large: Estimate
    """The intercept where the slope is 1. 0: as many cases as predicted; above 0: more, so probabilities are low."""
    intercept: Estimate
    slope: Estimate
    """1: probabilities are as extreme as they should be; below 1: too extreme. NaN if it has no finite estimate."""


def bins(p_N: NDArray[np.float64], is_case_N: NDArray[np.bool_], most: int = 10, least: int = 10) -> list[Bin]:
    """Samples in bins of about equal size, by their probability, with Wilson's intervals.

    Samples with equal probabilities are in one bin.

    Args:
        p_N: the probability of being a case.
        is_case_N: whether each sample is one.
        most: so many bins at most.
        least: so many samples in a bin at least; if there are fewer in all, they are one bin.
    """
    order_N = np.argsort(p_N, kind="stable")
    size = len(p_N) / max(1, min(most, len(p_N) // least))
    ends, start = [0], 0
    for end in np.cumsum(np.unique(p_N, return_counts=True)[1]).tolist():
        if end - start >= least and end >= len(ends) * size - 1e-9:
            ends.append(start := end)
    if 0 < len(p_N) - start < least and start:
        ends.pop()
    parts = np.split(order_N, [end for end in ends[1:] if end < len(p_N)])
    return [Bin(len(n), float(p_N[n].mean()), share(int(is_case_N[n].sum()), len(n))) for n in parts]


def recalibration(p_N: NDArray[np.float64], is_case_N: NDArray[np.bool_]) -> Recalibration:
    """Calibration in the large and the calibration slope, by maximum likelihood, with Wald's intervals.

    The slope is NaN if all probabilities are equal, or if they separate cases from controls, because the likelihood
    then has no maximum.

    Args:
        p_N: the probability of being a case; one below 1e-9 or above 1 - 1e-9 is taken to be that.
        is_case_N: whether each sample is one; there are cases and controls.

    Source: Cox, Two further applications of a model for binary regression, Biometrika 1958; the names: Steyerberg,
    Clinical Prediction Models, 2009, 15.3.
    """
    p_N = np.clip(p_N, LEAST_P, 1 - LEAST_P)
    logit_N, y_N = np.log(p_N) - np.log1p(-p_N), is_case_N.astype(np.float64)
    one_N = np.ones_like(logit_N)
    [in_the_large] = _fit(one_N[:, None], y_N, logit_N)
    case_M, control_N = logit_N[is_case_N], logit_N[~is_case_N]
    if control_N.max() <= case_M.min() or case_M.max() <= control_N.min():  # so, too, where all are equal
        return Recalibration(in_the_large, Estimate(math.nan), Estimate(math.nan))
    return Recalibration(in_the_large, *_fit(np.stack((one_N, logit_N), 1), y_N, np.zeros_like(logit_N)))


def _fit(x_NK: NDArray[np.float64], y_N: NDArray[np.float64], offset_N: NDArray[np.float64]) -> list[Estimate]:
    """The coefficients of a logistic regression with an offset."""
    from scipy.optimize import minimize
    from scipy.special import expit

    def loss(beta_K: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        eta_N = offset_N + x_NK @ beta_K
        return float(np.logaddexp(0, eta_N).sum() - y_N @ eta_N) / len(y_N), x_NK.T @ (expit(eta_N) - y_N) / len(y_N)

    def information(beta_K: NDArray[np.float64]) -> NDArray[np.float64]:
        p_N = expit(offset_N + x_NK @ beta_K)
        return np.asarray((x_NK.T * (p_N * (1 - p_N))) @ x_NK / len(y_N))

    start_K = np.eye(x_NK.shape[1])[-1] if x_NK.shape[1] > 1 else np.zeros(1)
    beta_K = minimize(loss, start_K, jac=True, hess=information, method="trust-exact", options={"gtol": 1e-10}).x
    half_K = Z * np.sqrt(np.diag(np.linalg.inv(information(beta_K))) / len(y_N))
    return [Estimate(b, b - h, b + h) for b, h in zip(beta_K.tolist(), half_K.tolist(), strict=True)]


def brier(p_N: NDArray[np.float64], is_case_N: NDArray[np.bool_]) -> Estimate:
    """The mean squared difference of probabilities and outcomes, with the interval of a mean (Student's t).

    Source: Brier, Verification of forecasts expressed in terms of probability, Monthly Weather Review 1950.
    """
    from scipy.stats import t

    loss_N = np.square(p_N - is_case_N)
    half = float(t.ppf(0.975, len(loss_N) - 1) * loss_N.std(ddof=1)) / math.sqrt(len(loss_N))
    return Estimate(float(loss_N.mean()), max(0.0, float(loss_N.mean()) - half), float(loss_N.mean()) + half)
