"""Frames made into features."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError, option
from idiolect.data.custom import readings
from idiolect.data.custom.columns import MOST_TEXTS, NUMBER, by_value, codes, listed, missing, shift_of, text_of
from idiolect.data.custom.names import alike
from idiolect.data.custom.unlabelled import Lines
from idiolect.data.datasets.dataset import Encoding

# R samples, F features

log = logging.getLogger(__name__)

_BLOCK = 4096  # rows that are copied at a time
_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean")
_TEXTS = ("string", "categorical")
_TIMES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")


# --- features


def fit_table(frame: pd.DataFrame, where: str, without_gaps: Collection[str] = ()) -> tuple[Encoding, ...]:
    """How the columns of a table become features.

    Numbers stay as they are, NaN if missing, and texts become one 0/1 feature for each text. If float32 cannot tell the
    numbers of a column apart, such as 100000000 and 100000001, its median is subtracted.

    A column of numbers with gaps also gives the 0/1 feature "<column> is missing"; a column of texts with gaps the
    feature "<column>=missing"; not those named ``without_gaps``. Columns with only one value are left out, and so are
    those of free text, which is said.

    Raises:
        InputError: a column holds dates that are not understood, lists or too many texts, a number is infinite, or no
            feature is left.
    """
    every = fit_columns(frame, without_gaps)
    informative = tuple(encoding for encoding in every if encoding.features)
    if constant := [one.name for one in every if not one.features and not is_free_text(frame[one.name])]:
        log.warning("%s: columns with only one value are left out: %s", where, listed(constant))
    if not informative:
        raise InputError(f"{where} has no feature besides target and client: keep a column with different values")
    return informative


def fit_columns(frame: pd.DataFrame, without_gaps: Collection[str] = ()) -> tuple[Encoding, ...]:
    """As ``fit_table``, for every column; one with only one value, or of free text, gives no feature.

    Raises:
        InputError: a column holds dates that are not understood, lists or too many texts, or a number is infinite.
    """
    every = [_fit(values, str(name)) for name, values in frame.items()]
    return tuple(replace(one, gaps=False) if one.name in without_gaps else one for one in every)


def is_free_text(values: pd.Series[Any]) -> bool:
    """Whether a column has sentences that hardly repeat, as notes do: no categories."""
    if pd.api.types.infer_dtype(values, skipna=True) not in _TEXTS:
        return False
    known = values[~missing(values)].astype(object)
    different = known.map(text_of).unique().tolist()
    few = len(different) <= MOST_TEXTS and 2 * len(different) <= len(known)
    return bool(different) and not few and readings.are_sentences(different)


def encode(encodings: Sequence[Encoding], frame: pd.DataFrame | Mapping[str, pd.Series[Any]]) -> Tensor:
    """The features of a table: (R, F), float32; a text that an encoding does not know gives zeros.

    Raises:
        InputError: a column of numbers has texts, or a number is infinite.
    """
    features = [feature_R for encoding in encodings for feature_R in _features(encoding, frame[encoding.name])]
    x_RF = np.empty((len(features[0]), len(features)), np.float32)
    for start in range(0, len(x_RF), _BLOCK):  # what fits into the processor's cache
        rows = slice(start, start + _BLOCK)
        np.stack([feature_R[rows] for feature_R in features], axis=1, out=x_RF[rows])
    return torch.from_numpy(x_RF)


def as_they_are(encodings: Sequence[Encoding], frame: pd.DataFrame) -> Tensor | None:
    """As ``encode``, and faster, of known, finite floating-point numbers that do not change; None of all others."""
    if any(one.kind != "number" or not one.value or one.gaps or one.shift for one in encodings):
        return None
    if frame.empty or not all(dtype in (np.float32, np.float64) for dtype in frame.dtypes):
        return None
    with np.errstate(over="ignore"):
        x_RF = torch.from_numpy(frame.to_numpy().astype(np.float32, order="C"))
    return x_RF if torch.stack(x_RF.aminmax()).isfinite().all() else None


def _fit(values: pd.Series[Any], name: str) -> Encoding:
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in _NUMBERS:
        return _fit_number(values, name)
    if kind in _TEXTS:
        return _fit_text(values, name)
    if kind == "empty":
        return Encoding(name, value=False)
    if kind in _TIMES:
        raise _dates(name)
    raise InputError(
        f"column {name!r} has values of mixed or unknown type ({kind}): make them numbers or texts, or drop it"
    )


def _fit_number(values: pd.Series[Any], name: str) -> Encoding:
    x_R = _finite(values, name).astype(np.float64, copy=False)
    missing_R = np.isnan(x_R)
    if readings.are_date_numbers(x_R[~missing_R]):
        raise _dates(name, " such as 20240105")
    different = np.unique(x_R[~missing_R])
    shift = shift_of(x_R)
    if shift:
        log.info("the median of column %r was subtracted, because 32 bits cannot tell its numbers apart", name)
    return Encoding(
        name,
        value=len(different) > 1,
        gaps=bool(missing_R.any() and len(different)),
        shift=shift,
        scaled=not np.isin(different, (0, 1)).all(),
    )


def _fit_text(values: pd.Series[Any], name: str) -> Encoding:
    missing_R = missing(values)
    if missing_R.all():
        return Encoding(name, value=False)
    _, names = codes(values[~missing_R].astype(object), f"column {name!r}")
    if readings.are_dates(names):
        raise _dates(name)
    if is_free_text(values):
        log.warning(
            "column %r has free text and is left out: give %s to learn from it in place of the other columns, or drop "
            "it", name, option("text", name),
        )  # fmt: skip
        return Encoding(name, value=False)
    texts = [text for text in names if not NUMBER.fullmatch(text)]
    seems = _seems(names, isinstance(values.dtype, pd.CategoricalDtype))
    if len(names) > MOST_TEXTS:
        raise InputError(
            f"column {name!r} has {len(names)} different texts, more than {MOST_TEXTS}{_first(values, texts)}: "
            "drop it if it is an identifier, correct it if it should be numbers, or merge rare texts"
            + (f"; it seems to have {seems}" if seems else "")
        )
    if 0 < len(texts) < len(names) / 2:
        log.warning("column %r is read as text, although most values are numbers%s", name, _first(values, texts))
    elif seems:
        log.warning("column %r seems to have %s; as it is, each text becomes a category", name, seems)
    elif groups := alike(names):
        rows = [sorted(_row(values, [text]) for text in group)[1] for group in groups]  # of the second writing
        log.warning(
            "column %r has texts that differ only in letter case, spaces or the writing of a number, and become "
            "different categories (the first in row %d, counting from 0): write them in one way if they are the same",
            name, min(rows),
        )  # fmt: skip
    if len(names) == 1 and not missing_R.any():
        return Encoding(name, value=False)
    return Encoding(name, "text", names, gaps=bool(missing_R.any()))


def _seems(texts: Sequence[str], categories: bool) -> str:
    """What texts seem to be that should be numbers, and what to do; "" for categories."""
    if readings.are_quantities(texts):
        return "numbers with units: write the numbers alone, all in one unit"
    if readings.are_pairs(texts):
        return "pairs of numbers, as 120/80: write each number into a column of its own"
    if not categories and all(map(NUMBER.fullmatch, texts)):
        return "numbers that are texts: convert them to numbers"
    if readings.are_digit_groups(texts):
        return "numbers with marks that are not understood: write them without marks between thousands"
    return ""


def _features(encoding: Encoding, values: pd.Series[Any]) -> list[NDArray[np.float32]]:
    """The features of a column, in the order of their names."""
    if encoding.kind == "text":
        missing_R = missing(values)
        text_R = np.full(len(values), None, object)
        text_R[~missing_R] = by_value(text_of, values[~missing_R])
        masks = [text_R == text for text in encoding.texts] + [missing_R] * encoding.gaps
        return [feature_R.astype(np.float32) for feature_R in masks]
    x_R = _finite(values, encoding.name)
    number_R = (x_R.astype(np.float64) - encoding.shift if encoding.shift else x_R).astype(np.float32, copy=False)
    return [number_R] * encoding.value + [np.isnan(x_R).astype(np.float32)] * encoding.gaps


def check_finite(frame: pd.DataFrame, columns: Sequence[str], where: str, lines: Lines) -> None:
    """Check the numbers of some of a file's columns, while its rows still have their numbers.

    Raises:
        InputError: one is infinite, or too large for float32.
    """
    for name in (c for c in columns if pd.api.types.is_float_dtype(frame[c])):
        endless_R = np.abs(frame[name].to_numpy(np.float64, na_value=np.nan)) > np.finfo(np.float32).max
        if endless_R.any():
            raise InputError(
                f"column {name!r} of {where} has an infinite or too large number in {endless_R.sum()} rows (the first "
                f"is row {lines.number_R[endless_R.argmax()]}, {lines.how}): correct it, leave it empty, or drop the "
                "column"
            )


def _finite(values: pd.Series[Any], name: str) -> NDArray[np.float32 | np.float64]:
    """The numbers of a column, NaN if missing; with 32 bits if they have no more."""
    x_R = values.to_numpy() if values.dtype == np.float32 else _doubles(values)
    largest = np.finfo(np.float32).max
    if x_R.min(initial=0) >= -largest and x_R.max(initial=0) <= largest:  # and none is NaN
        return x_R
    endless = np.flatnonzero(np.abs(x_R) > largest)
    if endless.size:
        raise InputError(
            f"column {name!r} has an infinite or too large number in {endless.size} rows (the first is row "
            f"{endless[0]}, counting from 0): correct it, leave it empty, or drop the column"
        )
    return x_R


def _doubles(values: pd.Series[Any]) -> NDArray[np.float64]:
    try:
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    except OverflowError:  # Python's whole numbers have no limit
        floats = values.map(lambda v: np.inf if isinstance(v, int) and abs(v) > sys.float_info.max else v)
        return floats.to_numpy(dtype=np.float64, na_value=np.nan)


def _first(values: pd.Series[Any], texts: list[str]) -> str:
    """Where the first of some texts is; a message never shows the value of a feature."""
    if not texts:
        return ""
    row = _row(values, texts)
    return f" ({len(texts)} of them are not numbers, the first in row {row}, counting from 0)"


def _row(values: pd.Series[Any], texts: list[str]) -> int:
    """The first row that has one of some texts."""
    return int(np.flatnonzero(values.astype(object).map(lambda v: str(v).strip()).isin(texts))[0])


def _dates(name: str, such: str = "") -> InputError:
    return InputError(
        f"column {name!r} has dates or times{such} that are not understood: write them as 2024-01-31 or 2024-01-31 "
        "08:30, leave cells empty where there is none, or drop the column"
    )
