"""Parts of partitions: how many samples of each class a client gets, which ones, and which are for testing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from idiolect.data.datasets.dataset import Source

# R samples, K clients, C classes, N samples of one client

Rows = NDArray[np.int64]


class Split(NamedTuple):
    """The sample numbers of each client, and the clients' names, if they have names.

    ``shared`` is true only if released code makes clients share samples: then a sample may occur twice. ``left`` are
    samples of a client that are used for neither, where training and test samples are apart in time.
    """

    train: list[Rows]
    test: list[Rows]
    names: tuple[str, ...] | None = None
    shared: bool = False
    left: Sequence[Rows] = ()


def deal(y_R: Rows, rows: Rows, count_KC: Rows, rng: np.random.Generator) -> list[Rows]:
    """Random, disjoint draws from ``rows``: count_KC[k, c] samples of class c for client k, in random order."""
    hands: list[list[Rows]] = [[] for _ in count_KC]
    for c, count_K in enumerate(count_KC.T):
        deck = rng.permutation(rows[y_R[rows] == c])
        for hand, part in zip(hands, np.split(deck, count_K.cumsum()), strict=False):
            hand.append(part)
    return [rng.permutation(np.concatenate(hand)) for hand in hands]


def cut(rows_K: Sequence[Rows], test_K: Rows, y_R: Rows | None, rng: np.random.Generator) -> Split:
    """Take test_K[k] of each client's samples, which are in random order, for testing.

    With labels ``y_R``, training and test samples have the same class proportions, to within one sample of each class.
    """
    if y_R is None:
        pairs = [
            (rows[: len(rows) - test], rows[len(rows) - test :]) for rows, test in zip(rows_K, test_K, strict=True)
        ]
    else:
        pairs = [_stratified(rows, test, y_R[rows], rng) for rows, test in zip(rows_K, test_K, strict=True)]
    return Split([train for train, _ in pairs], [test for _, test in pairs])


def held_out(rows_K: Rows, fraction: float) -> Rows:
    """How many of each client's samples are for testing: at least one, but not all."""
    return np.asarray(np.clip(np.rint(fraction * rows_K).astype(np.int64), 1, rows_K - 1))


