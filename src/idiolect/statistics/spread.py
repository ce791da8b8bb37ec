"""How far clients' class means lie from everyone's, beside what the noise of one sample gives.

A client's mean of n_c samples of class c is taken as N(mu_c, t S + S / n_c). t is estimated by moments, as in the
analysis of variance, from squared distances in units of tr S: a sample is at 1 from the mean of its class, on average.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_LEAST = 0.05


class Between(NamedTuple):
    """Means over all clients' samples."""

    square: Tensor
    """Of |m_c - mu_c|^2 / tr S, where m_c is the mean of the sample's class at its client."""
    pairs: Tensor
    """How many pairs of a client and a class of its samples there are for each sample: below 1."""
    classes: Tensor
    """The same for the classes that any client has."""
    same: Tensor
    """How many of the samples of their class are of their own client: 1 / K where K clients are alike."""


def excess(n_C: Tensor, apart_Cd: Tensor, variance: Tensor) -> Tensor:
    """q, how much further a client's class means lie from everyone's than by noise; n t is its expectation.

        q = sum over its classes of n_c |m_c - mu_c|^2 / tr S - 1

    Args:
        n_C: samples of each class.
        apart_Cd: m_c - mu_c.
        variance: tr S.
    """
    return torch.where(n_C > 0, n_C * apart_Cd.square().sum(1) / variance.clamp(min=1e-12) - 1, 0.0).sum()


def among(clients: Between) -> Tensor:
    """t of all clients, about everyone's means as these clients have them; below 0 where they are nearer than noise.

        t = (square - pairs + classes) / (1 - same)

    With one client, or where no two have a class in common, there is nothing to see, and t is 0.
    """
    free = 1 - clients.same
    t = (clients.square - clients.pairs + clients.classes) / free.clamp(min=0.05)
    return torch.where(free > 1e-6, t, 0.0)


def within(scatter_dd: Tensor, free: Tensor, apart: Tensor) -> Tensor:
    """S, where a client may have one sample of each of its classes, whose scatter says nothing.

        S = (scatter + f s I / d) / (free + f),   f = max(0, 0.05 - free)

    Args:
        scatter_dd: about the means of each client's classes, divided by the number of samples.
        free: its degrees of freedom, divided by the number of samples.
        apart: s, the mean square of a client's class mean about everyone's, times its samples; tr S where clients are
            alike.
    """
    width = len(scatter_dd)
    fill = (_LEAST - free).clamp(min=0) * apart.clamp(min=0) / width
    total_dd: Tensor = (scatter_dd + torch.diag_embed(fill.expand(width))) / free.clamp(_LEAST, 1)
    return total_dd
