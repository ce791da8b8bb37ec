"""Named repairs of covariance matrices, one per numerical danger, and their form in messages."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError


def shrink(cov_dd: Tensor, weight: float) -> Tensor:
    """Fixes an unbounded condition number: with few samples, some directions have almost no variance.

        (1 - weight) S + weight (tr S / d) I

    The trace stays, and the repair scales with S. So it sets no lower bound for features that shrink in training.

    Args:
        cov_dd: S.
        weight: 0 to 1.

    Raises:
        InputError: ``weight`` is outside 0 to 1.
    """
    if not 0 <= weight <= 1:
        raise InputError(f"shrink={weight} is not a share: use a number from 0 to 1")
    d = cov_dd.shape[-1]
    return (1 - weight) * cov_dd + weight * cov_dd.diagonal().sum() / d * _eye(cov_dd)


def ridge(cov_dd: Tensor, amount: float, *, everywhere: float = 0.0) -> Tensor:
    """Fixes a covariance without a lower bound: weights Σ⁻¹μ explode when the scale of the features drifts to 0.

        S + amount I + everywhere 1 1ᵀ

    Args:
        cov_dd: S.
        amount: the least variance in every direction, in squared feature units, at least 0.
        everywhere: added to each entry, at least 0; only there to reproduce code that does so.

    Raises:
        InputError: ``amount`` or ``everywhere`` is negative.

    Source: pFedFDA, section 4.3 (ε I, with a small ε of unstated value). Its released code adds amount=1.0 and
    everywhere=1e-4.
    """
    if min(amount, everywhere) < 0:
        raise InputError(f"ridge={amount}, everywhere={everywhere} would reduce the variance: use 0 or more")
    return cov_dd + amount * _eye(cov_dd) + everywhere


def clip_correlation(cov_dd: Tensor, floor: float = 1e-15) -> Tensor:
    """Fixes negative eigenvalues, which rounding leaves in the covariance of few samples, and keeps every variance.

    Eigenvalues of the correlation matrix below ``floor`` are raised to it, its diagonal is scaled back to 1, and the
    variances are put back. A matrix with nothing to clip is returned as it is. A feature without variance counts as
    uncorrelated and keeps variance 0. NaN where ``cov_dd`` is not finite.

    Args:
        cov_dd: symmetric, of any float type.
        floor: smallest eigenvalue of the correlation matrix, above 0.

    Source: pFedFDA, section 4.3; the "clipped" repair known from statsmodels.
    """
    finite = torch.isfinite(cov_dd).all()
    std_d = cov_dd.diagonal().clamp(min=0.0).sqrt()
    unit_d = torch.where(std_d > 0, std_d, 1.0)
    own_dd = _eye(cov_dd) > 0
    corr_dd = torch.where(own_dd, 1.0, torch.where(std_d[:, None] * std_d > 0, cov_dd / unit_d[:, None] / unit_d, 0.0))
    corr_dd = torch.where(finite, corr_dd, _eye(cov_dd))  # an eigensolver raises on NaN
    value_d, vector_dd = torch.linalg.eigh(corr_dd)
    floor_dd = (vector_dd * value_d.clamp(min=floor)) @ vector_dd.mT
    scale_d = std_d / floor_dd.diagonal().sqrt()
    repair_dd = torch.where(own_dd, std_d**2, floor_dd * scale_d[:, None] * scale_d)
    out_dd = torch.where((value_d < floor).any(), repair_dd, cov_dd)
    return torch.where(finite, out_dd, torch.nan)


def at_least(cov_dd: Tensor, floor: float) -> Tensor:
    """A covariance without the eigenvalues below ``floor`` that noise has given it: these become ``floor``.

    The nearest matrix (in Frobenius norm) of those that have none below. One that has none comes back to the bit, and
    one that is not finite too.

    Args:
        cov_dd: symmetric.
        floor: above 0, in squared feature units; 0 changes nothing.
    """
    cov = cov_dd.double()
    if not floor or not cov.isfinite().all() or torch.linalg.cholesky_ex(cov - floor * _eye(cov)).info == 0:
        return cov_dd
    value_d, vector_dd = torch.linalg.eigh(cov)
    lifted: Tensor = (vector_dd * value_d.clamp(min=floor)) @ vector_dd.mT
    return lifted.to(cov_dd.dtype)


def above_noise(cov_dd: Tensor) -> Tensor:
    """A covariance from one that noise has made none: it keeps its trace, and what is no larger than noise is one size.

    Symmetric noise of size r moves eigenvalues by -r to r, so that the least one, where it is below 0, says r. All
    eigenvalues up to r become their mean; where that is below 0, as many more do as raise it to 0. A covariance comes
    back to the bit, and a matrix that is not finite too; one with a negative trace becomes 0.

    Args:
        cov_dd: symmetric.

    Source: idiolect's own.
    """
    cov = cov_dd.double()
    if not cov.isfinite().all() or torch.linalg.cholesky_ex(cov).info == 0:
        return cov_dd
    value_d, vector_dd = torch.linalg.eigh(cov)
    size = (-value_d[0]).clamp(min=0)
    if size <= 10 * torch.finfo(cov_dd.dtype).eps * value_d[-1]:  # rounding, not noise
        return cov_dd
    d = len(value_d)
    mean_d = value_d.cumsum(0) / torch.arange(1, d + 1, device=value_d.device)  # of the least ones
    count = torch.maximum((value_d <= size).sum(), (mean_d < 0).sum() + 1).clamp(max=d)
    level_d = torch.where(torch.arange(d, device=value_d.device) < count, mean_d[count - 1].clamp(min=0), value_d)
    lifted: Tensor = (vector_dd * level_d) @ vector_dd.mT
    return lifted.to(cov_dd.dtype)


def ridged_above_noise(cov_dd: Tensor, ridge: float) -> Tensor:
    """A covariance that began at the identity, and to which ``ridge`` is added in each round, after noise.

    No eigenvalue is below half of min(1, ridge); without a ridge it is ``above_noise``. One that noise has not pushed
    lower comes back to the bit.

    Args:
        cov_dd: symmetric.
        ridge: 0 or more, in squared feature units.

    Source: idiolect's own.
    """
    return at_least(cov_dd, min(1.0, ridge) / 2) if ridge else above_noise(cov_dd)


def pack(cov_dd: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix, row by row: (d (d + 1) / 2,). This is all that has to be sent."""
    row, column, _ = _places(cov_dd.shape[-1], cov_dd.device)
    return cov_dd[row, column]


def unpack(triangle: Tensor, d: int) -> Tensor:
    """The symmetric matrix (d, d) of an upper triangle that ``pack`` gave."""
    return triangle[_places(d, triangle.device)[2]]


@lru_cache(maxsize=4)
def _places(d: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and columns of the packed entries, and for each entry of the matrix where it is packed (d, d)."""
    with tree.unmapped():
        row, column = torch.triu_indices(d, d, device=device)
        place_dd = torch.zeros(d, d, dtype=torch.int64, device=device)
        place_dd[row, column] = place_dd[column, row] = torch.arange(len(row), device=device)
    return row, column, place_dd


def _eye(cov_dd: Tensor) -> Tensor:
    return torch.eye(cov_dd.shape[-1], dtype=cov_dd.dtype, device=cov_dd.device)
