"""Linear regression with weights that differ between clients: how much they differ, from sums, by the likelihood.

A client's targets are y = Z w_i + noise of variance s^2, its weights w_i ~ N(w, s^2 D), D = diag(l, ..., l, m) with m
for the bias, the last column of Z. With w taken as known, r = y - Z w ~ N(0, s^2 V), V = I + Z D Z'.
"""

from __future__ import annotations

import torch
from torch import Tensor

# d features and a bias, D numbers of a target, G values of l, H values of m

_GRID = torch.logspace(-6, 3, 37, dtype=torch.float64)  # of l, and of everyone's variance
_BIAS_GRID = torch.logspace(-4, 3, 15, dtype=torch.float64)  # of m
_LEAST = torch.finfo(torch.float64).tiny


def by_spread(gram_dd: Tensor, rest_dD: Tensor, square_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r' V^-1 r (G H, D) and log |V| (G H,) for each l and m of a grid, and the eigenvalues (d,) of Z'Z without bias.

    Both add over clients, and so does the likelihood.

    Args:
        gram_dd: Z'Z (d + 1, d + 1), float64.
        rest_dD: Z'r.
        square_D: r'r.
    """
    e_d, u_dd = torch.linalg.eigh(gram_dd[:-1, :-1])  # the bias adds a matrix of rank 1 to V
    e_d, along_dD, ones_d = e_d.clamp(min=0), u_dd.T @ rest_dD[:-1], u_dd.T @ gram_dd[:-1, -1]
    grid_G, bias_H = _GRID.to(e_d.device), _BIAS_GRID.to(e_d.device)
    inverse_Gd = 1 / (e_d + 1 / grid_G[:, None])
    length_G = gram_dd[-1, -1] - inverse_Gd @ ones_d.square()
    bias_GD = rest_dD[-1] - inverse_Gd @ (ones_d[:, None] * along_dD)
    square_GD = square_D - inverse_Gd @ along_dD.square()
    less_GHD = (bias_H / (1 + bias_H * length_G[:, None]))[..., None] * bias_GD[:, None].square()
    log_det_GH = torch.log1p(grid_G[:, None] * e_d).sum(1)[:, None] + torch.log1p(bias_H * length_G[:, None])
    return (square_GD[:, None] - less_GHD).flatten(0, 1), log_det_GH.flatten(), e_d


def likeliest(n: Tensor, square_GD: Tensor, log_det_G: Tensor) -> Tensor:
    """l and m (2,) with the largest likelihood, each number of the target with its best s^2.

        argmax of  sum over numbers of  - n / 2 log q - v / 2

    Args:
        n: samples of all clients, float64.
        square_GD: q, sums of ``by_spread``.
        log_det_G: v, the same.
    """
    bias_H = _BIAS_GRID.to(n.device)
    at = _best(n, square_GD, log_det_G)
    return torch.stack([_GRID.to(n.device)[at // len(bias_H)], bias_H[at % len(bias_H)]])


def ridge(gram_dd: Tensor, cross_dD: Tensor, square_D: Tensor, n: Tensor) -> Tensor:
    """The weights (d + 1, D) of one regression for all samples, w ~ N(0, s^2 t I) with the likeliest t of a grid.

        w = (Z'Z + I / t)^-1 Z'y,   t = argmax of  - n / 2 log (y'y - y'Z w) - log |I + t Z'Z| / 2

    Args:
        gram_dd: Z'Z, float64.
        cross_dD: Z'y.
        square_D: y'y.
        n: samples.
    """
    e_d, u_dd = torch.linalg.eigh(gram_dd)
    e_d, along_dD, grid_G = e_d.clamp(min=0), u_dd.T @ cross_dD, _GRID.to(n.device)
    square_GD = square_D - (1 / (e_d + 1 / grid_G[:, None])) @ along_dD.square()
    t = grid_G[_best(n, square_GD, torch.log1p(grid_G[:, None] * e_d).sum(1))]
    weight_dD: Tensor = u_dd @ (along_dD / (e_d + 1 / t)[:, None])
    return weight_dD


def _best(n: Tensor, square_GD: Tensor, log_det_G: Tensor) -> Tensor:
    by_number_GD = -n / 2 * square_GD.clamp(min=_LEAST).log() - log_det_G[:, None] / 2
    at: Tensor = by_number_GD.sum(1).argmax()
    return at
