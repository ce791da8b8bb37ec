"""Which column is the target and which the client, and the values that they hold."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import InputError, nearest, option
from idiolect.core.errors import listed as listed

# R rows of everybody

log = logging.getLogger(__name__)

TARGETS = ("label", "labels", "target", "class", "diagnosis", "y")
MOST_CLASSES = 1000
MOST_TEXTS = 50
_FEW = 20  # so many different fractions may still be grades
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_OWNERS = re.compile(
    "hospital|site|clinic|centre|center|institution|institute|facility|client|device|station|branch|silo|patient|"
    "subject|person|user|writer"
)
_IDENTIFIERS = re.compile("ids?|identifier|uuid|guid|mrn|name|surname|email")
_WHOLE = re.compile(r"[+-]?\d+")


def find(columns: Sequence[str], name: str, setting: str, where: str) -> str:
    """The column's own name.

    Raises:
        InputError: there is no such column.
    """
    if name not in columns:
        raise InputError(f"{setting}: {where} has no column {name!r}; {nearest(name, columns)}")
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
    endless = np.flatnonzero(values.astype(object).map(lambda v: isinstance(v, float | np.floating) and np.isinf(v)))
    if endless.size:
        raise InputError(
            f"{what} is infinite in {endless.size} of {len(values)} rows (the first is row {endless[0]}, counting from "
            "0): correct it or remove those rows"
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
    if count == len(values) > _FEW:
        raise InputError(f"{what} has another value in every row: is this an identifier? Name the column of labels")
    return y_R, names


def suspects(frame: pd.DataFrame, columns: Sequence[str], owner: str | None, used: bool) -> tuple[str, ...]:
    """Warn of columns that are called as sites or identifiers are; give the others of few repeated texts.

    Args:
        frame: all columns.
        columns: those that have no role.
        owner: the client column, where one is named: then no other is looked for.
        used: whether the columns become features.
    """
    few = []
    for name in columns:
        words = re.findall("[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
        owns = any(map(_OWNERS.fullmatch, words))
        values = frame[name].dropna()
        if pd.api.types.is_float_dtype(values) and (values % 1).any():
            continue
        try:
            different = values.nunique()
        except TypeError:  # lists, of which another message speaks
            continue
        repeated = different * 2 <= len(values)
        numbered = pd.api.types.is_integer_dtype(values) and different == len(values) > MOST_TEXTS
        called = owns or any(map(_IDENTIFIERS.fullmatch, words))
        if called and used and not repeated and not numbered:  # of numbers ``features`` speaks
            log.warning("column %r looks like an identifier, and is a feature here: drop it if it is one", name)
        elif owns and repeated and owner is None:
            log.warning(
                "column %r looks as if it said whose each sample is, and is %s: give %s, or drop it",
                name, "a feature here" if used else "not used", option("client_column", name),
            )  # fmt: skip
        elif not pd.api.types.is_numeric_dtype(values) and 2 < different <= MOST_TEXTS and repeated and owner is None:
            few.append(name)
    return tuple(few)


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
