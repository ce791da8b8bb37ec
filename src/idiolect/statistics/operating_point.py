"""What a threshold of the probability gives: which share of cases, and of controls, is on the right side of it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from idiolect.statistics.intervals import Estimate, rate_at, share

# N samples; a case has the class in question, a control has not


class OperatingPoint(NamedTuple):
    """Rates where a sample is positive if its probability is above a threshold."""

    threshold: float
    """Below 0 where all samples are positive; NaN where samples are not called positive by a threshold."""
    sensitivity: Estimate
    """The share of cases that are positive."""
    specificity: Estimate
    """The share of controls that are not."""
    positive: Estimate
    """The share of samples that are positive."""
    ppv: Estimate
    """Positive predictive value: the share of positive samples that are cases; NaN if none is positive."""
    npv: Estimate
    """Negative predictive value: the share of the others that are controls; NaN if all are positive."""


def of_calls(
    is_positive_N: NDArray[np.bool_], is_case_N: NDArray[np.bool_], threshold: float = math.nan,
    prevalence: float | None = None,
) -> OperatingPoint:  # fmt: skip
    """The rates of samples that have been called positive or not, with Wilson's intervals.

    With a prevalence that is not that of the samples, predictive values and the share of positives follow from
    sensitivity and specificity by Bayes' theorem, and have no intervals.

    Args:
        is_positive_N: whether each sample is called positive.
        is_case_N: whether it is a case.
        threshold: by which they were called, to be told.
        prevalence: the share of cases where the model is used; None is that of the samples.
    """
    true, false = int((is_positive_N & is_case_N).sum()), int((is_positive_N & ~is_case_N).sum())
    cases, count = int(is_case_N.sum()), len(is_case_N)
    controls, positive = count - cases, true + false
    sensitivity, specificity = share(true, cases), share(controls - false, controls)
    if prevalence is None:
        ppv, npv = share(true, positive), share(controls - false, count - positive)
        return OperatingPoint(threshold, sensitivity, specificity, share(positive, count), ppv, npv)
    right, wrong = prevalence * sensitivity.value, (1 - prevalence) * (1 - specificity.value)
    spared, missed = (1 - prevalence) * specificity.value, prevalence * (1 - sensitivity.value)
    ppv, npv = (Estimate(a / (a + b) if a + b else math.nan) for a, b in ((right, wrong), (spared, missed)))
    return OperatingPoint(threshold, sensitivity, specificity, Estimate(right + wrong), ppv, npv)


def at_specificity(
    p_N: NDArray[np.float64], is_case_N: NDArray[np.bool_], least: float, prevalence: float | None = None
) -> OperatingPoint:
    """The point with the largest sensitivity whose specificity is at least this share.

    The interval of the sensitivity allows for the choice of the threshold (``rate_at``). The specificity was chosen
    and has no interval; those of predictive values and of positives take the threshold as given.

    Args:
        p_N: the probability of being a case.
        is_case_N: whether each sample is one; there are cases and controls.
        least: the specificity, above 0 and at most 1.
        prevalence: as for ``of_calls``.
    """
    rate, ends = rate_at(p_N[is_case_N], p_N[~is_case_N], least)
    point = of_calls(p_N > (limit := _limit(p_N[~is_case_N], least)), is_case_N, prevalence=prevalence)
    above_N = p_N[p_N > limit]
    threshold = (limit + (float(above_N.min()) if len(above_N) else max(1.0, limit))) / 2
    return point._replace(
        threshold=threshold, sensitivity=Estimate(rate, *ends), specificity=Estimate(point.specificity.value)
    )


def at_sensitivity(
    p_N: NDArray[np.float64], is_case_N: NDArray[np.bool_], least: float, prevalence: float | None = None
) -> OperatingPoint:
    """The point with the largest specificity whose sensitivity is at least this share; see ``at_specificity``."""
    rate, ends = rate_at(-p_N[~is_case_N], -p_N[is_case_N], least)
    limit = -_limit(-p_N[is_case_N], least)
    point = of_calls(p_N >= limit, is_case_N, prevalence=prevalence)
    below_N = p_N[p_N < limit]
    threshold = (limit + (float(below_N.max()) if len(below_N) else -1.0 - limit)) / 2
    return point._replace(
        threshold=threshold, sensitivity=Estimate(point.sensitivity.value), specificity=Estimate(rate, *ends)
    )


def _limit(score_N: NDArray[np.float64], least: float) -> float:
    """The smallest of the scores that at least this share of them does not exceed."""
    return float(np.sort(score_N)[::-1][math.floor((1 - least) * len(score_N) + 1e-9)])
