"""Text files with separated values, read into frames."""

from __future__ import annotations

import codecs
import csv
import io
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import InputError, option
from idiolect.core.option_spec import split_names
from idiolect.data.custom.columns import NUMBER, check_frame, find_target, listed, targets_in
from idiolect.data.custom.form import Form, check_names
from idiolect.data.custom.numbers import INFINITE, MISSING, PLAIN, Evidence, Marks, fit, numbers, plain, readings_of
from idiolect.data.custom.questions import question_in

# R rows, N cells of all columns, C columns

log = logging.getLogger(__name__)

EXCEL = re.compile(r"sep=(.)\r?\n")
"""A first line that Excel understands."""
_BLANK = re.compile(r"^[ \t]+(?=\r?$)", re.MULTILINE)
_ZEROS = re.compile(r"^([+-]?\d+)\.0*$")
SPACES = r"\s+"
"""The separator of a table whose cells stand between spaces."""
PICTURES = "file_name"
"""The column of the paths of images."""


class Roles(NamedTuple):
    """What the columns of a table are for: the others are features.

    Attributes:
        target: the column of labels, whose texts are the names of classes; None for the only one with a usual name.
        texts: further columns that stay texts, such as that of the clients.
        drop: columns that are left out, of which several may be joined by +; they stay texts too.
        features: says of a column's name whether it is a feature; None for all others.
        as_texts: says of a feature's name whether its cells stay texts, also where all look like numbers.
        scale_of: of features the mean and the standard deviation, to choose where nothing else decides how numbers are
            written.
        form: how the files are written.
    """

    target: str | None = None
    texts: Collection[str] = ()
    drop: Sequence[str] = ()
    features: Callable[[str], bool] | None = None
    as_texts: Callable[[str], bool] | None = None
    scale_of: Callable[[str], tuple[float, float] | None] | None = None
    form: Form = Form()

    def label(self, columns: Sequence[str]) -> str | None:
        """The target column, if there is one; a feature with the usual name of a target is none."""
        if self.target is None and self.features is not None:
            columns = [name for name in columns if not self.features(name)]
        try:
            return find_target(columns, self.target, "")
        except InputError:
            return None

    def feature_columns(self, columns: Sequence[str]) -> list[str]:
        """The columns of features."""
        out = [name for text in self.drop for name in split_names(text, columns)]
        rest = [name for name in columns if name not in (self.label(columns), *self.texts, *out)]
        return [name for name in rest if self.features is None or self.features(name)]

    def missing(self, columns: Sequence[str], features: Collection[str]) -> dict[str, tuple[str, ...]]:
        """The texts by which a value of a column is missing: of every feature, and of others that have marks.

        Those of the target are another matter, see ``unlabelled``.
        """
        by = self.form.marks(columns)
        usual = (*MISSING, *by.pop(None, []))
        own = {name: ("", *marks) for name, marks in by.items() if name not in (None, self.label(columns))}
        return own | {name: (*usual, *own.get(name, ())) for name in features}


class _Cells(NamedTuple):
    """A text file as it is written."""

    path: Path
    separator: str
    columns: dict[str, pd.Series[Any]]
    """Stripped texts, NaN where a cell is empty."""
    line_R: NDArray[np.int64]
    """The number of each row, as a person counts them."""


def read_csv(path: Path, roles: Roles | None = None) -> pd.DataFrame:
    """As ``read_csvs``, of one file."""
    return read_csvs([path], roles or Roles())[path].reset_index(drop=True)


