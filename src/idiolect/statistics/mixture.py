"""A mixture of linear heads, with shares from predictions of samples that a head has not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from idiolect.statistics.gaussian import LinearHead
from idiolect.statistics.interpolation import moments_by_fold, stratified_folds
from idiolect.statistics.moments import Moments, total

Normalised = Callable[[Tensor], Tensor]
"""Log-probabilities (..., C) from logits."""
_STEPS = 50  # of EM: within a hundredth for some hundred samples, further for more and heads that are nearly alike


class Mixture(NamedTuple):
    """p(y | z) = Σ_k share_k softmax(head_k(z))_y."""

    heads: LinearHead
    """K heads: (K, C, d) and (K, C)."""
    share_K: Tensor


def softmax(logit_C: Tensor) -> Tensor:
    """Log-probabilities of classes of which a sample has one."""
    return log_softmax(logit_C, -1)


def fit(
    heads_from: Callable[[Moments, Tensor], LinearHead],
    z_Nd: Tensor,
    y_N: Tensor,
    weight_N: Tensor,
    key: Tensor,
    *,
    classes: int,
    folds: int,
    prior: float,
    group_N: Tensor | None = None,
    inner_N: Tensor | None = None,
    normalised: Normalised = softmax,
) -> Mixture:
    """The heads of all samples, with the shares that predict best when each sample's heads come from the other folds.

    Args:
        heads_from: from moments of some samples, and all samples' weights, 0 for the others, to K heads.
        z_Nd: features.
        y_N: labels.
        weight_N: at least 0; a sample of weight 0 is ignored.
        key: of the folds, which divide every class evenly.
        classes: C.
        folds: at least 2; with one head there is nothing to choose.
        prior: for how many samples even shares count, above 0.
        group_N: which samples belong together, and are in one fold; None where each stands for itself.
        inner_N: what a sample counts in the choice of shares, 0 for one that is too near to other folds'; None where
            all count 1.
        normalised: log-probabilities from logits.
    """
    fold_N = stratified_folds(y_N, weight_N, key, folds=folds, sample_N=group_N)
    parts = moments_by_fold(z_Nd, y_N, weight_N, fold_N, classes=classes, folds=folds)
    heads = heads_from(total(parts), weight_N)
    if len(heads.bias_C) == 1:
        return Mixture(heads, weight_N.new_ones(1))
    logp_NK = torch.zeros(len(y_N), len(heads.bias_C), dtype=torch.float64)
    for fold in range(folds):
        others = heads_from(total([*parts[:fold], *parts[fold + 1 :]]), weight_N * (fold_N != fold))
        logp_NKC = _each(others, z_Nd, normalised).double()
        of_label_NK = logp_NKC.gather(2, y_N[:, None, None].expand(-1, len(heads.bias_C), 1))[..., 0]
        logp_NK = torch.where((fold_N == fold)[:, None], of_label_NK, logp_NK)
    counted_N = weight_N if inner_N is None else weight_N * inner_N
    return Mixture(heads, shares(logp_NK, counted_N, prior).to(weight_N.dtype))


def shares(logp_NK: Tensor, weight_N: Tensor, prior: float) -> Tensor:
    """The shares (K,) of the mixture that predicts best, by EM from even ones. float64.

        argmax over the simplex of  Σ_n w_n log Σ_k a_k p_nk + prior / K Σ_k log a_k

    Args:
        logp_NK: log p_nk, what head k gives to the label of sample n.
        weight_N: at least 0; a sample of weight 0 is ignored, but must be finite.
        prior: for how many samples even shares count, above 0.

    Source: EM for the shares of a mixture (Dempster, Laird & Rubin, 1977).
    """
    even_K = torch.full(logp_NK.shape[1:], 1 / logp_NK.shape[1], dtype=torch.float64)
    share_K = even_K
    for _ in range(_STEPS):
        of_head_NK = (logp_NK + share_K.log()).softmax(1) * weight_N[:, None]
        share_K = (of_head_NK.sum(0) + prior * even_K) / (weight_N.sum() + prior)
    return share_K


def log_probabilities(m: Mixture, z_Bd: Tensor, normalised: Normalised = softmax) -> Tensor:
    """log p(y | z), (B, C)."""
    return (_each(m.heads, z_Bd, normalised) + m.share_K.log()[:, None]).logsumexp(1)


def _each(heads: LinearHead, z_Bd: Tensor, normalised: Normalised) -> Tensor:
    """Log-probabilities by every head, (B, K, C)."""
    return normalised(torch.einsum("bd,kcd->bkc", z_Bd, heads.weight_Cd) + heads.bias_C)
