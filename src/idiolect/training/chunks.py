"""Passes over many samples, some at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.inputs import is_integer
from idiolect.core.tree import Tree

# N samples, L tokens


def in_chunks(function: Callable[[Tree], Tensor], x_R: Tree, size: int, row_N: Tensor | None = None) -> Tensor:
    """What a function makes of samples, (N, ...), some at a time.

    Rows of ids, (R, L), go with others of a similar length, so that short texts cost little: a network may leave out
    the columns in which all rows of a chunk are 0 (see ``idiolect.models.text.without_padding``).

    Args:
        function: from some samples to a row for each.
        x_R: samples.
        size: samples at a time.
        row_N: the numbers of those that are meant; None for all.
    """
    if (order_N := _by_length(x_R, row_N, size)) is not None:
        at_N = order_N if row_N is None else row_N[order_N]
        value_N = torch.cat([function(x_R[at_B]) for at_B in torch.split(at_N, size)])
        return torch.empty_like(value_N).index_copy_(0, order_N, value_N)
    parts = tree.split(x_R, size) if row_N is None else (tree.rows(x_R, at_B) for at_B in torch.split(row_N, size))
    return torch.cat([function(x_B) for x_B in parts])


def _by_length(x_R: Tree, row_N: Tensor | None, size: int) -> Tensor | None:
    """The order (N,) of rows of ids by length; None for other samples, and where it does not matter."""
    if not isinstance(x_R, Tensor) or tree.mapped(x_R) or x_R.ndim != 2 or not is_integer(x_R):
        return None
    id_NL = x_R if row_N is None else x_R[row_N]
    count_N = (id_NL != 0).sum(1)
    return torch.argsort(count_N, stable=True) if len(id_NL) > size and count_N.min() < count_N.max() else None
