"""Numbers as text files write them: which mark is the decimal mark, and which mark stands between thousands."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from idiolect.core.errors import InputError, listed

# R rows, N cells of all columns, C columns

log = logging.getLogger(__name__)

MISSING = (
    "", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "?",
)  # fmt: skip
"""What a cell of a feature holds where its value is missing, in text files."""
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_SPACES, _APOSTROPHES = " \u00a0\u2009\u202f", "'\u2019"
_KINDS = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
_ANY_MARK = f"[,.{_SPACES}{_APOSTROPHES}]"
_SAMPLE = 1000  # cells of a column by whose size a reading is judged
_NEAR, _FURTHER = 4.0, 2.0  # standard deviations from the mean that one reading has at most, and another more


class Marks(NamedTuple):
    """How numbers are written: the decimal mark, and the mark between thousands ("" for none).

    A space stands for every kind of space, an apostrophe for both kinds.
    """

    decimal: str = "."
    thousands: str = ""


PLAIN = Marks()
READINGS = tuple(Marks(decimal, mark) for decimal, other in ((".", ","), (",", ".")) for mark in ("", other, " ", "'"))
_ALL: int = 2 ** len(READINGS) - 1
_BY_DECIMAL = {mark: sum(1 << k for k, marks in enumerate(READINGS) if marks.decimal == mark) for mark in ".,"}
_POINTS = _BY_DECIMAL["."]
_GROUP = {",": ",", ".": r"\.", " ": f"[{_SPACES}]", "'": f"[{_APOSTROPHES}]"}


def _pattern(marks: Marks) -> str:
    """For Arrow, whose expressions take far less time than Python's."""
    point = re.escape(marks.decimal)
    ways = [rf"([0-9]+{point}?[0-9]*|{point}[0-9]+)([eE][+-]?[0-9]+)?"]
    if marks.thousands:
        ways.append(rf"[1-9][0-9]{{0,2}}({_GROUP[marks.thousands]}[0-9]{{3}})+({point}[0-9]*)?")
    return rf"^[+\-\x{{2212}}]?({'|'.join(ways)})$"


_PATTERNS = tuple(map(_pattern, READINGS))


def readings_of(cell_N: pd.Series[Any], columns: int) -> NDArray[np.int64]:
    """The ways of ``READINGS`` in which all known cells of each column are numbers, as bits (C,).

    ``cell_N`` has the columns end to end, stripped, NaN where missing. -1 if the cells of a column are numbers one by
    one, but in no common way; a column without known cells is as one of plain whole numbers.
    """
    text_N = pa.array(cell_N, pa.string(), from_pandas=True)
    bit_N = np.where(text_N.is_null().to_numpy(False), _ALL, 0)
    if _holds(text_N, "nN"):
        bit_N |= np.where(_matches(text_N, rf"^(?i:{INFINITE.pattern})$"), _ALL, 0)
    marks = [mark for mark in ",." if _holds(text_N, mark)]
    has_spaces = _holds(text_N, _SPACES + _APOSTROPHES)
    if not marks and not has_spaces:
        bit_N |= np.where(_matches(text_N, _PATTERNS[0]), _ALL, 0)
    elif len(marks) == 1 and not has_spaces:
        mark, other = marks[0], "." if marks[0] == "," else ","
        plain, thousands = READINGS.index(Marks(mark)), READINGS.index(Marks(other, mark))
        mask_N = np.where(_truth(pc.match_substring(text_N, mark)), _BY_DECIMAL[mark], _ALL)
        bit_N |= np.where(_matches(text_N, _PATTERNS[plain]), mask_N, 0)
        bit_N |= np.where(_matches(text_N, _PATTERNS[thousands]), 1 << thousands, 0)
    elif not has_spaces:
        for mark, other in (",.", ".,"):
            plain, thousands = READINGS.index(Marks(mark)), READINGS.index(Marks(mark, other))
            bit_N |= np.where(_matches(text_N, _PATTERNS[plain]), _BY_DECIMAL[mark], 0)
            bit_N |= np.where(_matches(text_N, _PATTERNS[thousands]), 1 << thousands, 0)
    else:
        for k, pattern in enumerate(_PATTERNS):
            bit_N |= np.where(_matches(text_N, pattern), 1 << k, 0)
    bit_CR = bit_N.reshape(columns, -1)
    common_C = np.bitwise_and.reduce(bit_CR, axis=1)
    return np.where((common_C == 0) & (bit_CR != 0).all(axis=1), -1, common_C)


