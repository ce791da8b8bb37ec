"""Decision curves: what acting on a model's probabilities is worth, beside acting on all samples or on none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from idiolect.statistics.intervals import Estimate, difference, share

# N samples


class NetBenefit(NamedTuple):
    """At one threshold probability: true positives less false ones, these weighed by the odds of the threshold.

    Its unit is a case that is treated, for each sample; that of treating none is 0.
    """

    threshold: float
    model: Estimate
    """Of treating the samples whose probability is at least the threshold."""
    everyone: Estimate
    """Of treating all."""
    gain: Estimate
    """The model's less that of treating all."""

    @property
    def is_best(self) -> bool:
        """Whether the model is better than treating all and than treating none, by the ends of both intervals."""
        return self.model.low > 0 and self.gain.low > 0


def decision_curve(
    p_N: NDArray[np.float64], is_case_N: NDArray[np.bool_], thresholds: Sequence[float], prevalence: float | None = None
) -> list[NetBenefit]:
    """The net benefit of a model at each threshold probability t: TP/n - FP/n t / (1 - t).

    With a prevalence of its own it is prevalence x sensitivity - (1 - prevalence) (1 - specificity) t / (1 - t).
    Intervals are pointwise: those of Wilson of both proportions, put together by ``intervals.difference``. In one
    sample TP/n and FP/n have the correlation of two counts of a multinomial distribution; with a prevalence of its own
    the samples of cases and of controls are independent. Less the net benefit of treating all, what remains is
    TN/n t / (1 - t) - FN/n, which has its interval in the same way.

    Args:
        p_N: the probability of being a case.
        is_case_N: whether each sample is one; there are cases and controls.
        thresholds: above 0 and below 1.
        prevalence: the share of cases where the model is used, if it is not that of the samples.

    Source: Vickers & Elkin, Decision curve analysis, Medical Decision Making 2006; with a prevalence: Pfeiffer & Gail,
    Estimating the decision curve and its precision from three study designs, Biometrical Journal 2020.
    """
    cases, count = int(is_case_N.sum()), len(is_case_N)
    sizes = (count, count) if prevalence is None else (cases, count - cases)
    shares = (1.0, 1.0) if prevalence is None else (prevalence, 1 - prevalence)
    have = share(cases, count) if prevalence is None else Estimate(prevalence, prevalence, prevalence)
    curve = []
    for t in thresholds:
        odds, is_treated_N = t / (1 - t), p_N >= t
        true, false = int((is_treated_N & is_case_N).sum()), int((is_treated_N & ~is_case_N).sum())
        treated = [share(n, size).times(part) for n, size, part in zip((true, false), sizes, shares, strict=True)]
        left = [
            share(n, size).times(part)
            for n, size, part in zip((cases - true, count - cases - false), sizes, shares, strict=True)
        ]
        both = [_correlation(a.value, b.value) if prevalence is None else 0.0 for a, b in (treated, left)]
        everyone = Estimate(*(h - (1 - h) * odds for h in have))
        model = difference(treated[0], treated[1].times(odds), both[0])
        gain = difference(left[1].times(odds), left[0], both[1])
        curve.append(NetBenefit(t, model, everyone, gain))
    return curve


def _correlation(one: float, other: float) -> float:
    """Of two shares of a multinomial sample."""
    return -math.sqrt(one * other / ((1 - one) * (1 - other))) if one < 1 and other < 1 else 0.0
