"""Do no harm: how much a site should trust the global, the personal and a local model, from its own samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import InputError, RunError, option

# N samples of the site, C classes, D numbers of a target, M models

Name = Literal["global", "personal", "local"]
Ships = Literal["global", "personal", "local", "blend"]
Against = Literal["global", "local"]
Fit = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""From the numbers of training samples to a function from numbers of other samples to what the model predicts of them:
log-probabilities (N, C), or scaled numbers (N, D), or log-probabilities without and with each label (N, L, 2)."""
FEW_FOR_LOCAL = 40
"""A model of the site's own is compared from this number of samples on."""
FIRST = {"global": 0.2, "personal": 0.5, "local": 0.3}
"""Weights before the site's samples are seen."""
WORTH = 2.0
"""How much these count."""
MOST = 3.0
"""The largest weight."""
LEAST = 0.02
"""A smaller weight is left out."""
UNSURE = 0.15
"""How much of the uniform distribution each model's probabilities get, so that no model can rule out a class alone."""
_Z = 1.959964  # of a 95 % interval
_LONELY = {
    False: f"the method has no global model, and a local one needs {FEW_FOR_LOCAL} samples to train on",
    True: "the method has no global model, and what the local one predicts is not a number",
}
"""Why a model is compared with none, by whether there was a local one."""


class Difference(NamedTuple):
    """A model's accuracy, mean squared error or (of labels) log loss, less that of ``Choice.against``, and its 95 %
    interval."""

    mean: float
    low: float
    high: float


class Choice(NamedTuple):
    """What the comparison found."""

    weights: dict[Name, float]
    """The exponent of each model in what ships; of numbers, its weight in their mean."""
    why: str
    outputs: dict[Ships, Tensor]
    """Log-probabilities (N, C) of each sample, or scaled numbers (N, D), by models made without it; of the blend also
    by weights made without it."""
    difference: dict[Ships, Difference]
    settled: int | None
    """About how many samples would tell the best two of the models apart; None where these are enough."""
    against: Against | None
    """The model that the others are compared with; None of a single model that is neither."""


class Judge(NamedTuple):
    """How models are compared and put together, for one kind of task."""

    predictions: str
    """What they are called."""
    merit: Callable[[Tensor, Tensor], Tensor]
    """From what a model predicts and the targets to a number (N,) for each sample, float64; more is better."""
    weights: Callable[[Mapping[Name, Tensor], Tensor], dict[Name, float]]
    """The weight of each model, from what they predict and the targets."""
    blend: Callable[[Mapping[Name, float], Mapping[Name, Tensor]], Tensor]
    """What models with these weights predict together."""
    paired: Callable[[Tensor, Tensor, Tensor | None], Difference]
    """The difference of two models, from their merits and the samples' groups."""
    says: Callable[[Difference], str]
    """The difference to another model, as the end of a sentence."""
    shows: Callable[[float], str]
    """The mean merit of a model, as its score."""
    best: str
    """What weights are chosen by."""


def compare(
    fits: Mapping[Name, Fit], y_N: Tensor, key: Tensor, group_N: Tensor | None = None, judge: Judge | None = None
) -> Choice:
    """Compare models by cross-validation on a site's samples, and weigh them.

    Of classes, what ships is a product of experts, p(c | x) ~ prod_m q_m(c | x)^w_m, where q_m is the model's
    probability mixed with 15 % of the uniform one. The weights 0 <= w_m <= 3 maximise the log-likelihood of samples
    that the models were made without, less 2 |w - w0|^2, where w0 is 0.2 (global), 0.5 (personal) and 0.3 (local).
    Those below 0.02 become 0, and one model alone is taken as it is. Of numbers, what ships is a weighted mean; see
    ``idiolect.deploy.harm_of_numbers``, and of several labels ``idiolect.deploy.harm_of_labels``. The accuracy, or the
    error, of the whole procedure is measured by a second, outer loop: the samples of each fold are predicted with the
    weights that the other folds give. A model that diverges is left out.

    Args:
        fits: how each model is made. The others are compared with the global one, or, where there is none, with the
            local one.
        y_N: the labels, or scaled numbers (N, D).
        key: of the division into folds: 10 for fewer than 200 samples, else 5.
        group_N: which samples belong together; a group is in one fold, and intervals allow for it.
        judge: how models are compared and put together; None is that of classes.

    Raises:
        InputError: all samples are of one group.
        RunError: what the global model predicts is not a number, or without one what all models predict.

    Source: Wolpert, Stacked Generalization, Neural Networks 1992; Hinton, Products of Experts, ICANN 1999. The numbers
    were chosen on simulated joins with seed 0 of ``benchmarks/do_no_harm.py`` and measured on others.
    """
    fold_N = _fold_numbers(y_N, key, group_N)
    return _choice_of({name: _out_of_fold(fit, fold_N) for name, fit in fits.items()}, y_N, fold_N, group_N, judge)


