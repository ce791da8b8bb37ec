"""Which of a site's columns is which of a bundle's, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from idiolect.core.errors import InputError, listed
from idiolect.data.custom.columns import fold

_SPELLINGS: tuple[Callable[[str], str], ...] = (str, lambda name: name.strip().casefold(), fold)
"""The name itself, the name in any letter case, and the name without spaces and marks."""


def names_of(there: Sequence[str], wanted: Sequence[str], where: str) -> dict[str, str]:
    """By the bundle's names a site's columns that are named alike; a name without such a column is left out.

    Args:
        there: the site's columns.
        wanted: the bundle's.
        where: the table, for messages.

    Raises:
        InputError: several columns may be one, or one may be several.
    """
    own: dict[str, str] = {}
    for spelling in _SPELLINGS:
        columns, names = (_grouped(some, spelling) for some in (set(there) - set(own.values()), set(wanted) - set(own)))
        for spelled, alike in names.items():
            theirs = columns.get(spelled, [])
            if len(theirs) > 1 or (theirs and len(alike) > 1):
                raise InputError(
                    f"{where}: {listed(theirs, 5)} may be {listed(alike, 5)}: name the columns as in training"
                )
            if theirs:
                own[alike[0]] = theirs[0]
    return own


def _grouped(names: Iterable[str], spelling: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(spelling(name), []).append(name)
    return groups


def in_order(own: Sequence[str], names: Sequence[str]) -> list[str]:
    """A site's target columns in the bundle's order: by their names, or as they stand where they have others.

    Raises:
        InputError: a column has a name of the bundle and stands at the place of another.
    """
    name_of = {column: name for name, column in names_of(own, names, "target").items()}
    if len(name_of) == len(names):
        return sorted(own, key=lambda column: names.index(name_of[column]))
    for column, name in zip(own, names, strict=True):
        if name_of.get(column, name) != name:
            raise InputError(
                f"target: column {column!r} is {name_of[column]!r} by its name and {name!r} by its place: name "
                f"all as in training, or give them in the order {', '.join(names)}"
            )
    return list(own)