def read_csvs(paths: Sequence[Path], roles: Roles) -> dict[Path, pd.DataFrame]:
    """Read files of separated values with a line of names, or without one where ``roles`` has the names.

    Columns of numbers or truth values become such, except those that are no features. The separator is the comma,
    semicolon, tab or bar that is most frequent in the line of names. The decimal mark, and the mark between thousands,
    are decided once for all files, from all their columns of numbers (see ``Evidence.marks``). Empty cells are missing
    values; of features, so are the texts ``MISSING``. The index of each table has the numbers of its rows as a person
    counts them: the line of names is row 1, and empty lines count.

    Raises:
        InputError: a file is not text, has no rows or no line of names, or a line has too many cells; or columns
            contradict each other about the marks.
    """
    files = [_cells(path, roles.form) for path in paths]
    evidence, bits, targets = Evidence(), [], set()
    for file in files:
        columns = list(file.columns)
        label, features = roles.label(columns), roles.feature_columns(columns)
        missing_of = roles.missing(columns, features)
        for name, marks in missing_of.items():
            file.columns[name] = without_missing(file.columns[name], marks)
        if label is not None and label not in missing_of:
            file.columns[label] = _known_amounts(file.columns[label], roles.form.marks(columns).get(label, ()))
        values = [name for name in features if not (roles.as_texts and roles.as_texts(name))]
        candidates = {name: file.columns[name] for name in (*values, label) if name is not None}
        bits_C = readings_by(candidates)
        bits.append(dict(zip(candidates, bits_C, strict=True)))
        targets |= {label} if label is not None else set()
        if PICTURES not in file.columns:  # beside images, columns are no features
            evidence.add(str(file.path), candidates, bits_C)
    marks = marks_of(evidence, listed(paths, 3), [file.separator for file in files], targets, roles)
    return {
        file.path: pd.DataFrame(
            convert(file.columns, PLAIN if PICTURES in file.columns else marks, bits_of, roles)
        ).set_axis(file.line_R)
        for file, bits_of in zip(files, bits, strict=True)
    }


def marks_of(
    evidence: Evidence, where: str, separators: Sequence[str], targets: Collection[str], roles: Roles
) -> Marks:
    """As ``Evidence.marks``, with what is known of features."""
    scales = {name: about for name in evidence.names if (about := roles.scale_of and roles.scale_of(name))}
    return evidence.marks(where, separators, targets, scales)


def without_missing(column: pd.Series[Any], marks: Collection[str] = MISSING) -> pd.Series[Any]:
    """A column's texts with NaN where one says that the value is missing."""
    return column.mask(column.isin(marks))


def _known_amounts(column: pd.Series[Any], marks: Collection[str]) -> pd.Series[Any]:
    """A target with NaN where one of the texts for that stands among numbers; as it is if it has other texts."""
    known = without_missing(column, (*MISSING, *marks))
    return known if known.notna().any() and all(readings_by({"": known})) else column


def readings_by(columns: Mapping[str, pd.Series[Any]]) -> list[int]:
    """The ways in which each of some columns is numbers (see ``readings_of``)."""
    # All columns end to end: one by one, the thousands of columns of a wide table would take a minute.
    bits_C = readings_of(pd.concat(columns.values(), ignore_index=True), len(columns)) if columns else ()
    return [int(bits) for bits in bits_C]


def convert(
    columns: Mapping[str, pd.Series[Any]], marks: Marks, bits: Mapping[str, int], roles: Roles
) -> dict[str, pd.Series[Any]]:
    """Columns of features as numbers, truth values or texts, and the texts of the target as names of classes.

    Args:
        columns: stripped texts, NaN where a value is missing.
        marks: in which numbers are written.
        bits: the ways in which the columns of features and the target are numbers.
        roles: of the columns.
    """
    label = roles.label(list(columns))
    result = {}
    for name, column in columns.items():
        if name in bits and not bits[name] and column.dropna().str.lower().isin(["true", "false"]).all():
            column = column.str.lower().map({"true": True, "false": False})
            column = column.map({True: "True", False: "False"}) if name == label else column
        elif name in bits and fit(bits[name], marks):
            column = plain(column, marks)
            column = _classes(column) if name == label else numbers(column)
        result[name] = column
    return result


