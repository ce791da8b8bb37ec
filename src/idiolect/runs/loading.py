"""The files of a run folder, read and checked one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from idiolect.core.arrow_tables import to_frame
from idiolect.core.errors import InputError, option
from idiolect.runs.folder import BUNDLE_FILE, CELLS, RECORDS_FILE, SEARCH_FILE, TIMINGS_FILE, files_of_cells
from idiolect.runs.schema import read_table

_KEYS = {
    RECORDS_FILE: ("method", "seed", "round", "client", "stage", "metric", "value", "other"),
    TIMINGS_FILE: ("method", "seed", "round", "seconds"),
}
_TYPES = {"method": "str", "stage": "str", "metric": "str", "value": "float64", "seconds": "float64", "other": "Int64"}
_EVALUATIONS = ("received", "trained", "personalised", "new")  # elsewhere a method gives its numbers names
FIX = "restore the file, or run the study again into a new folder"
"""What helps where a file is missing or broken."""


def load(file: Path, parse: Callable[[Path], Any]) -> Any:
    """What ``parse`` makes of a file.

    Raises:
        InputError: the file is missing or cannot be parsed.
    """
    if not file.exists():
        look(file.parent)
        raise InputError(f"{file} is missing: give the folder of a run that has begun, or {FIX}")
    try:
        return parse(file)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{file} cannot be read ({reason}): {FIX}") from None


def look(folder: Path) -> None:
    """Check that a folder is that of a run, and not of something else.

    Raises:
        InputError: there is none, or it is of a search, or a bundle.
    """
    if not folder.is_dir():
        raise InputError(f"there is no run folder {folder}: give the folder that a run wrote")
    if (folder / SEARCH_FILE).exists():
        what = f"{folder} is the folder of a search"
        raise InputError(f"{what}: its page is tuning.html; give one of its runs, refit or trials-1, in its place")
    if (folder / BUNDLE_FILE).exists():
        raise InputError(f"{folder} is a bundle, which a site uses: give the folder of the run that it was made of")


def tables(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The records and the timings of a run: those of the whole, and of cells that have gone further since.

    Raises:
        InputError: nothing has been evaluated yet, or a file is missing or broken.
    """
    joined, cells = [folder / RECORDS_FILE, folder / TIMINGS_FILE], dict[Any, list[pd.DataFrame]]()
    whole = [] if (folder / CELLS).is_dir() and not all(map(Path.exists, joined)) else [table(file) for file in joined]
    done = whole[1].groupby(["method", "seed"])["round"].max().to_dict() if whole else {}
    for file in files_of_cells(folder, TIMINGS_FILE):
        for cell, timings in table(file).groupby(["method", "seed"]):
            if (until := timings["round"].max()) > done.get(cell, -1):
                records = table(file.with_name(RECORDS_FILE))
                cells[cell] = [records[records["round"] <= until], timings]
    if not whole and not cells:
        again = option("resume", True)
        raise InputError(f"{folder} has no finished round yet: wait for one, or continue the run with {again}")
    rest = [frame[~pd.MultiIndex.from_frame(frame[["method", "seed"]]).isin(list(cells))] for frame in whole]
    records, timings = (pd.concat([*rest[k : k + 1], *(both[k] for both in cells.values())]) for k in (0, 1))
    return records.reset_index(drop=True), timings.reset_index(drop=True)


def table(file: Path) -> pd.DataFrame:
    """The records or timings of a run.

    Raises:
        InputError: the file is missing or broken, or has a column, a row or a value that it cannot have.
    """
    columns = _KEYS[file.name]
    content = load(file, read_table)
    if missing := [c for c in columns if c not in content.column_names]:
        raise InputError(f"{file} has no column {missing[0]!r}: {FIX}")
    try:
        types = {c: _TYPES.get(c, "int64") for c in columns}
        frame: pd.DataFrame = to_frame(content.select(columns)).astype(types)
    except (ValueError, TypeError, pa.ArrowException):
        raise InputError(f"{file} has a column of the wrong type (columns: {', '.join(columns)}): {FIX}") from None
    twice = frame.duplicated([c for c in columns if c not in ("value", "seconds")])
    if twice.any():
        first = ", ".join(f"{c} {frame[c].iloc[int(twice.argmax())]}" for c in columns[:3])
        raise InputError(f"{file} has {twice.sum()} duplicate rows (the first: {first}): {FIX}")
    if "metric" in frame:
        is_share = frame["metric"].isin(["accuracy", "validation_accuracy"]) & frame["stage"].isin(_EVALUATIONS)
        share = frame["value"][is_share]
        if (odd := share[(share < 0) | (share > 1)]).size:
            metric = frame["metric"][odd.index[0]]
            raise InputError(f"{file} has an {metric} of {odd.iloc[0]}, which is not between 0 and 1: {FIX}")
    return frame