def shares_of_classes(size_C: Rows, count: int, most_C: Rows, turn_C: Rows) -> Rows:
    """How many samples of each class (C,) are set aside: ``count`` in proportion to the sizes, by largest remainders.

    Args:
        size_C: samples of each class, one or more.
        count: how many samples in all; there are fewer where ``most_C`` allows no more.
        most_C: the most of each class.
        turn_C: all classes; of equal remainders that of the first class here counts as the largest.
    """
    part_C = np.minimum(count * size_C // size_C.sum(), most_C)
    while part_C.sum() < min(count, most_C.sum()):
        rest_C = np.where(part_C < most_C, count * size_C - part_C * size_C.sum(), np.iinfo(np.int64).min)
        part_C[turn_C[rest_C[turn_C].argmax()]] += 1
    return np.asarray(part_C)


def train_test_split(
    source: Source, rows_K: list[Rows], test_fraction: float, stratified: bool, rng: np.random.Generator
) -> Split:
    """Take ``test_fraction`` of each client's samples, which are in random order, for testing."""
    test_K = held_out(np.array([len(rows) for rows in rows_K]), test_fraction)
    return cut(rows_K, test_K, source.y_R.numpy() if stratified else None, rng)


def _stratified(row_N: Rows, test: int, y_N: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
    _, class_N, rows_C = np.unique(y_N, return_inverse=True, return_counts=True)
    test_C, rest_C = np.divmod(rows_C * test, len(row_N))
    test_C[np.lexsort((rng.random(len(rest_C)), -rest_C))[: test - test_C.sum()]] += 1
    place_N = np.empty_like(row_N)
    place_N[np.argsort(class_N, kind="stable")] = np.arange(len(row_N)) - np.repeat(rows_C.cumsum() - rows_C, rows_C)
    is_test_N = place_N < test_C[class_N]
    return rng.permutation(row_N[~is_test_N]), rng.permutation(row_N[is_test_N])


def draw_classes(classes: int, count: int, clients: int, rng: np.random.Generator) -> Rows:
    """``count`` different classes for each client, (K, count); more clients do not change those of the first ones."""
    return np.asarray(rng.random((clients, classes)).argsort(axis=1)[:, :count])


def whole(exact_KC: NDArray[np.float64], size_K: Rows) -> Rows:
    """Whole numbers that sum to ``size_K``, by largest remainder; ties go to the next class from client to client."""
    clients, classes = exact_KC.shape
    count_KC = np.floor(exact_KC.round(9)).astype(np.int64)
    rest_KC = (exact_KC - count_KC).round(9)
    turn_KC = (np.arange(classes) - np.arange(clients)[:, None]) % classes
    rank_KC = np.lexsort((turn_KC, -rest_KC), axis=-1).argsort(axis=1)
    return np.asarray(count_KC + (rank_KC < (size_K - count_KC.sum(1))[:, None]))


def fill(prior_KC: NDArray[np.float64], size_K: Rows, stock_C: Rows, rng: np.random.Generator) -> Rows:
    """Samples per client and class (K, C): clients that are not full, in random order, draw classes from priors.

    If the class of a draw is used up, the client draws again, so the prior is renormalised over the others. If all
    classes of its prior are used up, the client draws uniformly among the classes that are left. ``size_K`` sums to no
    more than ``stock_C``.
    """
    clients, classes = prior_KC.shape
    # drawing uniformly among the clients that are not full gives the order of events of independent Poisson processes
    turn_R = np.repeat(np.arange(clients), size_K)
    time_R = rng.exponential(size=len(turn_R)).cumsum()
    time_R -= np.concatenate([[0.0], time_R])[(size_K.cumsum() - size_K)[turn_R]]
    turn_R = turn_R[np.argsort(time_R)]
    count_KC = np.zeros((clients, classes), np.int64)
    while len(turn_R):
        left_C = stock_C - count_KC.sum(0)
        share_KC = np.where(left_C > 0, prior_KC, 0)
        share_KC = np.where(share_KC.sum(1, keepdims=True) > 0, share_KC, left_C > 0)
        level_KC = share_KC.cumsum(1)
        level_KC /= level_KC[:, -1:]
        # one search for all clients: client k's levels are in (k, k + 1]
        draw_R = np.minimum(turn_R + rng.random(len(turn_R)), np.nextafter(turn_R + 1.0, 0))
        class_R = np.searchsorted((level_KC + np.arange(clients)[:, None]).ravel(), draw_R, side="right")
        class_R -= turn_R * classes
        # draws count until one of a class that is used up; the rest are drawn again without that class
        drawn_C = np.bincount(class_R, minlength=classes)
        over_C = np.flatnonzero(drawn_C > left_C)
        first_over = (drawn_C.cumsum() - drawn_C + left_C)[over_C]
        end = np.argsort(class_R, kind="stable")[first_over].min(initial=len(turn_R))
        cell_R = turn_R[:end] * classes + class_R[:end]
        count_KC += np.bincount(cell_R, minlength=count_KC.size).reshape(count_KC.shape)
        turn_R = turn_R[end:]
    return count_KC


def allocate(own_KC: NDArray[np.bool_], size_K: Rows, stock_C: Rows, rng: np.random.Generator) -> Rows | None:
    """Samples per client and class (K, C), of its own classes only, as equal as the stock allows; None if impossible.

    x_kc = size_k w_c / sum of w over the client's classes, with w = 1 for classes with enough samples and less for the
    others (iterative proportional fitting). A maximum flow makes them whole numbers.
    """
    if not suffices(own_KC, size_K, stock_C):
        return None
    weight_C = np.ones(len(stock_C))
    for _ in range(1000):
        exact_KC = own_KC * weight_C
        exact_KC *= (size_K / exact_KC.sum(1))[:, None]
        demand_C = exact_KC.sum(0)
        if (demand_C <= stock_C + 1e-6).all():
            break
        weight_C = np.clip(weight_C * stock_C / np.maximum(demand_C, 1e-300), 1e-200, 1)
        weight_C /= weight_C.max()
    floor_KC = np.floor(exact_KC.round(6)).astype(np.int64)
    # clients and classes in random order, so that no client is preferred when samples remain
    k, c = rng.permutation(len(size_K)), rng.permutation(len(stock_C))
    slack = 0
    while True:
        low_KC = np.maximum(floor_KC - slack, 0)
        high_KC = np.where(own_KC, floor_KC + 1 + slack, 0)
        flow_KC = _flow(low_KC[k][:, c], high_KC[k][:, c], size_K[k], stock_C[c])
        if flow_KC is not None:
            return flow_KC[np.argsort(k)][:, np.argsort(c)]
        slack = 2 * slack + 1


def suffices(own_KC: NDArray[np.bool_], size_K: Rows, stock_C: Rows) -> bool:
    """Whether all clients can have enough samples of their own classes."""
    return _flow(np.zeros(own_KC.shape, np.int64), own_KC * size_K[:, None], size_K, stock_C) is not None


def _flow(low_KC: Rows, high_KC: Rows, size_K: Rows, stock_C: Rows) -> Rows | None:
    """Whole numbers between ``low_KC`` and ``high_KC`` with row sums ``size_K`` and column sums within ``stock_C``."""
    clients, classes = low_KC.shape
    need_K, room_C = size_K - low_KC.sum(1), stock_C - low_KC.sum(0)
    if need_K.min() < 0 or room_C.min() < 0:
        return None
    k, c = np.nonzero(high_KC > low_KC)
    client_K, class_C, end = (
        np.arange(1, clients + 1),
        np.arange(clients + 1, clients + classes + 1),
        clients + classes + 1,
    )
    tail = np.concatenate([np.zeros(clients, np.int64), client_K[k], class_C])
    head = np.concatenate([client_K, class_C[c], np.full(classes, end)])
    capacity = np.concatenate([need_K, (high_KC - low_KC)[k, c], room_C]).astype(np.int32)
    from scipy.sparse import csr_array  # slow to import, and workers do not need it
    from scipy.sparse.csgraph import maximum_flow

    result = maximum_flow(csr_array((capacity, (tail, head)), shape=(end + 1, end + 1)), 0, end)
    if result.flow_value < need_K.sum():
        return None
    return np.asarray(low_KC + result.flow[1 : clients + 1, clients + 1 : end].toarray())
