"""Synchronous successive halving: all trials train some rounds, the best of them more, the best of these to the end.

Source: Jamieson & Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016. The
pruner of Optuna decides as trials report, so that the choice depends on which is first; here all of a rung are
compared when all have ended, and the number of workers changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from idiolect.studies import Study

_LEAST = 2  # rounds of the first rung
_RUNGS = 3


def rungs(rounds: int, share: int, every: int = 1) -> tuple[int, ...]:
    """The rounds after which trials are compared, the last one included: three at the most.

    Args:
        rounds: of the study.
        share: one in ``share`` trials goes on; 1: all train to the end.
        every: rounds between evaluations, of which all but the last are multiples.

    >>> rungs(30, 3), rungs(200, 3), rungs(5, 3), rungs(30, 1), rungs(30, 3, every=3)
    ((4, 10, 30), (23, 67, 200), (2, 5), (30,), (6, 12, 30))
    """
    ends = [rounds]
    while share > 1 and len(ends) < _RUNGS and (end := -(-ends[0] // share)) >= _LEAST:
        end = -(-end // every) * every
        if end >= ends[0]:
            break
        ends.insert(0, end)
    return tuple(ends)


def rungs_of(study: Study, share: int) -> tuple[int, ...]:
    """The rungs of a study; where a best round is looked for, evaluated rounds, so that no round is evaluated more."""
    return rungs(study.rounds, share, 1 if study.protocol.round == "last" else study.evaluation)


class Value(NamedTuple):
    """What a trial has reached."""

    accuracy: float
    """On validation samples."""
    loss: float
    """On the same."""
    trial: int


def order(value: Value) -> tuple[float, float, int]:
    """The best first: the higher accuracy; of equal ones the lower loss, and then the earlier trial."""
    return -value.accuracy, value.loss, value.trial


def promoted(values: Sequence[Value], share: int, trials: int) -> list[int]:
    """The trials that go on: the best of ``values``, one in ``share`` of all that were in the rung, at least one.

    >>> promoted([Value(0.5, 1.0, 0), Value(0.7, 1.0, 1), Value(0.7, 0.9, 2)], 3, 4)
    [1, 2]
    """
    best = sorted(values, key=order)[: max(1, -(-trials // share))]
    return sorted(value.trial for value in best)
