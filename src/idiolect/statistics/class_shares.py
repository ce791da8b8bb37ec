"""How alike clients' class frequencies are, and a client's own, shrunk towards everyone's.

Clients' frequencies are taken as drawn from a Dirichlet distribution about everyone's, with the concentration A that
gives the agreement that is observed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def agreement(n_C: Tensor, otherwise: Tensor) -> Tensor:
    """An estimate without bias of how often two samples of a client are of one class.

        h = sum_c n_c (n_c - 1) / (n (n - 1))

    Args:
        n_C: samples of each class (..., C); where there are several rows, the mean over them is taken.
        otherwise: what stands for it where there is one sample or none.
    """
    n = n_C.sum(-1)
    pairs = n * (n - 1)
    h = (n_C * (n_C - 1)).sum(-1) / torch.where(pairs > 0, pairs, 1.0)
    return torch.where(pairs > 0, h, otherwise).mean()


def shrunk(n_C: Tensor, share_C: Tensor, h: Tensor) -> Tensor:
    """The mean of a client's frequencies, given its counts and the frequencies and the agreement of all clients.

        p_c = (n_c + A rho_c) / (n + A),   A = (1 - h) / (h - sum_c rho_c^2)

    Where clients agree no more than chance has it, A is infinite and p = rho.

    Args:
        n_C: samples of each class (..., C).
        share_C: rho, at least 0 (..., C); each row sums to 1 or less.
        h: the mean of the clients' ``agreement``.
    """
    beside = (h - share_C.square().sum(-1).mean()).clamp(min=0) / (1 - h).clamp(min=1e-9)  # 1 / A
    weight_C = beside * n_C + share_C
    return weight_C / weight_C.sum(-1, keepdim=True).clamp(min=1e-12)
