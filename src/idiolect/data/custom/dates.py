"""Columns of dates and times as columns of numbers: year, month, weekday, days and hour."""

from __future__ import annotations

import datetime
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import InputError, listed
from idiolect.data.custom import readings
from idiolect.data.custom.columns import fold, missing
from idiolect.data.datasets.dataset import Encoding

# R rows

log = logging.getLogger(__name__)

PARTS = ("year", "month", "weekday", "days", "hour")
"""``weekday`` is 1 on Mondays, ``days`` counts from 1970-01-01, and ``hour`` has minutes as its fraction."""
_TEXTS = ("string", "categorical")
_TIMES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")
_DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d/%m/%y", "%m/%d/%y", "%Y%m%d", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I %p")
_STAMPS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}  # by their digits
_STAMP = "|".join(rf"\d{{{digits}}}" for digits in _STAMPS)
_ISO = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?"
_TRIED = 20  # texts by which most formats are ruled out


def expanded(
    frame: pd.DataFrame, columns: Sequence[str], *, every: bool = False
) -> tuple[pd.DataFrame, list[str], set[str]]:
    """A table with numbers in place of dates and times, the names of some columns then, and those of further parts.

    A column "seen" becomes "seen year", "seen month", "seen weekday", "seen days" and "seen hour", as far as these
    differ between rows; a time of the day becomes an hour alone, and a length of time days. This is said. Further parts
    are all but the first of each column: whether the value is missing is the same for all.

    With ``every`` parts that do not differ are there too, for others may have several; so are the parts of a column
    that is empty, beside it, for others may have dates in it.

    Raises:
        InputError: nothing shows whether the month or the day stands first, or such a column is there already.
    """
    names, further = list[str](), set[str]()
    parts_by = {name: parts for name in columns if (parts := _parts(frame[name], name)) is not None}
    for name in columns:
        if name not in parts_by:
            names.append(name)
            if every and missing(frame[name]).all():
                empty = {new: np.nan for part in PARTS if (new := f"{name} {part}") not in frame}
                frame = frame.assign(**empty)
                names += empty
                further |= set(list(empty)[1:])
            continue
        parts = {f"{name} {part}": x_R for part, x_R in parts_by[name].items() if every or _differs(x_R)}
        if clash := next((new for new in parts if new in frame), None):
            raise InputError(f"column {name!r} has dates, and there is a column {clash!r} too: drop or rename one")
        if parts:
            log.warning("column %r has dates or times, which become %s", name, listed(map(repr, parts)))
        else:
            log.warning("column %r has one date or time alone and is left out", name)
        frame = frame.drop(columns=name).assign(**parts)
        names += parts
        further |= set(list(parts)[1:])
    return frame, names, further


def columns_of(wanted: Iterable[str]) -> dict[str, set[str]]:
    """The names of columns that some wanted ones may be parts of, without letter case and spaces, and these."""
    by: dict[str, set[str]] = {}
    for name in wanted:
        if base := base_of(name):
            by.setdefault(fold(base), set()).add(name)
    return by


def base_of(name: str) -> str:
    """The name of a column of dates by that of a part; "" if it is none.

    >>> base_of("seen year"), base_of("seen"), base_of("year")
    ('seen', '', '')
    """
    base, _, part = name.rpartition(" ")
    return base if part in PARTS else ""


def as_written(names: Iterable[str]) -> list[str]:
    """Names of columns with that of a column of dates in place of its parts, where there are several.

    >>> as_written(["age", "seen year", "seen days", "working hour"])
    ['age', 'seen', 'working hour']
    """
    every = list(names)
    count = Counter(map(base_of, every))
    return list(dict.fromkeys(base if (base := base_of(name)) and count[base] > 1 else name for name in every))


def with_gaps(encodings: Iterable[Encoding]) -> set[str]:
    """The columns of dates of which a part says where the value is missing, as it then is for all parts."""
    return {base for one in encodings if one.gaps and (base := base_of(one.name))}


