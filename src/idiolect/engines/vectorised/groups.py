"""Groups of clients with little padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def plan(rows: Sequence[int], padding: float = 0.1) -> list[list[int]]:
    """The fewest groups of clients in which padding to the longest client makes at most this share of the samples.

    Among equally few groups, those with the least padding. Groups are places in ``rows``, the longest client first.
    """
    if not rows:
        return []
    size_K = np.asarray(rows)
    order_K = np.argsort(-size_K, kind="stable")
    first_U = np.flatnonzero(np.diff(size_K[order_K], prepend=-1))  # places where another length starts
    end_U = np.append(first_U[1:], len(rows))
    # samples, padding included, of a group from the i-th length to the j-th
    cost_UU = (size_K[order_K][first_U][:, None] * (end_U - first_U[:, None])).astype(float)
    cost_UU[np.tril_indices(len(first_U), -1)] = np.inf
    best_U, cuts = cost_UU[0], []
    while best_U[-1] - size_K.sum() > padding * best_U[-1]:
        total_UU = best_U[:-1, None] + cost_UU[1:]  # one more group, which starts at i + 1
        cuts.append(total_UU.argmin(0) + 1)
        best_U = total_UU.min(0)
    starts, last = [], len(first_U) - 1
    for cut_U in reversed(cuts):
        starts.append(cut_U[last])
        last = cut_U[last] - 1
    return [group.tolist() for group in np.split(order_K, first_U[starts[::-1]])]
