"""Tables with one JSON object per line."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pyarrow as pa

from idiolect.core.arrow_tables import read_json, to_frame
from idiolect.core.errors import InputError
from idiolect.data.custom.hub import reason

_LEVELS = 64
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def jsonl(path: Path) -> pd.DataFrame:
    """A table with one JSON object per line.

    Raises:
        InputError: it is none.
    """
    _shallow(path)
    try:
        return to_frame(read_json(path))
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a table ({reason(error)}): write one JSON object per line") from error


def _shallow(path: Path) -> None:
    """Refuse lines that are nested so deeply that Arrow's parser would end the process.

    Raises:
        InputError: a line is not a whole JSON object, or is nested too deeply.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            openings, closings = line.count(b"[") + line.count(b"{"), line.count(b"]") + line.count(b"}")
            if openings == closings and openings <= _LEVELS:
                continue
            depth = 0
            for bracket in re.finditer(rb"[\[\]{}]", _STRING.sub(b"", line)):
                depth += 1 if bracket[0] in b"[{" else -1
                if depth > _LEVELS:
                    break
            if depth:
                what = f"is nested more than {_LEVELS} levels deep" if depth > _LEVELS else "is not a whole object"
                raise InputError(f"{path} is not a table (line {number} {what}): write one JSON object per line")
