"""Successive halving with one cut: all trials train a fifth of the rounds, and the best of them to the end.

Source: Jamieson & Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016. The
pruner of Optuna decides as trials report, so that the choice depends on which is first; here all of a rung are
compared when all have ended, and the number of workers changes nothing.

There is one cut, where the source may have several. It drops what trains badly, which is seen early. A second would
choose among trials that differ by less than a few validation samples can tell, and every cut needs an evaluation of
all clients: with one cut, more trials train to the end in the same time.

More of the first batch go on than of the second, where the source compares all trials with each other. The first batch
is spread over the ranges, so that its best trials differ much, and a setting that is slow at first but good in the end
must not be lost there. The second is proposed near the best of the first: its trials are much alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from idiolect.core.objectives import ACCURACY, Score
from idiolect.studies import Study

_PARTS = 5  # of the rounds, of which trials train one before the cut
_LEAST = 2  # rounds before the cut


def rungs(rounds: int, halving: int, every: int = 1) -> tuple[int, ...]:
    """The rounds after which trials are compared: that of the cut, if there is one, and the last.

    Args:
        rounds: of the study.
        halving: one in so many trials goes on; 1: all train to the end.
        every: rounds between evaluations, of which all but the last are multiples.

    >>> rungs(10, 3), rungs(200, 3), rungs(2, 3), rungs(30, 1), rungs(100, 3, every=15)
    ((2, 10), (40, 200), (2,), (30,), (30, 100))
    """
    cut = -(-max(_LEAST, -(-rounds // _PARTS)) // every) * every
    return (cut, rounds) if halving > 1 and cut < rounds else (rounds,)


def rungs_of(study: Study, halving: int) -> tuple[int, ...]:
    """The rungs of a study; where a best round is looked for, evaluated rounds, so that no round is evaluated more."""
    return rungs(study.rounds, halving, 1 if study.protocol.round == "last" else study.evaluation)


def finalists(sizes: Sequence[int], halving: int) -> tuple[int, ...]:
    """How many trials of each batch of a method go on after the cut.

    Together one in ``halving``, rounded up. Of two batches the first has two thirds of these and the second one third,
    both rounded up: the third best of ten proposals can be the best in the end.

    Args:
        sizes: trials of the method in its batches, one or two.
        halving: as for ``rungs``.

    >>> finalists((10, 10), 3), finalists((3, 3), 3), finalists((20,), 3), finalists((2, 1), 9), finalists((3, 2), 1)
    ((5, 3), (2, 1), (7,), (1, 1), (3, 2))
    """
    together = -(-sum(sizes) // halving)
    if len(sizes) == 1:
        return (together,)
    if together == sum(sizes):
        return tuple(sizes)
    return min(sizes[0], -(-2 * together // 3)), min(sizes[1], -(-together // 3))


class Value(NamedTuple):
    """What a trial has reached."""

    score: float
    """On validation samples."""
    loss: float
    """On the same."""
    trial: int
    by: Score = ACCURACY
    """What the score is."""

    @property
    def text(self) -> str:
        """The score with its unit."""
        return self.by.brief(self.score)


def order(value: Value) -> tuple[float, float, int]:
    """The best first: the better score; of equal ones the lower loss, and then the earlier trial."""
    return -value.by.sign * value.score, value.loss, value.trial


def promoted(values: Sequence[Value], count: int) -> list[int]:
    """The trials that go on: the best ``count`` of ``values``, or all if there are fewer.

    >>> promoted([Value(0.5, 1.0, 0), Value(0.7, 1.0, 1), Value(0.7, 0.9, 2)], 2)
    [1, 2]
    """
    return sorted(value.trial for value in sorted(values, key=order)[:count])
