"""Logistic regression for several classes, with an offset and a Gaussian prior, by steps that never go down.

The second derivative of a sample's log-probability is at least -1/2 z z' for every class, so that a step by the inverse
of that bound always makes the sum larger.

Source: Böhning, Multinomial logistic regression algorithm, Annals of the Institute of Statistical Mathematics, 1992.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 20


def gradient(
    weight_Cd: Tensor, z_Nd: Tensor, y_N: Tensor, weight_N: Tensor, offset_C: Tensor, *, groups: int = 1
) -> Tensor:
    """Of sum_n w_n log p(y_n | z_n) by the weights, (C, d).

        p(. | z) = softmax(W z + offset)

    Args:
        weight_Cd: W.
        z_Nd: features; one of them is 1 where there is a bias.
        y_N: labels.
        weight_N: w, at least 0.
        offset_C: log-frequencies of the classes, for example.
        groups: into how many groups of the same size classes are divided, each with probabilities that sum to 1; a
            sample says something about the group of its label.
    """
    logit_NC, classes = z_Nd @ weight_Cd.T + offset_C, len(offset_C)
    p_NC = logit_NC.reshape(len(y_N), groups, -1).softmax(-1).flatten(1)
    class_C, size = torch.arange(classes), classes // groups
    apart_NC = (y_N[:, None] == class_C).to(p_NC.dtype) - p_NC * (y_N[:, None] // size == class_C // size)
    return (weight_N[:, None] * apart_NC).T @ z_Nd


def step(gradient_Cd: Tensor, outer_dd: Tensor, pull: float) -> Tensor:
    """Change of the weights (C, d) that makes the fit better.

        (1/2 sum_n w_n z_n z_n' + pull I)^-1 gradient

    Args:
        gradient_Cd: with that of the prior.
        outer_dd: sum_n w_n z_n z_n'.
        pull: of the prior, above 0.
    """
    return torch.cholesky_solve(gradient_Cd.T, _factor(outer_dd, pull)).T


def with_one(outer_dd: Tensor, mean_d: Tensor) -> Tensor:
    """The mean of z z' (d + 1, d + 1) where a feature of 1 follows the others, from theirs and their mean."""
    edge_D = torch.cat([mean_d, mean_d.new_ones(1)])
    return torch.cat([torch.cat([outer_dd, mean_d[None]]), edge_D[:, None]], 1)


def fit(
    centre_Cd: Tensor,
    z_Nd: Tensor,
    y_N: Tensor,
    weight_N: Tensor,
    offset_C: Tensor,
    *,
    pull: float,
    groups: int = 1,
) -> Tensor:
    """The weights (C, d) after 20 steps from ``centre_Cd`` towards

        argmax over W of  sum_n w_n log p(y_n | z_n) - pull / 2 |W - centre|^2

    Args:
        centre_Cd: where the prior has its mean.
        z_Nd, y_N, weight_N, offset_C, groups: see ``gradient``.
        pull: for how many samples with features of length 1 the prior counts, above 0.
    """
    factor_dd, weight_Cd = _factor((weight_N[:, None] * z_Nd).T @ z_Nd, pull), centre_Cd
    for _ in range(_STEPS):
        up_Cd = gradient(weight_Cd, z_Nd, y_N, weight_N, offset_C, groups=groups) - pull * (weight_Cd - centre_Cd)
        weight_Cd = weight_Cd + torch.cholesky_solve(up_Cd.T, factor_dd).T
    return weight_Cd


def _factor(outer_dd: Tensor, pull: float) -> Tensor:
    bound_dd = 0.5 * outer_dd + pull * torch.eye(len(outer_dd), dtype=outer_dd.dtype)
    factor_dd: Tensor = torch.linalg.cholesky_ex(bound_dd)[0]
    return factor_dd