def _matches(text_N: pa.Array, pattern: str) -> NDArray[np.bool_]:
    return _truth(pc.match_substring_regex(text_N, pattern))


def _truth(true_N: pa.Array) -> NDArray[np.bool_]:
    """Truth values, false where one is missing."""
    values: NDArray[np.bool_] = pc.fill_null(true_N, False).to_numpy(False)
    return values


def _holds(text_N: pa.Array, characters: str) -> bool:
    """Whether one of these is in a text: one by one, which takes a tenth of the time of an expression."""
    return any(pc.any(pc.match_substring(text_N, one)).as_py() for one in characters)


def _has(text_N: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(text_N, pattern)).as_py())


class Evidence:
    """What columns of text files show of the marks in their numbers; it can be gathered block by block."""

    def __init__(self) -> None:
        self._bits: dict[tuple[str, str], int] = {}
        self._cells: dict[str, list[str]] = {}  # some with marks that do not decide
        self._marks_of: dict[str, set[str]] = {}  # commas and points among these

    def add(self, where: str, frame: Mapping[str, pd.Series[Any]], bit_C: Sequence[int]) -> None:
        """Take in rows of a file: its columns, and the ways in which they are numbers."""
        for (name, column), bits in zip(frame.items(), bit_C, strict=True):
            before, now = self._bits.get((where, name), _ALL), int(bits)
            common = 0 if not before or not now else -1 if -1 in (before, now) else (before & now) or -1
            self._bits[where, name] = common
            cells, marks = self._cells.setdefault(name, []), self._marks_of.setdefault(name, set())
            if now > 0 and now != _ALL and now & _POINTS and now & ~_POINTS:
                texts = column[column.str.contains(_ANY_MARK, na=False)]
                cells += texts.iloc[: max(0, _SAMPLE - len(cells))].tolist()
                marks |= {mark for mark in ",." if mark not in marks and texts.str.contains(mark, regex=False).any()}

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self._cells)

    def bits(self, where: str, name: str) -> int:
        """The ways in which a column is numbers."""
        return self._bits[where, name]

    def marks(
        self, where: str, separators: Sequence[str], targets: Collection[str] = (),
        scales: Mapping[str, tuple[float, float]] | None = None,
    ) -> Marks:  # fmt: skip
        """The marks of all the files, said where they are not those of plain numbers.

        Args:
            where: the files, for messages.
            separators: of the files' cells.
            targets: columns that count only if they agree with the others, because texts may stand in them.
            scales: of some columns the mean and the standard deviation, to choose where nothing else decides.

        Raises:
            InputError: columns contradict each other, or nothing decides.
        """
        numeric = {k: bits for k, bits in self._bits.items() if bits and k[1] not in targets}
        for (file, name), bits in numeric.items():
            if bits == -1:
                raise InputError(
                    f"{file}: column {name!r} has numbers with different decimal marks (commas and points): write all "
                    "with one, or drop the column"
                )
        common = int(np.bitwise_and.reduce([_ALL, *numeric.values()]))
        if not common:
            raise _contradiction(where, numeric)
        for (_, name), bits in self._bits.items():
            if name in targets and bits > 0 and common & bits:
                common &= bits
        bits_of = {name: bits for (_, name), bits in self._bits.items() if bits > 0 and common & bits}
        possible = [marks for k, marks in enumerate(READINGS) if common >> k & 1]
        commas, points = (any(mark in self._marks_of[name] for name in bits_of) for mark in ",.")
        if len({marks.decimal for marks in possible}) == 1 or not (commas or points):
            choice = possible[0]
            commas |= any(not bits & _POINTS for bits in bits_of.values())
            has_thousands = any(not fit(bits, Marks(choice.decimal)) for bits in bits_of.values())
            decimal = "decimal commas" if commas and choice.decimal == "," else ""
            if decimal or has_thousands:
                between = f"{_KINDS[choice.thousands]} between thousands" if has_thousands else ""
                how = " and ".join(filter(None, [decimal, between]))
                cells = "cells are separated by semicolons, and " if decimal and set(separators) == {";"} else ""
                log.warning("%s: %snumbers are read with %s", where, cells, how)
            return choice
        return self._likeliest(where, possible, separators, commas, scales or {})

    def _likeliest(
        self, where: str, possible: Sequence[Marks], separators: Sequence[str], commas: bool,
        scales: Mapping[str, tuple[float, float]],
    ) -> Marks:  # fmt: skip
        """The marks where all numbers with marks are such as 1,234 or 1.234."""
        by_decimal = {marks.decimal: marks for marks in reversed(possible)}
        example = "1,234" if commas else "1.234"
        nearest = self._nearest(by_decimal, scales)
        if nearest is not None:
            decimal, why = nearest, "because the numbers are then near those of the training"
        elif not commas:
            if set(separators) == {","}:
                return by_decimal["."]
            decimal, why = ".", "as no number of the file has a decimal comma"
        elif set(separators) <= {","}:
            decimal, why = ".", "because commas separate the cells"
        elif set(separators) == {";"}:
            decimal, why = ",", "because semicolons separate the cells"
        else:
            raise InputError(
                f"{where}: nothing shows whether a number such as 1,234 is 1234 or 1.234: write the numbers without "
                "commas between thousands, and with decimal points"
            )
        value = "1.234" if (decimal == ",") == commas else "1234"
        log.warning(
            "%s: a number such as %s is read as %s, %s: if that is wrong, write the numbers with decimal points and "
            "nothing between thousands",
            where, example, value, why,
        )  # fmt: skip
        return by_decimal[decimal]

    def _nearest(self, by_decimal: Mapping[str, Marks], scales: Mapping[str, tuple[float, float]]) -> str | None:
        """The decimal mark with which numbers are clearly nearer to known means; None if none is."""
        distances: dict[str, list[float]] = {decimal: [] for decimal in by_decimal}
        for name, (mean, std) in scales.items():
            cells = pd.Series([cell for cell in self._cells.get(name, []) if "," in cell or "." in cell], dtype=str)
            for decimal, marks in by_decimal.items():
                if len(cells):
                    x_N = plain(cells, marks).astype(np.float64)
                    distances[decimal].append(float((x_N - mean).abs().median()) / std)
        best, *others = sorted((max(each), decimal) for decimal, each in distances.items() if each) or [(np.inf, "")]
        clear = best[0] <= _NEAR and all(other[0] > best[0] + _FURTHER for other in others)
        return best[1] if clear else None


