"""How far a client trusts its own Gaussian: the local weight of pFedFDA, by cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from idiolect import keys
from idiolect.errors import InputError
from idiolect.statistics.covariance import shrink as shrink_covariance
from idiolect.statistics.gaussian import Gaussian, estimate
from idiolect.statistics.moments import Moments, moments, weights_by_class

_GRID = 10  # intervals of the coarse search
_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 14  # of golden section: to a bracket of 0.2 * _GOLDEN**14 = 2e-4, where a parabola is good to about 1e-8
_SWEEPS = 6  # over (mean weight, covariance weight)
_LAST = torch.iinfo(torch.int64).max


def stratified_folds(
    y_N: Tensor, weight_N: Tensor, key: Tensor, *, folds: int = 2, sample_N: Tensor | None = None
) -> Tensor:
    """Random folds (N,), 0 to ``folds`` - 1, that share out every class, and all rows, evenly (to within one).

    Samples are put in a random order, sorted by class, and dealt out in turn.

    Args:
        y_N: labels.
        weight_N: a row of weight 0 is absent: it moves no other row, and its own fold means nothing.
        key: of the draw.
        folds: at least 2.
        sample_N: which sample a row shows, int64; the copies of one sample land in one fold. Default: each its own.

    Raises:
        InputError: fewer than 2 folds.
    """
    _check(folds)
    real_N = weight_N > 0
    sample_N = torch.arange(len(y_N), device=y_N.device) if sample_N is None else sample_N
    sample_N = torch.where(real_N, sample_N, _LAST)
    by_sample_N = torch.argsort(sample_N, stable=True)
    number_N = torch.zeros_like(by_sample_N).scatter(0, by_sample_N, _runs(sample_N[by_sample_N]))
    order_N = torch.argsort(keys.bits(key, len(y_N))[number_N], stable=True)
    order_N = order_N[torch.argsort(torch.where(real_N, y_N, _LAST)[order_N], stable=True)]
    return torch.zeros_like(order_N).scatter(0, order_N, _runs(sample_N[order_N]) % folds)


def _runs(a_N: Tensor) -> Tensor:
    """The number of each position's run of equal values, from 0."""
    return torch.cat([torch.zeros_like(a_N[:1]), (a_N[1:] != a_N[:-1]).long()]).cumsum(0)


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
) -> Tensor:
    """The weight of the local Gaussian, in [0, 1], that predicts held-out rows best.

        argmin_w Σ_k mean_{rows of fold k} -log p(y | z; lda_head(interpolate(local_k, other, w), logprior, shrink))

    where local_k is the repaired estimate from all folds but k, with ``other``'s means for the classes it lacks.
    Classes with fewer than 2 rows are left out of training and held-out rows; if no row is left, the weight is 0.

    In the basis in which other's covariance is I and local_k's is diagonal, Σ(w) is diagonal for every w, so one
    eigendecomposition per fold serves all w. A grid of 11 points, golden section about the best and a parabola at the
    end find the weight to about 1e-7.

    Args:
        z_Nd: features.
        y_N: labels.
        weight_N: at least 0; a row of weight 0 is absent.
        fold_N: 0 to ``folds`` - 1.
        other: the estimate that the local one is drawn to, its covariance positive definite.
        logprior_C: log class frequencies, the same for every fold.
        repair: applied to each fold's covariance, for example ``lambda s: ridge(s, 1.0)``.
        shrink: as for ``lda_head``.
        separate: two weights, by the one-dimensional search over each in turn from the best single one, 6 times over;
            in a narrow oblique valley that leaves up to about 1e-3 nats.
        folds: at least 2.

    Returns:
        float64, () or, if separate, (2,): of the means and of the covariance. NaN where the features are not finite
        or ``other``'s covariance is not positive definite.

    Raises:
        InputError: fewer than 2 folds.

    Source: pFedFDA, Eq. 9, summed over folds of the mean over a fold, as in its released code (printed: 1 / k of the
    sum of sums). The two weights of ``separate``: section 5.3.
    """
    _check(folds)
    C = len(logprior_C)
    other_Cd, other_dd = other.mean_Cd.double(), shrink_covariance(other.cov_dd.double(), shrink)
    n_C = weights_by_class(y_N, weight_N, C).sum(0)
    weight_N = torch.where((n_C >= 2)[y_N.clamp(0, C - 1)], weight_N, 0).double()
    z_Nd = torch.where(weight_N[:, None] > 0, z_Nd, 0).double()
    hot_kN = (fold_N == torch.arange(folds, device=fold_N.device)[:, None]) * weight_N

    parts = [moments(z_Nd, y_N, hot_N, C) for hot_N in hot_kN]
    trained = [Moments(*(sum(t) for t in zip(*parts[:k], *parts[k + 1 :], strict=True))) for k in range(folds)]
    local = [estimate(m, other_Cd) for m in trained]
    local_kCd = torch.stack([g.mean_Cd for g in local])
    local_kdd = torch.stack([shrink_covariance(repair(g.cov_dd), shrink) for g in local])

    # other = L Lᵀ and L⁻¹ local_k L⁻ᵀ = U Λ Uᵀ give Σ(w)⁻¹ = B (wΛ + (1 - w) I)⁻¹ Bᵀ with B = L⁻ᵀ U.
    factor_dd, failed = torch.linalg.cholesky_ex(other_dd)
    half_kdd = torch.linalg.solve_triangular(factor_dd, local_kdd, upper=False)
    white_kdd = torch.linalg.solve_triangular(factor_dd, half_kdd.mT, upper=False)
    sound = (failed == 0) & torch.isfinite(white_kdd).all()
    value_kd, vector_kdd = torch.linalg.eigh(torch.where(sound, white_kdd, torch.eye(len(other_dd)).to(white_kdd)))
    value_kd = torch.where(sound, value_kd, torch.nan)
    basis_kdd = torch.linalg.solve_triangular(factor_dd.mT, vector_kdd, upper=True)
    local_kCd, other_kCd = local_kCd @ basis_kdd, other_Cd @ basis_kdd

    held_k = hot_kN.sum(1)
    share_N = (hot_kN / torch.where(held_k > 0, held_k, 1.0)[:, None]).sum(0)
    fold_1CN = fold_N.clamp(0, folds - 1).expand(1, C, -1)
    y_1N = y_N.clamp(0, C - 1)[None]

    def risk(on_mean: float | Tensor, on_cov: float | Tensor) -> Tensor:
        mean_kCd = on_mean * local_kCd + (1 - on_mean) * other_kCd
        scaled_kCd = mean_kCd / (on_cov * value_kd + (1 - on_cov))[:, None]
        bias_kC = logprior_C - 0.5 * (scaled_kCd * mean_kCd).sum(-1)
        head_kCd = scaled_kCd @ basis_kdd.mT
        logit_kCN = (head_kCd.flatten(0, 1) @ z_Nd.T).unflatten(0, (folds, C)) + bias_kC[..., None]
        logp_CN = logit_kCN.gather(0, fold_1CN)[0].log_softmax(0)
        loss: Tensor = -(share_N * logp_CN.gather(0, y_1N)[0]).sum()
        return loss

    weight = _minimise(lambda w: risk(w, w))
    if separate:
        on_mean = on_cov = weight
        for _ in range(_SWEEPS):
            on_mean = _minimise(partial(risk, on_cov=on_cov))
            on_cov = _minimise(partial(risk, on_mean))
        weight = torch.stack([on_mean, on_cov])
    return weight