def choice_of(
    outputs: Mapping[Name, Tensor], y_N: Tensor, key: Tensor, group_N: Tensor | None = None, judge: Judge | None = None
) -> Choice:
    """As ``compare``, of models that were all made without these samples.

    Args:
        outputs: each model's log-probabilities (N, C), or scaled numbers (N, D).
        y_N: see ``compare``.
        key: of the division into folds, by which the weights are measured.
        group_N: see ``compare``.
        judge: see ``compare``.

    Raises:
        RunError: see ``compare``.
    """
    return _choice_of(outputs, y_N, _fold_numbers(y_N, key, group_N), group_N, judge)


def _fold_numbers(y_N: Tensor, key: Tensor, group_N: Tensor | None) -> Tensor:
    class_N = y_N if y_N.ndim == 1 else torch.zeros(len(y_N), dtype=torch.int64)
    return fold_numbers(class_N, 10 if len(y_N) < 200 else 5, key, group_N)


def _choice_of(
    models: Mapping[Name, Tensor], y_N: Tensor, fold_N: Tensor, group_N: Tensor | None, judge: Judge | None
) -> Choice:
    judge = judge or OF_CLASSES
    finite = {
        name: p for name, p in models.items() if not p.isnan().any() and bool(judge.merit(p, y_N).isfinite().all())
    }
    if not finite or ("global" in models and "global" not in finite):
        whose = "the global model's" if "global" in models else "all models'"
        raise RunError(f"{whose} {judge.predictions} of these samples are not numbers: check the columns' units")
    against, has_local = baseline(finite), "local" in models
    models = finite
    weight = judge.weights(models, y_N)
    outputs: dict[Ships, Tensor] = dict(models.items())
    if against is not None:
        outputs["blend"] = _nested(models, y_N, fold_N, judge)
    merit = {name: judge.merit(p, y_N) for name, p in outputs.items()}
    difference: dict[Ships, Difference] = {}
    if against is None:
        [(name, merit_N)] = merit.items()
        scores = judge.shows(float(merit_N.mean()))
        why = f"it is the {name} model alone ({scores}), compared with no other: {_LONELY[has_local]}"
    else:
        difference = {name: judge.paired(m, merit[against], group_N) for name, m in merit.items() if name != against}
        means = {name: float(m.mean()) for name, m in merit.items()}
        why = _why(weight, difference["blend"], against, len(y_N), judge, means)
    return Choice(weight, why, outputs, difference, _settled(models, merit), against)


def baseline(names: Iterable[Name]) -> Against | None:
    """What a site has without a model of its own by the method: the global model, or else what it can do alone."""
    return "global" if "global" in names else "local" if "local" in names else None


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


