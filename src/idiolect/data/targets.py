"""Targets that are numbers, or labels of which a sample can have several."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from idiolect.core.errors import InputError, listed
from idiolect.core.objectives import TaskName

# R samples, D numbers of a target

log = logging.getLogger(__name__)

_EVEN = 1e-12  # of the largest amount: a standard deviation below is rounding


@dataclass(frozen=True, eq=False)
class Targets:
    """What is predicted where it is numbers, or several labels, and not a class.

    Attributes:
        value_RD: as stored, float64; of labels 1 where a sample has one, else 0.
        names: of the D numbers or labels.
        mean: of training samples, by number; () until it is known. Labels, which are not scaled, have 0.
        std: the same of the standard deviation; of labels 1.
        task: "regression" or "multilabel".
    """

    value_RD: Tensor
    names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    task: TaskName = "regression"

    @property
    def what(self) -> str:
        """What is predicted, in words."""
        return "a number" if self.task == "regression" else "several labels"

    def rows(self, row_R: Tensor) -> Targets:
        """Those of some samples."""
        return replace(self, value_RD=self.value_RD[row_R])

    def scaled_by(self, row_R: Tensor) -> Targets:
        """With the mean and standard deviation of some samples; labels, 0 and 1, stay as they are.

        Raises:
            InputError: a number is the same in all of them.
        """
        value_RD = self.value_RD[row_R]
        if self.task == "multilabel":
            share_D = value_RD.mean(0).tolist()
            if alike := [name for name, share in zip(self.names, share_D, strict=True) if share in (0, 1)]:
                log.warning("all training samples, or none, have %s: nothing can be learnt of it", listed(alike, 5))
            return replace(self, mean=(0.0,) * len(self.names), std=(1.0,) * len(self.names))
        mean_D, std_D = value_RD.mean(0), value_RD.std(0, correction=0)
        if not std_D.isfinite().all():
            raise InputError(
                f"target {self.names[int((~std_D.isfinite()).nonzero()[0])]} has numbers too large: divide them"
            )
        for name, std, most in zip(self.names, std_D.tolist(), value_RD.abs().amax(0).tolist(), strict=True):
            if std <= _EVEN * most:
                raise InputError(
                    f"target {name} is the same number in all training samples: there is nothing to predict; take "
                    "another target"
                )
        return replace(self, mean=tuple(mean_D.tolist()), std=tuple(std_D.tolist()))

    def scaled(self) -> Tensor:
        """What networks learn (R, D), float32: less the mean, by the standard deviation."""
        mean_D, std_D = _both(self.mean, self.std)
        return ((self.value_RD - mean_D) / std_D).to(torch.get_default_dtype())

    def unscaled(self, scaled_BD: Tensor) -> Tensor:
        """What a network's predictions (B, D) are in the units of the data, float64."""
        mean_D, std_D = _both(self.mean, self.std)
        return scaled_BD.double() * std_D + mean_D


def _both(mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
