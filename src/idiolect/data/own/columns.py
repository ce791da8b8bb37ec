"""Which column is the target and which the client, and the values that they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.errors import InputError, nearest
from idiolect.errors import listed as listed

# R rows of everybody

TARGETS = ("label", "labels", "target", "class", "diagnosis", "y")
MOST_CLASSES = 1000
_FEW = 20  # so many different fractions may still be grades
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")


def find(columns: Sequence[str], name: str, option: str, where: str) -> str:
    """The column's own name.

    Raises:
        InputError: there is no such column.
    """
    if name not in columns:
        raise InputError(f"{option}: {where} has no column {name!r}; {nearest(name, columns)}")
    return name


def find_target(columns: Sequence[str], target: str | None, where: str) -> str:
    """The target column; where none is named, the only one that is called as targets are.

    Raises:
        InputError: there is no such column, or not exactly one by such a name.
    """
    if target is not None:
        return find(columns, target, "target", where)
    found = [c for c in columns if c.lower() in TARGETS]
    if len(found) != 1:
        which = f"any of {listed(found)} may be the target of {where}" if found else f"no target is named for {where}"
        raise InputError(f"{which}: give target as one of its columns ({listed(columns, 40)})")
    return found[0]


def missing(values: pd.Series[Any]) -> NDArray[np.bool_]:
    """Per row whether there is no value: none at all, an empty text, or "nan", which NumPy makes of a missing text."""
    empty = values.astype(object).map(lambda v: isinstance(v, str) and v.strip().lower() in ("", "nan"))
    return (values.isna() | empty.astype(bool)).to_numpy(dtype=np.bool_)


def codes(values: pd.Series[Any], what: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Each row's place among the values' names, (R,), and the names that occur: by number, by category, else by text.

    Raises:
        InputError: a value is missing or is a list or the like.
    """
    gone = np.flatnonzero(missing(values))
    if gone.size:
        raise InputError(
            f"{what} is missing in {gone.size} of {len(values)} rows (the first is row {gone[0]}, counting from 0): "
            "fill it in or remove those rows"
        )
    try:
        code_R, unique = pd.factorize(values)
    except TypeError as error:
        raise InputError(f"{what} holds lists or the like: give one number or one text per row") from error
    names = [_name(value) for value in unique]
    if isinstance(values.dtype, pd.CategoricalDtype):
        order = [name for name in dict.fromkeys(map(_name, values.cat.categories)) if name in names]
    else:
        order = ordered(set(names))
    place = {name: i for i, name in enumerate(order)}
    return np.array([place[name] for name in names], np.int64)[code_R], tuple(order)


def labels(values: pd.Series[Any], what: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The rows' classes (R,) and the classes' names.

    Raises:
        InputError: a label is missing, there is one class only, or the values are measurements or identifiers.
    """
    y_R, names = codes(values, what)
    count = len(names)
    if count == 1:
        raise InputError(f"{what} has one class only ({names[0]}): name a column with two classes or more")
    numbers = all(NUMBER.fullmatch(name) for name in names)
    if numbers and count > _FEW and not all(_WHOLE.fullmatch(name) for name in names):
        raise InputError(
            f"{what} has {count} different numbers with fractions, which looks like regression: idiolect "
            "classifies, so cut the numbers into classes first, or name another column"
        )
    if count > MOST_CLASSES:
        raise InputError(
            f"{what} has {count} classes, more than {MOST_CLASSES}: is this an identifier? Name the column of labels"
        )
    return y_R, names


def ordered(names: Iterable[str]) -> list[str]:
    """Sorted, by number where all are numbers.

    >>> ordered(["10", "9", "1"]), ordered(["10", "9", "b"])
    (['1', '9', '10'], ['10', '9', 'b'])
    """
    every = sorted(names)
    return sorted(every, key=float) if all(NUMBER.fullmatch(name) for name in every) else every


def narrow(x_R: NDArray[np.float64]) -> tuple[NDArray[np.float32], bool]:
    """The numbers as float32, and whether they are less their median.

    They are where float32 would round whole numbers, or others by more than a millionth of their range, so that
    different ones might become one.
    """
    known = x_R[~np.isnan(x_R)]
    span = np.ptp(known) if known.size else 0.0
    lost = np.abs(known.astype(np.float32) - known).max(initial=0)
    if not span or lost <= min(0.5, 1e-6 * span):
        return x_R.astype(np.float32), False
    return (x_R - np.median(known)).astype(np.float32), True


def _name(value: object) -> str:
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value).strip()  # type: ignore[call-overload]
