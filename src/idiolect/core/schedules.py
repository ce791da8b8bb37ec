"""The learning rate over the rounds: in each round, a factor of every learning rate of the clients.

Of T rounds, the first W are a warm-up. Round t = 1..T has the factor

    t / (W + 1)      for t <= W
    f(s, T - W)      for t > W, where s = t - W - 1 is 0 in the first round after the warm-up

where f(s, S) is a schedule's own: see ``Constant``, ``Step``, ``Exponential`` and ``Cosine``. A factor is above 0 and
at most 1. Where there is no round (0), as for a new client, it is 1; a round after T has the factor of T.

These are the numbers of torch.optim.lr_scheduler, if its ``step`` is called after every round: LinearLR from
1 / (W + 1) with ``total_iters=W`` and then, by SequentialLR, StepLR, ExponentialLR or CosineAnnealingLR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from idiolect.core import option_spec
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec

Factor = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Constant:
    """f = 1."""

    warmup: NonNegativeInt = 0

    def after_warmup(self, s: Tensor, total: Tensor) -> Tensor:
        """f(s, S)."""
        return torch.ones_like(s)


@dataclass(frozen=True, kw_only=True)
class Step:
    """f = factor^floor(s / every): the rate falls after every so many rounds, and stays between."""

    every: PositiveInt = 10
    factor: Factor = 0.1
    warmup: NonNegativeInt = 0

    def after_warmup(self, s: Tensor, total: Tensor) -> Tensor:
        """f(s, S)."""
        return torch.pow(self.factor, (s / self.every).floor())


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """f = factor^s."""

    factor: Factor = 0.99
    warmup: NonNegativeInt = 0

    def after_warmup(self, s: Tensor, total: Tensor) -> Tensor:
        """f(s, S)."""
        return torch.pow(self.factor, s)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """f = end + (1 - end) (1 + cos(pi s / S)) / 2: it would be ``end`` in the round after the last one.

    Source: SGDR (Loshchilov & Hutter, ICLR 2017), Eq. 5, without restarts.
    """

    end: Share = 0.0
    warmup: NonNegativeInt = 0

    def after_warmup(self, s: Tensor, total: Tensor) -> Tensor:
        """f(s, S)."""
        return self.end + (1 - self.end) * (1 + torch.cos(math.pi * s / total)) / 2


Schedule = Constant | Step | Exponential | Cosine
"""How the learning rate changes over the rounds."""
SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "exponential": Exponential,
    "cosine": Cosine,
}


def rate_factor(schedule: Schedule, round: Tensor, rounds: Tensor) -> Tensor:
    """The factor of a round's learning rates, a float64 scalar.

    Args:
        schedule: of the learning rate.
        round: its number t, an int64 scalar; 0 where there is none.
        rounds: T, the number of the last round; 0 where there is none.
    """
    warmup = schedule.warmup
    t = torch.minimum(round, rounds).double()
    rising = torch.where(t > 0, t / (warmup + 1), 1.0)
    after = schedule.after_warmup((t - warmup - 1).clamp(min=0), (rounds.double() - warmup).clamp(min=1))
    return torch.where(t > warmup, after, rising)


def schedule_of(spec: Spec) -> Schedule:
    """The schedule that a spec names, such as ``cosine:warmup=5``.

    Raises:
        InputError: unknown name or option, or a value out of range.
    """
    schedule: Schedule = option_spec.made(spec, SCHEDULES, "lr_schedule")
    return schedule


def check_schedule(spec: Spec, rounds: int, lr: float) -> None:
    """Check that a schedule fits the rounds of a study.

    Raises:
        InputError: the warm-up takes all rounds, or the learning rate of the last round is too small for a float32.
    """
    schedule = schedule_of(spec)
    if schedule.warmup >= rounds:
        raise InputError(
            f"lr_schedule={spec}: a warm-up of {schedule.warmup} rounds leaves none of the study's {rounds}: choose a "
            "warmup below rounds"
        )
    last = lr * float(rate_factor(schedule, torch.tensor(rounds), torch.tensor(rounds)))
    if last < torch.finfo(torch.float32).tiny <= lr:
        raise InputError(
            f"lr_schedule={spec}: the learning rate of round {rounds}, {last:g}, is as good as 0: choose a factor "
            "nearer to 1"
        )
