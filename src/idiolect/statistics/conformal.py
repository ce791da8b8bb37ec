"""Intervals around predicted numbers that hold the truth as often as they say, and how good intervals are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# N samples

LEVEL = 0.9
"""Of the intervals that are measured."""
OF_INTERVALS = ("coverage", "interval_width", "interval_score")
"""The metrics of intervals, as they are recorded: the fields of ``Quality``."""
_ROUNDING = 1e-9  # of a share times a count


class Quality(NamedTuple):
    """How good some intervals are."""

    coverage: float
    """The share that holds the truth."""
    width: float
    """Mean."""
    score: float
    """Mean interval score, in the units of the target; less is better."""


def quantile(sizes: Sequence[float], level: float, weights: Sequence[float] = ()) -> float:
    """The absolute error that a new one exceeds with a probability of at most 1 - level.

    The k-th smallest of n absolute errors, k = ceil((n + 1) level); infinite where k is above n. It holds for every
    distribution of errors, if a new one is exchangeable with these.

    Where samples belong to groups, each of the G groups counts alike, and so do its samples: the smallest size such
    that the weights of those up to it are at least the level. The group of the new sample has the weight 1 / (G + 1).

    Args:
        sizes: absolute errors of samples that the model was made without, sorted.
        level: of the interval, as 0.9.
        weights: 1 / ((G + 1) n) for one of n samples of one of G groups; () where each sample stands for itself.

    Source: Lei, G'Sell, Rinaldo, Tibshirani & Wasserman, Distribution-Free Predictive Inference for Regression, JASA
    2018, Algorithm 2. Of groups: Lee, Barber & Willett, Distribution-free inference with hierarchical data, 2023.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.8), quantile([1.0, 2.0, 3.0], 0.8)
    (4.0, inf)
    """
    if not weights:
        k = math.ceil((len(sizes) + 1) * level - _ROUNDING)
        return sizes[k - 1] if k <= len(sizes) else math.inf
    up_to_N = np.cumsum(weights)
    k = int(np.searchsorted(up_to_N, level - _ROUNDING))
    return sizes[k] if k < len(sizes) else math.inf


def group_weights(group_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weights (N,) of samples by their groups, for ``quantile``.

    >>> group_weights(np.array([7, 7, 3]))
    array([0.16666667, 0.16666667, 0.33333333])
    """
    _, at_N, count_G = np.unique(group_N, return_inverse=True, return_counts=True)
    weight_N: NDArray[np.float64] = 1 / ((len(count_G) + 1) * count_G[at_N])
    return weight_N


def least(level: float) -> int:
    """The samples, or groups, that an interval of finite width takes at a level.

    >>> least(0.9), least(0.95), least(0.5)
    (9, 19, 1)
    """
    return math.ceil(level / (1 - level) - _ROUNDING)


def quality(value_N: NDArray[np.float64], half: float, y_N: NDArray[np.float64], level: float) -> Quality:
    """How good the intervals ``value_N`` plus and minus ``half`` are for the targets ``y_N``.

    The interval score of [l, u] for y is (u - l) + 2 / (1 - level) times how far y is outside.

    Source: Gneiting & Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 2007, Eq. 43.
    """
    outside_N = np.maximum(np.abs(value_N - y_N) - half, 0)
    return Quality(float((outside_N == 0).mean()), 2 * half, 2 * half + 2 / (1 - level) * float(outside_N.mean()))
