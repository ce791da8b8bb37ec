"""Learning rates over the rounds, against numpy and against the schedulers of torch."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.core.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    Schedule,
    Step,
    check_schedule,
    rate_factor,
    schedule_of,
)

CASES = [
    (Constant(), 5),
    (Constant(warmup=3), 9),
    (Step(every=3, factor=0.5), 10),
    (Step(every=1, factor=0.9, warmup=2), 7),
    (Step(every=50), 4),
    (Exponential(factor=0.8), 6),
    (Exponential(warmup=4), 12),
    (Cosine(), 8),
    (Cosine(end=0.1), 1),
    (Cosine(end=0.25, warmup=5), 6),
    (Cosine(end=1.0, warmup=1), 20),
]


def factors(schedule: Schedule, rounds: int) -> list[float]:
    """Of rounds 1 to ``rounds``."""
    return [float(rate_factor(schedule, torch.tensor(t), torch.tensor(rounds))) for t in range(1, rounds + 1)]


def by_numpy(schedule: Schedule, rounds: int) -> np.ndarray:
    t, w = np.arange(1, rounds + 1), schedule.warmup
    s = t - w - 1.0
    f = {
        Constant: lambda: np.ones(rounds),
        Step: lambda: schedule.factor ** (s // schedule.every),
        Exponential: lambda: schedule.factor**s,
        Cosine: lambda: schedule.end + (1 - schedule.end) * (1 + np.cos(np.pi * s / (rounds - w))) / 2,
    }[type(schedule)]()
    return np.where(t <= w, t / (w + 1), f)


def by_torch(schedule: Schedule, rounds: int) -> list[float]:
    """The rates of an optimiser with a rate of 1, whose scheduler steps after each round."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    then = {
        Constant: lambda: torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0),
        Step: lambda: torch.optim.lr_scheduler.StepLR(optimiser, schedule.every, schedule.factor),
        Exponential: lambda: torch.optim.lr_scheduler.ExponentialLR(optimiser, schedule.factor),
        Cosine: lambda: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimiser, rounds - schedule.warmup, eta_min=schedule.end
        ),
    }[type(schedule)]
    w = schedule.warmup
    if w:
        rising = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / (w + 1), 1.0, total_iters=w)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimiser, [rising, then()], [w])
    else:
        scheduler = then()
    rates = []
    for _ in range(rounds):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # SequentialLR gives the epoch to its parts, as nobody should
            scheduler.step()
    return rates


@pytest.mark.parametrize(("schedule", "rounds"), CASES, ids=str)
def test_factors_are_those_of_the_formulas_and_of_torch(schedule: Schedule, rounds: int) -> None:
    got = factors(schedule, rounds)
    np.testing.assert_allclose(got, by_numpy(schedule, rounds), rtol=1e-14)
    np.testing.assert_allclose(got, by_torch(schedule, rounds), rtol=1e-12)
    assert all(0 < factor <= 1 for factor in got)


def test_facts() -> None:
    np.testing.assert_allclose(factors(Constant(warmup=3), 5), [0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(factors(Step(every=2), 5), [1, 1, 0.1, 0.1, 0.01])
    np.testing.assert_allclose(factors(Exponential(factor=0.5, warmup=1), 4), [0.5, 1, 0.5, 0.25])
    np.testing.assert_allclose(factors(Cosine(), 4), [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])


@pytest.mark.parametrize(("schedule", "rounds"), CASES, ids=str)
def test_without_a_round_it_is_one_and_after_the_last_that_of_the_last(schedule: Schedule, rounds: int) -> None:
    none, last = torch.tensor(0), torch.tensor(rounds)
    assert rate_factor(schedule, none, none) == 1
    assert rate_factor(schedule, none, last) == 1
    assert rate_factor(schedule, last + 1, last) == rate_factor(schedule, last, last)


@pytest.mark.parametrize(("schedule", "rounds"), CASES, ids=str)
def test_rounds_may_be_mapped(schedule: Schedule, rounds: int) -> None:
    t, last = torch.arange(rounds + 2), torch.tensor(rounds)
    many = torch.func.vmap(lambda t: rate_factor(schedule, t, last))(t)
    alone = torch.stack([rate_factor(schedule, one, last) for one in t])
    torch.testing.assert_close(many, alone, rtol=1e-15, atol=0)
    both = torch.func.vmap(lambda t, last: rate_factor(schedule, t, last))(t, last.expand(len(t)))
    assert torch.equal(both, many)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("constant", Constant()),
        ("constant:warmup=5", Constant(warmup=5)),
        ("step", Step(every=10, factor=0.1)),
        ("step:factor=1,every=7", Step(every=7, factor=1.0)),
        ("exponential:factor=1e-3", Exponential(factor=0.001)),
        ("cosine:end=1e-2,warmup=2", Cosine(end=0.01, warmup=2)),
    ],
)
def test_a_text_names_a_schedule(text: str, schedule: Schedule) -> None:
    assert schedule_of(Spec.parse(text)) == schedule
    assert type(schedule) is SCHEDULES[text.partition(":")[0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cosin", "unknown lr_schedule 'cosin'; did you mean 'cosine'?"),
        ("linear", "unknown lr_schedule 'linear'; known: constant, step, exponential, cosine"),
        ("step:factor=0", "lr_schedule step: factor=0 is not valid: input should be greater than 0"),
        ("step:factor=-0.1", "lr_schedule step: factor=-0.1 is not valid: input should be greater than 0"),
        ("exponential:factor=1.01", "lr_schedule exponential: factor=1.01 is not valid: input should be less than or"),
        ("exponential:factor=.nan", "lr_schedule exponential: factor=nan is not valid: input should be"),
        ("step:every=0", "lr_schedule step: every=0 is not valid: input should be greater than 0"),
        ("step:every=2.5", "lr_schedule step: every=2.5 is not valid: input should be a valid integer"),
        ("cosine:end=-0.1", "lr_schedule cosine: end=-0.1 is not valid: input should be greater than or equal to 0"),
        ("cosine:end=1.5", "lr_schedule cosine: end=1.5 is not valid: input should be less than or equal to 1"),
        ("constant:warmup=-1", "lr_schedule constant: warmup=-1 is not valid: input should be greater than or equal"),
        ("cosine:factor=0.1", "lr_schedule cosine has no option 'factor'; "),
    ],
)
def test_what_names_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        schedule_of(Spec.parse(text))
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "rounds", "lr", "said"),
    [
        ("constant:warmup=5", 5, 0.1, "a warm-up of 5 rounds leaves none of the study's 5: choose a warmup"),
        ("cosine:warmup=9", 1, 0.1, "warm-up of 9 rounds leaves none of the study's 1: choose a warmup below rounds"),
        ("step:every=1,factor=1e-5", 20, 0.1, "the learning rate of round 20, 1e-96, is as good as 0"),
        ("exponential:factor=0.1", 400, 0.1, "the learning rate of round 400, 0, is as good as 0"),
    ],
)
def test_what_does_not_fit_the_rounds_is_refused(text: str, rounds: int, lr: float, said: str) -> None:
    with pytest.raises(InputError) as error:
        check_schedule(Spec.parse(text), rounds, lr)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "rounds"), [("constant", 1), ("cosine:warmup=4", 5), ("exponential:factor=0.1", 30), ("step", 300)]
)
def test_what_fits_is_not(text: str, rounds: int) -> None:
    check_schedule(Spec.parse(text), rounds, 0.1)
