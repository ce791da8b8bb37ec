"""Which labels a site's samples have, as a bundle or a federation knows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.core.errors import InputError, listed
from idiolect.core.option_spec import split_names
from idiolect.data.custom.columns import find
from idiolect.data.custom.label_sets import answers, cells_of
from idiolect.deploy.column_names import in_order

# N samples of this site, L labels


def columns_of(columns: Sequence[str], labels: Sequence[str], target: str | None, where: str) -> list[str]:
    """The columns of the labels: one for each in the order of the labels, or a single one of lists or texts.

    Args:
        columns: of the site's table.
        labels: the names of the labels.
        target: the columns, joined by +; None for those that are named as in training.
        where: the table, for messages.

    Raises:
        InputError: there is no such column, or not one for each label.
    """
    if target is None:
        return [find(columns, name, "target", where) for name in labels]
    own = [find(columns, name, "target", where) for name in split_names(target, columns)]
    if len(own) == 1 and (len(labels) > 1 or own[0] != labels[0]):
        return own
    if len(own) != len(labels) or len(set(own)) < len(own):
        raise InputError(
            f"target: {target} is {len(set(own))} columns, and the labels are {listed(labels, 8)}: give one column for "
            "each, joined by +, or a single one of lists or of texts with | between the labels"
        )
    return in_order(own, labels)


def values_of(frame: pd.DataFrame, columns: Sequence[str], labels: Sequence[str], where: str) -> Tensor:
    """Which labels each sample has (N, L), float64, 0 or 1.

    Args:
        frame: the site's table.
        columns: of ``columns_of``.
        labels: the names of the labels.
        where: the table, for messages.

    Raises:
        InputError: a value is missing or says something else, or a label is unknown.
    """
    whats = {name: f"target {name!r} of {where}" for name in columns}
    if len(columns) > 1 or list(columns) == list(labels):
        return torch.from_numpy(np.stack([answers(frame[name], whats[name]) for name in columns], 1))
    [name] = columns
    cells = cells_of(frame[name], whats[name], alone=True)
    place = {label: k for k, label in enumerate(labels)}
    if unknown := sorted({label for cell in cells for label in cell} - set(place)):
        raise InputError(
            f"{where} has the label {unknown[0]!r}, which is not known; the labels are {listed(labels, 12)}: correct "
            "it, or leave it out"
        )
    value_NL = np.zeros((len(cells), len(labels)))
    for row, cell in enumerate(cells):
        value_NL[row, [place[label] for label in cell]] = 1
    return torch.from_numpy(value_NL)