def weights(logp: Mapping[Name, Tensor], y_N: Tensor, worth: float = 1.0) -> dict[Name, float]:
    """The weight of each model, from its log-probabilities (N, C) and the labels; see ``compare``.

    ``worth`` is how much a sample counts.
    """
    from scipy import optimize, special  # half a second, which a prediction does not need

    names = list(logp)
    expert_MNC = torch.stack([sure(logp[name]) for name in names]).double().numpy()
    first_M = np.array([FIRST[name] for name in names])
    row_N, label_N = np.arange(len(y_N)), y_N.numpy()

    def loss(weight_M: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The penalised negative log-likelihood, a convex function, and its gradient."""
        logit_NC = np.tensordot(weight_M, expert_MNC, 1)
        logp_NC = special.log_softmax(logit_NC, axis=1)
        expected_MN = (expert_MNC * np.exp(logp_NC)).sum(2)
        gradient_M = worth * (expected_MN - expert_MNC[:, row_N, label_N]).sum(1) + 2 * WORTH * (weight_M - first_M)
        return -worth * logp_NC[row_N, label_N].sum() + WORTH * ((weight_M - first_M) ** 2).sum(), gradient_M

    bounds = [(0, MOST)] * len(names)
    best_M = optimize.minimize(loss, first_M, jac=True, bounds=bounds, method="L-BFGS-B").x
    large = {name: w for name, w in zip(names, best_M.tolist(), strict=True) if w >= LEAST}
    if len(large) > 1:
        return large
    return {next(iter(large), baseline(names) or names[0]): 1.0}


def is_right(logp_NC: Tensor, y_N: Tensor) -> Tensor:
    """1 where the most likely class is the right one, else 0, float64 (N,)."""
    return (logp_NC.argmax(1) == y_N).double()


def sure(logp_NC: Tensor) -> Tensor:
    """Log-probabilities (N, ..., C) mixed with a little of the uniform distribution."""
    uniform = math.log(UNSURE / logp_NC.shape[-1])
    return torch.logaddexp(logp_NC + math.log(1 - UNSURE), torch.full_like(logp_NC, uniform))


def blend(weight: Mapping[Name, float], logp: Mapping[Name, Tensor]) -> Tensor:
    """Log-probabilities (N, ..., C) of the product of experts; of one alone with weight 1 as they are."""
    if list(weight.values()) == [1.0]:
        return logp[next(iter(weight))]
    return torch.stack([w * sure(logp[name]) for name, w in weight.items()]).sum(0).log_softmax(-1)


def paired(right_N: Tensor, other_N: Tensor, group_N: Tensor | None = None) -> Difference:
    """The difference of two accuracies on the same samples, from which of these were right.

    The interval's centre is a little nearer to 0 than the difference. Where samples belong to groups, the interval is
    at least as wide as the variance between groups says.

    Source: Agresti & Min, Simple improved confidence intervals for comparing matched proportions, 2005. Of groups:
    Liang & Zeger, Biometrika 1986, the variance of a mean whose observations are dependent in clusters.
    """
    count, step_N = len(right_N) + 2, right_N.double() - other_N.double()
    gains, losses = int((step_N > 0).sum()) + 0.5, int((step_N < 0).sum()) + 0.5
    centre = (gains - losses) / count
    half = _Z * math.sqrt(gains + losses - (gains - losses) ** 2 / count) / count
    if group_N is not None:
        half = max(half, _Z * math.sqrt(variance_between(step_N, group_N)))
    return Difference(float(step_N.mean()), max(-1.0, centre - half), min(1.0, centre + half))


def variance_between(step_N: Tensor, group_N: Tensor) -> float:
    """The variance of a mean of samples that are dependent within groups; see ``paired`` for the source."""
    groups, at_N = torch.unique(group_N, return_inverse=True)
    sum_G = torch.zeros(len(groups), dtype=torch.float64).index_add(0, at_N, step_N - step_N.mean())
    return float(sum_G.square().sum()) / len(step_N) ** 2 * len(groups) / max(1, len(groups) - 1)


def _out_of_fold(fit: Fit, fold_N: Tensor) -> Tensor:
    output_NC = torch.empty(0)
    for fold in range(int(fold_N.max()) + 1):
        row_M = torch.nonzero(fold_N == fold)[:, 0]
        part = fit(torch.nonzero(fold_N != fold)[:, 0])(row_M)
        output_NC = output_NC if len(output_NC) else part.new_empty(len(fold_N), *part.shape[1:])
        output_NC[row_M] = part
    return output_NC


def _nested(models: Mapping[Name, Tensor], y_N: Tensor, fold_N: Tensor, judge: Judge) -> Tensor:
    output_NC = torch.empty_like(next(iter(models.values())))
    for fold in range(int(fold_N.max()) + 1):
        inside_N = fold_N == fold
        weight = judge.weights({name: p[~inside_N] for name, p in models.items()}, y_N[~inside_N])
        output_NC[inside_N] = judge.blend(weight, {name: p[inside_N] for name, p in models.items()})
    return output_NC


def shares_of(weight: Mapping[Name, float]) -> list[tuple[Name, float]]:
    """What share of all weights each model has, the largest first."""
    return sorted(((name, w / sum(weight.values())) for name, w in weight.items()), key=lambda pair: -pair[1])


def _why(
    weight: Mapping[Name, float], difference: Difference, against: Against, count: int, judge: Judge,
    merit: Mapping[Ships, float],
) -> str:  # fmt: skip
    shares = " and ".join(f"{100 * w:.0f}% {name}" for name, w in shares_of(weight))
    what = f"it is the {next(iter(weight))} model alone"
    if len(weight) > 1:
        scores = ", ".join(f"{name} {judge.shows(merit[name])}" for name in merit if name != "blend")
        what = (
            f"it is {shares}, because with these weights the models together {judge.best} samples that they were made "
            f"without ({judge.shows(merit['blend'])}; alone: {scores})"
        )
    if set(weight) == {against}:
        return f"{what}, because no other model predicts the {count} samples better"
    few = ""
    if difference.low <= 0 <= difference.high:
        is_gain = merit["blend"] >= merit[against]
        which = "a gain" if is_gain else f"a loss; {option('ships', against)} takes that model alone"
        few = f"; {count} samples are too few to tell whether that is {which}"
    return f"{what}; against the {against} model its {judge.says(difference)}{few}"


def _says(against: Difference) -> str:
    points = f"{100 * against.mean:+.1f} points (95% interval {100 * against.low:+.1f} to {100 * against.high:+.1f})"
    return f"accuracy differs by {points}"


def _settled(models: Mapping[Name, Tensor], merit: Mapping[Ships, Tensor]) -> int | None:
    if len(models) < 2:
        return None
    first, second = sorted(models, key=lambda name: -float(merit[name].mean()))[:2]
    gain_N = merit[first] - merit[second]
    unit = float(gain_N.abs().amax()) or 1.0  # 1 of classes
    gap = max(float(gain_N.mean()), 1e-3 * unit)
    count = math.ceil(_Z**2 * max(float((gain_N**2).mean()) - gap**2, 1e-4 * unit**2) / gap**2)
    return count if count > len(gain_N) else None


OF_CLASSES = Judge(
    "probabilities", is_right, weights, blend, paired, _says, lambda right: f"{100 * right:.1f}% right",
    "give the highest probabilities to the right classes of",
)  # fmt: skip
"""Of classes: a product of experts, judged by accuracy."""
