"""The cells of a site's column, beside what a bundle knows of this column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from idiolect.core.errors import InputError, listed
from idiolect.data.custom.columns import NUMBER, by_value, missing, text_of
from idiolect.data.datasets.dataset import Encoding

MANY = 20
"""Cells, none of which is known, that show that a column is not the one that was meant; fewer may be rare texts."""


def has_codes(encoding: Encoding) -> bool:
    """Whether the texts of a bundle's column are the codes of categories, which are numbers, or truth values."""
    return encoding.kind == "text" and all(
        _code(text) == text and (NUMBER.fullmatch(text) or text in ("True", "False")) for text in encoding.texts if text
    )


def as_coded(encoding: Encoding, values: pd.Series[Any]) -> pd.Series[Any]:
    """A site's column, with texts such as 1.0, 01 or true as the code that they are where the bundle has codes.

    Where a text comes from decides how a code was read: a number of a table with other numbers, or a text.
    """
    if not has_codes(encoding):
        return values
    objects, gone_R = values.astype(object), missing(values)
    if pd.api.types.infer_dtype(objects, skipna=True) != "string":
        return values
    codes_R = by_value(_code, objects.where(~gone_R, ""))
    return pd.Series(codes_R, values.index, name=values.name).mask(gone_R)


def _code(text: str) -> str:
    """The name of the category that a text is the code of; the text if it is none."""
    text = text.strip()
    if NUMBER.fullmatch(text):
        return text_of(float(text))
    return text.title() if text.lower() in ("true", "false") else text


def remarks(
    encoding: Encoding, values: pd.Series[Any], where: str, name: str, *, knows_gaps: bool, shared: set[str]
) -> Iterator[str]:
    """Sentences about empty cells and texts that the bundle does not know.

    Args:
        encoding: the bundle's column.
        values: the site's.
        where: the site's table.
        name: what a person calls the column.
        knows_gaps: whether the bundle has a feature that says where a cell is empty.
        shared: the bundle's columns of which other rows of the table have texts that it knows; this one is added if
            these rows have.

    Raises:
        InputError: there are texts among numbers, or many texts and the bundle knows none.
    """
    gone_R = missing(values)
    if gone_R.any() and not knows_gaps:
        yield f"column {name!r} has empty cells, which it never had in training: the mean is used"
    if encoding.kind == "number" and not pd.api.types.is_numeric_dtype(values):
        texts = pd.to_numeric(values, errors="coerce").isna() & ~gone_R
        if texts.any():
            row = int(np.flatnonzero(texts)[0])
            raise InputError(
                f"column {name!r} of {where} has {int(texts.sum())} texts where the bundle takes numbers (the first in "
                f"row {row}, counting from 0): correct them, or leave the cells empty"
            )
    if encoding.kind == "text":
        is_known = by_value(lambda v: text_of(v) in encoding.texts, values[~gone_R])
        unknown = len(is_known) - int(is_known.sum())
        if unknown < len(is_known):
            shared.add(encoding.name)
        if len(is_known) >= MANY and encoding.name not in shared:
            raise InputError(
                f"column {name!r} of {where} has none of the texts that the bundle knows "
                f"({listed([t for t in encoding.texts if t], 8)}): translate its values into these"
            )
        if unknown:
            yield f"column {name!r} has {unknown} values that the bundle does not know"
