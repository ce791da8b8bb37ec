"""The columns of the target and of the client, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import Disagreement, InputError, nearest, option
from idiolect.core.errors import listed as listed
from idiolect.core.objectives import TaskName
from idiolect.core.option_spec import PLUS, split_names

# R samples of all clients

TARGETS = ("label", "labels", "target", "class", "diagnosis", "y")
MOST_CLASSES = 1000
MOST_TEXTS = 50
_FEW = 20  # up to so many different fractions may still be grades
FRACTIONS = "numbers with fractions"
_WHOLES = 30  # and so many whole numbers classes
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?\d+")


def check_frame(frame: pd.DataFrame, where: str) -> None:
    """Check that a table has rows and that all names of columns are different.

    Raises:
        InputError: it has not.
    """
    twice = frame.columns[frame.columns.duplicated()].unique()
    if len(twice):
        raise InputError(f"{where} uses {len(twice)} column names more than once ({listed(twice, 5)}): rename them")
    if not len(frame):
        raise InputError(f"{where} has no rows: add some, under one line of column names")


def find(columns: Sequence[str], name: str, setting: str, where: str) -> str:
    """The column's own name.

    Raises:
        InputError: there is no such column.
    """
    if name not in columns:
        raise InputError(f"{setting}: {where} has no column {name!r}; {_meant(name, columns)}")
    return name


def _meant(name: str, columns: Sequence[str]) -> str:
    """What a name that is no column may have meant."""
    pieces = [piece.strip() for piece in name.split(",")]
    if len(pieces) > 1 and set(pieces) <= set(columns):
        return f"columns are joined by +: write {'+'.join(pieces)}"
    return nearest(name, columns)


def columns_to_drop(columns: Sequence[str], drop: Iterable[str], where: str) -> list[str]:
    """The columns to leave out, of which several may be joined by +.

    Raises:
        InputError: there is no such column.
    """
    names = [(text, name) for text in drop for name in split_names(text, columns)]
    for text, name in names:
        if name not in columns:
            hint = f"; {PLUS}" if "+" in text else ""
            raise InputError(f"drop: {where} has no column {name!r}; {_meant(name, columns)}{hint}")
    return [name for _, name in names]


def check_roles(columns: Mapping[str, Sequence[str | None]]) -> None:
    """Check that no column has two roles.

    Raises:
        InputError: one has.
    """
    roles: dict[str, list[str]] = {}
    for role, names in columns.items():
        for name in names:
            if name is not None:
                roles.setdefault(name, []).append(role)
    if twice := next((name for name, several in roles.items() if len(several) > 1), None):
        every = [f"{role} {listed([n for n in names if n])}" for role, names in columns.items() if any(names)]
        raise InputError(f"{listed(every, between=' and ')} must be different columns, and {twice!r} is in two")


def find_target(columns: Sequence[str], target: str | None, where: str) -> str:
    """The target column; if none is given, the only one with a usual name of a target.

    Raises:
        InputError: there is no such column, or not exactly one with such a name.
    """
    if target is not None:
        return find(columns, target, "target", where)
    candidates = [c for c in columns if c.lower() in TARGETS]
    if len(candidates) != 1:
        problem = (
            f"several columns may be the target of {where} ({listed(candidates)})"
            if candidates
            else f"no target is given for {where}"
        )
        raise InputError(f"{problem}: give target as one of its columns ({listed(columns, 40)})")
    return candidates[0]


def targets_in(columns: Sequence[str], target: str | None, where: str) -> list[str]:
    """The target columns: several numbers that are predicted together are joined by +.

    Raises:
        InputError: as ``find_target``, or a column is given twice.
    """
    if target is None or target in columns:
        return [find_target(columns, target, where)]
    names = split_names(target, columns)
    for name in names:
        find(columns, name, "target", where)
    if len(set(names)) < len(names):
        raise InputError(f"target: {target} has a column twice: give each once")
    return names


def missing(values: pd.Series[Any], texts: Collection[str] = ("", "nan")) -> NDArray[np.bool_]:
    """For each row whether its value is missing: none, or one of some texts in any letter case.

    By default, "nan" is one of them, which NumPy makes of a missing text.
    """
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "f":
        return np.asarray(np.isnan(values.to_numpy()))
    missing_R = values.isna().to_numpy(dtype=np.bool_)
    if pd.api.types.is_numeric_dtype(values):
        return missing_R
    missing_R = missing_R.copy()
    missing_R[~missing_R] = by_value(lambda v: isinstance(v, str) and v.strip().lower() in texts, values[~missing_R])
    return missing_R


def without_nan(values: pd.Series[Any]) -> pd.Series[Any]:
    """Values with None in place of the text "nan", which NumPy makes of a missing text."""
    if pd.api.types.infer_dtype(values, skipna=True) not in ("string", "mixed"):
        return values
    return values.mask(by_value(lambda v: isinstance(v, str) and v == "nan", values).astype(bool))


def by_value(function: Callable[[Any], Any], values: pd.Series[Any]) -> NDArray[Any]:
    """The function of each row's value (R,); of texts it is asked once for each different one."""
    values = values.astype(object)
    if pd.api.types.infer_dtype(values, skipna=False) != "string":
        return values.map(function).to_numpy()
    code_R, different = pd.factorize(values)
    return np.array([function(text) for text in different], object)[code_R]


