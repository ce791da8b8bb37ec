"""Do no harm: how much a site should trust the global, the personal and a local model, from its own samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import InputError, RunError

# N samples of the site, C classes, M models

Name = Literal["global", "personal", "local"]
Ships = Literal["global", "personal", "local", "blend"]
Fit = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""From the numbers of training samples to a function from numbers of other samples to log-probabilities (N, C)."""
FEW_FOR_LOCAL = 40
"""A model of the site's own is compared from this number of samples on."""
_FIRST = {"global": 0.2, "personal": 0.5, "local": 0.3}  # weights before the site's samples are seen
_WORTH = 2.0  # how much these count
MOST = 3.0
"""The largest weight."""
_LEAST = 0.02  # a smaller weight is left out
UNSURE = 0.15
"""How much of the uniform distribution each model's probabilities get, so that no model can rule out a class alone."""
_Z = 1.959964  # of a 95 % interval


class Difference(NamedTuple):
    """A model's accuracy less that of the global model, and its 95 % interval."""

    mean: float
    low: float
    high: float


class Choice(NamedTuple):
    """What the comparison found."""

    weights: dict[Name, float]
    """The exponent of each model in what ships."""
    why: str
    logp_NC: dict[Ships, Tensor]
    """Log-probabilities of each sample, by models made without it; of the blend also by weights made without it."""
    difference: dict[Ships, Difference]
    settled: int | None
    """About how many samples would tell the best two of the models apart; None where these are enough."""


def compare(fits: Mapping[Name, Fit], y_N: Tensor, key: Tensor, group_N: Tensor | None = None) -> Choice:
    """Compare models by cross-validation on a site's samples, and weigh them.

    What ships is a product of experts, p(c | x) ~ prod_m q_m(c | x)^w_m, where q_m is the model's probability mixed
    with 15 % of the uniform one. The weights 0 <= w_m <= 3 maximise the log-likelihood of samples that the models were
    made without, less 2 |w - w0|^2, where w0 is 0.2 (global), 0.5 (personal) and 0.3 (local). Those below 0.02 become
    0, and one model alone is taken as it is. The accuracy of the whole procedure is measured by a second, outer loop:
    the samples of each fold are predicted with the weights that the other folds give. A model that diverges is left
    out.

    Args:
        fits: how each model is made; "global" must be among them.
        y_N: the labels.
        key: of the division into folds: 10 for fewer than 200 samples, else 5.
        group_N: which samples belong together; a group is in one fold, and intervals allow for it.

    Raises:
        InputError: all samples are of one group.
        RunError: the global model's probabilities are not numbers.

    Source: Wolpert, Stacked Generalization, Neural Networks 1992; Hinton, Products of Experts, ICANN 1999. The numbers
    were chosen on simulated joins with seed 0 of ``benchmarks/do_no_harm.py`` and measured on others.
    """
    fold_N = _fold_numbers(y_N, key, group_N)
    return _choice_of({name: _out_of_fold(fit, fold_N) for name, fit in fits.items()}, y_N, fold_N, group_N)


def choice_of(logp: Mapping[Name, Tensor], y_N: Tensor, key: Tensor, group_N: Tensor | None = None) -> Choice:
    """As ``compare``, of models that were all made without these samples.

    Args:
        logp: each model's log-probabilities (N, C); "global" must be among them.
        y_N: the labels.
        key: of the division into folds, by which the accuracy of the weights is measured.
        group_N: see ``compare``.

    Raises:
        RunError: the global model's probabilities are not numbers.
    """
    return _choice_of(logp, y_N, _fold_numbers(y_N, key, group_N), group_N)


def _fold_numbers(y_N: Tensor, key: Tensor, group_N: Tensor | None) -> Tensor:
    return fold_numbers(y_N, 10 if len(y_N) < 200 else 5, key, group_N)