def with_parts(
    frame: pd.DataFrame, wanted: Iterable[str], where: str, ways: dict[str, str] | None = None
) -> tuple[pd.DataFrame, set[str]]:
    """A table, from ``where``, with the wanted parts in place of its columns of dates, and the parts that were added.

    A column that is empty has all parts, and all are missing. ``ways`` has, by name, how other rows of the table have
    shown that a column is written; what these rows show is added.

    Raises:
        InputError: as ``expanded``, or a column has no dates where some are wanted.
    """
    bases = columns_of(name for name in wanted if name not in frame)
    added = set[str]()
    for name in [str(c) for c in frame]:
        if fold(name) not in bases:
            continue
        parts = {} if missing(frame[name]).all() else _parts(frame[name], name, alone=True, ways=ways)
        if parts is None:
            raise InputError(
                f"column {name!r} of {where} has values that are no dates, or dates in several writings (the first in "
                f"row {_stranger(frame[name])}, counting from 0): write them as 2024-01-31, or leave the cells empty"
            )
        new = {one: parts.get(one.rpartition(" ")[2], np.full(len(frame), np.nan)) for one in sorted(bases[fold(name)])}
        frame = frame.drop(columns=name).assign(**new)
        added |= set(new)
    return frame, added


def _differs(x_R: NDArray[np.float64]) -> bool:
    known_R = x_R[~np.isnan(x_R)]
    return bool(len(known_R)) and bool((known_R != known_R[0]).any())


def _stranger(values: pd.Series[Any]) -> int:
    """The first row that is not read in the way in which most rows are."""
    texts = values[~missing(values)].astype(object).map(_digits).str.strip()
    different = pd.Series(texts.unique())
    best = different.str.fullmatch(_ISO)
    for way in (*_CLOCKS, *_STAMPS.values(), *_formats()):
        read = pd.to_datetime(different, format=way, errors="coerce").notna()
        best = read if read.sum() > best.sum() else best
    strange_R = (~missing(values)).copy()
    strange_R[strange_R] = texts.map(dict(zip(different, ~best, strict=True))).to_numpy(bool)
    return int(np.flatnonzero(strange_R if strange_R.any() else ~missing(values))[0])


def _digits(value: object) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _parts(
    values: pd.Series[Any], name: str, *, alone: bool = False, ways: dict[str, str] | None = None
) -> dict[str, NDArray[np.float64]] | None:
    """The parts of each row's date or time; None if these are none, or are written in a way that is not understood.

    With ``alone`` a number such as 20240131 is a date even where there is no other.

    Raises:
        InputError: as ``expanded``, or one is too far away.
    """
    try:
        return _parts_of(values, name, alone, {} if ways is None else ways)
    except (pd.errors.OutOfBoundsDatetime, pd.errors.OutOfBoundsTimedelta):
        raise _too_far(name) from None


def _too_far(name: str) -> InputError:
    return InputError(
        f"column {name!r} has dates or times that are too far away to count with, or that do not exist: correct them, "
        "or leave the cells empty"
    )