def _cells(path: Path, form: Form) -> _Cells:
    text = decode(path)
    excel = EXCEL.match(text)
    text = text[excel.end() :] if excel else text
    text = _BLANK.sub("", text) if _BLANK.search(text) else text
    empty = len(text) - len(text.lstrip("\r\n"))
    above, text = text.count("\n", 0, empty), text[empty:]
    separator = excel[1] if excel else separator_of(text, path)
    how: dict[str, Any] = {"sep": separator, "header": None, "dtype": str, "skipinitialspace": True}
    how |= {"keep_default_na": False, "na_values": [""], "skip_blank_lines": False}  # so that they count
    try:
        names = pd.read_csv(io.StringIO(text), nrows=1, **how)
        raw = pd.read_csv(io.StringIO(text), **how)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = str(error).strip().rpartition("error: ")[2].lower()
        raise InputError(f"{path} is not a table ({reason}): give every line one cell for each name") from error
    if separator != SPACES and raw.iloc[:, -1].isna().any():
        _say_short_lines(path, text, separator, raw.shape[1], above)
    if form.names:
        check_names(form.names, raw.shape[1], path)
    if form.nameless:
        header = form.names_for(raw.shape[1])
    else:
        header = ["" if pd.isna(name) else str(name).strip() for name in names.iloc[0]]
    places = [i for i, name in enumerate(header) if name]
    if len(places) < len(header):
        log.warning("%s: %d columns without a name are left out", path, len(header) - len(places))
    frame = raw.iloc[0 if form.nameless else 1 :, places].dropna(how="all")
    frame.columns = pd.Index([header[i] for i in places])
    if frame.columns.has_duplicates and looks_like_data(header):
        raise no_header(path, header)
    check_frame(frame, str(path))
    cell_N = pd.concat([frame[name] for name in frame], ignore_index=True).str.strip()
    cell_N = cell_N.mask(cell_N == "")
    R = len(frame)
    return _Cells(
        path,
        separator,
        {name: cell_N.iloc[k * R : (k + 1) * R].reset_index(drop=True) for k, name in enumerate(frame)},
        frame.index.to_numpy() + above + 1,
    )


def _say_short_lines(path: Path, text: str, separator: str, width: int, above: int) -> None:
    """Say which lines have fewer cells than the first: spreadsheets leave out empty ones, and a file may be cut."""
    short = list[int]()
    with suppress(csv.Error):  # a cell that is too long for the module
        for number, cells in enumerate(csv.reader(io.StringIO(text), delimiter=separator), above + 1):
            if any(cells) and len(cells) < width:
                short.append(number)
    if short:
        log.warning(
            "%s: rows with fewer than %d cells: %s; the cells that they lack are taken as empty",
            path, width, listed(short, 3),
        )  # fmt: skip


def looks_like_data(names: list[str]) -> bool:
    """Whether a line of column names looks like a row."""
    return any(NUMBER.fullmatch(name) for name in names)


def check_target(path: Path, columns: list[str], target: str | None, form: Form) -> None:
    """Check that a file has the target, or the column that it asks of.

    Raises:
        InputError: it has not; where its first line looks like a row, this is said.
    """
    try:
        if question_in(target, columns, str(path)) is None:
            targets_in(columns, target, str(path))
    except InputError:
        if looks_like_data(columns) and not form.nameless:
            raise no_header(path, columns) from None
        raise


def no_header(path: Path, names: list[str]) -> InputError:
    """The error for a file whose line of column names looks like a row."""
    numbers = sum(NUMBER.fullmatch(name) is not None for name in names)
    what = f"a line of which {numbers} of {len(names)} cells are numbers"
    return InputError(
        f"{path} begins with {what}, which looks like data: add a first line of column names, name the columns with "
        f"{option('columns')}, joined by +, or give {option('header', 'none')} to call them 1, 2, ..."
    )


def decode(path: Path) -> str:
    """The text of a file, in UTF-8 or UTF-16; anything else is read as latin-1, with a warning.

    Raises:
        InputError: it is no text.
    """
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in content:
        raise InputError(f"{path} is not a text file: save it as CSV in UTF-8")
    else:
        encoding = "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        log.warning("%s is not in UTF-8 and is read as latin-1: check its letters, or save it in UTF-8", path)
        return content.decode("latin-1")


def separator_of(text: str, path: Path) -> str:
    """What separates the cells of a table: the comma, semicolon, tab or bar that is most frequent in its first line.

    In a .data file without any of these, spaces do.
    """
    plain = re.sub(r'"(?:[^"]|"")*"', "", text[:100_000])
    first = next(filter(str.strip, plain.splitlines()), "")
    if path.suffix.lower() == ".data" and not any(mark in first for mark in ",;\t|"):
        return SPACES
    return max(",;\t|", key=first.count)


def _classes(column: pd.Series[Any]) -> pd.Series[Any]:
    """The names of classes that are numbers, as they are written, but 2.0 as 2; infinite ones as such."""
    names = column.str.replace(_ZEROS, r"\1", regex=True).astype(object)
    return names.mask(column.str.fullmatch(INFINITE).fillna(False).astype(bool), np.inf)
