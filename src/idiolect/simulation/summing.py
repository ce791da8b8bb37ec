"""Uploads that can be added up without being read: whole numbers of a fixed small step, whose sums are exact.

Secure aggregation adds masks to such numbers, which vanish in the sum over clients. The masks are random among all
64-bit numbers; here is what they are added to, and what is made of the sum. A simulation does the same without the
masks, so that it gives the numbers of a federation.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import Diverged
from idiolect.core.method import Up
from idiolect.core.reduction import Reduction, Sums

STEP = 2.0**-30
"""All numbers are rounded to multiples of this, after they are multiplied by their weights."""
LEAST = 3
"""Clients of a sum: of two, each could subtract its own upload."""
_ROOM = 2.0**62  # what the sum over all clients must stay below, in steps; 64-bit numbers end at 2^63


def encode(reduction: Reduction, up: Up, clients: int) -> Up:
    """An upload as whole numbers: weights, and values times their weights, in steps.

    Raises:
        Diverged: a number is not finite, or so large that the sum over this many clients could overflow.
    """
    sums = reduction.one(up)
    whole = partial(_whole, most=_ROOM / clients)
    values, weights = (tree.flatten(part)[1] for part in up)
    return Up(values([whole(a) for a in sums.value]), weights([whole(w) for w in sums.weight]))


def _whole(a: Tensor, most: float) -> Tensor:
    steps = (a / STEP).round()
    if not bool((steps.abs() < most).all()):  # NaN is not
        raise Diverged(f"the upload has a number that is not finite, or above {most * STEP:.3g} times its weight")
    return steps.to(torch.int64)


def sums_of(up: Up) -> Sums:
    """The sums of a single upload of whole numbers, or of uploads that are added up already, modulo 2^64."""
    return Sums(tuple(tree.leaves(up.value)), tuple(tree.leaves(up.weight)))


def decode(sums: Sums) -> Sums:
    """What sums of whole numbers amount to."""
    return tree.map(lambda a: a.double() * STEP, sums)


def like(up: Up) -> Up:
    """The form of the upload that an upload of whole numbers stands for."""
    return tree.map(lambda a: torch.empty(a.shape, device="meta"), up)
