"""Gaussian classes with one tied covariance, and the linear classifier (LDA) that is Bayes' rule for them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.statistics.covariance import shrink as shrink_covariance
from idiolect.statistics.moments import Moments


class Gaussian(NamedTuple):
    """p(z | y = c) = N(z; mean_c, cov), the covariance tied over classes."""

    mean_Cd: Tensor
    cov_dd: Tensor


class LinearHead(NamedTuple):
    """logits = z @ weight_Cd.T + bias_C."""

    weight_Cd: Tensor
    bias_C: Tensor


def estimate(m: Moments, fallback_Cd: Tensor, *, min_count: int = 1) -> Gaussian:
    """Class means and tied covariance from moments alone.

        mean_c = s_c / n_c where n_c >= min_count, else fallback_c
        cov = Σ w (z - mean_y)(z - mean_y)ᵀ / max(n - 1, 1),   n = Σ_c n_c

    All samples count in the scatter, those of the classes below ``min_count`` about the fallback. Nothing is added to
    the covariance: with fewer samples than features it is singular (see ``covariance``). float64.

    Args:
        m: moments of one client, or the sum over several.
        fallback_Cd: means for the classes that have too few samples, for example the global ones.
        min_count: samples that a class needs to have its own mean, at least 1.

    Raises:
        InputError: ``min_count`` is below 1.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), Eqs. 6 to 8.
    """
    if min_count < 1:
        raise InputError(f"min_count={min_count} asks for the mean of no samples: use 1 or more")
    n_C1 = m.n_C[:, None]
    own_C1 = n_C1 >= min_count
    mean_Cd = torch.where(own_C1, m.sum_Cd / torch.where(own_C1, n_C1, 1.0), fallback_Cd.double())
    cross_dd = (m.sum_Cd - 0.5 * n_C1 * mean_Cd).T @ mean_Cd
    half_dd = 0.5 * m.outer_dd - cross_dd  # scatter = half + halfᵀ: symmetric to the last bit
    return Gaussian(mean_Cd, (half_dd + half_dd.T) / (m.n_C.sum() - 1).clamp(min=1.0))


def log_prior(n_C: Tensor, smoothing: float = 1e-4) -> Tensor:
    """Log class frequencies (C,), smoothed so that an absent class is unlikely (about e^-9.2) but not impossible.

        log π_c,   π_c = (n_c / n + smoothing) / (1 + C smoothing)

    Without any samples it is uniform. float64.

    Source: pFedFDA's released code; its paper has smoothing = 0 (section 4.1).
    """
    n = n_C.double().sum()
    share_C = n_C.double() / torch.where(n > 0, n, 1.0) + smoothing
    return torch.log(share_C / share_C.sum())


def lda_head(g: Gaussian, logprior_C: Tensor, *, shrink: float = 1e-4) -> LinearHead:
    """The linear classifier that is Bayes' rule under ``g``: logits are log p(y = c | z) up to a constant in c.

        weight_c = Σ⁻¹ mean_c,   bias_c = log π_c - ½ mean_cᵀ weight_c,   Σ = shrink(cov)

    Args:
        g: class means and tied covariance; several heads at once if there are several means (K, C, d).
        logprior_C: log π.
        shrink: weight of the spherical covariance, 0 to 1 (see ``covariance.shrink``).

    Returns:
        float64; NaN throughout where Σ is not positive definite.

    Source: pFedFDA, Eq. 4, and FedLDA (McLaughlin & Su, FL@FM-NeurIPS 2023), Eq. 4; shrink as in pFedFDA's released
    code, 0 in both papers.
    """
    mean_Cd = g.mean_Cd.double()
    factor_dd, failure = torch.linalg.cholesky_ex(shrink_covariance(g.cov_dd.double(), shrink))
    weight_Cd = torch.cholesky_solve(mean_Cd.flatten(0, -2).T, factor_dd).T.view_as(mean_Cd)
    weight_Cd = torch.where(failure == 0, weight_Cd, torch.nan)
    return LinearHead(weight_Cd, logprior_C.double() - 0.5 * (weight_Cd * mean_Cd).sum(-1))


def interpolate(
    local: Gaussian, other: Gaussian, weight: float | Tensor | tuple[float | Tensor, float | Tensor]
) -> Gaussian:
    """weight * local + (1 - weight) * other, for the means and for the covariance.

    Args:
        local: the client's own estimate.
        other: the estimate to mix it with, for example the global one.
        weight: of the LOCAL estimate, 0 to 1: one number (or scalar tensor) for both parts, or a pair (or tensor of
            shape (2,)) for the means and for the covariance. 0 gives ``other`` and 1 gives ``local``, to the bit.

    Source: pFedFDA, Algorithm 1, lines 10 and 11 (weight = beta), and FedLDA, section 4, whose beta weighs the GLOBAL
    estimate (weight = 1 - beta).
    """
    if isinstance(weight, tuple):
        on_mean, on_cov = weight
    elif isinstance(weight, Tensor) and weight.ndim == 1:
        on_mean, on_cov = weight[0], weight[1]
    else:
        on_mean = on_cov = weight
    return Gaussian(
        on_mean * local.mean_Cd.double() + (1 - on_mean) * other.mean_Cd.double(),
        on_cov * local.cov_dd.double() + (1 - on_cov) * other.cov_dd.double(),
    )
