"""Metrics of representations: how well Gaussian classes describe them, and their places in a plane."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idiolect.statistics.covariance import shrink
from idiolect.statistics.gaussian import estimate
from idiolect.statistics.moments import moments

# N samples of one client, d dimensions of a representation

_SHRINK = 1e-4  # shrinkage of the covariance, as in the papers' classifiers


def gaussianity(z_Nd: Tensor, y_N: Tensor) -> float:
    """How improbable representations are under Gaussian classes fitted to them: nats per sample, less is better.

        mean over samples of -log N(z; mean_y, cov),   cov = shrink(within-class covariance, 1e-4)

    The Gaussians are fitted to these same samples, so the squared distances add up to nearly d / 2 for any samples.
    What varies is half the log-determinant of the covariance, which depends on the scale of the representations.
    Compare it within one method, or after ``standardise``. With fewer samples than dimensions, the shrinkage sets the
    variance of directions without data.

    Returns:
        NaN if no class has two different samples.

    Source: FedLDA (McLaughlin & Su, FL@FM-NeurIPS 2023), Figure 1(a): ground truth statistics.
    """
    z_Nd = z_Nd.double() - z_Nd.double().mean(0)
    n, d = z_Nd.shape
    classes = int(y_N.max()) + 1
    gaussians = estimate(moments(z_Nd, y_N, torch.ones(n), classes), torch.zeros(classes, d))
    factor_dd, failure = torch.linalg.cholesky_ex(shrink(gaussians.cov_dd, _SHRINK))
    if failure:
        return math.nan
    white_dN = torch.linalg.solve_triangular(factor_dd, (z_Nd - gaussians.mean_Cd[y_N]).T, upper=False)
    distance = 0.5 * white_dN.square().sum() / n
    return float(distance + factor_dd.diagonal().log().sum() + 0.5 * d * math.log(2 * math.pi))


def standardise(z_Nd: Tensor) -> Tensor:
    """Samples in which every dimension has mean 0 and standard deviation 1; one that is constant is 0."""
    z_Nd = z_Nd.double()
    varies_d = z_Nd.amax(0) > z_Nd.amin(0)
    std_d = torch.where(varies_d, z_Nd.std(0, correction=0), 1.0)
    return torch.where(varies_d, (z_Nd - z_Nd.mean(0)) / std_d, 0.0)


def plane(z_Nd: Tensor) -> Tensor:
    """Samples as points (N, 2): as they are if d is 2, else along their two directions of largest variance.

    The sign of a direction makes its largest entry by absolute value positive.
    """
    z_Nd = z_Nd.double()
    if z_Nd.shape[1] == 2:
        return z_Nd
    z_Nd = z_Nd - z_Nd.mean(0)
    _, _, direction_Md = torch.linalg.svd(z_Nd, full_matrices=False)
    direction_Md = direction_Md[:2]
    largest_M1 = direction_Md.gather(1, direction_Md.abs().argmax(1, keepdim=True))
    point_NM = z_Nd @ (direction_Md * largest_M1.sign()).T
    return torch.nn.functional.pad(point_NM, (0, 2 - point_NM.shape[1]))
