"""What can be observed of representations: how well Gaussian classes describe them, and how they lie in a plane."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idiolect.statistics.covariance import shrink
from idiolect.statistics.gaussian import estimate
from idiolect.statistics.moments import moments

# N rows of one client, d dimensions of a representation

_SHRINK = 1e-4  # of the covariance, as the papers' classifiers shrink it


def gaussianity(z_Nd: Tensor, y_N: Tensor) -> float:
    """How unlikely representations are under the Gaussian classes fitted to them: nats per row, less is better.

        mean over rows of -log N(z; mean_y, cov),   cov = shrink(within-class covariance, 1e-4)

    The fit is to these same rows, so that the squared distances add up to nearly d / 2 whatever the rows: what varies
    is half the log-determinant of the covariance, which moves with the scale of the representations. Compare it within
    one method, or take that of ``standardised`` rows. With fewer rows than dimensions the repair sets the variance of
    the directions that no row shows.

    Returns:
        NaN where no class has two different rows.

    Source: FedLDA (McLaughlin & Su, FL@FM-NeurIPS 2023), Figure 1(a): ground truth statistics.
    """
    z_Nd = z_Nd.double() - z_Nd.double().mean(0)
    n, d = z_Nd.shape
    classes = int(y_N.max()) + 1
    fitted = estimate(moments(z_Nd, y_N, torch.ones(n), classes), torch.zeros(classes, d))
    factor_dd, failed = torch.linalg.cholesky_ex(shrink(fitted.cov_dd, _SHRINK))
    if failed:
        return math.nan
    white_dN = torch.linalg.solve_triangular(factor_dd, (z_Nd - fitted.mean_Cd[y_N]).T, upper=False)
    distance = 0.5 * white_dN.square().sum() / n
    return float(distance + factor_dd.diagonal().log().sum() + 0.5 * d * math.log(2 * math.pi))


def standardised(z_Nd: Tensor) -> Tensor:
    """Rows in which every dimension has mean 0 and standard deviation 1; one that is constant is 0."""
    z_Nd = z_Nd.double()
    varies_d = z_Nd.amax(0) > z_Nd.amin(0)
    std_d = torch.where(varies_d, z_Nd.std(0, correction=0), 1.0)
    return torch.where(varies_d, (z_Nd - z_Nd.mean(0)) / std_d, 0.0)


def plane(z_Nd: Tensor) -> Tensor:
    """Rows as points (N, 2): as they are where d is 2, else on their two directions of largest variance.

    The sign of a direction is such that its entry of largest size is positive.
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
