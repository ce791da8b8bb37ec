"""Training and test samples that are apart: by groups, or in time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from idiolect.core.errors import InputError, option
from idiolect.core.option_spec import Spec, made
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Rows, Split, shares_of_classes
from idiolect.data.sides import largest, set_aside

# R samples, N samples of one client, C classes of them

log = logging.getLogger(__name__)

_FAR = 0.5  # of the samples that a client should test on


class Splitting(NamedTuple):
    """How a client's samples are divided into those for training and those for tests.

    Attributes:
        ordered: whether the last ones are for tests, and not any.
        gap: how many between the two are used for neither.
        each_class: whether the last ones of each class are for tests.
    """

    ordered: bool = False
    gap: int = 0
    each_class: bool = False


def random() -> Splitting:
    """Any samples are for tests."""
    return Splitting()


def ordered(*, gap: Annotated[int, Field(ge=0)] = 0, each_class: bool = False) -> Splitting:
    """The last samples are for tests, in the order of the data.

    Args:
        gap: samples between training and test samples that are used for neither, as windows that overlap both.
        each_class: the last samples of each class are for tests, as where one activity comes after another.
    """
    return Splitting(ordered=True, gap=gap, each_class=each_class)


def check_order(way: Splitting, group_column: str | None, fix: str = "give one of them") -> None:
    """Check that samples are not to be divided in order and by groups, which may lie anywhere in it.

    Raises:
        InputError: they are.
    """
    if group_column is not None and way.ordered:
        raise InputError(
            f"{option('group_column', group_column)} and {option('split', 'ordered')} do not go together: {fix}"
        )


_WAYS: dict[str, Callable[..., Splitting]] = {"random": random, "ordered": ordered}


def splitting_of(spec: Spec) -> Splitting:
    """The way that a spec names.

    Raises:
        InputError: unknown name or option.
    """
    way: Splitting = made(spec, _WAYS, "split")
    return way


def complete_splitting(spec: Spec) -> Spec:
    """The spec with all its options.

    Raises:
        InputError: as ``splitting_of``.
    """
    way = splitting_of(spec)
    return Spec(name=spec.name, options={"gap": way.gap, "each_class": way.each_class} if way.ordered else {})


class LastOnes(NamedTuple):
    """Which of a client's samples (N,) are its last ones, and which are in the gap."""

    is_last_N: NDArray[np.bool_]
    is_left_N: NDArray[np.bool_]


def last_ones(way: Splitting, place_N: Rows, y_N: Rows, count: int) -> LastOnes:
    """A client's last samples, and the others that are ``way.gap`` places or fewer from one of these.

    With ``way.each_class`` they are the last ones of each class, in proportion to its samples. A class keeps one more
    than the gap, so there are fewer than ``count`` where classes have too few.

    Args:
        way: how samples are divided.
        place_N: each sample's place in the client's order.
        y_N: labels.
        count: how many.
    """
    order_N = np.argsort(place_N, kind="stable")
    part_of = [(order_N, count)]
    if way.each_class:
        _, class_N, size_C = np.unique(y_N[order_N], return_inverse=True, return_counts=True)
        part_C = shares_of_classes(size_C, count, np.maximum(size_C - 1 - way.gap, 0), np.arange(len(size_C)))
        part_of = [(order_N[class_N == c], part) for c, part in enumerate(part_C.tolist())]
    is_last_N = np.zeros(len(place_N), np.bool_)
    for row_N, part in part_of:
        is_last_N[row_N[len(row_N) - part :]] = True
    last_M = np.concatenate([[-np.inf], np.sort(place_N[is_last_N]), [np.inf]])
    next_N = np.searchsorted(last_M, place_N)
    distance_N = np.minimum(last_M[next_N] - place_N, place_N - last_M[next_N - 1])
    return LastOnes(is_last_N, (distance_N <= way.gap) & ~is_last_N)


