"""How far a client trusts its own Gaussian: the local weight of pFedFDA, by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.statistics.covariance import shrink as shrink_covariance
from idiolect.statistics.gaussian import Gaussian, estimate
from idiolect.statistics.moments import Moments, moments, total, weights_by_class

_GRID = 10  # intervals of the search, and of the bracket about the best in each zoom
_ZOOMS = 2  # to points that lie 0.004 apart, where a parabola finds the minimum to about 1e-5
_STEP = 1e-4  # around it, for the last parabola, which is exact to about 1e-9
_TIE = 1e-12  # relative; below it two risks differ only by rounding
_SWEEPS = 6  # over (mean weight, covariance weight)
_LAST = torch.iinfo(torch.int64).max


def stratified_folds(
    y_N: Tensor, weight_N: Tensor, key: Tensor, *, folds: int = 2, sample_N: Tensor | None = None
) -> Tensor:
    """Random folds (N,), 0 to ``folds`` - 1, that divide every class, and all samples, evenly (to within one).

    Samples are put in a random order, sorted by class, and dealt out in turn. Those that are one, or belong together,
    are dealt out as one of the least of their classes.

    Args:
        y_N: labels.
        weight_N: an entry of weight 0 is ignored: it changes no other fold, and its own fold means nothing.
        key: of the draw.
        folds: at least 2.
        sample_N: which sample each entry is a copy of, or which group it is of, int64; those of one are in one fold.
            Default: each stands for itself.

    Raises:
        InputError: fewer than 2 folds.
    """
    _check(folds)
    real_N = weight_N > 0
    sample_N = torch.arange(len(y_N), device=y_N.device) if sample_N is None else sample_N
    sample_N = torch.where(real_N, sample_N, _LAST)
    number_N = numbers(sample_N)
    order_N = torch.argsort(keys.bits(key, len(y_N))[number_N], stable=True)
    class_N = torch.where(real_N, y_N, _LAST)
    class_N = torch.full_like(class_N, _LAST).scatter_reduce(0, number_N, class_N, "amin")[number_N]
    order_N = order_N[torch.argsort(class_N[order_N], stable=True)]
    return torch.zeros_like(order_N).scatter(0, order_N, _runs(sample_N[order_N]) % folds)


def numbers(a_N: Tensor) -> Tensor:
    """The place (N,) of each value among the different ones in order, from 0."""
    order_N = torch.argsort(a_N, stable=True)
    return torch.zeros_like(order_N).scatter(0, order_N, _runs(a_N[order_N]))


def _runs(a_N: Tensor) -> Tensor:
    """The number of each position's run of equal values, from 0."""
    return torch.cat([torch.zeros_like(a_N[:1]), (a_N[1:] != a_N[:-1]).long()]).cumsum(0)


