"""How rows are divided among clients: one public function each, found by ``idiolect.data.PARTITIONS``.

To add one, write a public function here with this signature, its options keyword-only, annotated with their range:
``def name(source, clients, rng, *, option: Type = default) -> Split``.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from idiolect.data.sources import Source
from idiolect.errors import InputError

# R rows, K clients, C classes

log = logging.getLogger(__name__)

Rows = NDArray[np.int64]
Alpha = Annotated[float, Field(gt=0, le=1e6)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Percent = Annotated[float, Field(ge=0, le=100)]
Size = Annotated[int, Field(ge=1)]
Least = Annotated[int, Field(ge=2)]

_TRIES = 30_000  # 100 clients with alpha=0.1 on ten classes, a published setting, take some 2,000
_HOPELESS = 1000  # if the best of so many is not half way, none will be
_GROUPS = 5


class Split(NamedTuple):
    """Row numbers per client; no row stands twice."""

    train: list[Rows]
    test: list[Rows]


def iid(source: Source, clients: int, rng: np.random.Generator, *, test_fraction: Fraction = 0.2) -> Split:
    """Equal, random shares of all rows, official splits merged; the remainder of the division is left out.

    Args:
        test_fraction: the share of a client's rows that it tests on.

    Raises:
        InputError: fewer than two rows per client.
    """
    each = _rows_each(source, clients)
    order_R = rng.permutation(len(source.y_R))
    return _split(list(order_R[: each * clients].reshape(clients, each)), test_fraction)


def dirichlet(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: Alpha = 0.5,
    min_rows: Least | None = None,
    test_fraction: Fraction = 0.2,
) -> Split:
    """Each class is dealt out in proportions p ~ Dir(alpha), among the clients that hold fewer than R/K rows so far.

    Official splits are merged. The deal is repeated until the smallest client has ``min_rows``. Zeroing the p of full
    clients and renormalising is the same as drawing p among the others, which cannot come out all zero.

    Args:
        alpha: concentration; small is heterogeneous.
        min_rows: rows of the smallest client; by default 63 (the released code's 50 / 0.8), or half the mean where
            that is less.
        test_fraction: the share of a client's rows that it tests on, drawn at random and not per class.

    Raises:
        InputError: fewer than two rows per client, or no deal in 30,000 gives everyone ``min_rows``
            (in 1,000, where none of them comes half way).

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), section 5.1 and appendix C.1.2; the cap on full clients and
    ``min_rows`` are the released code's.
    """
    each = _rows_each(source, clients)
    least = max(2, min(63, each // 2)) if min_rows is None else min_rows
    if least > each:
        raise InputError(
            f"partition dirichlet: min_rows={least} is more than {clients} clients can have of {source.name}'s "
            f"{len(source.y_R)} rows; min_rows={each} is the most"
        )
    y_R = source.y_R.numpy()
    size_C = np.bincount(y_R, minlength=source.classes)
    best = 0
    for deal in range(1, _TRIES + 1):
        count_KC = _dirichlet_counts(size_C, clients, rng, alpha)
        smallest = int(count_KC.sum(1).min())
        if smallest >= least:
            return _split(_deal(y_R, np.arange(len(y_R)), count_KC, rng), test_fraction)
        best = max(best, smallest)
        if deal == _HOPELESS and 2 * best < least:
            break
    fits = f"min_rows={best} fits, or take" if best >= 2 else "take"
    raise InputError(
        f"partition dirichlet: {deal:,} deals with alpha={alpha:g} all left one of {clients} clients with fewer than "
        f"{least} rows; {fits} fewer clients or a larger alpha"
    )


def dominant(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    *,
    share: Percent = 20,
    train_size: Size = 600,
    test_size: Size = 300,
) -> Split:
    """Equal sizes: ``share`` percent uniform over all classes, the rest equally over the client's dominant classes.

    n_c = n share / (100 C) + [c dominant] n (1 - share / 100) / D, whole numbers by largest remainder, ties going
    round the classes from client to client. Client i belongs to group i mod 5; with ten classes the dominant ones are
    {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8}, {8,9,0}. With any other number the classes are cut into five consecutive
    stretches (as many as there are classes if fewer), each joined by the first class of the next.

    Training rows come from the official training split and test rows from the official test split, where there is one
    and both suffice for every class; otherwise both come from all rows, and a logged warning says so where there is an
    official split. Draws are random and disjoint; a client's test rows have its training rows' class proportions.

    Args:
        share: percent of a client's rows that is uniform over the classes.
        train_size: training rows per client.
        test_size: test rows per client.

    Raises:
        InputError: a class runs out; the message says how many clients or which sizes fit.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), section 6.1 and appendix B.2.
    Differs from source: the released code cuts consecutive slices that wrap round, so that clients share rows, and
    gives every remainder to the last class; on EMNIST the paper has three groups (digits, upper case, lower case).
    """
    _rows_each(source, clients)

    def counts(k: int, size: int) -> Rows:
        return np.stack([_dominant_counts(source.classes, i, share, size) for i in range(k)])

    y_R = source.y_R.numpy()
    train_KC, test_KC = counts(clients, train_size), counts(clients, test_size)
    stock_C = np.bincount(y_R, minlength=source.classes)
    train_stock_C = np.bincount(y_R[: source.train_rows], minlength=source.classes)
    has_test = source.train_rows < len(y_R)
    if has_test and np.all(train_KC.sum(0) <= train_stock_C) and np.all(test_KC.sum(0) <= stock_C - train_stock_C):
        official_train, official_test = np.split(np.arange(len(y_R)), [source.train_rows])
        return Split(_deal(y_R, official_train, train_KC, rng), _deal(y_R, official_test, test_KC, rng))

    need_KC = train_KC + test_KC
    if np.any(need_KC.sum(0) > stock_C):

        def test_for(train: int) -> int:
            return max(1, round(train * test_size / train_size))

        def too_big(train: int) -> bool:
            need_C = (counts(clients, train) + counts(clients, test_for(train))).sum(0)
            return bool((need_C > stock_C).any())

        c = int(np.argmax(need_KC.sum(0) - stock_C))
        fewer = int(np.all(need_KC.cumsum(0) <= stock_C, axis=1).sum())
        smaller = bisect.bisect_left(range(1, train_size), True, key=too_big)
        fits = [f"clients={fewer}"] if fewer else []
        fits += [f"train_size={smaller},test_size={test_for(smaller)}"] if smaller else []
        raise InputError(
            f"partition dominant: class {source.class_names[c]!r} of {source.name} has {stock_C[c]} rows and {clients} "
            f"clients with train_size={train_size} and test_size={test_size} need {need_KC[:, c].sum()}; "
            f"{' or '.join(fits) or 'fewer clients'} would fit"
        )
    if has_test:
        log.warning(
            "partition dominant: the official splits of %s are too small for %d clients with train_size=%d and "
            "test_size=%d, so training and test rows are drawn from both splits together",
            source.name, clients, train_size, test_size,
        )  # fmt: skip
    both = _deal(y_R, np.arange(len(y_R)), np.concatenate([train_KC, test_KC]), rng)
    return Split(both[:clients], both[clients:])


def _rows_each(source: Source, clients: int) -> int:
    rows = len(source.y_R)
    if rows < 2 * clients:
        raise InputError(
            f"clients={clients} is too many for {source.name}: with a row to train on and one to test on for everyone, "
            f"{rows} rows serve at most {rows // 2} clients"
        )
    return rows // clients


def _dirichlet_counts(size_C: Rows, clients: int, rng: np.random.Generator, alpha: float) -> Rows:
    """Rows per client and class (K, C)."""
    count_CK = np.zeros((len(size_C), clients), np.int64)
    total_K = np.zeros(clients, np.int64)
    for count_K, size in zip(count_CK, size_C, strict=True):
        if size:
            open_K = np.flatnonzero(total_K * clients < size_C.sum())
            p_K = rng.dirichlet(np.full(len(open_K), alpha))
            cuts = np.minimum(p_K.cumsum()[:-1] * size, size).astype(np.int64)
            count_K[open_K] = np.diff(cuts, prepend=0, append=size)
            total_K += count_K
    return count_CK.T


def _dominant_counts(classes: int, client: int, share: float, size: int) -> Rows:
    """Rows per class (C,) of one client; they sum to ``size``."""
    groups = min(_GROUPS, classes)
    group = client % groups
    first, end = group * classes // groups, (group + 1) * classes // groups
    width = max(1, min(end - first + 1, classes - 1))
    exact_C = np.full(classes, size * share / 100 / classes)
    exact_C[np.arange(first, first + width) % classes] += size * (1 - share / 100) / width
    whole_C = np.floor(exact_C.round(9)).astype(np.int64)
    rest_C = (exact_C - whole_C).round(9)
    turn_C = (np.arange(classes) - client) % classes
    whole_C[np.lexsort((turn_C, -rest_C))[: size - whole_C.sum()]] += 1
    return np.asarray(whole_C)


def _deal(y_R: Rows, rows: Rows, count_KC: Rows, rng: np.random.Generator) -> list[Rows]:
    """Random, disjoint draws from ``rows``: count_KC[k, c] rows of class c for client k, in random order."""
    hands: list[list[Rows]] = [[] for _ in count_KC]
    for c, count_K in enumerate(count_KC.T):
        deck = rng.permutation(rows[y_R[rows] == c])
        for hand, part in zip(hands, np.split(deck, count_K.cumsum()), strict=False):
            hand.append(part)
    return [rng.permutation(np.concatenate(hand)) for hand in hands]


def _split(rows_K: Sequence[Rows], test_fraction: float) -> Split:
    """The last ``test_fraction`` of each client's rows, which stand in random order, for testing; at least one row."""
    cut_K = [len(rows) - min(max(round(test_fraction * len(rows)), 1), len(rows) - 1) for rows in rows_K]
    pairs = list(zip(rows_K, cut_K, strict=True))
    return Split([rows[:cut] for rows, cut in pairs], [rows[cut:] for rows, cut in pairs])
