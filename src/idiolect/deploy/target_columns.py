"""The labels, or the numbers, of a site's samples, as a bundle knows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError, listed, option
from idiolect.core.option_spec import split_names
from idiolect.data.custom.columns import NUMBER, codes, find, find_target, missing, text_of
from idiolect.data.custom.questions import answered
from idiolect.deploy import label_columns, units
from idiolect.deploy.column_names import in_order
from idiolect.deploy.numbers import scaled
from idiolect.deploy.schema import TargetPart
from idiolect.deploy.usual import Usual

# N samples of this site, D numbers of the target

_FEW = 8  # numbers of which a mean and a spread say something


def with_targets(
    frame: pd.DataFrame, classes: Sequence[str], targets: Sequence[TargetPart], several: Sequence[str],
    target: str | None, where: str, as_is: Sequence[str], usual: Usual = Usual(),  # noqa: B008  immutable
) -> tuple[pd.DataFrame, Tensor, list[str]]:  # fmt: skip
    """A table with the answer that a target asks for, the classes or numbers of its rows, and their columns.

    The classes are places (N,) among the bundle's; the numbers are what networks learn of them (N, D); of ``several``
    labels, 1 where a sample has one, else 0 (N, L).

    Raises:
        InputError: as ``labels``, ``columns_of``, ``numbers_of`` and ``Usual.check_question``.
    """
    if targets:
        goal = columns_of([str(c) for c in frame], targets, target, where)
        return frame, numbers_of(frame, goal, targets, where, as_is), goal
    if several:
        goal = label_columns.columns_of([str(c) for c in frame], several, target, where)
        return frame, label_columns.values_of(frame, goal, several, where), goal
    usual.check_question(target, [str(c) for c in frame], where)
    frame = answered(frame, target, where)
    label = find_target([str(c) for c in frame], target, where)
    return frame, torch.from_numpy(labels(frame[label], classes, where, usual.asked)), [label]


def labels(values: pd.Series, classes: Sequence[str], where: str, hint: str = "") -> NDArray[np.int64]:
    """The places (N,) of labels among the classes; ``hint`` ends the message where one is none of them.

    Raises:
        InputError: a label is missing or is not a class.
    """
    gaps = np.flatnonzero(missing(values, ("",)))
    if gaps.size:
        raise InputError(
            f"the label is missing in {gaps.size} of {len(values)} rows of {where} (the first is row {gaps[0]}, "
            "counting from 0): fill it in or remove those rows"
        )
    names = values.astype(object).map(text_of)
    place = {name: k for k, name in enumerate(classes)}
    unknown = sorted(set(names) - set(place))
    if unknown:
        raise InputError(
            f"{where} has the label {unknown[0]!r}, which the bundle does not know; its classes are "
            f"{listed(classes, 12)}" + (hint or ": correct the labels, or remove those rows")
        )
    return np.array(names.map(place), np.int64)


def columns_of(columns: Sequence[str], targets: Sequence[TargetPart], target: str | None, where: str) -> list[str]:
    """The columns of the numbers, in the order of the bundle's targets.

    Args:
        columns: of the site's table.
        targets: of the bundle.
        target: the columns, joined by +; None for those that are named as in training.
        where: the table, for messages.

    Raises:
        InputError: there is no such column, or not one for each target.
    """
    names = [one.name for one in targets]
    if target is None:
        return [find(columns, name, "target", where) for name in names]
    own = [find(columns, name, "target", where) for name in split_names(target, columns)]
    if len(own) != len(names) or len(set(own)) < len(own):
        raise InputError(
            f"target: {target} is {len(set(own))} columns, and the bundle predicts {listed(names, 8)}: give one column "
            "for each, joined by +"
        )
    return in_order(own, names)


def numbers_of(
    frame: pd.DataFrame, columns: Sequence[str], targets: Sequence[TargetPart], where: str,
    as_is: Collection[str] = (),
) -> Tensor:  # fmt: skip
    """What networks learn of the numbers (N, D), float64.

    Args:
        frame: the site's table.
        columns: of the numbers, in the order of the targets.
        targets: of the bundle.
        where: the table, for messages.
        as_is: the targets whose numbers are used although they look like those of another unit.

    Raises:
        InputError: a number is missing, infinite or a text, looks like another unit's, or all are equal.
    """
    values = [numbers(frame[column], f"target {column!r} of {where}") for column in columns]
    for value_N, one in zip(values, targets, strict=True):
        if one.name not in as_is and len(value_N) >= _FEW and units.of_another_unit(value_N, one.mean, one.std):
            raise InputError(
                f"target {one.name!r} of {where} looks like another unit: its mean is {value_N.mean():.4g} with a "
                f"spread of {value_N.std():.3g}, and in training it was {one.mean:.4g} with {one.std:.3g}: convert it, "
                f"or give {option('as_is', one.name)} if the numbers are right"
            )
    return scaled(torch.from_numpy(np.stack(values, 1)), targets)


def numbers(values: pd.Series[Any], what: str) -> NDArray[np.float64]:
    """The numbers (N,) of a target.

    Raises:
        InputError: one is missing, infinite or a text, or all are equal.
    """
    code_N, names = codes(values, what)
    if texts := [name for name in names if not NUMBER.fullmatch(name)]:
        raise InputError(
            f"{what} has texts ({listed(texts, 3)}), and the bundle predicts numbers: correct them, or remove those "
            "rows"
        )
    if len(names) == 1:
        raise InputError(f"{what} is {names[0]} in all {len(values)} samples: give samples with different numbers")
    value_N = np.array([float(name) for name in names])[code_N]
    if endless := np.flatnonzero(np.isinf(value_N)).tolist():
        raise InputError(
            f"{what} is too large in {len(endless)} of {len(values)} rows (the first is row {endless[0]}, counting "
            "from 0): correct it or remove those rows"
        )
    return value_N
