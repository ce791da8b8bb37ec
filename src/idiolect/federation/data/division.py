"""Which of a site's samples it trains on, tests on, and keeps for validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from idiolect.core import keys
from idiolect.core.errors import InputError, option
from idiolect.data.partitions.apart import Splitting, last_ones, unusable
from idiolect.data.sides import set_aside
from idiolect.data.validation import check_share, held_out

# N samples of this site

TEST = 0.2
"""The share of a site's samples that it tests on, unless it gives test samples of its own."""

Rows = NDArray[np.int64]


class Parts(NamedTuple):
    """The numbers of a site's samples, training samples in the order in which they are batched."""

    train_N: Rows
    test_N: Rows
    validation_N: Rows


def divide(
    sizes: Sequence[int], y_N: Rows, group_N: Rows | None, way: Splitting, validation: float, *, seed: int, number: int,
    where: str,
) -> Parts:  # fmt: skip
    """Divide a site's samples as a simulation divides a client's.

    Args:
        sizes: of its training file and its test file, or of its only file.
        y_N: labels.
        group_N: which samples belong together; None where each stands for itself.
        way: whether the last samples are for tests, and not any.
        validation: the share of the training samples that is kept for validation.
        seed: of the data.
        number: of the client.
        where: the file, for messages.

    Raises:
        InputError: there are too few samples, or groups, or one is in both files.
    """
    if len(sizes) == 2:
        train_N, test_N = np.arange(sizes[0]), np.arange(sizes[0], sum(sizes))
        if group_N is not None and (both := len(np.intersect1d(group_N[train_N], group_N[test_N]))):
            raise InputError(
                f"{both} groups are among the training and the test samples of {where}: give each group in one of them"
            )
    else:
        train_N, test_N = _apart(
            np.arange(sizes[0]), y_N, TEST, group_N, way, keys.generator(seed, number, "samples"), where
        )
    if not validation:
        return Parts(train_N, test_N, train_N[:0])
    check_share(validation, len(train_N), where)
    if group_N is None and not way.ordered:
        at_N = held_out(y_N[train_N], validation, seed, number)
        return Parts(np.delete(train_N, at_N), test_N, train_N[at_N])
    rng = keys.generator(seed, number, "validation")
    rest_N, validation_N = _apart(train_N, y_N, validation, group_N, way, rng, where)
    return Parts(rest_N, test_N, validation_N)


def _apart(
    row_N: Rows, y_N: Rows, share: float, group_N: Rows | None, way: Splitting, rng: np.random.Generator, where: str
) -> tuple[Rows, Rows]:
    """Some rows in two: the rest, and a share of them."""
    count = len(row_N)
    if count < 2:
        raise InputError(f"{where} has one sample: give two or more, to train and to test on")
    held = min(count - 1, max(1, round(share * count)))
    if way.ordered:
        is_last_N, is_left_N = last_ones(way, row_N, y_N[row_N], held)
        rest_N, last_N = row_N[~(is_last_N | is_left_N)], row_N[is_last_N]
        if why := unusable(way, len(rest_N), len(last_N)):
            raise InputError(f"{where} has {count} samples, {why}: give more samples")
        return rest_N, last_N
    order_N = row_N[rng.permutation(count)]
    if group_N is None:
        return order_N[held:], order_N[:held]
    [is_held_N] = set_aside([order_N], group_N, [held], rng)
    if not is_held_N.any():
        raise InputError(
            f"all {count} samples of {where} to divide are of one group of {option('group_column')}: give samples of "
            "several"
        )
    return order_N[~is_held_N], order_N[is_held_N]