def _choice_of(models: Mapping[Name, Tensor], y_N: Tensor, fold_N: Tensor, group_N: Tensor | None) -> Choice:
    models = {name: logp_NC for name, logp_NC in models.items() if not logp_NC.isnan().any()}
    if "global" not in models:
        raise RunError("the global model's probabilities of these samples are not numbers: check the columns' units")
    weight = weights(models, y_N)
    logp: dict[Ships, Tensor] = dict(models.items())
    logp["blend"] = _nested(models, y_N, fold_N)
    right = {name: p.argmax(1) == y_N for name, p in logp.items()}
    difference: dict[Ships, Difference] = {
        name: paired(r, right["global"], group_N) for name, r in right.items() if name != "global"
    }
    return Choice(weight, _why(weight, difference["blend"], len(y_N)), logp, difference, _settled(models, right))


def fold_numbers(y_N: Tensor, folds: int, key: Tensor, group_N: Tensor | None = None) -> Tensor:
    """The fold (N,) of each sample: of each class about equally many in every fold, at random.

    The samples of a group are in one fold. Then groups are dealt out in place of samples, each by the first of its
    classes.

    Raises:
        InputError: all samples are of one group.
    """
    if group_N is not None:
        group_N = torch.unique(group_N, return_inverse=True)[1]
        if (count := int(group_N.max()) + 1) < 2:
            raise InputError(f"all {len(y_N)} samples are of one group: give samples of two groups or more")
        class_G = torch.full((count,), int(y_N.max())).scatter_reduce(0, group_N, y_N, "amin")
        return fold_numbers(class_G, folds, key)[group_N]
    folds = max(2, min(folds, len(y_N)))
    order_N = keys.order(key, torch.ones(len(y_N)))
    order_N = order_N[torch.argsort(y_N[order_N], stable=True)]
    fold_N = torch.empty(len(y_N), dtype=torch.int64)
    fold_N[order_N] = torch.arange(len(y_N)) % folds
    return fold_N


