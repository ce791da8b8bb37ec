"""Columns that are no features but identifiers, row numbers, times, or the names of sites."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import gammaln

from idiolect.core.errors import listed, option
from idiolect.data.custom.columns import MOST_TEXTS

# R samples of all clients

log = logging.getLogger(__name__)

_OWNERS = re.compile(
    "hospital|site|clinic|centre|center|institution|institute|facility|client|device|station|branch|silo|patient|"
    "subject|person|user|writer"
)
_PERSONS = re.compile(
    "patients?|subjects?|persons?|people|users?|writers?|participants?|individuals?|reviewers?|cases?|mrn"
)
_IDENTIFIERS = re.compile("ids?|identifier|uuid|guid|mrn|name|surname|email")
_STEPS, _RISES = 6.0, 15.0
"""Numbers count as a sequence if chance would order them so once in 10 to the power of this: the first if each is one
above the one before, else the second."""
_PAIRS = 12.0  # pairs of equal numbers inside clients that chance would make at least
_EXCEPT = 0.05  # of all steps, or of these pairs, that may be otherwise, as where two recordings are one client
_ENOUGH = 20  # known numbers of a client of which a share of zeros says something
_NEARLY_ALL, _HARDLY = 0.9, 0.1
"""Shares of zeros: at a client where they may stand for missing values, and in the median over clients."""
_ROWS = 20_000  # that are looked at


def look_at_numbers(columns: Mapping[str, pd.Series[Any]], group_R: NDArray[np.int64], clients: bool) -> set[str]:
    """Warn of columns of numbers that look like identifiers, row numbers or times, and return them.

    Args:
        columns: features by name.
        group_R: which rows belong together, in their order: those of one client in one file.
        clients: whether the groups are clients.
    """
    order_R = np.argsort(group_R, kind="stable")
    names = set()
    for name, values in columns.items():
        if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
            continue
        whole = pd.api.types.is_integer_dtype(values.dtype)
        if whole and len(values) > MOST_TEXTS and values.nunique() == len(values):
            what, kind = "has a different whole number in every row", "an identifier"
        elif is_sequence(values.to_numpy(dtype=np.float64, na_value=np.nan)[order_R], group_R[order_R]):
            where = "counts inside each client" if clients else "counts from row to row"
            what, kind = f"{where}, as a row number or a time does", "one"
        else:
            continue
        names.add(name)
        log.warning("column %r %s: drop it with %s if it is %s", name, what, option("drop", name), kind)
    return names


def is_sequence(x_R: NDArray[np.float64], group_R: NDArray[np.int64]) -> bool:
    """Whether numbers count inside each group, whose rows stand together, so regularly that it can be no chance.

    They count if they rise from row to row, or fall, with few exceptions if there are several groups. In rows of any
    order, they count if nearly all are different inside each group, although they are often equal between groups.
    """
    finite_R = np.isfinite(x_R)
    x_R, group_R = x_R[finite_R][:_ROWS], group_R[finite_R][:_ROWS]
    same_R = group_R[1:] == group_R[:-1]
    step_R = np.diff(x_R)
    count = int(same_R.sum())
    exceptions = _EXCEPT * count if len(np.unique(group_R)) > 1 else 0
    for rising_R in (step_R > 0, step_R < 0):
        breaks = int((same_R & ~rising_R).sum())
        if not count or breaks > exceptions:
            continue
        ends = np.flatnonzero(~(same_R & rising_R)) + 1
        length_K = np.diff([0, *ends, len(x_R)])
        places = gammaln(count + 1) - gammaln(breaks + 1) - gammaln(count - breaks + 1)
        chance = (gammaln(length_K + 1).sum() - places) / np.log(10)
        by_one = (np.abs(step_R[same_R]) == 1).mean() >= 1 - _EXCEPT
        if chance >= (_STEPS if by_one else _RISES):
            return True
    inside, equal, joint = (_pairs(of) for of in (group_R, x_R, np.stack([group_R, x_R])))
    by_chance = inside * equal / max(1, len(x_R) * (len(x_R) - 1) / 2)
    return bool(by_chance >= _PAIRS and joint <= _EXCEPT * by_chance)


def _pairs(value_R: NDArray[Any]) -> float:
    """How many pairs of rows have the same value."""
    count = np.unique(value_R, axis=-1, return_counts=True)[1].astype(np.float64)
    return float((count * (count - 1) / 2).sum())


def look_at_zeros(columns: Mapping[str, pd.Series[Any]], code_R: NDArray[np.int64], names: Sequence[str]) -> None:
    """Warn of clients where 0 may stand for a missing value: nearly all numbers are 0 there, and hardly any elsewhere.

    Args:
        columns: features by name.
        code_R: for each row the place of its client among the names.
        names: of the clients.
    """
    for name, values in columns.items():
        if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
            continue
        x_R = values.to_numpy(dtype=np.float64, na_value=np.nan)
        known_R = ~np.isnan(x_R)
        if not (x_R == 0).any() or np.isin(x_R[known_R], (0, 1)).all():
            continue
        known_K = np.bincount(code_R[known_R], minlength=len(names))
        share_K = np.bincount(code_R[x_R == 0], minlength=len(names)) / np.maximum(known_K, 1)
        enough_K = known_K >= _ENOUGH
        is_suspect_K = enough_K & (share_K > _NEARLY_ALL)
        others_K = share_K[enough_K & ~is_suspect_K]
        if not len(others_K) or np.median(others_K) > _HARDLY:
            continue
        if clients := [names[k] for k in np.flatnonzero(is_suspect_K).tolist()]:
            log.warning(
                "column %r is 0 in nearly every row of %s, and hardly ever elsewhere: give %s if 0 stands for a "
                "missing value", name, listed(clients, 5), option("missing", f"{name}=0"),
            )  # fmt: skip


def suspects(
    frame: pd.DataFrame,
    columns: Sequence[str],
    owner: str | None,
    are_features: bool,
    exempt: Collection[str] = (),
    *,
    grouped: bool = False,
) -> tuple[str, ...]:
    """Warn of columns with names of sites, persons or identifiers; return the others with few, repeated texts.

    Args:
        frame: all columns.
        columns: those that are neither target nor client.
        owner: the client column, if one is given: then no other is looked for.
        are_features: whether the columns become features.
        exempt: those of which was warned before.
        grouped: whether a column of groups is given: then no other is looked for.
    """
    few = []
    for name in columns:
        words = re.findall("[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
        owns = any(map(_OWNERS.fullmatch, words))
        values = frame[name].dropna()
        if name in exempt or (pd.api.types.is_float_dtype(values) and (values % 1).any()):
            continue
        try:
            different = values.nunique()
        except TypeError:  # lists have a message of their own
            continue
        repeats = different * 2 <= len(values)
        has_such_name = owns or any(map(_IDENTIFIERS.fullmatch, words))
        is_person = any(map(_PERSONS.fullmatch, words)) and 1 < different < len(values)
        if is_person and not grouped and (owner is not None or not repeats):
            log.warning(
                "column %r seems to say whose samples are which, and %s: give %s, so that no one is in training and in "
                "test samples%s", name, f"{len(values) - different} of {len(values)} rows repeat one",
                option("group_column", name), ", or drop it" if are_features else "",
            )  # fmt: skip
        elif has_such_name and are_features and not repeats:
            log.warning(
                "column %r looks like an identifier and is used as a feature: drop it with %s if it is one",
                name, option("drop", name),
            )  # fmt: skip
        elif owns and repeats and owner is None:
            log.warning(
                "column %r seems to say which client a sample belongs to, and is %s: give %s, or drop it",
                name, "used as a feature" if are_features else "not used", option("client_column", name),
            )  # fmt: skip
        elif not pd.api.types.is_numeric_dtype(values) and 2 < different <= MOST_TEXTS and repeats and owner is None:
            few.append(name)
    return tuple(few)
