"""How alike clients' class frequencies are, and a client's own, shrunk towards everyone's or with classes to come.

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


def with_unseen(n_C: Tensor, share_C: Tensor) -> Tensor:
    """A client's frequencies where its next sample may be of a class that it has not had.

        p_c = (1 - u) n_c / n   of its classes;   u rho_c / sum of rho over the others;   u = n_1 / (n + 1)

    n_1 is how many classes it has one sample of: Good and Turing's estimate (Biometrika, 1953), with one sample more,
    so that something is left for its classes where it has each once. u is 0 where it has all classes.

    Args:
        n_C: samples of each class, whole numbers (..., C).
        share_C: rho, at least 0 (..., C).
    """
    n = n_C.sum(-1, keepdim=True)
    other_C = torch.where(n_C > 0, 0.0, share_C)
    rest = other_C.sum(-1, keepdim=True)
    u = torch.where(rest > 0, (n_C == 1).sum(-1, keepdim=True) / (n + 1), 0.0)
    return (1 - u) * n_C / n.clamp(min=1) + u * other_C / torch.where(rest > 0, rest, 1.0)
