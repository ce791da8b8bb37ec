"""Do no harm where numbers are predicted: a weighted mean of models, judged by the squared error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.objectives import OBJECTIVES, number
from idiolect.deploy.harm import FIRST, LEAST, WORTH, Difference, Judge, Name, variance_between
from idiolect.deploy.schema import TargetPart

# N samples of the site, D numbers of a target, M models

_SCORE = OBJECTIVES["regression"].score
_TINY = 1e-12  # of the variance in training: a smaller error is rounding


def judge_of(targets: Sequence[TargetPart]) -> Judge:
    """How models of these numbers are compared and put together; they predict scaled numbers (N, D)."""
    std_D = torch.tensor([target.std for target in targets], dtype=torch.float64)
    return Judge(
        "predictions", partial(merit, std_D), weights, blend, paired, _says,
        lambda minus: f"{_SCORE.name} {number(-minus)}", "have the smallest squared errors for",
    )  # fmt: skip


def merit(std_D: Tensor, value_ND: Tensor, y_ND: Tensor) -> Tensor:
    """Minus the squared error (N,) in the units of the data, mean over the numbers of a target."""
    return -(std_D * (value_ND.double() - y_ND.double())).square().mean(1)


def weights(values: Mapping[Name, Tensor], y_ND: Tensor) -> dict[Name, float]:
    """The weight of each model in a mean of their predictions, from these (N, D) and the targets.

    The weights are not negative and sum to 1. They minimise sum |y - sum_m w_m f_m|^2 / (2 s^2) + 2 |w - w0|^2 of
    samples that the models were made without, where s^2 is the mean squared error of the best model, for each number
    of the target, and w0 is as for classes. Weights below 0.02 become 0, and the rest sums to 1 again.

    Source: Breiman, Stacked Regressions, Machine Learning 1996; the term w0 is the normal prior of what
    ``idiolect.deploy.harm.compare`` does for classes.
    """
    from scipy import optimize

    names = list(values)
    value_MND = torch.stack([values[name] for name in names]).double().numpy()
    error_MND = value_MND - y_ND.double().numpy()
    first_M = np.array([FIRST[name] for name in names]) / sum(FIRST[name] for name in names)
    noise_D = np.maximum((error_MND**2).mean(1).min(0), _TINY)
    error_MK = (error_MND / np.sqrt(noise_D)).reshape(len(names), -1)  # the weights sum to 1, so that errors mix too
    gram_MM = error_MK @ error_MK.T

    def loss(weight_M: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """By samples, so that its size does not depend on their number; a convex function, and its gradient."""
        apart_M = weight_M - first_M
        value = weight_M @ gram_MM @ weight_M / 2 + WORTH * apart_M @ apart_M
        return value / len(y_ND), (gram_MM @ weight_M + 2 * WORTH * apart_M) / len(y_ND)

    sum_is_1 = optimize.LinearConstraint(np.ones((1, len(names))), 1, 1)
    best_M = optimize.minimize(
        loss, first_M, jac=True, bounds=[(0, 1)] * len(names), constraints=[sum_is_1], method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    ).x  # fmt: skip
    large = {name: w for name, w in zip(names, best_M.tolist(), strict=True) if w >= LEAST}
    return {name: w / sum(large.values()) for name, w in large.items()}


def blend(weight: Mapping[Name, float], values: Mapping[Name, Tensor]) -> Tensor:
    """The weighted mean (N, D) of what models predict; of one alone as it is."""
    if len(weight) == 1:
        return values[next(iter(weight))]
    return torch.stack([w * values[name] for name, w in weight.items()]).sum(0)


def paired(merit_N: Tensor, other_N: Tensor, group_N: Tensor | None = None) -> Difference:
    """The difference of two mean squared errors on the same samples: the interval of a paired t-test.

    Where samples belong to groups, the interval is at least as wide as the variance between groups says, with as many
    degrees of freedom as there are groups but one.
    """
    from scipy.stats import t

    step_N = other_N - merit_N
    mean, count = float(step_N.mean()), len(step_N)
    half = float(t.ppf(0.975, count - 1)) * math.sqrt(float(step_N.var()) / count)
    if group_N is not None and (groups := len(torch.unique(group_N))) > 1:
        half = max(half, float(t.ppf(0.975, groups - 1)) * math.sqrt(variance_between(step_N, group_N)))
    return Difference(mean, mean - half, mean + half)


def _says(against: Difference) -> str:
    ends = f"95% interval {_SCORE.change(against.low)} to {_SCORE.change(against.high)}"
    return f"{_SCORE.name} differs by {_SCORE.change(against.mean)} ({ends})"
