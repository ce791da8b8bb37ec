"""Do no harm where a sample can have several labels: a product of experts, judged by the log loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from idiolect.core.objectives import number
from idiolect.deploy import harm
from idiolect.deploy.harm import Difference, Judge, Name
from idiolect.deploy.harm_of_numbers import paired

# N samples of the site, L labels


def merit(logp_NL2: Tensor, y_NL: Tensor) -> Tensor:
    """Minus the log loss (N,) in nats, mean over the labels, float64; ``logp_NL2`` are without and with each label."""
    return torch.where(y_NL > 0, logp_NL2[..., 1], logp_NL2[..., 0]).double().mean(1)


def weights(logp: Mapping[Name, Tensor], y_NL: Tensor) -> dict[Name, float]:
    """The weight of each model, as ``idiolect.deploy.harm.weights`` has it for two classes, with or without a label.

    All labels have the same weights, and a sample counts once, whatever the number of its labels.
    """
    flat = {name: logp_NL2.reshape(-1, 2) for name, logp_NL2 in logp.items()}
    return harm.weights(flat, (y_NL > 0).long().reshape(-1), worth=1 / y_NL.shape[1])


def _says(against: Difference) -> str:
    mean, low, high = (f"{'+' * (value > 0)}{number(value)}" for value in against)
    return f"log loss differs by {mean} (95% interval {low} to {high})"


OF_LABELS = Judge(
    "probabilities", merit, weights, harm.blend, paired, _says, lambda minus: f"log loss {number(-minus)}",
    "give the highest probabilities to what labels are in",
)  # fmt: skip
"""Of several labels: the difference of two mean log losses has the interval of a paired t-test."""
