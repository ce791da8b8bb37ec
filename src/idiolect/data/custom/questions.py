"""A target of two classes that is asked of a column: ``num>0``, ``stage=IV``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from idiolect.core.errors import InputError, nearest
from idiolect.data.custom.columns import NUMBER, missing, text_of

_SIGN = re.compile(r">=|<=|!=|==|=|>|<")
_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
ANSWERS = ("no", "yes")
"""The names of the two classes, in this order."""


class Question(NamedTuple):
    """What is asked of a column."""

    column: str
    sign: str
    value: str


def question_in(target: str | None, columns: Collection[str], where: str) -> Question | None:
    """The question that a target is; None if it is a column's name, or none is given.

    Raises:
        InputError: it asks for a column that is not there.

    >>> question_in("num>0", ["age", "num"], "the table")
    Question(column='num', sign='>', value='0')
    >>> question_in("p<0.05", ["p<0.05"], "the table")
    """
    if target is None or target in columns:
        return None
    ways = [Question(target[: m.start()].strip(), m[0], target[m.end() :].strip()) for m in _SIGN.finditer(target)]
    ways = [way for way in ways if way.column and way.value]
    if not ways:
        return None
    if (known := next((way for way in ways if way.column in columns), None)) is None:
        raise InputError(f"target: {where} has no column {ways[0].column!r}; {nearest(ways[0].column, columns)}")
    return known


def columns_asked(target: str | None) -> set[str]:
    """The columns that a target may ask of, whatever a table has."""
    return {str(target)[: m.start()].strip() for m in _SIGN.finditer(target or "")}


def answered(frame: pd.DataFrame, target: str | None, where: str) -> pd.DataFrame:
    """A table with the answers, no or yes, in a column named as the target, in place of the column that it asks of.

    Where the target is a column's name, or none is given, the table stays as it is. Where the value is missing, so is
    the answer.

    Raises:
        InputError: it asks for a column that is not there, or the size of one that has texts.
    """
    question = question_in(target, [str(c) for c in frame], where)
    if question is None:
        return frame
    values = frame[question.column]
    gone_R = missing(values)
    answers = pd.Series(pd.NA, index=frame.index, dtype=object)
    answers[~gone_R] = np.array(ANSWERS, object)[_is_so(values[~gone_R], question, where).astype(int)]
    column = pd.Categorical(answers, categories=list(ANSWERS))
    return frame.drop(columns=question.column).assign(**{str(target): column})


def _is_so(values: pd.Series[Any], question: Question, where: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each known value whether it is as asked."""
    column, sign, value = question
    is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if sign in _ORDERS:
        if not NUMBER.fullmatch(value):
            raise InputError(f"target {column}{sign}{value}: {value!r} is no number: write one, or = for a text")
        x_R = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        if np.isnan(x_R).any():
            raise InputError(
                f"target {column}{sign}{value}: column {column!r} of {where} has {int(np.isnan(x_R).sum())} values "
                "that are no numbers: correct them, or ask with = for a text"
            )
        return np.asarray(_ORDERS[sign](x_R, float(value)))
    if is_number and NUMBER.fullmatch(value):
        equal_R = np.asarray(values.to_numpy(np.float64) == float(value))
    else:
        equal_R = np.asarray(values.astype(object).map(text_of) == value)
    return ~equal_R if sign == "!=" else equal_R
