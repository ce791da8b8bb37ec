"""Names of classes, clients and categories that may be a mistake."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import InputError
from idiolect.data.custom.columns import NUMBER, listed
from idiolect.data.custom.numbers import MISSING

# R samples

log = logging.getLogger(__name__)

ANSWERS = (("0", "1"), ("false", "true"), ("no", "yes"), ("n", "y"))
_MOST_GROUPS = 3  # groups of names in a message


def alike(texts: Iterable[str]) -> list[list[str]]:
    """The groups of texts that differ only in letter case, in spaces, or in how they write a number.

    >>> alike(["Oslo", "oslo", "New York", "New  York", "7", "007", "Bergen"])
    [['Oslo', 'oslo'], ['New York', 'New  York'], ['7', '007']]
    """
    groups: dict[str | float, list[str]] = {}
    for text in texts:
        plain = re.sub(r"\s+", "", unicodedata.normalize("NFKC", text).casefold())
        groups.setdefault(float(plain) if NUMBER.fullmatch(plain) else plain, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def look(what: str, kind: str, code_R: NDArray[np.int64], names: Sequence[str]) -> None:
    """Warn of names that differ only in their writing, and of those that often say that a value is missing.

    Args:
        what: they are the values of, for messages.
        kind: "class", "label" or "client".
        code_R: for each row the place of its name.
        names: as ``codes`` gives them.
    """
    groups = [" and ".join(map(repr, group)) for group in alike(names)]
    if groups:
        log.warning(
            "%s: names that differ only in letter case, spaces or the writing of a number are different %s (%s): "
            "write them in one way if they are the same",
            what, "classes" if kind == "class" else f"{kind}s", listed(groups, _MOST_GROUPS),
        )  # fmt: skip
    if kind == "class":
        look_at_answers(what, names)
    for name in sorted(set(MISSING) & set(names)):
        log.warning(
            "%s: %r, in %d rows, is taken as the name of a %s: leave the cells empty if the value is missing there",
            what, name, int((code_R == names.index(name)).sum()), kind,
        )  # fmt: skip


def named(code_R: pd.Series[Any], names: Sequence[str], what: str) -> Any:
    """Numbers of classes as their names; a missing or negative one has none.

    Raises:
        InputError: two classes have one name, or a number has none.
    """
    if len(set(names)) < len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(f"{what} has two classes of the name {twice!r}: give each its own")
    whole_R = code_R.fillna(-1).clip(lower=-1).astype(int)
    if whole_R.max() >= len(names):
        raise InputError(
            f"{what} contains a number that is too large: its {len(names)} class names are for 0 to {len(names) - 1}; "
            "correct the numbers, or name every class"
        )
    return pd.Categorical.from_codes(whole_R, pd.Index(names))


def look_at_answers(what: str, names: Collection[str]) -> None:
    """Warn of classes that may be the same two answers in several writings, as 0, 1, no and yes."""
    answers = [{name for name in names if name.lower() in pair} for pair in ANSWERS]
    if sum(map(bool, answers)) > 1 and set(names) == set.union(*answers):
        log.warning(
            "%s: %s are different classes: if they are the same two answers, write them in one way everywhere",
            what, listed([*map(repr, names)], 8),
        )  # fmt: skip
