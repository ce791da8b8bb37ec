"""The target: classes, numbers to predict, or several labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from idiolect.core.errors import InputError, listed, option
from idiolect.core.objectives import TaskName
from idiolect.data.custom.columns import FRACTIONS, NUMBER, amounts_in, check_texts, codes, labels
from idiolect.data.custom.label_sets import are_answers, label_sets
from idiolect.data.custom.names import look
from idiolect.data.targets import Targets

# R samples

log = logging.getLogger(__name__)


class Target(NamedTuple):
    """What is learnt, as a ``Source`` has it."""

    y_R: NDArray[np.int64]
    class_names: tuple[str, ...]
    targets: Targets | None


def target_of(
    columns: Mapping[str, pd.Series[Any]], whats: Mapping[str, str], task: TaskName | None, *, table: bool = True
) -> Target:
    """The target of samples.

    Where the task is not said, many different numbers are numbers to predict, several columns of 0 and 1 (or of
    answers, see ``label_sets``) are labels, several other columns numbers, and everything else is classes.

    Args:
        columns: of the target, by name; several numbers or labels are predicted together.
        whats: how messages call each column.
        task: what is learnt; None: what the values say.
        table: whether the samples are rows of a table. Of images, the numbers 0, 1, 2, ... are codes of classes.

    Raises:
        InputError: a value is missing or infinite, all are equal, texts are to be predicted as numbers or stand among
            many numbers, classes are identifiers, or as ``label_sets``.
    """
    if task not in (None, *get_args(TaskName)):
        raise InputError(
            f"task={task!r} is not known: give {listed(get_args(TaskName), between=' or ')}, or leave it out"
        )
    if len(columns) > 1 and task == "classification":
        raise InputError(f"target {listed(columns)} has {len(columns)} columns, and classes are in one: give one")
    first = next(iter(columns))
    if task == "multilabel" or (task is None and len(columns) > 1 and _are_labels(columns)):
        return _numbered(label_sets(columns, whats))
    if task == "regression" or len(columns) > 1 or (task is None and _are_amounts(columns[first], whats[first], table)):
        values = [numbers(values, whats[name], different=True) for name, values in columns.items()]
        return _numbered(Targets(torch.tensor(np.stack(values, 1)), tuple(columns)))
    y_R, class_names = labels(columns[first], whats[first])
    look(whats[first], "class", y_R, class_names)
    return Target(y_R, class_names, None)


def _numbered(targets: Targets) -> Target:
    return Target(np.zeros(len(targets.value_RD), np.int64), ("+".join(targets.names),), targets)


def _are_labels(columns: Mapping[str, pd.Series[Any]]) -> bool:
    """Whether several columns say which labels a sample has, which is said."""
    if not are_answers(columns):
        values_of = {name: codes(values, name)[1] for name, values in columns.items()}
        most = max(values_of, key=lambda name: len(values_of[name]))
        log.warning(
            "the targets %s are taken as numbers to predict, because %s has the values %s, and labels have 0 and 1 "
            "alone; if they are numbers, give %s",
            listed(columns, 5), most, listed(values_of[most], 3), option("task", "regression"),
        )  # fmt: skip
        return False
    log.warning(
        "the targets %s have two values each, which say which labels a sample has; if they are numbers to predict, "
        "give %s", listed(columns, 5), option("task", "regression"),
    )  # fmt: skip
    return True


def _are_amounts(values: pd.Series[Any], what: str, table: bool) -> bool:
    """Whether values are numbers to predict, which is said."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return False
    _, names = codes(values, what)
    check_texts(what, names, table=table)
    amounts = amounts_in(names, table=table)
    if amounts is None or (amounts != FRACTIONS and len(names) == len(values)):
        return False
    log.warning(
        "%s has %d different %s, which are taken as numbers to predict; if they are classes, give %s",
        what, len(names), amounts, option("task", "classification"),
    )  # fmt: skip
    return True


def numbers(values: pd.Series[Any], what: str, *, different: bool = False) -> NDArray[np.float64]:
    """The numbers (R,) of a column.

    Args:
        values: of the column.
        what: how messages call it.
        different: whether there must be different ones.

    Raises:
        InputError: one is missing or infinite, or is a text, or all are equal where they must not be.
    """
    code_R, names = codes(values, what)
    if texts := [name for name in names if not NUMBER.fullmatch(name)]:
        raise InputError(
            f"{what} has texts ({listed(texts, 3)}), and a regression predicts numbers: give a column of numbers, or "
            f"{option('task', 'classification')}"
        )
    if different and len(names) == 1:
        raise InputError(f"{what} is {names[0]} in all rows: give a column with different numbers")
    return np.array([float(name) for name in names])[code_R]
