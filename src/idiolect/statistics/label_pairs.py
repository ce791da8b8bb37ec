"""Samples that can have several labels, as pairs of a sample and a label: a label is two classes, had not and had."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

# N samples, L labels, P = N L pairs, C = 2 L classes


def of_samples(y_NL: Tensor) -> Tensor:
    """The class (P,) of each pair: 2 l where a sample has not the label l, and 2 l + 1 where it has."""
    return (2 * torch.arange(y_NL.shape[1], device=y_NL.device) + (y_NL > 0)).flatten()


def repeated(a_N: Tensor, labels: int) -> Tensor:
    """What belongs to the pairs (P, ...) of each sample."""
    return a_N.repeat_interleave(labels, 0)


def log_probabilities(logit_C: Tensor) -> Tensor:
    """Log-probabilities (..., C) of the two classes of each label, from logits of all classes."""
    return log_softmax(logit_C.reshape(*logit_C.shape[:-1], -1, 2), -1).flatten(-2)