def _divide(
    z_Nd: Tensor, y_N: Tensor, weight_N: Tensor, fold_N: Tensor, folds: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Features, labels and weights of each fold's samples.

    Those of a single client are cut out. Mapped over clients, each fold has all samples, the others' with weight 0.
    """
    weight_kN = (fold_N == torch.arange(folds, device=fold_N.device)[:, None]) * weight_N
    if tree.mapped(weight_kN):
        return [(z_Nd, y_N, weight_N) for weight_N in weight_kN]
    at_k = [weight_N.nonzero()[:, 0] for weight_N in weight_kN]
    return [(z_Nd[at], y_N[at], weight_N[at]) for weight_N, at in zip(weight_kN, at_k, strict=True)]


def moments_by_fold(
    z_Nd: Tensor, y_N: Tensor, weight_N: Tensor, fold_N: Tensor, *, classes: int, folds: int = 2
) -> list[Moments]:
    """The moments of each fold; those of all samples are the sum.

    Args:
        z_Nd: features.
        y_N: labels.
        weight_N: at least 0; a sample of weight 0 is ignored.
        fold_N: 0 to ``folds`` - 1.
        classes: C.
        folds: how many.
    """
    return [moments(*fold, classes) for fold in _divide(z_Nd, y_N, weight_N, fold_N, folds)]


def search_moments(
    z_Nd: Tensor, y_N: Tensor, weight_N: Tensor, fold_N: Tensor, *, classes: int, folds: int = 2
) -> tuple[list[Moments], Moments]:
    """For ``search``: the moments of each fold without classes of one sample, and those of such samples.

    The moments of all samples are the sum.

    Args:
        z_Nd: features.
        y_N: labels.
        weight_N: 1, or 0 for a sample that is ignored.
        fold_N: 0 to ``folds`` - 1.
        classes: C.
        folds: how many.
    """
    several_N = _of_several(y_N, weight_N, classes)
    lone_N = weight_N.double() - several_N
    hot_NC = weights_by_class(y_N, lone_N, classes)
    lone_Cd = hot_NC.T @ torch.where(lone_N[:, None] > 0, z_Nd, 0).double()
    lone = Moments(hot_NC.sum(0), lone_Cd, lone_Cd.T @ lone_Cd)
    return moments_by_fold(z_Nd, y_N, several_N, fold_N, classes=classes, folds=folds), lone


def _of_several(y_N: Tensor, weight_N: Tensor, classes: int) -> Tensor:
    """The weights of samples whose class has two or more; 0 for the others. float64."""
    n_C = weights_by_class(y_N, weight_N, classes).sum(0)
    return torch.where((n_C >= 2)[y_N.clamp(0, classes - 1)], weight_N, 0).double()


def search(
    z_Nd: Tensor,
    y_N: Tensor,
    weight_N: Tensor,
    fold_N: Tensor,
    other: Gaussian,
    logprior_C: Tensor,
    *,
    repair: Callable[[Tensor], Tensor],
    shrink: float = 1e-4,
    separate: bool = False,
    folds: int = 2,
    parts: Sequence[Moments] | None = None,
    inner_N: Tensor | None = None,
) -> Tensor:
    """The weight of the local Gaussian, in [0, 1], that predicts held-out samples best.

        argmin_w Σ_k mean_{samples of fold k} -log p(y | z; lda_head(interpolate(local_k, other, w), logprior, shrink))

    where local_k is the repaired estimate from all folds but k, with ``other``'s means for the classes it lacks.
    Classes with fewer than 2 samples are left out of training and held-out samples; if none is left, the weight is 0.

    In the basis in which other's covariance is I and local_k's is diagonal, Σ(w) is diagonal for every w, so one
    eigendecomposition per fold serves all w. A grid of 11 points, two finer ones about the best and two parabolas find
    the weight to about 1e-7.

    Args:
        z_Nd: features.
        y_N: labels.
        weight_N: 1, or 0 for a sample that is ignored.
        fold_N: 0 to ``folds`` - 1.
        other: the estimate to mix the local one with; its covariance must be positive definite.
        logprior_C: log class frequencies, the same for every fold.
        repair: applied to each fold's covariance, for example ``lambda s: ridge(s, 1.0)``.
        shrink: as for ``lda_head``.
        separate: two weights: from the best single one, the one-dimensional search over each in turn, 6 times. In a
            narrow oblique valley this misses the minimum by up to about 1e-3 nats.
        folds: at least 2.
        parts: the moments of each fold by ``search_moments``, if they are known.
        inner_N: 1 for a sample that may be held out, 0 for one that is too near to other folds'; None where all may.
            If none may, the weight is 0.

    Returns:
        float64, () or, if separate, (2,): of the means and of the covariance. NaN where the features are not finite
        or ``other``'s covariance is not positive definite.

    Raises:
        InputError: fewer than 2 folds.

    Source: pFedFDA, Eq. 9, summed over folds of the mean over a fold, as in its released code (the paper prints 1 / k
    of the sum of sums). The two weights of ``separate``: section 5.3.
    """
    _check(folds)
    C = len(logprior_C)
    other_Cd, other_dd = other.mean_Cd.double(), shrink_covariance(other.cov_dd.double(), shrink)
    if parts is None:
        parts, _ = search_moments(z_Nd, y_N, weight_N, fold_N, classes=C, folds=folds)
    complements = [total([*parts[:k], *parts[k + 1 :]]) for k in range(folds)]
    weight_N, y_N = _of_several(y_N, weight_N, C), y_N.clamp(0, C - 1)
    z_Nd = torch.where(weight_N[:, None] > 0, z_Nd, 0).double()

    local = [estimate(m, other_Cd) for m in complements]
    local_kCd = torch.stack([g.mean_Cd for g in local])
    local_kdd = torch.stack([shrink_covariance(repair(g.cov_dd), shrink) for g in local])

    # other = L Lᵀ and L⁻¹ local_k L⁻ᵀ = U Λ Uᵀ give Σ(w)⁻¹ = B (wΛ + (1 - w) I)⁻¹ Bᵀ with B = L⁻ᵀ U.
    factor_dd, failure = torch.linalg.cholesky_ex(other_dd)
    inverse_dd = torch.linalg.solve_triangular(factor_dd, torch.eye(len(other_dd)).to(factor_dd), upper=False)
    white_kdd = inverse_dd @ local_kdd @ inverse_dd.T
    sound = (failure == 0) & torch.isfinite(white_kdd).all()
    value_kd, vector_kdd = torch.linalg.eigh(torch.where(sound, white_kdd, torch.eye(len(other_dd)).to(white_kdd)))
    value_kd = torch.where(sound, value_kd, torch.nan)
    basis_kdd = inverse_dd.T @ vector_kdd
    other_k1Cd = (other_Cd @ basis_kdd)[:, None]
    apart_k1Cd = (local_kCd @ basis_kdd)[:, None] - other_k1Cd
    stretch_k11d = value_kd[:, None, None] - 1
    held_N = weight_N if inner_N is None else weight_N * inner_N
    fold_samples = [(z, y, _shares(weight)) for z, y, weight in _divide(z_Nd, y_N, held_N, fold_N, folds)]

    def risk(on_mean_G: Tensor, on_cov_G: Tensor) -> Tensor:
        """At G pairs of weights; either may be a single one."""
        mean_kGCd = other_k1Cd + on_mean_G[:, None, None] * apart_k1Cd
        slope_kGCd = mean_kGCd / (1 + on_cov_G[:, None, None] * stretch_k11d)
        bias_kGC1 = (logprior_C - 0.5 * (slope_kGCd * mean_kGCd).sum(-1))[..., None]
        head_kGCd = (slope_kGCd.flatten(1, 2) @ basis_kdd.mT).view_as(slope_kGCd)
        loss_G = torch.zeros_like(on_mean_G * on_cov_G)
        for (z_Nd, y_N, share_N), head_GCd, bias_GC1 in zip(fold_samples, head_kGCd, bias_kGC1, strict=True):
            logp_GCN = (head_GCd @ z_Nd.T + bias_GC1).log_softmax(1)
            loss_G = loss_G - logp_GCN.gather(1, y_N.expand(len(logp_GCN), 1, -1))[:, 0] @ share_N
        return loss_G

    weight = _minimise(lambda w: risk(w, w))
    if separate:
        on_mean = on_cov = weight
        for _ in range(_SWEEPS):
            on_mean = _minimise(partial(risk, on_cov_G=on_cov[None]))
            on_cov = _minimise(partial(risk, on_mean[None]))
        weight = torch.stack([on_mean, on_cov])
    return weight


def _shares(weight_N: Tensor) -> Tensor:
    """Weights that sum to 1, or to 0 where all are 0."""
    total = weight_N.sum()
    return weight_N / torch.where(total > 0, total, 1.0)


def _minimise(f: Callable[[Tensor], Tensor]) -> Tensor:
    """The argument of the smallest value on [0, 1]; of equal ones on the grid the first, so 0 for a constant.

    Values that differ by rounding are equal: which one is the smallest would depend on the engine.

    A value that is not a number counts as infinite; NaN if no value on the grid is finite. A minimum at 0 or 1 is
    exact.

    Args:
        f: from arguments (G,) to values (G,), several at once because that is much cheaper.
    """
    share_G = torch.arange(_GRID + 1, dtype=torch.float64) / _GRID
    value_G = f(share_G).nan_to_num(nan=torch.inf)
    lowest = value_G.amin()
    enough = lowest + _TIE * lowest.abs()
    best = (value_G <= enough).to(torch.int64).argmax().double() / _GRID
    low, high = (best - 1 / _GRID).clamp(min=0.0), (best + 1 / _GRID).clamp(max=1.0)
    for _ in range(_ZOOMS):
        inner_G = low.lerp(high, share_G[1:-1])
        value_G = f(inner_G).nan_to_num(nan=torch.inf)
        place = value_G.argmin()
        low, high = low.lerp(high, place.double() / _GRID), low.lerp(high, (place + 2).double() / _GRID)
    about_3 = place.clamp(1, _GRID - 3) + torch.arange(-1, 2)
    vertex = _vertex(inner_G.gather(0, about_3), value_G.gather(0, about_3)).clamp(low, high)
    last_3 = vertex.clamp(_STEP, 1 - _STEP) + _STEP * torch.arange(-1, 2)
    vertex = _vertex(last_3, f(last_3)).clamp(low, high)
    argument = torch.where(f(vertex[None])[0] < lowest - _TIE * lowest.abs(), vertex, best)
    return torch.where(torch.isfinite(lowest), argument, torch.nan)


def _vertex(x_3: Tensor, y_3: Tensor) -> Tensor:
    """Where the parabola through three evenly spaced points is lowest."""
    (left, middle, right), (at_left, at_middle, at_right) = x_3.unbind(), y_3.unbind()
    return middle + (right - left) / 4 * (at_left - at_right) / (at_left - 2 * at_middle + at_right)


def _check(folds: int) -> None:
    if folds < 2:
        raise InputError(f"folds={folds} leaves nothing to train on: use 2 or more")