def plain(column: pd.Series[Any], marks: Marks) -> pd.Series[Any]:
    """Numbers as Python writes them: a decimal point, and nothing between thousands."""
    text_R = pc.replace_substring(pa.array(column, pa.string(), from_pandas=True), "\u2212", "-")
    if marks.thousands:
        text_R = pc.replace_substring_regex(text_R, _GROUP[marks.thousands], "")
    if marks.decimal != ".":
        text_R = pc.replace_substring(text_R, marks.decimal, ".")
    return pd.Series(text_R.to_pandas(), index=column.index, dtype=column.dtype)


def numbers(text_R: pd.Series[Any]) -> pd.Series[Any]:
    """Plain numbers as such: whole ones as int64 if none is missing and all fit into it, else float64."""
    text = pc.utf8_ltrim(pa.array(text_R, pa.string(), from_pandas=True), characters="+")
    if not text.null_count and not _has(text, "[^0-9-]"):
        with suppress(pa.ArrowInvalid):
            return pd.Series(pc.cast(text, pa.int64()).to_numpy(), index=text_R.index)
    return pd.Series(pc.cast(text, pa.float64()).to_numpy(False), index=text_R.index)


def fit(bits: int, marks: Marks) -> bool:
    """Whether these bits of ``readings`` have these marks."""
    return bits > 0 and bool(bits >> READINGS.index(marks) & 1)


def fit_commas(bits: int) -> bool:
    """Whether these bits of ``readings`` have a decimal comma."""
    return bool(bits & ~_POINTS & _ALL)


def _contradiction(where: str, bits_of: Mapping[tuple[str, str], int]) -> InputError:
    """The error for columns that agree on no marks, with two of them that differ, if there are two."""

    def pairs() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        keys = {bits: key for key, bits in bits_of.items()}
        yield from ((keys[a], keys[b]) for a in keys for b in keys if not a & b)

    def words(key: tuple[str, str]) -> str:
        decimals = {marks.decimal for k, marks in enumerate(READINGS) if bits_of[key] >> k & 1}
        how = {frozenset("."): "decimal points", frozenset(","): "decimal commas"}.get(frozenset(decimals), "")
        file = f" of {key[0]}" if len({file for file, _ in bits_of}) > 1 else ""
        return f"column {key[1]!r}{file}" + (f" has {how}" if how else "")

    pair = next(pairs(), None)
    parts = " and ".join(map(words, pair)) if pair else f"columns {listed(sorted({name for _, name in bits_of}), 5)}"
    return InputError(
        f"{where} writes numbers in different ways ({parts}): write all with one decimal mark and one mark between "
        "thousands, or drop the columns that differ"
    )