def divide_apart(split: Split, source: Source, way: Splitting, rng: np.random.Generator) -> Split:
    """The same clients with as many test samples each as before, by groups or in order if that is asked for.

    Raises:
        InputError: both are asked for, a client cannot be divided so, or a group is in both official splits.
    """
    if source.group_column is None and not way.ordered:
        return split
    check_order(way, source.group_column)
    train, test = (np.concatenate(part) for part in (split.train, split.test))
    is_official = source.train_rows < len(source.y_R) and bool(train.max() < source.train_rows <= test.min())
    if way.ordered:
        if is_official:
            raise InputError(
                f"split=ordered is not possible, because the official test split of {source.name} is kept: leave it "
                "out, or give partition natural:official_split=false too"
            )
        if way.each_class and source.targets is not None:
            goal = source.targets.what
            raise InputError(
                f"split ordered:each_class=true divides classes, and this target is {goal}: leave each_class out"
            )
        return _in_order(split, way, source.y_R.numpy())
    column = source.columns[str(source.group_column)]
    if is_official:
        if both := np.intersect1d(column.code_R[train], column.code_R[test]).tolist():
            raise InputError(
                f"{len(both)} groups of {source.group_column!r} are in both official splits of {source.name} (the "
                f"first is {column.names[both[0]]!r}): give each in one, or divide all samples again with partition "
                "natural:official_split=false"
            )
        return split
    return _by_groups(split, source, rng)


def _name(split: Split, client: int) -> str:
    return repr(split.names[client]) if split.names else str(client)


def _in_order(split: Split, way: Splitting, y_R: Rows) -> Split:
    train, test, left = [], [], []
    for k, (before, after) in enumerate(zip(split.train, split.test, strict=True)):
        rows = np.sort(np.concatenate([before, after]))
        is_last_N, is_left_N = last_ones(way, np.arange(len(rows)), y_R[rows], len(after))
        train.append(rows[~(is_last_N | is_left_N)])
        test.append(rows[is_last_N])
        left.append(rows[is_left_N])
        if why := unusable(way, len(train[k]), len(test[k])):
            raise InputError(
                f"split ordered: client {_name(split, k)} has {len(rows)} samples, {why}: give a smaller gap, or leave "
                "out small clients with partition natural:min_rows=..."
            )
    return split._replace(train=train, test=test, left=left)


def unusable(way: Splitting, rest: int, held: int) -> str:
    """Why some samples cannot be divided in order, as the end of a sentence; "" if they can.

    Args:
        way: how they are divided.
        rest: how many are left to train on.
        held: how many are set aside.
    """
    if not held:
        return f"and no class has more than the {way.gap + 1} that it keeps with gap={way.gap}"
    return f"of which {held} are set aside and gap={way.gap} used for neither, so none is left to train on" * (rest < 1)


def _by_groups(split: Split, source: Source, rng: np.random.Generator) -> Split:
    """Test samples are whole groups, the same ones at all clients."""
    group, column = str(source.group_column), source.columns[str(source.group_column)]
    rows_K = [np.concatenate(parts) for parts in zip(split.train, split.test, strict=True)]
    wanted = [len(rows) for rows in split.test]
    tests = set_aside(rows_K, column.code_R, wanted, rng)
    if lacking := [k for k, is_test in enumerate(tests) if not is_test.any()]:
        first, count = _name(split, lacking[0]), len(np.unique(column.code_R[rows_K[lacking[0]]]))
        why = f"has only one group of {group!r}" if count == 1 else f"shares its groups of {group!r} with others"
        raise InputError(
            f"client {first} {why}, so that its samples cannot be divided into some for training and some for tests"
            + (f" ({len(lacking) - 1} more are so)" if len(lacking) > 1 else "")
            + f": give it samples of more groups, leave it out, or leave out {option('group_column')}"
        )
    far = [k for k, is_test in enumerate(tests) if abs(int(is_test.sum()) - wanted[k]) > max(1, _FAR * wanted[k])]
    if far:
        worst = max(far, key=lambda k: abs(int(tests[k].sum()) - wanted[k]) / wanted[k])
        code, count = largest(rows_K[worst], column.code_R)
        log.warning(
            "groups of %r are too large to give %d of %d clients the share of test samples that was asked for (most at "
            "client %s, where %r has %d of %d samples: it trains on %d and tests on %d)",
            group, len(far), len(tests), _name(split, worst), column.names[code], count, len(rows_K[worst]),
            int((~tests[worst]).sum()), int(tests[worst].sum()),
        )  # fmt: skip
    return split._replace(
        train=[rng.permutation(rows[~is_test]) for rows, is_test in zip(rows_K, tests, strict=True)],
        test=[rng.permutation(rows[is_test]) for rows, is_test in zip(rows_K, tests, strict=True)],
    )
