"""What is learnt of a target: the loss, what predictions are, and by which number they are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from idiolect.core.tree import Tree

# B batch, C classes, D numbers of a target, L labels, M models

TaskName = Literal["classification", "regression", "multilabel"]
"""What is learnt of a target."""


class Score(NamedTuple):
    """The number by which methods are judged."""

    metric: str
    """As it is recorded."""
    name: str
    """In a sentence."""
    header: str
    """Of a column."""
    more_is_better: bool
    factor: float
    """What is shown of a value 1."""

    @property
    def is_share(self) -> bool:
        """Whether it is a share, which is shown in per cent."""
        return self.factor == 100

    @property
    def is_accuracy(self) -> bool:
        """Whether it is of classes, of which each sample has one."""
        return self.metric == "accuracy"

    @property
    def in_brackets(self) -> str:
        """The unit as it stands after a name, with a space before it."""
        return " (%)" if self.is_share else ""

    @property
    def axis(self) -> str:
        """The name with its unit."""
        return f"{self.name}{self.in_brackets}"

    @property
    def points(self) -> str:
        """The unit of a difference, with a space before it."""
        return " points" if self.is_share else ""

    @property
    def unit(self) -> str:
        """The unit of a value, with a space before it."""
        return " %" if self.is_share else ""

    @property
    def validation(self) -> str:
        """The same of validation samples, as it is recorded."""
        return f"validation_{self.metric}"

    @property
    def sign(self) -> int:
        """1, or -1 where less is better: times this, more is better."""
        return 1 if self.more_is_better else -1

    def brief(self, value: float) -> str:
        """A value with its unit and few digits.

        >>> OBJECTIVES["classification"].score.brief(0.87654), OBJECTIVES["regression"].score.brief(0.0123456)
        ('87.7%', '0.01235')
        """
        return f"{value:.1%}" if self.is_share else number(value)

    def shown(self, value: float) -> float:
        """A value as a figure shows it: in per cent with two digits, or with six significant ones."""
        return round(self.factor * value, 2) if self.is_share else float(f"{value:.6g}")

    def change(self, value: float, form: str = ".2f") -> str:
        """A difference with its sign: of per cents as ``form`` says, or a number with significant digits.

        >>> OBJECTIVES["classification"].score.change(1.25), OBJECTIVES["regression"].score.change(-1234.56)
        ('+1.25', '-1235')
        """
        return f"{value:+{form}}" if self.is_share else f"{'+' * (value > 0)}{number(value)}"

    def text(self, value: float | None, digits: int = 2) -> str:
        """A value as it is shown: per cent with some digits, or a number with four significant ones or more.

        >>> OBJECTIVES["classification"].score.text(0.87654), OBJECTIVES["regression"].score.text(1234.5678)
        ('87.65', '1235')
        """
        if value is None or math.isnan(value):
            return "-"
        return f"{self.factor * value:.{digits}f}" if self.is_share else number(value)

    def named(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of what has a score: the field ``score`` gets the name of its metric, and ``by``, which says it, goes.

        >>> OBJECTIVES["regression"].score.named({"label": "local", "score": 0.5, "by": None})
        {'label': 'local', 'mse': 0.5}
        """
        return {self.metric if name == "score" else name: v for name, v in fields.items() if name != "by"}


def number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, and never with fewer before the point than it has.

    >>> number(0.0123456), number(98765.4), number(0.0), number(-3.5)
    ('0.01235', '98765', '0', '-3.5')
    """
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


class Objective(NamedTuple):
    """A kind of task."""

    loss: Callable[[Tensor, Tree], Tensor]
    """A number (B,) for each sample, from what the network returns for a batch and the targets."""
    output: Callable[[Tensor], Tree]
    """Turns what the network returns for a batch into what ``predict`` returns."""
    mixture: Callable[[Tensor, Tensor], Tensor]
    """Of weights (M,) and what M models predict of a batch (M, B, ...): what they predict together (B, ...)."""
    score: Score
    """By which number predictions are judged."""


def cross_entropy(logit_BC: Tensor, y_B: Tensor) -> Tensor:
    """The cross-entropy (B,) of labels, in nats: the loss of a classification."""
    return torch.nn.functional.cross_entropy(logit_BC, y_B, reduction="none")


def log_probabilities(logit_BC: Tensor) -> Tensor:
    """Log-probabilities (B, C) of logits: what a classification predicts."""
    return torch.log_softmax(logit_BC, -1)


def log_of_mean(weight_M: Tensor, logp_MBC: Tensor) -> Tensor:
    """Log-probabilities (B, ...) of a mixture of models (M, B, ...): the logarithm of the mean probability."""
    log_M = weight_M.log().reshape(-1, *(1,) * (logp_MBC.ndim - 1))
    return torch.logsumexp(log_M + logp_MBC, 0)


def squared_error(value_BD: Tensor, y_BD: Tensor) -> Tensor:
    """The squared error (B,), mean over the numbers of a target: the loss of a regression."""
    return (value_BD - y_BD).square().mean(-1)


def as_it_is(value_BD: Tensor) -> Tensor:
    """What a regression predicts (B, D): what the network returns."""
    return value_BD


def weighted_mean(weight_M: Tensor, value_MBD: Tensor) -> Tensor:
    """The mean (B, D) of what several models predict."""
    mean_BD: Tensor = torch.tensordot(weight_M, value_MBD, 1)
    return mean_BD


def binary_cross_entropy(logit_BL: Tensor, y_BL: Tensor) -> Tensor:
    """The cross-entropy (B,) of labels that a sample has (1) or has not (0), in nats, mean over the labels."""
    return torch.nn.functional.binary_cross_entropy_with_logits(logit_BL, y_BL, reduction="none").mean(-1)


def log_probabilities_of_labels(logit_BL: Tensor) -> Tensor:
    """Log-probabilities (B, L, 2) that a sample has not, and has, each label."""
    return torch.nn.functional.logsigmoid(torch.stack((-logit_BL, logit_BL), -1))


OBJECTIVES: dict[TaskName, Objective] = {
    "classification": Objective(
        cross_entropy, log_probabilities, log_of_mean, Score("accuracy", "accuracy", "Accuracy %", True, 100.0)
    ),
    "regression": Objective(
        squared_error, as_it_is, weighted_mean, Score("mse", "mean squared error", "MSE", False, 1.0)
    ),
    "multilabel": Objective(
        binary_cross_entropy,
        log_probabilities_of_labels,
        log_of_mean,
        Score("micro_f1", "micro F1", "Micro F1 %", True, 100.0),
    ),
}
"""The kinds of tasks, by name."""
ACCURACY = OBJECTIVES["classification"].score
SCORES = {objective.score.metric: objective.score for objective in OBJECTIVES.values()}
"""By their metric."""
