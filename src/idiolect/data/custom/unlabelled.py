"""Rows whose target is missing: refused with where they are, or left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.errors import InputError, listed, option
from idiolect.core.objectives import TaskName
from idiolect.data.custom.columns import NUMBER, by_value, missing, targets_in, text_of
from idiolect.data.custom.form import Form, is_mark
from idiolect.data.custom.images import EncodedImage
from idiolect.data.custom.label_sets import BETWEEN, has_lists
from idiolect.data.custom.numbers import MISSING
from idiolect.data.custom.questions import question_in

# R rows

log = logging.getLogger(__name__)

UNKNOWN = "?"
"""The mark of a missing target among names of classes, where other words are names."""


class Lines(NamedTuple):
    """How a person counts the rows of a file or a table.

    Attributes:
        number_R: of each row.
        how: the rule, for messages.
    """

    number_R: NDArray[np.int64]
    how: str

    @classmethod
    def counted(cls, count: int, start: int) -> Lines:
        """So many rows, from a number on."""
        return cls(np.arange(start, start + count), f"counting from {start}")


def labelled(
    frame: pd.DataFrame, pictures: list[EncodedImage] | None, target: str | None, where: str, form: Form,
    task: TaskName | None, lines: Lines | None = None,
) -> tuple[pd.DataFrame, list[EncodedImage] | None]:  # fmt: skip
    """The rows of a table that have a target, and an image for each of them if there are images.

    Raises:
        InputError: as ``labelled_rows``.
    """
    is_there_R = labelled_rows(frame, target, where, form, task, lines)
    if is_there_R is None:
        return frame, pictures
    kept = None if pictures is None else [pictures[row] for row in np.flatnonzero(is_there_R)]
    return frame[is_there_R].reset_index(drop=True), kept


def labelled_rows(
    frame: pd.DataFrame, target: str | None, where: str, form: Form, task: TaskName | None, lines: Lines | None = None
) -> NDArray[np.bool_] | None:
    """For each row of a table (R,) whether it has a target; None if all have.

    It has none if a column of the target is empty there, or has the text ``?`` or a mark that ``missing`` names for
    that column; in a column of numbers also if it has one of the texts by which a feature is missing. In one column of
    several labels, an empty cell says that the sample has none of them; where the task is not known, that is one whose
    texts have ``|`` or ``;``. Who reads on says if there is no such column.

    Args:
        frame: the table.
        target: the column, several joined by +, or a question.
        where: the table, for messages.
        form: has the marks of missing values, and says whether rows without a target are left out.
        task: what is learnt, if that is known.
        lines: how a person counts the rows; by default from 0.

    Raises:
        InputError: a row has no target and is not to be left out, or no row has one.
    """
    columns = [str(c) for c in frame]
    try:
        question = question_in(target, columns, where)
        goal = targets_in(columns, target, where) if question is None else [question.column]
        marks = form.marks(columns)
    except InputError:
        return None
    return rows_with_target(
        {name: frame[name] for name in goal}, lambda names: f"target {listed(map(repr, names), 5)} of {where}",
        form.unlabelled, task, {name: marks.get(name, ()) for name in goal}, lines,
    )  # fmt: skip


def rows_with_target(
    columns: Mapping[str, pd.Series[Any]],
    what: Callable[[Sequence[str]], str],
    unlabelled: str | None,
    task: TaskName | None,
    marks: Mapping[str, Sequence[str]] | None = None,
    lines: Lines | None = None,
) -> NDArray[np.bool_] | None:
    """For each row (R,) whether it has a target; None if all have.

    Args:
        columns: of the target.
        what: how messages call some of them.
        unlabelled: "drop" to leave the others out, which is said.
        task: what is learnt, if that is known.
        marks: of missing values, by column.
        lines: how a person counts the rows; by default from 0.

    Raises:
        InputError: as ``labelled_rows``.
    """
    sets = len(columns) == 1 and task in (None, "multilabel")
    by_column = {name: _gone(values, (marks or {}).get(name, ()), sets, task) for name, values in columns.items()}
    gone_R: NDArray[np.bool_] = np.any(list(by_column.values()), axis=0)
    if not gone_R.any():
        return None
    names = [name for name, of_one_R in by_column.items() if of_one_R.any()]
    lines = lines or Lines.counted(len(gone_R), 0)
    count, first = int(gone_R.sum()), int(lines.number_R[gone_R.argmax()])
    place = f"is missing in {count} of {len(gone_R)} rows (the first is row {first}, {lines.how})"
    if unlabelled != "drop":
        raise InputError(
            f"{what(names)} {place}: fill it in, or give {option('unlabelled', 'drop')} to leave such rows out"
        )
    if gone_R.all():
        raise InputError(f"{what(names)} is missing in all {count} rows: give rows that have one")
    log.warning("%s %s: they are left out", what(names), place)
    return ~gone_R


def marks_among(texts: Collection[str], marks: Collection[str]) -> tuple[str, ...]:
    """The texts by which a target of these texts is missing: among numbers those of features too."""
    every = ("", *MISSING, *marks)
    known = [text for text in texts if text not in every]
    return every if known and all(NUMBER.fullmatch(text) for text in known) else ("", UNKNOWN, *marks)


def _gone(values: pd.Series[Any], marks: Sequence[str], sets: bool, task: TaskName | None) -> NDArray[np.bool_]:
    """For each row (R,) whether the target is missing; ``sets`` may be texts with several labels."""
    if pd.api.types.is_numeric_dtype(values):
        mark_R: NDArray[np.bool_] = is_mark(values, marks).to_numpy(np.bool_)
        return missing(values) | mark_R
    values = values.astype(object)
    empty_R = missing(values, ("",))
    text_R = by_value(text_of, values[~empty_R])
    different = set(text_R)
    if task is None:
        sets = sets and any(mark in text for text in different for mark in BETWEEN)
    gone_R = np.zeros(len(values), np.bool_) if sets and not has_lists(values) else empty_R.copy()
    gone_R[~empty_R] = np.isin(text_R.astype(str), marks_among(different, marks))
    return gone_R
