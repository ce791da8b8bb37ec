"""Labels of which a sample can have several: a column for each, or one column of lists or of texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from idiolect.core.errors import InputError, listed
from idiolect.data.custom.columns import MOST_CLASSES, codes, in_order, missing, text_of
from idiolect.data.custom.names import ANSWERS, look
from idiolect.data.targets import Targets

# R samples, L labels

log = logging.getLogger(__name__)

BETWEEN = "|;"
"""What stands between the labels of a text; the first of these that any text has."""


def are_answers(columns: Mapping[str, pd.Series[Any]]) -> bool:
    """Whether each of some columns has the values 0 and 1, false and true, or no and yes, at least one of them both."""
    known = [_different(values) for values in columns.values()]
    both = any(len(texts) == 2 for texts in known)
    return both and all(any(texts <= set(pair) for pair in ANSWERS) for texts in known)


def _different(values: pd.Series[Any]) -> set[str]:
    """The different values as texts; a missing one does not count."""
    if has_lists(values):
        return {"a list"}
    return {text_of(value).lower() for value in pd.unique(values[~missing(values)])}


def label_sets(columns: Mapping[str, pd.Series[Any]], whats: Mapping[str, str]) -> Targets:
    """Which labels each sample has, (R, L), 0 or 1.

    Args:
        columns: one for each label, of 0 and 1, false and true, or no and yes; or a single one of lists of labels, or
            of texts with ``|`` or ``;`` between the labels. An empty text says that a sample has none.
        whats: how messages call each column.

    Raises:
        InputError: a column is none of these, a value is missing, or all samples are alike.
    """
    if len(columns) > 1:
        values = [_different_answers(values, whats[name]) for name, values in columns.items()]
        return Targets(torch.tensor(np.stack(values, 1)), tuple(columns), task="multilabel")
    [(name, column)] = columns.items()
    what = whats[name]
    cells = cells_of(column, what)
    place = {label: k for k, label in enumerate(in_order({label for cell in cells for label in cell}))}
    if len(place) > MOST_CLASSES:
        raise InputError(f"{what} has {len(place)} labels, more than {MOST_CLASSES}: give a column with fewer")
    value_RL = np.zeros((len(cells), len(place)))
    for row, cell in enumerate(cells):
        value_RL[row, [place[label] for label in cell]] = 1
    look(what, "label", np.array([place[label] for cell in cells for label in cell], np.int64), tuple(place))
    if not place or bool((value_RL == value_RL[0]).all()):
        raise InputError(f"{what} has the same labels in all rows: give a column with different ones")
    log.info("%s: %d labels, %.2f of them in a row on average", what, len(place), value_RL.sum(1).mean())
    return Targets(torch.tensor(value_RL), tuple(place), task="multilabel")


def _different_answers(values: pd.Series[Any], what: str) -> NDArray[np.float64]:
    answer_R = answers(values, what)
    if len(np.unique(answer_R)) == 1:
        raise InputError(f"{what} is {text_of(values.iloc[0])} in all rows: leave this label out")
    return answer_R


def answers(values: pd.Series[Any], what: str) -> NDArray[np.float64]:
    """Whether samples have a label (R,), 1 or 0, from a column that says so.

    Raises:
        InputError: a value is missing, or is none of these.
    """
    code_R, names = codes(values, what)
    yes = next((pair[1] for pair in ANSWERS if {name.lower() for name in names} <= set(pair)), None)
    if yes is None:
        raise InputError(
            f"{what} has the values {listed(names, 5)}, and a column of a label says whether a sample has it: write 0 "
            "and 1, false and true, or no and yes"
        )
    return np.array([float(name.lower() == yes) for name in names])[code_R]


def has_lists(values: pd.Series[Any]) -> bool:
    """Whether a column has lists, by its first rows."""
    return any(_is_list(value) for value in values.head(1000)) if values.dtype == object else False


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset | np.ndarray)


def cells_of(values: pd.Series[Any], what: str, *, alone: bool = False) -> list[set[str]]:
    """The labels of each row, from lists or from texts; ``alone`` says whether every text may be a single label.

    Raises:
        InputError: a row has something else, or every text is a single label and must not be.
    """
    return _lists(values, what) if has_lists(values) else _parts(values, what, alone)


def _lists(values: pd.Series[Any], what: str) -> list[set[str]]:
    """The labels of each row, from lists."""
    odd = next((row for row, value in enumerate(values) if not _is_list(value)), None)
    if odd is not None:
        raise InputError(
            f"{what} has lists, but none in row {odd}, counting from 0: write a list there, an empty one for no labels"
        )
    cells = []
    for row, value in enumerate(values):
        labels = list(value)
        if any(not isinstance(label, str | int | float | np.generic) or label != label for label in labels):
            raise InputError(
                f"{what} has a list of other things than texts and numbers in row {row}, counting from 0: correct it"
            )
        cells.append({text_of(label) for label in labels} - {""})
    return cells


def _parts(values: pd.Series[Any], what: str, alone: bool) -> list[set[str]]:
    """The labels of each row, from texts."""
    gone_R = missing(values, ("",))
    texts = ["" if gone else text_of(value) for value, gone in zip(values, gone_R, strict=True)]
    between = next((mark for mark in BETWEEN if any(mark in text for text in texts)), None)
    if between is None and alone:
        return [{text} - {""} for text in texts]
    if between is None:
        raise InputError(
            f"{what} has one value in each row: give a column for each label, of 0 and 1, joined by +, or a column of "
            "lists or of texts with | between the labels; if it is a class, leave task out"
        )
    empty = f"; {gone_R.sum()} of {len(texts)} rows are empty, which says that they have none" if gone_R.any() else ""
    if not alone:  # who knows the labels has read such texts before
        log.warning("%s: %r stands between labels%s", what, between, empty)
    return [{part.strip() for part in text.split(between)} - {""} for text in texts]
