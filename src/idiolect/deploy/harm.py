"""Do no harm: how much a site should trust the global, the personal and a local model, from its own samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import RunError

# N samples of the site, C classes, M models

Name = Literal["global", "personal", "local"]
Ships = Literal["global", "personal", "local", "blend"]
Fit = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""From the numbers of training samples to a function from numbers of other samples to log-probabilities (N, C)."""
FEW_FOR_LOCAL = 40
"""A model of the site's own is compared from this number of samples on."""
_FIRST = {"global": 1.0, "personal": 2.0, "local": 1.0}  # trust before the site's samples are seen
_WORTH = 2.0  # samples that this trust counts as
_LEAST = 0.05  # a smaller weight is left out
_STEPS = 200
_FLOOR = 1e-6  # no probability is taken for less, so that no single sample decides
_Z = 1.959964  # of a 95 % interval


class Difference(NamedTuple):
    """A model's accuracy less that of the global model, and its 95 % interval."""

    mean: float
    low: float
    high: float


class Choice(NamedTuple):
    """What the comparison found."""

    weights: dict[Name, float]
    """How much each model counts in what ships; they sum to 1."""
    why: str
    logp_NC: dict[Ships, Tensor]
    """Log-probabilities of each sample, by models made without it; of the blend also by weights made without it."""
    difference: dict[Ships, Difference]
    settled: int | None
    """About how many samples would tell the best two of the models apart; None where these are enough."""


def compare(fits: Mapping[Name, Fit], y_N: Tensor, key: Tensor, *, folds: int | None = None) -> Choice:
    """Compare models by cross-validation on a site's samples, and weigh them.

    What ships predicts sum_m w_m p_m(c | x). The weights maximise the log-likelihood of samples that the models were
    made without, plus that of two more samples, shared out in the proportion 1 (global) : 2 (personal) : 1 (local);
    those below 0.05 become 0. The accuracy of the whole procedure is measured by a second, outer loop: the samples of
    each fold are predicted with the weights that the other folds give. A model that diverges is left out.

    Args:
        fits: how each model is made; "global" must be among them.
        y_N: the labels.
        key: of the division into folds.
        folds: their number; None takes 10 for fewer than 100 samples, else 5.

    Raises:
        RunError: the global model's probabilities are not numbers.

    Source: Wolpert, Stacked Generalization, Neural Networks 1992; the weights by expectation maximisation.
    """
    fold_N = divided(y_N, folds or (10 if len(y_N) < 100 else 5), key)
    models: dict[Name, Tensor] = {name: _out_of_fold(fit, fold_N) for name, fit in fits.items()}
    models = {name: logp_NC for name, logp_NC in models.items() if not logp_NC.isnan().any()}
    if "global" not in models:
        raise RunError("the global model's probabilities of these samples are not numbers: check the columns' units")
    likely_NM = _likely(models, y_N)
    found = weights(list(models), likely_NM)
    logp: dict[Ships, Tensor] = dict(models.items())
    logp["blend"] = _nested(models, likely_NM, fold_N)
    right = {name: p.argmax(1) == y_N for name, p in logp.items()}
    difference: dict[Ships, Difference] = {
        name: paired(r, right["global"]) for name, r in right.items() if name != "global"
    }
    return Choice(found, _why(found, difference["blend"], len(y_N)), logp, difference, _settled(models, right))


def divided(y_N: Tensor, folds: int, key: Tensor) -> Tensor:
    """The fold (N,) of each sample: of each class about equally many in every fold, at random."""
    folds = max(2, min(folds, len(y_N)))
    order_N = keys.order(key, torch.ones(len(y_N)))
    order_N = order_N[torch.argsort(y_N[order_N], stable=True)]
    fold_N = torch.empty(len(y_N), dtype=torch.int64)
    fold_N[order_N] = torch.arange(len(y_N)) % folds
    return fold_N


def weights(names: list[Name], likely_NM: Tensor) -> dict[Name, float]:
    """How much each model counts, from the probability that it gave to each sample's class; see ``compare``."""
    first_M = torch.tensor([_FIRST[name] for name in names], dtype=torch.float64)
    first_M = first_M / first_M.sum()
    weight_M = first_M
    for _ in range(_STEPS):
        share_NM = weight_M * likely_NM
        share_NM = share_NM / share_NM.sum(1, keepdim=True)
        weight_M = (share_NM.sum(0) + _WORTH * first_M) / (len(likely_NM) + _WORTH)
    weight_M = torch.where(weight_M < _LEAST, 0.0, weight_M)
    return {name: w for name, w in zip(names, (weight_M / weight_M.sum()).tolist(), strict=True) if w}


def blend(weight: Mapping[Name, float], logp: Mapping[Name, Tensor]) -> Tensor:
    """log sum_m w_m p_m(c | x), (N, C)."""
    return torch.stack([logp[name] + math.log(w) for name, w in weight.items()]).logsumexp(0)


def paired(right_N: Tensor, other_N: Tensor) -> Difference:
    """The difference of two accuracies on the same samples.

    Source: Agresti & Min, Simple improved confidence intervals for comparing matched proportions, 2005.
    """
    count = len(right_N) + 2
    gained, lost = int((right_N & ~other_N).sum()) + 0.5, int((other_N & ~right_N).sum()) + 0.5
    mean = (gained - lost) / count
    half = _Z * math.sqrt(gained + lost - (gained - lost) ** 2 / count) / count
    return Difference(mean, mean - half, mean + half)


def _out_of_fold(fit: Fit, fold_N: Tensor) -> Tensor:
    logp = torch.empty(0)
    for fold in range(int(fold_N.max()) + 1):
        held = torch.nonzero(fold_N == fold)[:, 0]
        found = fit(torch.nonzero(fold_N != fold)[:, 0])(held)
        logp = logp if len(logp) else found.new_empty(len(fold_N), found.shape[1])
        logp[held] = found
    return logp


def _likely(models: Mapping[Name, Tensor], y_N: Tensor) -> Tensor:
    """The probability (N, M) that each model gives to each sample's class."""
    return torch.stack([p.gather(1, y_N[:, None])[:, 0].exp() for p in models.values()], 1).double() + _FLOOR


def _nested(models: Mapping[Name, Tensor], likely_NM: Tensor, fold_N: Tensor) -> Tensor:
    logp_NC = torch.empty_like(models["global"])
    for fold in range(int(fold_N.max()) + 1):
        held = fold_N == fold
        weight = weights(list(models), likely_NM[~held])
        logp_NC[held] = blend(weight, {name: p[held] for name, p in models.items()})
    return logp_NC


def _why(weight: Mapping[Name, float], against: Difference, count: int) -> str:
    shares = " and ".join(f"{100 * w:.0f}% {name}" for name, w in sorted(weight.items(), key=lambda pair: -pair[1]))
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
    needed = math.ceil(_Z**2 * max(float((gain_N**2).mean()) - gap**2, 1e-4) / gap**2)
    return needed if needed > len(gain_N) else None
