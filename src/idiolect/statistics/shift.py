"""Has a distribution changed? Tests of two samples, and class proportions of samples without labels (BBSE)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# R classes that a classifier names, P classes that samples are of, D draws

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
_DRAWS = 9999  # of tables with the same sums
_BOOTSTRAP = 300  # of the interval


class Ranks(NamedTuple):
    """What a comparison of two samples found."""

    p: float
    """Of equal distributions."""
    above: float
    """The share of pairs in which the other sample's value is the larger one; 0.5 where nothing differs."""


def ranks(own_N: Floats, other_M: Floats, *, larger: bool = False) -> Ranks:
    """The rank test of two samples, or of whether the other one's values are ``larger``.

    Its level holds for every distribution of the values, if they are independent.

    Source: Mann & Whitney, 1947.
    """
    from scipy.stats import mannwhitneyu

    test: Any = mannwhitneyu(other_M, own_N, alternative="greater" if larger else "two-sided")
    p = float(test.pvalue)
    return Ranks(p if np.isfinite(p) else 1.0, float(test.statistic) / (len(own_N) * len(other_M)))


def distributions_differ(own_N: Floats, other_M: Floats) -> float:
    """p of equal distributions behind two samples, by the largest distance of their distribution functions.

    Its level holds for every distribution, if the values are independent.

    Source: Kolmogorov, 1933; Smirnov, 1948.
    """
    from scipy.stats import ks_2samp

    test: Any = ks_2samp(own_N, other_M)
    return float(test.pvalue)


def counts_differ(own_R: Counts, other_R: Counts, draws: int = _DRAWS) -> float:
    """p of equal proportions behind two rows of counts: Pearson's chi-squared among tables with the same sums.

    The tables are drawn, so the level holds for small counts too.

    Source: the exact test of a contingency table (Freeman & Halton, 1951), by simulation.
    """
    total_R = own_R + other_R
    own_R, total_R = own_R[total_R > 0], total_R[total_R > 0]
    mean_R = total_R * (own_R.sum() / total_R.sum())
    rng = np.random.default_rng(0)
    draw_DR = rng.multivariate_hypergeometric(total_R, int(own_R.sum()), size=draws, method="marginals")
    distance = ((own_R - mean_R) ** 2 / total_R).sum()
    as_far = int((((draw_DR - mean_R) ** 2 / total_R).sum(1) >= distance * (1 - 1e-9)).sum())
    return (1 + as_far) / (1 + draws)


def proportions(confusion_RP: NDArray[Any], prediction_R: NDArray[Any]) -> Floats:
    """Class proportions (P,) of samples that have only predictions, where p(x | y) is as before.

        C w = q,   C_rp = p(said r, is p),   q_r = p'(said r),   p'(is p) = w_p p(is p)

    w has no negative entries: it is the least-squares solution among those, which is C^-1 q where that is one. NaN
    where the predictions say nothing, because all are of classes that were never named before.

    Args:
        confusion_RP: how many samples of class p the classifier named r.
        prediction_R: how many of the other samples it named r.

    Source: Lipton, Wang & Smola, Detecting and Correcting for Label Shift with Black Box Predictors, ICML 2018.
    """
    from scipy.optimize import nnls

    joint_RP = confusion_RP / confusion_RP.sum()
    w_P, _ = nnls(joint_RP, prediction_R / prediction_R.sum(), maxiter=100 * joint_RP.shape[1])
    now_P: Floats = w_P * joint_RP.sum(0)
    return now_P / now_P.sum() if now_P.sum() > 0 else np.full(len(now_P), np.nan)


def interval(confusion_RP: NDArray[Any], prediction_R: NDArray[Any]) -> tuple[Floats, Floats]:
    """The ends of a 95 % bootstrap interval of ``proportions``, in which the confusion matrix is drawn again too."""
    rng = np.random.default_rng(0)
    count, other = int(confusion_RP.sum()), int(prediction_R.sum())
    draws = min(_BOOTSTRAP, max(20, 30_000 // confusion_RP.shape[1]))
    confusion_D = rng.multinomial(count, confusion_RP.ravel() / count, size=draws)
    prediction_DR = rng.multinomial(other, prediction_R / other, size=draws)
    share_DP = np.array(
        [proportions(c.reshape(confusion_RP.shape), s) for c, s in zip(confusion_D, prediction_DR, strict=True)]
    )
    finite_DP = share_DP[~np.isnan(share_DP).any(1)]
    if not len(finite_DP):
        return np.zeros(confusion_RP.shape[1]), np.ones(confusion_RP.shape[1])
    low_P, high_P = np.quantile(finite_DP, [0.025, 0.975], axis=0)
    return low_P, high_P
