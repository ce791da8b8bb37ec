"""Products of diagonal Gaussians in natural parameters: a product is a sum, so order and grouping do not matter."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.statistics.moments import weights_by_class


class Experts(NamedTuple):
    """Per class, the product of diagonal Gaussians N(μ, s²) without a prior; products add. float64."""

    precision_CV: Tensor
    """Σ 1 / s²; 0 for a class without samples."""
    weighted_CV: Tensor
    """Σ μ / s²."""


def class_products(mean_NV: Tensor, std_NV: Tensor, y_N: Tensor, weight_N: Tensor, classes: int) -> Experts:
    """The product of the samples' Gaussians, class by class.

        precision_c = Σ w [y = c] / s²,   weighted_c = Σ w [y = c] μ / s²

    Args:
        mean_NV: μ.
        std_NV: s, standard deviations, above 0.
        y_N: labels from 0 to ``classes`` - 1.
        weight_N: at least 0; a sample of weight 0 is ignored, whatever it holds.
        classes: C.

    Source: FedCR (Zhang et al., ICML 2023), Eq. 8 and Algorithm 2, lines 17 and 18.
    """
    real_N1 = weight_N[:, None] > 0
    precision_NV = torch.where(real_N1, std_NV, 1).double() ** -2
    hot_CN = weights_by_class(y_N, weight_N, classes).T
    return Experts(hot_CN @ precision_NV, hot_CN @ (precision_NV * torch.where(real_N1, mean_NV, 0).double()))


def posterior(e: Experts, prior_precision: float = 1.0) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C, V) of the product with one prior N(0, 1 / prior_precision).

        s² = 1 / (prior_precision + precision),   μ = s² weighted

    The prior enters once, over all experts together: add the clients' ``Experts`` first.

    Args:
        e: the sum of all products.
        prior_precision: at least 0. With 0, a class without samples is NaN, because it has no distribution.

    Raises:
        InputError: ``prior_precision`` is negative.

    Source: FedCR, Algorithm 2, lines 29 and 30; Eq. 9 with τ = 1, read with one prior for the whole product.
    """
    if prior_precision < 0:
        raise InputError(f"prior_precision={prior_precision} is not a precision: use 0 or more")
    precision_CV = e.precision_CV + prior_precision
    return e.weighted_CV / precision_CV, precision_CV**-0.5


def kl_diagonal(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """KL(p ‖ q) of diagonal Gaussians, in nats, summed over the last axis.

        Σ_v ½ [(s_p² + (μ_p - μ_q)²) / s_q² - 1] + log s_q - log s_p

    Args:
        mean_p: μ_p (..., V).
        std_p: s_p, a standard deviation, above 0.
        mean_q: μ_q.
        std_q: s_q, above 0.

    Returns:
        In the type of its arguments, and differentiable, for use in a loss.

    Source: FedCR, Eq. 21 (appendix A.4) for diagonal covariances; in Eq. 7, p is the global distribution and q the
    local one.
    """
    square = (std_p.square() + (mean_p - mean_q).square()) / std_q.square()
    return (0.5 * (square - 1) + std_q.log() - std_p.log()).sum(-1)
