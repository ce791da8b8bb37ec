"""ARFF, the tables of Weka: a line for each column, and then rows of values."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core.errors import InputError
from idiolect.data.custom.form import Form, check_names

log = logging.getLogger(__name__)

_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)\s+(.+)""", re.IGNORECASE)
_NUMBERS = ("numeric", "real", "integer")
_KINDS = (*_NUMBERS, "string", "date")


def arff(path: Path, form: Form = Form()) -> pd.DataFrame:  # noqa: B008  immutable
    """An ARFF file; ``?`` is a missing value.

    One with rows alone gets the names of the form for its columns, or else 1, 2, ...

    Raises:
        InputError: a line is not understood, a row has another number of values, or a number is a text.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        lines = path.read_bytes().decode("latin-1").splitlines()
    columns: list[tuple[str, str]] = []
    start = 0
    for number, line in enumerate(map(str.strip, lines), 1):
        word = line.partition(" ")[0].partition("\t")[0].lower()
        if word == "@data":
            start = number
            break
        if word == "@attribute":
            columns.append(_attribute(path, number, line))
        elif line and not line.startswith("%") and word != "@relation":
            if columns or line.startswith("@"):
                raise InputError(f"{path}: line {number} is not ARFF: give @attribute lines, then @data, then the rows")
            break
    rows = [line for line in map(str.strip, lines[start:]) if line and not line.startswith("%")]
    if not rows:
        raise InputError(f"{path} has no rows: add some, below a line @data")
    if any(row.startswith("{") for row in rows):
        raise InputError(f"{path} has sparse rows, in braces: save it with all values in each row")
    frame = _table(path, rows, len(columns) or None)
    if columns and form.nameless:
        what = "columns" if form.names else "header"
        raise InputError(f"{what} is for tables without names, and {path} has @attribute lines: leave it out")
    if form.names:
        check_names(form.names, frame.shape[1], path)
    elif not columns and not form.nameless:
        log.warning("%s has no @attribute lines: its columns are called 1 to %d", path, frame.shape[1])
    names = [name for name, _ in columns] or form.names_for(frame.shape[1])
    frame.columns = pd.Index(names)
    is_plain = len(set(names)) == len(names)  # else there is a message of its own
    for name, marks in (form.marks(names) if is_plain else {}).items():
        for own, kind in columns or [(own, _NUMBERS[0]) for own in names]:
            if own == name or (name is None and kind in _NUMBERS):
                frame[own] = frame[own].mask(frame[own].isin(marks))
    if not columns:
        return frame.apply(_guess)
    read = [
        _numbers(frame.iloc[:, k], f"column {name!r} of {path}") if kind in _NUMBERS else frame.iloc[:, k]
        for k, (name, kind) in enumerate(columns)
    ]
    return pd.concat(read, axis=1)


def _attribute(path: Path, number: int, line: str) -> tuple[str, str]:
    match = _ATTRIBUTE.fullmatch(line)
    kind = match[2].strip().lower().split()[0] if match else ""
    if match is None or not (kind.startswith("{") or kind in _KINDS):
        raise InputError(
            f"{path}: line {number} is not understood: write @attribute, the name and numeric, string, date or the "
            "values in braces"
        )
    name = match[1]
    return (re.sub(r"\\(.)", r"\1", name[1:-1]) if name[0] in "'\"" else name), kind


def _table(path: Path, rows: list[str], width: int | None) -> pd.DataFrame:
    quote = "'" if any("'" in row for row in rows) and not any('"' in row for row in rows) else '"'
    try:
        frame = pd.read_csv(
            io.StringIO("\n".join(rows)), header=None, dtype=str, quotechar=quote, escapechar="\\",
            skipinitialspace=True, keep_default_na=False, na_values=["?"],
        )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.EmptyDataError):
        raise InputError(
            f"{path} has rows with different numbers of values: give each row one for each column"
        ) from None
    if width is not None and frame.shape[1] != width:
        raise InputError(
            f"{path} has {width} @attribute lines and rows of {frame.shape[1]} values: give each row one a column"
        )
    stripped: pd.DataFrame = frame.apply(lambda values: values.str.strip())
    return stripped


def _numbers(values: pd.Series[Any], what: str) -> pd.Series[Any]:
    numbers = pd.to_numeric(values, errors="coerce")
    wrong = numbers.isna() & values.notna()
    if wrong.any():
        raise InputError(
            f"{what} has {int(wrong.sum())} texts where its @attribute line says numbers (the first in row "
            f"{int(wrong.to_numpy().argmax())}, counting from 0): correct them, or write ? where a value is missing"
        )
    return numbers


def _guess(values: pd.Series[Any]) -> pd.Series[Any]:
    """A column as numbers where all its known values are."""
    numbers = pd.to_numeric(values, errors="coerce")
    return values if (numbers.isna() & values.notna()).any() else numbers