def codes(values: pd.Series[Any], what: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """For each row the place of its value among the names, (R,), and the names, in order of number, category or text.

    A text is a name, whatever it says; only an empty one is missing.

    Raises:
        InputError: a value is missing or is a list or the like.
    """
    gaps = np.flatnonzero(missing(values, ("",)))
    if gaps.size:
        raise InputError(
            f"{what} is missing in {gaps.size} of {len(values)} rows (the first is row {gaps[0]}, counting from 0): "
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
    names = [text_of(value) for value in unique]
    if isinstance(values.dtype, pd.CategoricalDtype):
        order = [name for name in dict.fromkeys(map(text_of, values.cat.categories)) if name in names]
    else:
        order = in_order(set(names))
    place = {name: i for i, name in enumerate(order)}
    return np.array([place[name] for name in names], np.int64)[code_R], tuple(order)


def labels(values: pd.Series[Any], what: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The samples' classes (R,) and the names of the classes.

    Raises:
        InputError: a label is missing, there is only one class, or the values are identifiers.
    """
    y_R, names = codes(values, what)
    count = len(names)
    if count == 1:
        raise InputError(f"{what} has only one class ({names[0]}): give a column with two classes or more")
    if count > MOST_CLASSES:
        raise InputError(
            f"{what} has {count} classes, more than {MOST_CLASSES}: is it an identifier? Give the column of labels"
        )
    if count == len(values) > _FEW:
        raise InputError(f"{what} has a different value in every row: is it an identifier? Give the column of labels")
    return y_R, names


def amounts_in(names: Sequence[str], *, table: bool) -> str | None:
    """What the names of classes are if they look like amounts; None if they look like classes.

    More than 20 numbers with fractions are amounts, and so are more than 30 whole numbers, such as scores, counts or
    days. Of images, 0, 1, 2, ... without a gap are codes of classes, however many.
    """
    if not all(NUMBER.fullmatch(name) for name in names):
        return None
    if not all(_WHOLE.fullmatch(name) for name in names):
        return FRACTIONS if len(names) > _FEW else None
    if len(names) <= _WHOLES or (not table and sorted(map(int, names)) == list(range(len(names)))):
        return None
    return "whole numbers"


def check_texts(what: str, names: Sequence[str], *, table: bool) -> None:
    """Check that the names of classes are not amounts but for a few texts, which are probably mistakes.

    Raises:
        InputError: nine tenths of them or more are amounts.
    """
    texts = [name for name in names if not NUMBER.fullmatch(name)]
    if not texts or 10 * len(texts) > len(names):
        return
    amounts = amounts_in([name for name in names if NUMBER.fullmatch(name)], table=table)
    if amounts is not None:
        raise InputError(
            f"{what} has {len(names) - len(texts)} different {amounts} and {len(texts)} "
            f"text{'s' * (len(texts) > 1)} ({listed(texts, 3)}): correct these to predict numbers, or give "
            f"{option('task', 'classification')}"
        )


def check_amounts(what: str, names: Sequence[str], task: TaskName | None) -> None:
    """Check that the names of classes in tables of several sites do not look like amounts.

    Raises:
        InputError: they do, and the task is not said to be classification.
    """
    if task is None:
        check_texts(what, names, table=True)
    amounts = amounts_in(names, table=True) if task is None else None
    if amounts is not None:
        raise _regression(what, len(names), amounts)


def _regression(what: str, count: int, amounts: str) -> Disagreement:
    return Disagreement(
        f"{what} has {count} different {amounts}, which looks like numbers to predict: write task: regression in the "
        "study if they are, or task: classification if they are classes"
    )


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted, by number if all are numbers.

    >>> in_order(["10", "9", "1"]), in_order(["10", "9", "b"])
    (['1', '9', '10'], ['10', '9', 'b'])
    """
    every = sorted(names)
    return sorted(every, key=float) if all(NUMBER.fullmatch(name) for name in every) else every


def shift_of(x_R: NDArray[np.float64]) -> float:
    """What is subtracted from numbers before they become float32: their median, or 0 where that is not needed.

    It is needed if float32 would round whole numbers, or other numbers by more than a millionth of their range: then
    different numbers might become equal.
    """
    value_R = x_R[~np.isnan(x_R)]
    span = np.ptp(value_R) if value_R.size else 0.0
    error = np.abs(value_R.astype(np.float32) - value_R).max(initial=0)
    return 0.0 if not span or error <= min(0.5, 1e-6 * span) else float(np.median(value_R))


def as_float32(x_R: NDArray[Any], what: str) -> NDArray[np.float32]:
    """Numbers (R, C, ...), or (R, T) of a single channel, as float32.

    Raises:
        InputError: float32 rounds a channel's numbers by more than a hundredth of their standard deviation.
    """
    with np.errstate(over="ignore"):
        rounded_R = x_R.astype(np.float32, order="C")
    if x_R.dtype.itemsize < 4 or x_R.dtype == np.float32:
        return rounded_R
    for channel in range(x_R.shape[1]) if x_R.ndim > 2 else [slice(None)]:
        value_R, near_R = x_R[:, channel].ravel(), rounded_R[:, channel].ravel()
        finite = np.isfinite(near_R)
        value_R, near_R = value_R[finite].astype(np.float64), near_R[finite]
        spread = float(value_R.std()) if value_R.size and np.ptp(value_R) else 0.0  # that of equal ones may be rounding
        if spread and np.abs(near_R - value_R).max() > 0.01 * spread:
            which = f"channel {channel} (counting from 0) of {what}" if x_R.ndim > 2 else what
            raise InputError(
                f"{which} has numbers that float32 cannot tell apart (around {value_R.mean():.6g}, with a spread of "
                f"{spread:.3g}): subtract their mean, or take another unit"
            )
    return rounded_R


def fold(name: str) -> str:
    """A name of a column without letter case, spaces and marks, by which a site's own spelling is recognised."""
    return re.sub(r"[\W_]", "", name.casefold())


def text_of(value: object) -> str:
    """A value as the name of a class or a category: whole numbers without a fraction."""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value).strip()  # type: ignore[call-overload]
