"""Groups of samples, such as those of one patient, on one side of a split each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# R samples of all clients, N samples of one client, K clients, G groups

Rows = NDArray[np.int64]


def set_aside(
    rows_K: Sequence[Rows], group_R: Rows, count_K: Sequence[int], rng: np.random.Generator
) -> list[NDArray[np.bool_]]:
    """For each client which of its samples (N,) are set aside, so that no group is on both sides, at any client.

    The groups come in random order. One is set aside if the clients' numbers of such samples are then nearer to
    ``count_K``, by the sum of squares over the clients' sizes. A client keeps at least one group; it gets at least one
    set aside where its groups allow that.

    Args:
        rows_K: the numbers of each client's samples.
        group_R: the group of every sample.
        count_K: how many samples of each client are to be set aside.
        rng: for the order of the groups.

    Source: as scikit-learn's GroupShuffleSplit, by numbers of samples in place of groups, and for all clients at once.
    """
    sizes = [len(rows) for rows in rows_K]
    every = np.concatenate([group_R[rows] for rows in rows_K])
    names, group_N = np.unique(every, return_inverse=True)
    client_N = np.repeat(np.arange(len(rows_K)), sizes)
    (client_P, group_P), rows_P = np.unique(np.stack([client_N, group_N]), axis=1, return_counts=True)
    place_G = np.split(np.argsort(group_P, kind="stable"), np.bincount(group_P).cumsum()[:-1])
    left_K = np.bincount(client_P, minlength=len(rows_K))  # groups that a client keeps
    aside_K = np.zeros(len(rows_K))  # samples
    is_aside_G = np.zeros(len(names), np.bool_)
    wanted_K, size_K = np.asarray(count_K, np.float64), np.maximum(sizes, 1)

    def put(group: int) -> None:
        is_aside_G[group] = True
        left_K[client_P[place_G[group]]] -= 1
        aside_K[client_P[place_G[group]]] += rows_P[place_G[group]]

    def may(group: int) -> bool:
        return not is_aside_G[group] and bool((left_K[client_P[place_G[group]]] > 1).all())

    for group in rng.permutation(len(names)).tolist():
        k_P, n_P = client_P[place_G[group]], rows_P[place_G[group]]
        if may(group) and (n_P * (2 * (aside_K[k_P] - wanted_K[k_P]) + n_P) / size_K[k_P]).sum() < 0:
            put(group)
    for k in np.flatnonzero((aside_K == 0) & (wanted_K > 0)).tolist():
        own_P = np.flatnonzero(client_P == k)
        smallest = own_P[np.argsort(rows_P[own_P], kind="stable")]
        if (group := next((g for g in group_P[smallest].tolist() if may(g)), None)) is not None:
            put(group)
    return np.split(is_aside_G[group_N], np.cumsum(sizes)[:-1])


def largest(rows: Rows, group_R: Rows) -> tuple[int, int]:
    """The group that most of some samples belong to, and how many do."""
    groups, count = np.unique(group_R[rows], return_counts=True)
    return int(groups[count.argmax()]), int(count.max())