def _minimise(f: Callable[[float | Tensor], Tensor]) -> Tensor:
    """The argument of the smallest value on [0, 1]; of equal ones on the grid the first, so 0 for a constant.

    A value that is not a number counts as infinite; NaN if no value on the grid is finite. The ends are met exactly.
    """
    value_G = torch.stack([f(i / _GRID) for i in range(_GRID + 1)]).nan_to_num(nan=torch.inf)
    best = value_G.argmin().double()
    low, high = ((best - 1) / _GRID).clamp(min=0.0), ((best + 1) / _GRID).clamp(max=1.0)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = f(left), f(right)
    for _ in range(_STEPS):
        down = at_left < at_right
        low, high = torch.where(down, low, left), torch.where(down, right, high)
        new = torch.where(down, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_new = f(new)
        left, right = torch.where(down, new, right), torch.where(down, left, new)
        at_left, at_right = torch.where(down, at_new, at_right), torch.where(down, at_left, at_new)
    middle = (left + right) / 2
    fall, bend = at_left - at_right, at_left - 2 * f(middle) + at_right
    vertex = torch.minimum(torch.maximum(middle + (right - left) / 4 * fall / bend, low), high)
    found = torch.where(f(vertex) < value_G.amin(), vertex, best / _GRID)
    return torch.where(torch.isfinite(value_G.amin()), found, torch.nan)


def _check(folds: int) -> None:
    if folds < 2:
        raise InputError(f"folds={folds} leaves nothing to train on: use 2 or more")
