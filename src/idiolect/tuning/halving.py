"""Successive halving with two cuts: after a fifth of the rounds, and after three fifths of them.

Source: Jamieson & Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016. The
pruner of Optuna decides as trials report, so that the choice depends on which is first; here all of a rung are
compared when all have ended, and the number of workers changes nothing.

The first cut drops what trains badly, which is seen early. The second is late, where the source would cut once more
after twice as many rounds: the trials that are left differ by a few validation samples, and what an earlier round says
of them is chance. So it may be sharp.

More of the first batch go on than of the second, where the source compares all trials with each other. The first batch
is spread over the ranges, so that its best trials differ much, and a setting that is slow at first but good in the end
must not be lost there. The second is proposed near the best of the first: its trials are much alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from idiolect.core.objectives import ACCURACY, Score
from idiolect.studies import Study

_CUTS = (1, 3)  # fifths of the rounds
_LEAST = 2  # rounds before a cut


def rungs(rounds: int, halving: int, every: int = 1) -> tuple[int, ...]:
    """The rounds after which trials are compared: those of the cuts, if there are any, and the last.

    Args:
        rounds: of the study.
        halving: after the first cut one in so many trials goes on; 1: all train to the end.
        every: rounds between evaluations, of which all but the last are multiples.

    >>> rungs(10, 3), rungs(200, 3), rungs(2, 3), rungs(30, 1), rungs(100, 3, every=15)
    ((2, 6, 10), (40, 120, 200), (2,), (30,), (30, 60, 100))
    """
    ends = [-(-max(_LEAST, -(-part * rounds // 5)) // every) * every for part in _CUTS]
    cuts = sorted({end for end in ends if end < rounds}) if halving > 1 else []
    return (*cuts, rounds)


def rungs_of(study: Study, halving: int) -> tuple[int, ...]:
    """The rungs of a study; where a best round is looked for, evaluated rounds, so that no round is evaluated more."""
    return rungs(study.rounds, halving, 1 if study.protocol.round == "last" else study.evaluation)


def survivors(sizes: Sequence[int], halving: int, cut: int) -> tuple[int, ...]:
    """How many trials of each batch of a method go on after a cut.

    After the first cut together one in ``halving``, and after the second one in ``halving`` cubed: the later comparison
    says more. Of two batches the first has three fifths of these and the second two, to the nearest number, and one at
    the least.

    Args:
        sizes: trials of the method in its batches, one or two.
        halving: as for ``rungs``.
        cut: 0 or 1.

    >>> [survivors(sizes, 2, cut) for sizes in ((10, 10), (3, 3), (20,)) for cut in (0, 1)]
    [(6, 4), (2, 1), (2, 1), (1, 1), (10,), (3,)]
    """
    together = -(-sum(sizes) // halving ** (1 + 2 * cut))
    if len(sizes) == 1:
        return (together,)
    if together == sum(sizes):
        return tuple(sizes)
    first = (3 * together + 2) // 5
    return min(sizes[0], max(1, first)), min(sizes[1], max(1, together - first))


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
