"""95 % intervals of what is measured on the samples of one client."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# N samples, C classes, M cases and N controls of two classes

Z = 1.959963984540054  # the normal distribution's 97.5 % quantile
_DRAWS = 10_000


class Estimate(NamedTuple):
    """What is measured, and the ends of its interval; these are NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def times(self, factor: float) -> Estimate:
        """The same in another unit, with a factor of 0 or more."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


def share(count: int, size: int) -> Estimate:
    """A proportion with the interval of ``wilson``; NaN of no samples."""
    if not size:
        return Estimate(math.nan)
    low, high = wilson(np.array(count / size), np.array(size))
    return Estimate(count / size, float(low), float(high))


def difference(one: Estimate, other: Estimate, correlation: float = 0.0) -> Estimate:
    """One number less another, with an interval made of theirs, as far from the middle as both ends together.

    The method of variance estimates recovery: with a and b the distances from the numbers to those of their ends that
    lie towards the end in question, this is sqrt(a^2 + b^2 - 2 r a b) from the difference, for a correlation r.

    Source: Zou & Donner, Construction of confidence limits about effect measures, Statistics in Medicine 2008; with a
    correlation: Zou, Toward using confidence intervals to compare correlations, Psychological Methods 2007, Eq. 15.
    """

    def far(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a + b * b - 2 * correlation * a * b))

    middle = one.value - other.value
    low = middle - far(one.value - one.low, other.high - other.value)
    return Estimate(middle, low, middle + far(one.high - one.value, other.value - other.low))


def wilson(share: NDArray[np.float64], size: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of the 95 % score interval of a proportion of ``size`` samples.

    The mean of several models on the same samples has the interval of one model with this proportion. That is wide
    enough: the mean varies no more between draws of samples than one model does.

    Source: Wilson, 1927.
    """
    centre = (share + Z**2 / (2 * size)) / (1 + Z**2 / size)
    half = Z / (1 + Z**2 / size) * np.sqrt(np.maximum(0, share * (1 - share)) / size + Z**2 / (4 * size**2))
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def auroc(p_NC: NDArray[np.float64], y_N: NDArray[np.int64]) -> tuple[float, float] | None:
    """The ends of the interval of the area under the ROC curve; for more than two classes, of the mean over classes.

    The variance is DeLong's: each sample has a component, its part in the area, and the variance of the area is that of
    the mean components of both classes. For more classes, a sample's components in the areas of all classes (each
    against the others) are averaged first, so that their dependence counts. The interval is symmetric on the logit
    scale, which keeps it between 0 and 1. None if a class has a single sample, or if the classes are separated without
    an error, because the variance is then unknown or 0.

    Source: DeLong, DeLong & Clarke-Pearson, Biometrics 1988; the logit scale: Pepe, 2003, 5.2.
    """
    from scipy.stats import rankdata

    present = np.unique(y_N)
    if len(present) < 2 or min(np.count_nonzero(y_N == c) for c in present) < 2:
        return None
    classes = [1] if p_NC.shape[1] == 2 else present.tolist()
    area, part_N = 0.0, np.zeros(len(y_N))
    for c in classes:
        case_N, score_N = y_N == c, p_NC[:, c]
        rank_N = rankdata(score_N)
        for of_class_N, of in ((case_N, ~case_N), (~case_N, case_N)):
            below = (rank_N[of_class_N] - rankdata(score_N[of_class_N])) / np.count_nonzero(of)
            part = below if of_class_N is case_N else 1 - below
            part_N[of_class_N] += (part - part.mean()) / (len(part) * len(classes))
        area += float(part.mean()) / len(classes)
    groups = [part_N[y_N == c] for c in present]
    variance = sum(float(np.square(g - g.mean()).sum()) * len(g) / (len(g) - 1) for g in groups)
    if variance < 1e-16 or not 0 < area < 1:
        return None
    middle, half = math.log(area / (1 - area)), Z * math.sqrt(variance) / (area * (1 - area))
    return 1 / (1 + math.exp(half - middle)), 1 / (1 + math.exp(-half - middle))


def rate_at(
    case_M: NDArray[np.float64], control_N: NDArray[np.float64], share: float
) -> tuple[float, tuple[float, float]]:
    """The largest share of cases above a threshold that at least ``share`` of the controls do not exceed; its interval.

    Of equal scores, none or all are above the threshold. The interval is about the share of all cases above the
    threshold that exactly ``share`` of all controls do not exceed. It allows for both samples: 10,000 times, always the
    same, the number of these controls that exceed that threshold is drawn from its binomial distribution, which gives
    the two controls that the threshold is between; then the share is drawn from the distributions whose percentiles are
    the exact limits of Clopper and Pearson, the low end at the upper and the high end at the lower control. With few
    controls the interval is wide, because they hardly say where the threshold is.

    Source: Clopper & Pearson, Biometrika 1934; drawing in place of inverting, as in Hannig, Statistica Sinica 2009.
    """
    cases, controls = len(case_M), len(control_N)
    case_M, control_N = np.sort(case_M), np.sort(control_N)

    def above(threshold_K: NDArray[np.float64], side: str) -> NDArray[np.int64]:
        return np.asarray(cases - np.searchsorted(case_M, threshold_K, side="right" if side == "above" else "left"))

    limit_K = np.concatenate([[np.inf], control_N[::-1], [-np.inf]])  # by how many controls exceed the threshold
    rate = float(above(limit_K[1 + math.floor((1 - share) * controls + 1e-9)], "above")) / cases
    rng = np.random.default_rng(0)
    exceed_B = rng.binomial(controls, 1 - share, _DRAWS)
    least_B, most_B = above(limit_K, "from")[exceed_B], above(limit_K, "above")[exceed_B + 1]
    low_B = np.where(least_B > 0, rng.beta(np.maximum(least_B, 1), cases - least_B + 1), 0.0)
    high_B = np.where(most_B < cases, rng.beta(most_B + 1, np.maximum(cases - most_B, 1)), 1.0)
    return rate, (min(rate, float(np.percentile(low_B, 2.5))), max(rate, float(np.percentile(high_B, 97.5))))
