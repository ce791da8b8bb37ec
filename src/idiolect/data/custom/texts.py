"""Columns and lists of texts, checked and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from idiolect.core.errors import Disagreement, InputError, nearest, option
from idiolect.core.option_spec import PLUS, split_names
from idiolect.data.custom.columns import NUMBER, missing
from idiolect.data.text.encoders import Encoder
from idiolect.data.text.tokens import Tokens, ids_of, tokens_of

_BETWEEN = "\n"
_KINDS = {
    "numbers": ("integer", "floating", "mixed-integer-float", "decimal", "boolean"),
    "dates or times": ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period"),
}


class Reading(NamedTuple):
    """What of a table is text, and how it becomes ids; without ``columns`` nothing is.

    Attributes:
        columns: the name of a column of texts, or several joined by +.
        tokens: an encoder, or its name; None for the usual one.
        most: tokens of a text that are used; None for the usual number.
    """

    columns: str | None = None
    tokens: str | Encoder | None = None
    most: int | None = None

    def check(self) -> None:
        """Check that no setting of texts is given without any.

        Raises:
            InputError: one is.
        """
        for name, value in (("tokens", self.tokens), ("max_tokens", self.most)):
            if self.columns is None and value is not None:
                raise InputError(f"{name} is for texts: say with {option('text')} which column has them")

    def names(self, columns: Sequence[str], where: str) -> list[str]:
        """The columns of texts among some columns.

        Raises:
            InputError: one is not there, or is named twice.
        """
        if self.columns is None:
            return []
        names = split_names(self.columns, columns)
        for name in names:
            if name not in columns:
                hint = f"; {PLUS}" if "+" in self.columns else ""
                raise Disagreement(f"text: {where} has no column {name!r}; {nearest(name, columns)}{hint}")
        if len(set(names)) < len(names):
            raise InputError(f"text: {self.columns!r} names a column twice: name each once")
        return names

    def ids(self, frame: pd.DataFrame, names: Sequence[str], where: str) -> tuple[Tensor, Tokens]:
        """The ids (R, L) of a table's texts, and how they were made.

        Raises:
            InputError: a column has something else than texts, or all texts are empty.
        """
        tokens = tokens_of(self.tokens, self.most, names)
        return ids_of(joined(frame, names, where), tokens, where), tokens


def list_of_texts(values: Any, what: str, *, few: bool = False) -> list[str] | None:
    """The texts of a list, an array or a series, "" where one is missing; None if its first value is something else.

    If these may be a ``few`` of many, texts that all look like numbers are texts.

    Raises:
        InputError: it has texts and something else, or texts in rows and columns.
    """
    if isinstance(values, Tensor) or (isinstance(values, np.ndarray) and values.dtype.kind not in "UTO"):
        return None
    if isinstance(values, str) or not hasattr(values, "__len__"):
        return None
    if isinstance(values, np.ndarray) and values.ndim != 1:
        if values.size and isinstance(values.flat[0], str):
            raise InputError(f"{what} has texts of shape {values.shape}: give one text per row")
        return None
    if not isinstance(next((value for value in values if value is not None), None), str):
        return None
    return _texts(pd.Series(list(values), dtype=object), what, few=few)


def joined(frame: pd.DataFrame, names: Sequence[str], where: str, *, few: bool = False) -> list[str]:
    """The text of each row: those of some columns, one on each line; those that are missing or empty are left out.

    If these may be a ``few`` rows of many, texts that all look like numbers are texts.

    Raises:
        InputError: a column has something else than texts.
    """
    columns = [_texts(frame[name], f"text: column {name!r} of {where}", "column of texts", few) for name in names]
    if len(columns) == 1:
        return columns[0]
    return [_BETWEEN.join(filter(None, row)) for row in zip(*columns, strict=True)]


def _texts(values: pd.Series[Any], what: str, wanted: str = "text per row", few: bool = False) -> list[str]:
    """A column's texts, "" where one is missing."""
    kind = pd.api.types.infer_dtype(values.astype(object), skipna=True)
    wrong = next((words for words, kinds in _KINDS.items() if kind in kinds), None)
    missing_R = missing(values, ())
    rows = np.flatnonzero(~missing_R)
    if wrong is None:
        at = next((int(r) for r in rows if not isinstance(values.iloc[r], str)), None)
        if at is not None:
            wrong = f"a {type(values.iloc[at]).__name__} in row {at}, counting from 0,"
    if wrong is None and not few and len(rows) and all(NUMBER.fullmatch(text.strip()) for text in values.iloc[rows]):
        wrong = "numbers"
    if wrong:
        raise InputError(f"{what} has {wrong} and not texts: give a {wanted}, or use numbers as features")
    return [text if known else "" for text, known in zip(values, ~missing_R, strict=True)]