def _parts_of(
    values: pd.Series[Any], name: str, alone: bool, ways: dict[str, str]
) -> dict[str, NDArray[np.float64]] | None:
    kind, gone_R = pd.api.types.infer_dtype(values, skipna=True), missing(values)
    if kind in ("timedelta64", "timedelta"):
        return {"days": _floats(pd.to_timedelta(values).dt.total_seconds() / 86400)}
    if kind == "time":
        return {"hour": _floats(values.map(_hours, na_action="ignore"))}
    if kind == "period":
        return _of_instants(pd.Series(pd.PeriodIndex(values).to_timestamp()))
    if kind in _TIMES:
        instants = pd.to_datetime(values, utc=True, errors="coerce")
        if (instants.isna().to_numpy() & ~gone_R).any():  # as in versions of pandas that end in 2262
            raise _too_far(name)
        return _of_instants(instants.dt.tz_localize(None))
    if kind in _TEXTS and alone and values[~gone_R].astype(str).str.strip().str.fullmatch(_STAMP).all():
        values = pd.to_numeric(values.astype(object).where(~gone_R))
        kind = "integer"
    if kind in ("integer", "floating", "mixed-integer-float"):
        try:
            x_R = values.to_numpy(np.float64, na_value=np.nan)
        except OverflowError:  # Python's whole numbers have no limit
            return None
        if not readings.are_date_numbers(x_R[~gone_R], least=1 if alone else 2):
            return None
        texts = pd.Series(x_R[~gone_R]).astype(np.int64).astype(str)
        formats = [_STAMPS[digits] for digits in texts.str.len().unique() if digits in _STAMPS]
    elif kind in _TEXTS and not gone_R.all():
        texts = values[~gone_R].astype(object).map(str).str.strip()
        if not texts.iloc[:_TRIED].str.contains(r"\d").all() or not readings.are_dates(texts.unique().tolist()):
            return None
        formats = [*_formats()]
    else:
        return None
    different = pd.Series(texts.unique())
    read = _read(different, formats, name, ways)
    if read is None:
        return None
    by_text = dict(zip(different, read[0], strict=True))
    instants = pd.Series(pd.NaT, index=values.index, dtype="datetime64[us]")
    instants[~gone_R] = pd.to_datetime(texts.map(by_text)).dt.as_unit("us").to_numpy()
    parts = _of_instants(instants)
    return {"hour": parts["hour"]} if read[1] else parts


def _formats() -> Iterator[str]:
    yield from _DAYS
    yield from (f"{day}{gap}{clock}" for day, gap, clock in product(_DAYS, (" ", "T"), _CLOCKS))


def _read(
    different: pd.Series[Any], formats: Sequence[str], name: str, ways: dict[str, str]
) -> tuple[pd.Series[Any], bool] | None:
    """Texts as instants, and whether they are times of the day alone; in the way of the column, which is noted."""
    if different.str.fullmatch(_ISO).all():
        read = pd.to_datetime(different, format="ISO8601", utc=True, errors="coerce")
        return (read.dt.tz_localize(None), False) if read.notna().all() else None
    clock = pd.Series(pd.NaT, index=different.index, dtype="datetime64[us]")
    for way in _CLOCKS:
        clock = clock.fillna(pd.to_datetime(different, format=way, errors="coerce"))
    if clock.notna().all():
        return clock, True
    reads: dict[str, pd.Series[Any]] = {}
    for way in [ways[name]] if name in ways else formats:
        if pd.to_datetime(different.iloc[:_TRIED], format=way, errors="coerce").isna().any():
            continue
        read = pd.to_datetime(different, format=way, errors="coerce")
        if read.notna().all():
            reads[way] = read
    if len(reads) == 1:
        [ways[name]] = reads
    if not reads:
        return None
    first, *others = reads.values()
    if not all(map(first.equals, others)):
        raise InputError(
            f"column {name!r} has dates, and nothing shows whether the day or the month stands first: write them as "
            "2024-01-31, or drop the column"
        )
    return first, False


def _of_instants(instants: pd.Series[Any]) -> dict[str, NDArray[np.float64]]:
    parts = instants.dt  # of microseconds, because nanoseconds end in 2262
    since = (parts.as_unit("us") - pd.Timestamp(0).as_unit("us")).dt.total_seconds() / 86400
    days = np.floor(since)
    every = {
        "year": parts.year, "month": parts.month, "weekday": parts.day_of_week + 1, "days": days,
        "hour": ((since - days) * 24).round(6),
    }  # fmt: skip
    return {part: _floats(x_R) for part, x_R in every.items()}


def _floats(values: pd.Series[Any]) -> NDArray[np.float64]:
    return np.asarray(values.to_numpy(np.float64, na_value=np.nan), np.float64)


def _hours(time: datetime.time) -> float:
    return time.hour + time.minute / 60 + time.second / 3600
