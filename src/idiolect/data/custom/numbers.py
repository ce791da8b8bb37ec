"""Numbers as text files write them: which mark is the decimal mark, and which mark stands between thousands."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import InputError, listed
from idiolect.data.custom.columns import NUMBER

# R rows, N cells of all columns, C columns

log = logging.getLogger(__name__)

MISSING = (
    "", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "?",
)  # fmt: skip
"""What a cell of a feature holds where its value is missing, in text files."""
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_SPACES, _APOSTROPHES = " \u00a0\u2009\u202f", "'\u2019"
_KINDS = {",": "commas", ".": "points", " ": "spaces", "'": "apostrophes"}
_MARKED = f"[,.{_SPACES}{_APOSTROPHES}]"
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
_POINTS: int = sum(1 << k for k, marks in enumerate(READINGS) if marks.decimal == ".")
_GROUPED_POINTS = 1 << READINGS.index(Marks(",", "."))
_GROUP = {"": "(?!)", ",": ",", ".": r"\.", " ": f"[{_SPACES}]", "'": f"[{_APOSTROPHES}]"}


def _pattern(marks: Marks) -> re.Pattern[str]:
    point = re.escape(marks.decimal)
    plain = rf"(\d+{point}?\d*|{point}\d+)([eE][+-]?\d+)?"
    grouped = rf"[1-9]\d{{0,2}}({_GROUP[marks.thousands]}\d{{3}})+({point}\d*)?"
    return re.compile(rf"[+\-\u2212]?({plain}|{grouped})")


_PATTERNS = tuple(map(_pattern, READINGS))


def readings(text: str) -> int:
    """The ways of ``READINGS`` in which a text is a number, as bits; 0 if it is none."""
    if NUMBER.fullmatch(text):
        if "." not in text:
            return _ALL
        return _POINTS | (_GROUPED_POINTS if _PATTERNS[READINGS.index(Marks(",", "."))].fullmatch(text) else 0)
    return sum(1 << k for k, pattern in enumerate(_PATTERNS) if pattern.fullmatch(text))


def readings_of(cell_N: pd.Series[Any], columns: int) -> NDArray[np.int64]:
    """The ways in which all known cells of each column are numbers, as bits (C,).

    ``cell_N`` has the columns end to end, stripped, NaN where missing. -1 if the cells of a column are numbers one by
    one, but in no common way; a column without known cells is as one of plain whole numbers.
    """
    code_N, different = pd.factorize(cell_N)  # -1 if missing
    bits = np.array([_ALL if INFINITE.fullmatch(text) else readings(text) for text in different], np.int64)
    bit_CR = np.append(bits, _ALL)[code_N].reshape(columns, -1)
    common_C = np.bitwise_and.reduce(bit_CR, axis=1)
    return np.where((common_C == 0) & (bit_CR != 0).all(axis=1), -1, common_C)


class Evidence:
    """What columns of text files show of the marks in their numbers; it can be gathered block by block."""

    def __init__(self) -> None:
        self._bits: dict[tuple[str, str], int] = {}
        self._cells: dict[str, list[str]] = {}  # some with marks
        self._seen: dict[str, set[str]] = {}  # commas and points in a column

    def add(self, where: str, frame: Mapping[str, pd.Series[Any]], bit_C: Sequence[int]) -> None:
        """Take in rows of a file: its columns, and the ways in which they are numbers."""
        for (name, column), bits in zip(frame.items(), bit_C, strict=True):
            before, now = self._bits.get((where, name), _ALL), int(bits)
            both = 0 if not before or not now else -1 if -1 in (before, now) else (before & now) or -1
            self._bits[where, name] = both
            cells, seen = self._cells.setdefault(name, []), self._seen.setdefault(name, set())
            if both > 0 and now != _ALL:
                marked = column[column.str.contains(_MARKED, na=False)]
                cells += marked.iloc[: max(0, _SAMPLE - len(cells))].tolist()
                seen |= {mark for mark in ",." if mark not in seen and marked.str.contains(mark, regex=False).any()}

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self._cells)

    def bits(self, where: str, name: str) -> int:
        """The ways in which a column is numbers."""
        return self._bits[where, name]

    def marks(
        self, where: str, separators: Sequence[str], targets: Collection[str] = (),
        known: Mapping[str, tuple[float, float]] | None = None,
    ) -> Marks:  # fmt: skip
        """The marks of all the files, said where they are not those of plain numbers.

        Args:
            where: the files, for messages.
            separators: of the files' cells.
            targets: columns that count only if they agree with the others, because texts may stand in them.
            known: of some columns the mean and the standard deviation, to choose where nothing else decides.

        Raises:
            InputError: columns contradict each other, or nothing decides.
        """
        counted = {k: bits for k, bits in self._bits.items() if bits and k[1] not in targets}
        for (file, name), bits in counted.items():
            if bits == -1:
                raise InputError(
                    f"{file}: column {name!r} has numbers with different decimal marks (commas and points): write all "
                    "with one, or drop the column"
                )
        common = int(np.bitwise_and.reduce([_ALL, *counted.values()]))
        if not common:
            raise _contradiction(where, counted)
        for (_, name), bits in self._bits.items():
            if name in targets and bits > 0 and common & bits:
                common &= bits
        used = dict.fromkeys(name for (_, name), bits in self._bits.items() if bits > 0 and common & bits)
        cells = [cell for name in used for cell in self._cells[name]]
        possible = [marks for k, marks in enumerate(READINGS) if common >> k & 1]
        commas, points = (any(mark in self._seen[name] for name in used) for mark in ",.")
        if len({marks.decimal for marks in possible}) == 1 or not (commas or points):
            chosen = possible[0]
            if _written(cells, chosen) != (".", ""):
                log.warning("%s: numbers are read with %s", where, _described(_written(cells, chosen)))
            return chosen
        return self._chosen(where, possible, separators, commas, known or {})

    def _chosen(
        self, where: str, possible: Sequence[Marks], separators: Sequence[str], commas: bool,
        known: Mapping[str, tuple[float, float]],
    ) -> Marks:  # fmt: skip
        """The marks where all numbers with marks are such as 1,234 or 1.234."""
        by_decimal = {marks.decimal: marks for marks in reversed(possible)}
        shown = "1,234" if commas else "1.234"
        nearest = self._nearest(by_decimal, known)
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
            where, shown, value, why,
        )  # fmt: skip
        return by_decimal[decimal]

    def _nearest(self, by_decimal: Mapping[str, Marks], known: Mapping[str, tuple[float, float]]) -> str | None:
        """The decimal mark with which numbers are clearly nearer to known means; None if none is."""
        away: dict[str, list[float]] = {decimal: [] for decimal in by_decimal}
        for name, (mean, std) in known.items():
            cells = pd.Series([cell for cell in self._cells.get(name, []) if "," in cell or "." in cell], dtype=str)
            for decimal, marks in by_decimal.items():
                if len(cells):
                    x_N = plain(cells, marks).astype(np.float64)
                    away[decimal].append(float((x_N - mean).abs().median()) / std)
        best, *others = sorted((max(found), decimal) for decimal, found in away.items() if found) or [(np.inf, "")]
        clear = best[0] <= _NEAR and all(other[0] > best[0] + _FURTHER for other in others)
        return best[1] if clear else None


def plain(column: pd.Series[Any], marks: Marks) -> pd.Series[Any]:
    """Numbers as Python writes them: a decimal point, and nothing between thousands."""
    text = column.str.replace("\u2212", "-", regex=False)
    if marks.thousands:
        text = text.str.replace(_GROUP[marks.thousands], "", regex=True)
    return text if marks.decimal == "." else text.str.replace(marks.decimal, ".", regex=False)


def fit(bits: int, marks: Marks) -> bool:
    """Whether these bits of ``readings`` have these marks."""
    return bits > 0 and bool(bits >> READINGS.index(marks) & 1)


def fit_commas(bits: int) -> bool:
    """Whether these bits of ``readings`` have a decimal comma."""
    return bool(bits & ~_POINTS & _ALL)


def _written(cells: Sequence[str], marks: Marks) -> Marks:
    """The marks that some number has; a point for the decimal mark if none has one."""
    group = re.compile(_GROUP[marks.thousands])
    used = marks.thousands if any(map(group.search, cells)) else ""
    return Marks("," if marks.decimal == "," and any("," in cell for cell in cells) else ".", used)


def _described(marks: Marks) -> str:
    between = f"{_KINDS[marks.thousands]} between thousands" if marks.thousands else ""
    return " and ".join(filter(None, ["decimal commas" if marks.decimal == "," else "", between]))


def _contradiction(where: str, counted: Mapping[tuple[str, str], int]) -> InputError:
    """The error for columns that agree on no marks, with two of them that differ, if there are two."""

    def pairs() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        keys = {bits: key for key, bits in counted.items()}
        yield from ((keys[a], keys[b]) for a in keys for b in keys if not a & b)

    def named(key: tuple[str, str]) -> str:
        decimals = {marks.decimal for k, marks in enumerate(READINGS) if counted[key] >> k & 1}
        how = {frozenset("."): "decimal points", frozenset(","): "decimal commas"}.get(frozenset(decimals), "")
        file = f" of {key[0]}" if len({file for file, _ in counted}) > 1 else ""
        return f"column {key[1]!r}{file}" + (f" has {how}" if how else "")

    pair = next(pairs(), None)
    shown = " and ".join(map(named, pair)) if pair else f"columns {listed(sorted({name for _, name in counted}), 5)}"
    return InputError(
        f"{where} writes numbers in different ways ({shown}): write all with one decimal mark and one mark between "
        "thousands, or drop the columns that differ"
    )
