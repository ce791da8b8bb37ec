"""Class sums and the raw second moment: what a Gaussian classifier needs from the data. They add over clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree


class Moments(NamedTuple):
    """Sufficient statistics of class means and a tied covariance; those of a union are the sum. float64."""

    n_C: Tensor
    """Samples per class (the sum of their weights)."""
    sum_Cd: Tensor
    """The sum of z per class."""
    outer_dd: Tensor
    """The sum of z zᵀ over all samples, not centred."""


def moments(z_Nd: Tensor, y_N: Tensor, weight_N: Tensor, classes: int) -> Moments:
    """Moments of weighted samples.

        n_c = Σ w [y = c],   s_c = Σ w [y = c] z,   S = Σ w z zᵀ

    Args:
        z_Nd: features, any float type.
        y_N: labels from 0 to ``classes`` - 1.
        weight_N: at least 0; a sample of weight 0 is ignored, whatever it holds (even NaN).
        classes: C.
    """
    z_Nd = torch.where(weight_N[:, None] > 0, z_Nd, 0).double()
    weight_N = weight_N.double()
    hot_NC = weights_by_class(y_N, weight_N, classes)
    return Moments(hot_NC.sum(0), hot_NC.T @ z_Nd, (z_Nd * weight_N[:, None]).T @ z_Nd)


def weights_by_class(y_N: Tensor, weight_N: Tensor, classes: int) -> Tensor:
    """The weight of each sample in the column of its class, 0 elsewhere: (N, C), float64."""
    return torch.where(y_N[:, None] == torch.arange(classes, device=y_N.device), weight_N.double()[:, None], 0.0)


def total(parts: Sequence[Moments]) -> Moments:
    """The moments of a union from those of its parts."""
    return reduce(tree.add, parts)
