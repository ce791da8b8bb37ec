"""Which of a site's samples belong together, as those of one patient."""

from __future__ import annotations

import logging

import pandas as pd
import torch
from torch import Tensor

from idiolect.core.errors import option
from idiolect.data.custom.columns import codes, find
from idiolect.statistics.conformal import group_weights

# N samples of this site

log = logging.getLogger(__name__)


def group_of(
    frame: pd.DataFrame, label: str, given: str | None, usual: str | None, where: str, by: str = "the training"
) -> str | None:
    """The column that says which samples belong together, or None; where the usual one is not there, this is said.

    Raises:
        InputError: there is no such column, or it is the target.
    """
    columns = [str(c) for c in frame if str(c) != label]
    if given is not None:
        return find(columns, given, "group_column", where)
    if usual is None:
        return None
    if usual in columns:
        log.warning("%s: the samples of one %r are kept together, as %s does", where, usual, by)
        return usual
    log.warning(
        "%s has no column %r, by which %s keeps samples together: if several samples are of one here too, give %s",
        where, usual, by, option("group_column"),
    )  # fmt: skip
    return None


def group_numbers(values: pd.Series, name: str, where: str) -> Tensor:
    """The group (N,) of each sample, int64.

    Raises:
        InputError: one is missing.
    """
    return torch.from_numpy(codes(values.astype(object), f"group_column {name!r} of {where}")[0])


def scores_of(score_N: Tensor, group_N: Tensor | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The probabilities of the right classes, or errors, sorted, and their weights where there are groups.

    See ``Site`` and ``ErrorsPart``.
    """
    order_N = score_N.argsort(stable=True)
    if group_N is None:
        return tuple(score_N[order_N].tolist()), ()
    weight_N = torch.from_numpy(group_weights(group_N.numpy()))
    return tuple(score_N[order_N].tolist()), tuple(weight_N[order_N].tolist())
