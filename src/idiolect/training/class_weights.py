"""What a sample weighs in the loss by its class, or each label by whether a sample has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from idiolect.core import option_spec, tree
from idiolect.core.errors import InputError
from idiolect.core.objectives import OBJECTIVES, Objective, cross_entropy
from idiolect.core.option_spec import Spec

# B batch, C classes, L labels

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Unweighted:
    """All weigh 1."""

    def of(self, count_C: Counts) -> NDArray[np.float64]:
        """The weights (C,) of classes with so many training samples."""
        return np.ones(len(count_C))


@dataclass(frozen=True)
class Balanced:
    """n / (C n_c): all classes weigh alike, and samples 1 on average, as scikit-learn's ``compute_class_weight``."""

    def of(self, count_C: Counts) -> NDArray[np.float64]:
        """The weights (C,); that of a class without samples, which no loss uses, is 1."""
        return _scaled(1 / np.maximum(count_C, 1), count_C)


@dataclass(frozen=True, kw_only=True)
class Effective:
    """(1 - beta) / (1 - beta^n_c), times a factor by which samples weigh 1 on average.

    Source: Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, Eq. 4; there the weights of
    the classes sum to C.
    """

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.999

    def of(self, count_C: Counts) -> NDArray[np.float64]:
        """As ``Balanced.of``."""
        return _scaled((1 - self.beta) / (1 - self.beta ** np.maximum(count_C, 1)), count_C)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Given weights, in the order of the classes."""

    weights: str

    def of(self, count_C: Counts) -> NDArray[np.float64]:
        """The weights (C,).

        Raises:
            InputError: there are not as many as classes, or one is not a number above 0.
        """
        try:
            weight_C = np.array([float(text) for text in self.weights.split("+")])
        except ValueError:
            weight_C = np.zeros(0)
        if not len(weight_C) or not (np.isfinite(weight_C) & (weight_C > 0)).all():
            raise InputError(
                f"class_weights numbers: weights={self.weights} is not valid: give numbers above 0, joined by +"
            )
        if len(weight_C) != len(count_C):
            raise InputError(
                f"class_weights numbers: weights={self.weights} has {len(weight_C)} numbers for {len(count_C)} "
                "classes: give each its own"
            )
        return weight_C


ClassWeights = Unweighted | Balanced | Effective | Numbers
WEIGHTS: dict[str, type[Any]] = {"none": Unweighted, "balanced": Balanced, "effective": Effective, "numbers": Numbers}
"""The ways to weigh classes, by name."""


def class_weights_of(spec: Spec) -> ClassWeights:
    """The way that a spec names, such as ``effective:beta=0.99``.

    Raises:
        InputError: unknown name or option, or a value out of range.
    """
    how: ClassWeights = option_spec.made(spec, WEIGHTS, "class_weights")
    return how


def _scaled(weight_C: NDArray[np.float64], count_C: Counts) -> NDArray[np.float64]:
    """Weights times a factor by which the weights of samples are 1 on average."""
    scaled_C = weight_C * count_C.sum() / max((weight_C * count_C).sum(), np.finfo(float).tiny)
    return np.where(count_C > 0, scaled_C, 1.0)


@dataclass(frozen=True)
class WeightedLoss:
    """The loss (B,) of a classification, in which each sample has the weight of its class."""

    weights: tuple[float, ...]

    def __call__(self, logit_BC: Tensor, y_B: Tensor) -> Tensor:
        """The losses (B,) of logits (B, C) and labels (B,)."""
        weight_C = tree.constant(self.weights, logit_BC.dtype, logit_BC.device)
        return weight_C[y_B] * cross_entropy(logit_BC, y_B)


@dataclass(frozen=True)
class WeightedLabelLoss:
    """The loss (B,) of several labels, in which each has two weights: of samples without it, and with it."""

    without: tuple[float, ...]
    having: tuple[float, ...]

    def __call__(self, logit_BL: Tensor, y_BL: Tensor) -> Tensor:
        """The losses (B,) of logits (B, L) and labels (B, L), 0 or 1."""
        without_L, having_L = (tree.constant(w, logit_BL.dtype, logit_BL.device) for w in (self.without, self.having))
        weight_BL = torch.where(y_BL > 0, having_L, without_L)
        loss_BL = torch.nn.functional.binary_cross_entropy_with_logits(logit_BL, y_BL, reduction="none")
        return (weight_BL * loss_BL).mean(-1)


def weights_of(how: ClassWeights, count_LC: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
    """What samples weigh by class (1, C), or without and with each label (L, 2); () where all weigh 1.

    Args:
        how: the way.
        count_LC: training samples of each class, (1, C); of several labels, without and with each, (L, 2).

    Raises:
        InputError: given weights are not one for each class.
    """
    if isinstance(how, Unweighted):
        return ()
    return tuple(tuple(how.of(np.array(count_C)).tolist()) for count_C in count_LC)


def weighted(how: Objective, weight_LC: Sequence[Sequence[float]]) -> Objective:
    """What is learnt of classes, or of several labels, with these weights (see ``weights_of``) in the loss."""
    if not weight_LC:
        return how
    if how is OBJECTIVES["multilabel"]:
        without, having = zip(*weight_LC, strict=True)
        return how._replace(loss=WeightedLabelLoss(without, having))
    return how._replace(loss=WeightedLoss(tuple(weight_LC[0])))