def weights(logp: Mapping[Name, Tensor], y_N: Tensor) -> dict[Name, float]:
    """The weight of each model, from its log-probabilities (N, C) and the labels; see ``compare``."""
    from scipy import optimize, special  # half a second, which a prediction does not need

    names = list(logp)
    expert_MNC = torch.stack([sure(logp[name]) for name in names]).double().numpy()
    first_M = np.array([_FIRST[name] for name in names])
    row_N, label_N = np.arange(len(y_N)), y_N.numpy()

    def loss(weight_M: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The penalised negative log-likelihood, a convex function, and its gradient."""
        logit_NC = np.tensordot(weight_M, expert_MNC, 1)
        logp_NC = special.log_softmax(logit_NC, axis=1)
        expected_MN = (expert_MNC * np.exp(logp_NC)).sum(2)
        gradient_M = (expected_MN - expert_MNC[:, row_N, label_N]).sum(1) + 2 * _WORTH * (weight_M - first_M)
        return -logp_NC[row_N, label_N].sum() + _WORTH * ((weight_M - first_M) ** 2).sum(), gradient_M

    bounds = [(0, MOST)] * len(names)
    best_M = optimize.minimize(loss, first_M, jac=True, bounds=bounds, method="L-BFGS-B").x
    large = {name: w for name, w in zip(names, best_M.tolist(), strict=True) if w >= _LEAST}
    if len(large) > 1:
        return large
    return {next(iter(large), "global"): 1.0}


def sure(logp_NC: Tensor) -> Tensor:
    """Log-probabilities (N, C) mixed with a little of the uniform distribution."""
    uniform = math.log(UNSURE / logp_NC.shape[-1])
    return torch.logaddexp(logp_NC + math.log(1 - UNSURE), torch.full_like(logp_NC, uniform))


def blend(weight: Mapping[Name, float], logp: Mapping[Name, Tensor]) -> Tensor:
    """Log-probabilities (N, C) of the product of experts; of one alone with weight 1 as they are."""
    if list(weight.values()) == [1.0]:
        return logp[next(iter(weight))]
    return torch.stack([w * sure(logp[name]) for name, w in weight.items()]).sum(0).log_softmax(-1)


def paired(right_N: Tensor, other_N: Tensor, group_N: Tensor | None = None) -> Difference:
    """The difference of two accuracies on the same samples.

    Where samples belong to groups, the interval is at least as wide as the variance between groups says.

    Source: Agresti & Min, Simple improved confidence intervals for comparing matched proportions, 2005. Of groups:
    Liang & Zeger, Biometrika 1986, the variance of a mean whose observations are dependent in clusters.
    """
    count = len(right_N) + 2
    gains, losses = int((right_N & ~other_N).sum()) + 0.5, int((other_N & ~right_N).sum()) + 0.5
    mean = (gains - losses) / count
    half = _Z * math.sqrt(gains + losses - (gains - losses) ** 2 / count) / count
    if group_N is not None:
        step_N = right_N.double() - other_N.double()
        groups, at_N = torch.unique(group_N, return_inverse=True)
        sum_G = torch.zeros(len(groups), dtype=torch.float64).index_add(0, at_N, step_N - step_N.mean())
        variance = float(sum_G.square().sum()) / len(step_N) ** 2 * len(groups) / max(1, len(groups) - 1)
        half = max(half, _Z * math.sqrt(variance))
    return Difference(mean, mean - half, mean + half)


def _out_of_fold(fit: Fit, fold_N: Tensor) -> Tensor:
    logp = torch.empty(0)
    for fold in range(int(fold_N.max()) + 1):
        row_M = torch.nonzero(fold_N == fold)[:, 0]
        part = fit(torch.nonzero(fold_N != fold)[:, 0])(row_M)
        logp = logp if len(logp) else part.new_empty(len(fold_N), part.shape[1])
        logp[row_M] = part
    return logp


def _nested(models: Mapping[Name, Tensor], y_N: Tensor, fold_N: Tensor) -> Tensor:
    logp_NC = torch.empty_like(models["global"])
    for fold in range(int(fold_N.max()) + 1):
        inside_N = fold_N == fold
        weight = weights({name: p[~inside_N] for name, p in models.items()}, y_N[~inside_N])
        logp_NC[inside_N] = blend(weight, {name: p[inside_N] for name, p in models.items()})
    return logp_NC


def shares_of(weight: Mapping[Name, float]) -> list[tuple[Name, float]]:
    """What share of all weights each model has, the largest first."""
    return sorted(((name, w / sum(weight.values())) for name, w in weight.items()), key=lambda pair: -pair[1])


def _why(weight: Mapping[Name, float], against: Difference, count: int) -> str:
    shares = " and ".join(f"{100 * w:.0f}% {name}" for name, w in shares_of(weight))
    what = f"it is {shares}" if len(weight) > 1 else f"it is the {next(iter(weight))} model alone"
    points = f"{100 * against.mean:+.1f} points (95% interval {100 * against.low:+.1f} to {100 * against.high:+.1f})"
    if set(weight) == {"global"}:
        return f"{what}, because no other model predicts the {count} samples better"
    few = f"; {count} samples are too few to tell whether that is a gain" if against.low <= 0 <= against.high else ""
    return f"{what}; against the global model its accuracy differs by {points}{few}"


def _settled(models: Mapping[Name, Tensor], right: Mapping[Ships, Tensor]) -> int | None:
    if len(models) < 2:
        return None
    first, second = sorted(models, key=lambda name: -float(right[name].double().mean()))[:2]
    gain_N = right[first].double() - right[second].double()
    gap = max(float(gain_N.mean()), 1e-3)
    count = math.ceil(_Z**2 * max(float((gain_N**2).mean()) - gap**2, 1e-4) / gap**2)
    return count if count > len(gain_N) else None
