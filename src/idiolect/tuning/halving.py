"""Successive halving with one cut: all trials train a fifth of the rounds, and the best of them to the end.

Source: Jamieson & Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016. The
pruner of Optuna decides as trials report, so that the choice depends on which is first; here all of a rung are
compared when all have ended, and the number of workers changes nothing.

There is one cut, where the source may have several. It drops what trains badly, which is seen early. A second would
choose among trials that differ by less than a few validation samples can tell, and every cut needs an evaluation of
all clients: with one cut, more trials train to the end in the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from idiolect.studies import Study

_PARTS = 5  # of the rounds, of which trials train one before the cut
_LEAST = 2  # rounds before the cut


def rungs(rounds: int, share: int, every: int = 1) -> tuple[int, ...]:
    """The rounds after which trials are compared: that of the cut, if there is one, and the last.

    Args:
        rounds: of the study.
        share: one in ``share`` trials goes on; 1: all train to the end.
        every: rounds between evaluations, of which all but the last are multiples.

    >>> rungs(10, 4), rungs(200, 4), rungs(2, 4), rungs(30, 1), rungs(100, 4, every=15)
    ((2, 10), (40, 200), (2,), (30,), (30, 100))
    """
    cut = -(-max(_LEAST, -(-rounds // _PARTS)) // every) * every
    return (cut, rounds) if share > 1 and cut < rounds else (rounds,)


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

    >>> promoted([Value(0.5, 1.0, 0), Value(0.7, 1.0, 1), Value(0.7, 0.9, 2)], 4, 6)
    [1, 2]
    """
    best = sorted(values, key=order)[: max(1, -(-trials // share))]
    return sorted(value.trial for value in best)
