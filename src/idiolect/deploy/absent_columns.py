"""What is said of columns that a bundle takes and a site's table does not have."""

from __future__ import annotations

from collections.abc import Sequence

from idiolect.core.errors import listed, nearest, option
from idiolect.data.custom import dates

_NAMES = 40


def sentence(where: str, absent: Sequence[str], there: Sequence[str], wanted: Sequence[str]) -> str:
    """Which columns are missing, and the fix; a column of dates is called as a person wrote it, not by its parts.

    Args:
        where: the table.
        absent: the columns that it does not have, as the bundle calls them.
        there: its columns that the bundle does not take.
        wanted: all columns that the bundle takes.
    """
    is_nothing = len(absent) == len(wanted)
    absent, wanted = dates.as_written(absent), dates.as_written(wanted)
    what = f"{where} has no column {absent[0]!r}" + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
    takes = f"the bundle takes {listed(wanted, _NAMES)}"
    if is_nothing and all(map(str.isdecimal, there)):
        return f"{what}, because its columns have no names: {takes}; give the names with {option('columns')}"
    near = f"; {nearest(absent[0], there)}" if there else ""
    return f"{what}{near}: {takes}; add it, with empty cells where it is not known"
