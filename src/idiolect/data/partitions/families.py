"""How rows are divided among clients: one public function each, found by ``idiolect.data.PARTITIONS``.

To add one, write a public function here with this signature, its options keyword-only, annotated with their range:
``def name(source, clients, rng, sizes_K=None, *, option: Type = default) -> Split``. A partition that has no number of
rows per client of its own leaves ``sizes_K``, everybody's training rows, out of its signature.

Label counts per client depend on how many rows a class has and not on the order of rows, except for ``iid``: with the
same ``rng``, a data set whose rows are rearranged gives the same (training and test rows together, unless
``stratified``). ``dominant`` and ``pathological`` keep the class proportions of training and test rows equal.
"""

from __future__ import annotations

import bisect
import dataclasses
import inspect
import itertools
import logging
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from idiolect.core.errors import InputError, nearest
from idiolect.core.option_spec import Spec, check
from idiolect.data.datasets.dataset import Column, Source
from idiolect.data.partitions.allocation import Rows as Rows
from idiolect.data.partitions.allocation import Split as Split
from idiolect.data.partitions.allocation import allocate, cut, deal, fill, held_out, suffices, whole

# R rows, K clients, C classes, G groups of clients, V values of a column

log = logging.getLogger(__name__)

Alpha = Annotated[float, Field(gt=0, le=1e6)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Percent = Annotated[float, Field(ge=0, le=100)]
Size = Annotated[int, Field(ge=1, le=2**40)]
Least = Annotated[int, Field(ge=2, le=2**40)]

_TRIES = 30_000  # 100 clients with alpha=0.1 on ten classes, a published setting, take some 2,000
_SHARES = 15_000_000  # drawn in all, for a second or two: with more clients or classes, fewer deals
_HOPELESS = 1000  # if the best of so many is not half way, none will be
_GROUPS = 5
_CHARACTERS = (0, 10, 36, 62)  # EMNIST by class: digits, upper case, lower case


def iid(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    *,
    test_fraction: Fraction = 0.2,
    stratified: bool = False,
) -> Split:
    """Equal, random shares of all rows, official splits merged; the remainder of the division is left out.

    Args:
        test_fraction: the share of a client's rows that it tests on.
        stratified: whether a client's test rows have its training rows' class proportions.

    Raises:
        InputError: fewer than two rows per client.
    """
    each = _rows_each(source, clients)
    order_R = rng.permutation(len(source.y_R))
    return _cut(source, list(order_R[: each * clients].reshape(clients, each)), test_fraction, stratified, rng)


def dirichlet(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: Alpha = 0.5,
    min_rows: Least | None = None,
    cap: bool = True,
    test_fraction: Fraction = 0.2,
    stratified: bool = False,
) -> Split:
    """Each class is dealt out in proportions p ~ Dir(alpha), to clients that hold fewer than R/K rows so far.

    Every row is dealt, official splits merged, so that clients have different numbers of rows. The deal is repeated
    until the smallest client has ``min_rows``. Zeroing the p of full clients and renormalising is the same as drawing
    p among the others, which cannot come out all zero.

    Args:
        alpha: concentration; small is heterogeneous.
        min_rows: rows of the smallest client; by default 63 (the released code's 50 / 0.8), or half the mean where
            that is less.
        cap: whether a client that holds R/K rows gets nothing of the classes that follow; without it clients differ
            more in size.
        test_fraction: the share of a client's rows that it tests on, drawn at random.
        stratified: whether a client's test rows have its training rows' class proportions.

    Raises:
        InputError: fewer than two rows per client, or no deal gives everyone ``min_rows``: in 30,000, in fewer where
            clients x classes is above 500, or in 1,000 where none of them comes half way.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), section 5.1 and appendix C.1.2; the cap on full clients and
    ``min_rows`` are the released code's. FedPAC (Xu, Tong & Huang, ICLR 2023), appendix C.8, has 100 clients and
    alpha=1 and speaks of neither: ``cap=false,min_rows=2``. FedLDA (McLaughlin & Su, 2023), column "Dir" of table 1,
    deals out the whole set in this way.
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
    for deals in range(1, max(1, min(_TRIES, _SHARES // (clients * source.classes))) + 1):
        count_KC = _dirichlet_counts(size_C, clients, rng, alpha, cap)
        smallest = int(count_KC.sum(1).min())
        if smallest >= least:
            return _cut(source, deal(y_R, np.arange(len(y_R)), count_KC, rng), test_fraction, stratified, rng)
        best = max(best, smallest)
        if deals == _HOPELESS and 2 * best < least:
            break
    fits = f"min_rows={best} fits, or take" if best >= 2 else "take"
    raise InputError(
        f"partition dirichlet: {deals:,} deals with alpha={alpha:g} all left one of {clients} clients with fewer than "
        f"{least} rows; {fits} fewer clients or a larger alpha"
    )


def dirichlet_fixed(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    sizes_K: Rows | None = None,
    *,
    alpha: Alpha = 0.1,
    rows: Least | None = 500,
    test_fraction: Fraction = 0.2,
    stratified: bool = False,
) -> Split:
    """Everybody has the same number of rows, of classes drawn from a prior p_k ~ Dir_C(alpha) of their own.

    Again and again a random client that is not full draws a class from its prior, and a random row of that class that
    nobody has. A class that has run out is drawn again, so the prior is renormalised over the others; a client whose
    prior has nothing left draws uniformly among the classes that are left, which is how this always ends. Official
    splits are merged.

    Args:
        alpha: concentration of the priors; small is heterogeneous.
        rows: rows per client for training and testing together; null for all rows, divided equally.
        test_fraction: the share of a client's rows that it tests on, drawn at random. With training sizes n given, a
            client has round(n / (1 - test_fraction)) rows.
        stratified: whether a client's test rows have its training rows' class proportions.

    Raises:
        InputError: the clients need more rows than there are.

    Source: FedLDA (McLaughlin & Su, 2023), section 4: 500 rows, alpha=0.1. FedCR (Zhang et al., ICML 2023), appendix
    A.1.1, non-iid_2, after FedDyn (Acar et al., ICLR 2021): rows=null, test_fraction=0.3 and alpha=0.5, or 0.3 for
    CIFAR-100.
    Differs from source: FedCR's released code draws for ever where a client's prior has nothing left.
    """
    total_K, test_K = _totals("dirichlet_fixed", source, clients, rows, sizes_K, test_fraction)
    y_R = source.y_R.numpy()
    prior_KC = rng.dirichlet(np.full(source.classes, alpha), clients)
    count_KC = fill(prior_KC, total_K, np.bincount(y_R, minlength=source.classes), rng)
    return cut(deal(y_R, np.arange(len(y_R)), count_KC, rng), test_K, y_R if stratified else None, rng)


def classes(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    sizes_K: Rows | None = None,
    *,
    per_client: Size = 5,
    draw: Literal["consecutive", "random"] = "consecutive",
    rows: Least | None = None,
    test_fraction: Fraction = 0.3,
    stratified: bool = False,
) -> Split:
    """Everybody has the same number of rows, of ``per_client`` classes only, as many of each as the classes allow.

    Where some classes are in more demand than others, their clients take fewer rows of those and more of the rest, so
    that everybody is full. Official splits are merged.

    Args:
        per_client: classes of a client.
        draw: "consecutive": client i has classes (i + j) mod C, j < per_client; "random": any, drawn for each client.
        rows: rows per client for training and testing together; null for all rows, divided equally.
        test_fraction: the share of a client's rows that it tests on, drawn at random. With training sizes n given, a
            client has round(n / (1 - test_fraction)) rows.
        stratified: whether a client's test rows have its training rows' class proportions.

    Raises:
        InputError: the clients need more rows than there are, or than their classes have.

    Source: FedCR (Zhang et al., ICML 2023), section 5.1 and appendix A.1.1, non-iid_1: 5 classes, or 15 for CIFAR-100.
    Differs from source: the paper draws random classes, the released code takes consecutive ones; it fills clients row
    by row and lets them exchange rows where a class runs out.
    """
    total_K, test_K = _totals("classes", source, clients, rows, sizes_K, test_fraction)
    y_R = source.y_R.numpy()
    stock_C = np.bincount(y_R, minlength=source.classes)
    present = np.flatnonzero(stock_C)
    if per_client > len(present):
        raise InputError(
            f"partition classes: per_client={per_client} is more than the {len(present)} classes of {source.name}; "
            f"per_client={len(present)} is the most"
        )
    for _ in range(20 if draw == "random" else 1):
        first = (np.arange(clients)[:, None] + np.arange(per_client)) % len(present)
        chosen = present[first if draw == "consecutive" else _draw_classes(len(present), per_client, clients, rng)]
        own_KC = np.zeros((clients, source.classes), bool)
        np.put_along_axis(own_KC, chosen, True, axis=1)
        count_KC = allocate(own_KC, total_K, stock_C, rng)
        if count_KC is not None:
            return cut(deal(y_R, np.arange(len(y_R)), count_KC, rng), test_K, y_R if stratified else None, rng)

    def scaled(largest: int) -> Rows:
        return np.asarray(np.maximum(total_K * largest // total_K.max(), 1))

    most = bisect.bisect_left(
        range(1, int(total_K.max())), True, key=lambda n: not suffices(own_KC, scaled(n), stock_C)
    )
    fits = f"rows={most}" if sizes_K is None else f"training sizes of at most {int(most * (1 - test_fraction))}"
    raise InputError(
        f"partition classes: {clients} clients cannot have {_span(total_K)} rows each of {per_client} classes of "
        f"{source.name}, some of which run out; {fits if most >= 2 else 'fewer clients'} or a larger per_client fits"
    )


def dominant(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    sizes_K: Rows | None = None,
    *,
    share: Percent = 20,
    test_size: Size = 300,
    groups: Literal["auto", "consecutive", "characters"] = "auto",
    official_quirks: bool = False,
) -> Split:
    """Equal sizes: ``share`` percent uniform over all classes, the rest equally over the client's dominant classes.

    n_c = n share / (100 C) + [c dominant] n (1 - share / 100) / D, whole numbers by largest remainder, ties going
    round the classes from client to client; n is 600 for training unless sizes are given. Client i belongs to group
    i mod 5; with ten classes the dominant ones are {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8}, {8,9,0}. With any other number
    the classes are cut into five consecutive stretches (as many as there are classes if fewer), each joined by the
    first class of the next.

    Training rows come from the official training split and test rows from the official test split, where there is one
    and both suffice for every class; otherwise both come from all rows, and a logged warning says so where there is an
    official split. Draws are random and disjoint; a client's test rows have its training rows' class proportions.

    Args:
        share: percent of a client's rows that is uniform over the classes.
        test_size: test rows per client.
        groups: "consecutive": the five above; "characters": client i belongs to group i mod 3, whose dominant classes
            are 0-9 (digits), 10-35 (upper case) or 36-61 (lower case); "auto": characters where there are 62 classes.
        official_quirks: whether clients get the released code's rows. There every client takes the next rows of a
            class in the official split, beginning at row 2000 (500 for testing) of CIFAR and CINIC, else at 0; a slice
            that would pass the end of the class is taken from its beginning, so that clients share rows. The uniform
            part is floor(n share / 100) rows, floor of its C-th part for each class and what remains for the last, and
            likewise among the dominant classes; with "characters", the last dominant class moves on by no more rows
            than the others.

    Raises:
        InputError: a class runs out; the message says how many clients or which sizes fit.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), section 6.1 and appendix B.2.
    Differs from source: ``official_quirks``; its order of rows within a class is that of the data set.
    """
    _rows_each(source, clients)
    train_K = np.full(clients, 600) if sizes_K is None else sizes_K
    test_K = np.full(clients, test_size)
    characters = groups == "characters" or (groups == "auto" and source.classes == _CHARACTERS[-1])
    if characters and source.classes != _CHARACTERS[-1]:
        raise InputError(
            f"partition dominant: groups=characters needs 62 classes and {source.name} has {source.classes}; "
            "take groups=consecutive"
        )
    if characters:
        main_G = [np.arange(a, b) for a, b in itertools.pairwise(_CHARACTERS)]
    else:
        main_G = _consecutive(source.classes)
    if official_quirks:
        return _released_slices(source, main_G, share, train_K, test_K, characters, rng)
    main_GC = np.zeros((len(main_G), source.classes), bool)
    for main_C, main in zip(main_GC, main_G, strict=True):
        main_C[main] = True

    def counts(size_K: Rows) -> Rows:
        main_KC = main_GC[np.arange(len(size_K)) % len(main_G)]
        exact_KC = np.repeat((size_K * share / 100 / source.classes)[:, None], source.classes, axis=1)
        exact_KC += main_KC * (size_K * (1 - share / 100) / main_KC.sum(1))[:, None]
        return whole(exact_KC, size_K)

    return _deal_sizes("dominant", source, counts, train_K, test_K, rng)


def pathological(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    sizes_K: Rows | None = None,
    *,
    classes_per_group: str | int | list[Size] = "3+3+5+5+8",
    draw: Literal["random", "clustered"] = "random",
    test_size: Size = 300,
) -> Split:
    """Equal sizes, equally over a few classes: how many depends on the client's group, client i being in group i mod G.

    A client has 600 rows for training unless sizes are given. Rows of a client's classes differ by one at most. Where
    training and test rows come from, and how they are drawn, is as for ``dominant``.

    Args:
        classes_per_group: classes of a client of each group, joined by "+".
        draw: "random": every client draws its classes; "clustered": every group does, for all its clients, and no two
            groups the same ones (where there are enough).
        test_size: test rows per client.

    Raises:
        InputError: more classes than there are, or a class runs out; the message says how many clients or which sizes
            fit.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), appendix C.7.
    """
    _rows_each(source, clients)
    wide_G = _numbers(classes_per_group)
    if max(wide_G) > source.classes:
        raise InputError(
            f"partition pathological: classes_per_group={classes_per_group} asks for {max(wide_G)} of "
            f"{source.name}'s {source.classes} classes; {source.classes} is the most"
        )
    group_K = np.arange(clients) % len(wide_G)
    if draw == "clustered":
        for _ in range(100):
            rank_GC = _draw_classes(source.classes, source.classes, len(wide_G), rng).argsort(axis=1)
            own_GC = rank_GC < np.array(wide_G)[:, None]
            if len(np.unique(own_GC, axis=0)) == len(wide_G):
                break
        own_KC = own_GC[group_K]
    else:
        rank_KC = _draw_classes(source.classes, source.classes, clients, rng).argsort(axis=1)
        own_KC = rank_KC < np.array(wide_G)[group_K][:, None]

    def counts(size_K: Rows) -> Rows:
        own = own_KC[: len(size_K)]
        return whole(own * (size_K / own.sum(1))[:, None], size_K)

    train_K = np.full(clients, 600) if sizes_K is None else sizes_K
    return _deal_sizes("pathological", source, counts, train_K, np.full(clients, test_size), rng)


def natural(
    source: Source,
    clients: int | None,
    rng: np.random.Generator,
    *,
    column: str | None = None,
    min_rows: Least | None = None,
    official_split: bool | None = None,
    test_fraction: Fraction = 0.2,
    stratified: bool = False,
) -> Split:
    """A client for every value of a column: writers, hospitals; with a number of clients, the first by name.

    Args:
        column: the name of the column; null for the one that the data set says its clients by.
        min_rows: leave clients with fewer rows out, and log how many they are; null to take everybody, where a client
            with fewer than two rows is an error.
        official_split: whether a client trains on its rows of the official training split and tests on the others,
            and not on a ``test_fraction`` of all; null for true where every client has rows of both.
        test_fraction: the share of a client's rows that it tests on, drawn at random.
        stratified: whether a client's test rows have its training rows' class proportions; not with official_split.

    Raises:
        InputError: no such column, fewer values than clients, or a client that has too few rows.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), section 5.1: the writers of EMNIST, with test_fraction=0.2.
    Differs from source: the released code takes the first 1,000 writers in no particular order, and LEAF (Caldas et
    al., 2018), which divides their rows, sets a tenth aside by default.
    """
    by = _column(source, column, "natural")
    if official_split and source.train_rows == len(source.y_R):
        raise InputError(f"partition natural: {source.name} has no official test split; take official_split=false")
    rows_V = np.split(np.argsort(by.code_R, kind="stable"), np.bincount(by.code_R).cumsum()[:-1])
    if official_split is None:
        official_split = all(rows.min() < source.train_rows <= rows.max() for rows in rows_V)

    def lacks(rows: Rows) -> str:
        if len(rows) < (min_rows or 2):
            return "a single row, which cannot be divided"
        one_sided = official_split and not rows.min() < source.train_rows <= rows.max()
        return "rows in one official split only" if one_sided else ""

    lack_V = [lacks(rows) for rows in rows_V]
    chosen = [v for v, lack in enumerate(lack_V) if min_rows is None or not lack]
    if len(chosen) < len(rows_V):
        log.info("partition natural: %d of %d clients are left out", len(rows_V) - len(chosen), len(rows_V))
    if not chosen or len(chosen) < (clients or 0):
        limit = f" with min_rows={min_rows}" if min_rows else ""
        raise InputError(
            f"partition natural: clients={clients or 'null'} cannot be: {source.name} has {len(chosen)}{limit}; ask "
            f"for fewer clients{' or a smaller min_rows' if min_rows else ''}"
        )
    chosen = chosen[:clients]
    for v in chosen:
        if lack_V[v]:
            raise InputError(
                f"partition natural: client {by.names[v]!r} of {source.name} has {lack_V[v]}; leave such "
                "clients out with partition natural:min_rows=2"
            )
    rows_K = [rng.permutation(rows_V[v]) for v in chosen]
    names = tuple(by.names[v] for v in chosen)
    if official_split:
        first_test = source.train_rows
        return Split([rows[rows < first_test] for rows in rows_K], [rows[rows >= first_test] for rows in rows_K], names)
    return _cut(source, rows_K, test_fraction, stratified, rng)._replace(names=names)


def domains(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    *,
    column: str | None = None,
    inside: str = "dirichlet(alpha=0.5)",
    train_rows: Size | None = None,
) -> Split:
    """The same number of clients for every value of a column, whose rows another partition divides among them.

    Args:
        column: the name of the column; null for the one that the data set says its clients by.
        inside: the partition of each domain with its options in parentheses.
        train_rows: of each domain's official training rows at most so many, drawn with its class proportions; its
            official test rows stay. Null takes all.

    Raises:
        InputError: no such column or partition, a number of clients that the domains do not divide, or what the
            partition says.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), appendix D.1: the five domains of DIGIT-5, four clients each.
    """
    by = _column(source, column, "domains")
    spec = Spec.parse(inside)
    if spec.name not in PARTITIONS:
        raise InputError(f"partition domains: unknown inside={spec.name!r}; {nearest(spec.name, PARTITIONS)}")
    divide = PARTITIONS[spec.name]
    options = check(divide, spec.options, f"partition domains: inside {spec.name}")
    each, rest = divmod(clients, len(by.names))
    if rest or not each:
        fits = [str(n * len(by.names)) for n in (each, each + 1) if n]
        raise InputError(
            f"partition domains: clients={clients} cannot be divided equally over the {len(by.names)} domains of "
            f"{source.name}; clients={' or '.join(fits)} would fit"
        )
    train, test, names, shared = [], [], [], False
    for code, domain in enumerate(by.names):
        row_R = np.flatnonzero(by.code_R == code)
        if train_rows is not None:
            row_R = _fewer(source, row_R, train_rows, rng)
        split = divide(_part(source, row_R, domain), each, rng, **options)
        train += [row_R[rows] for rows in split.train]
        test += [row_R[rows] for rows in split.test]
        names += [f"{domain} {name}" for name in split.names or range(each)]
        shared |= split.shared
    return Split(train, test, tuple(names), shared)


PARTITIONS: dict[str, Callable[..., Split]] = {
    name: value
    for name, value in list(globals().items())
    if inspect.isfunction(value) and value.__module__ == __name__ and not name.startswith("_")
}


def _fewer(source: Source, row_R: Rows, train_rows: int, rng: np.random.Generator) -> Rows:
    """The rows with at most ``train_rows`` of the official training split, in its class proportions; ascending."""
    y_R = source.y_R.numpy()
    train_R = row_R[row_R < source.train_rows]
    if len(train_R) <= train_rows:
        return row_R
    size_C = np.bincount(y_R[train_R], minlength=source.classes)
    share = np.float64(train_rows / len(train_R))
    (drawn_R,) = deal(y_R, train_R, whole(size_C[None] * share, np.array([train_rows])), rng)
    return np.sort(np.concatenate([drawn_R, row_R[row_R >= source.train_rows]]))


def _rows_each(source: Source, clients: int) -> int:
    rows = len(source.y_R)
    if rows < 2 * clients:
        raise InputError(
            f"clients={clients} is too many for {source.name}: with a row to train on and one to test on for everyone, "
            f"{rows} rows serve at most {rows // 2} clients"
        )
    return rows // clients


def _cut(source: Source, rows_K: list[Rows], test_fraction: float, stratified: bool, rng: np.random.Generator) -> Split:
    test_K = held_out(np.array([len(rows) for rows in rows_K]), test_fraction)
    return cut(rows_K, test_K, source.y_R.numpy() if stratified else None, rng)


def _totals(
    what: str, source: Source, clients: int, rows: int | None, sizes_K: Rows | None, test_fraction: float
) -> tuple[Rows, Rows]:
    """Rows per client, and those of them for testing, of a partition with training sizes or a fixed number of rows."""

    def total(size_K: Rows) -> Rows:
        return np.maximum(np.rint(size_K / (1 - test_fraction)).astype(np.int64), size_K + 1)

    each = _rows_each(source, clients)
    if sizes_K is None:
        total_K = np.full(clients, each if rows is None else rows)
        test_K = held_out(total_K, test_fraction)
    else:
        total_K = total(sizes_K)
        test_K = total_K - sizes_K
    if total_K.sum() > len(source.y_R):
        size_N = np.arange(1, each)
        mean = size_N[total(size_N) <= each].max()
        fewer = int((total_K.cumsum() <= len(source.y_R)).sum())
        fits = f"rows={each}" if sizes_K is None else f"training sizes of {mean} on average"
        raise InputError(
            f"partition {what}: {clients} clients with {_span(total_K)} rows each need {total_K.sum()} and "
            f"{source.name} has {len(source.y_R)}; {fits}{f' or clients={fewer}' if fewer else ''} would fit"
        )
    return total_K, test_K


def _span(size_K: Rows) -> str:
    return f"{size_K.min()}" if size_K.min() == size_K.max() else f"{size_K.min()} to {size_K.max()}"


def _dirichlet_counts(size_C: Rows, clients: int, rng: np.random.Generator, alpha: float, cap: bool) -> Rows:
    """Rows per client and class (K, C)."""
    rows = size_C.sum()
    count_CK = np.zeros((len(size_C), clients), np.int64)
    total_K = np.zeros(clients, np.int64)
    for count_K, size in zip(count_CK, size_C, strict=True):
        if size:
            open_K = np.flatnonzero(total_K * clients < rows) if cap else np.arange(clients)
            end_K = rng.dirichlet(np.full(len(open_K), alpha)).cumsum()
            cuts = np.minimum(end_K * size, size).astype(np.int64)
            cuts[-1] = size
            cuts[1:] -= cuts[:-1].copy()
            count_K[open_K] = cuts
            total_K += count_K
    return count_CK.T


def _draw_classes(classes: int, count: int, clients: int, rng: np.random.Generator) -> Rows:
    """``count`` different classes for each client, (K, count); those of fewer clients are the first of more."""
    return np.asarray(rng.random((clients, classes)).argsort(axis=1)[:, :count])


def _consecutive(classes: int) -> list[Rows]:
    """Per group its dominant classes: a stretch of the classes and the first of the next."""
    groups = min(_GROUPS, classes)
    ends = [g * classes // groups for g in range(groups + 1)]
    widths = [max(1, min(b - a + 1, classes - 1)) for a, b in itertools.pairwise(ends)]
    return [(a + np.arange(width)) % classes for a, width in zip(ends, widths, strict=False)]


def _numbers(text: str | int | list[int]) -> list[int]:
    pieces = text if isinstance(text, list) else str(text).split("+")
    if not pieces or not all(str(piece).strip().isdecimal() and int(piece) > 0 for piece in pieces):
        raise InputError(f"partition pathological: cannot read classes_per_group={text}; write numbers such as 3+3+5")
    return [int(piece) for piece in pieces]


def _deal_sizes(
    what: str,
    source: Source,
    counts: Callable[[Rows], Rows],
    train_K: Rows,
    test_K: Rows,
    rng: np.random.Generator,
) -> Split:
    """Deal as many rows of each class as ``counts`` says for sizes, from the official splits or else from all rows."""
    clients = len(train_K)
    y_R = source.y_R.numpy()
    train_KC, test_KC = counts(train_K), counts(test_K)
    stock_C = np.bincount(y_R, minlength=source.classes)
    train_stock_C = np.bincount(y_R[: source.train_rows], minlength=source.classes)
    has_test = source.train_rows < len(y_R)
    if has_test and np.all(train_KC.sum(0) <= train_stock_C) and np.all(test_KC.sum(0) <= stock_C - train_stock_C):
        official_train, official_test = np.split(np.arange(len(y_R)), [source.train_rows])
        return Split(deal(y_R, official_train, train_KC, rng), deal(y_R, official_test, test_KC, rng))

    need_KC = train_KC + test_KC
    if np.any(need_KC.sum(0) > stock_C):

        def scaled(size_K: Rows, largest: int) -> Rows:
            return np.asarray(np.maximum(np.rint(size_K * (largest / train_K.max())).astype(np.int64), 1))

        def too_big(largest: int) -> bool:
            need_C = (counts(scaled(train_K, largest)) + counts(scaled(test_K, largest))).sum(0)
            return bool((need_C > stock_C).any())

        c = int(np.argmax(need_KC.sum(0) - stock_C))
        fewer = int(np.all(need_KC.cumsum(0) <= stock_C, axis=1).sum())
        smaller = bisect.bisect_left(range(1, int(train_K.max())), True, key=too_big)
        fits = [f"clients={fewer}"] if fewer else []
        fits += [f"training sizes of at most {smaller} with test_size={scaled(test_K, smaller)[0]}"] if smaller else []
        raise InputError(
            f"partition {what}: class {source.class_names[c]!r} of {source.name} has {stock_C[c]} rows and {clients} "
            f"clients with {_span(train_K)} training rows and test_size={test_K[0]} need {need_KC[:, c].sum()}; "
            f"{' or '.join(fits) or 'fewer clients'} would fit"
        )
    if has_test:
        log.warning(
            "partition %s: the official splits of %s are too small for %d clients with %s training rows and "
            "test_size=%d, so training and test rows are drawn from both splits together",
            what, source.name, clients, _span(train_K), test_K[0],
        )  # fmt: skip
    both = deal(y_R, np.arange(len(y_R)), np.concatenate([train_KC, test_KC]), rng)
    return Split(both[:clients], both[clients:])


def _released_slices(
    source: Source,
    main_G: list[Rows],
    share: float,
    train_K: Rows,
    test_K: Rows,
    characters: bool,
    rng: np.random.Generator,
) -> Split:
    y_R = source.y_R.numpy()
    if source.train_rows == len(y_R):
        raise InputError(
            f"partition dominant: official_quirks takes test rows from an official test split and {source.name} has "
            "none; take official_quirks=false"
        )
    begin = (2000, 500) if source.name.startswith(("cifar", "cinic")) else (0, 0)
    parts = []
    for size_K, first, end, start in (
        (train_K, 0, source.train_rows, begin[0]),
        (test_K, source.train_rows, len(y_R), begin[1]),
    ):
        stock_C = np.bincount(y_R[first:end], minlength=source.classes)
        row_C = np.split(np.argsort(y_R[first:end], kind="stable") + first, stock_C.cumsum()[:-1])
        used_C = np.full(source.classes, start)
        hands = []
        for k, size in enumerate(size_K):
            main = main_G[k % len(main_G)]
            uniform = int(np.floor(round(size * share / 100, 9)))
            hand = []
            for chosen, rows in ((np.arange(source.classes), uniform), (main, size - uniform)):
                each = rows // len(chosen)
                take = [each] * (len(chosen) - 1) + [rows - each * (len(chosen) - 1)]
                for c, count in zip(chosen, take, strict=True):
                    if count > stock_C[c]:
                        raise InputError(
                            f"partition dominant: official_quirks needs {count} rows of class "
                            f"{source.class_names[c]!r} at once, and a split of {source.name} has {stock_C[c]}; take "
                            "smaller sizes or official_quirks=false"
                        )
                    at = 0 if used_C[c] + count > stock_C[c] else used_C[c]
                    hand.append(row_C[c][at : at + count])
                    used_C[c] = at + (each if characters and chosen is main else count)
            hands.append(rng.permutation(np.concatenate(hand)))
        parts.append(hands)
    return Split(parts[0], parts[1], shared=True)


def _column(source: Source, name: str | None, what: str) -> Column:
    name = source.client_column if name is None else name
    if name is None:
        raise InputError(
            f"partition {what}: {source.name} does not say whose rows they are; give column, "
            f"{nearest('', source.columns)}"
        )
    if name not in source.columns:
        raise InputError(f"partition {what}: {source.name} has no column {name!r}; {nearest(name, source.columns)}")
    return source.columns[name]


def _part(source: Source, row_R: Rows, domain: str) -> Source:
    """Some rows of a source, as one to divide: of the rows themselves it has the shape, and nothing to read."""

    def part(column: Column) -> Column:
        found, code_R = np.unique(column.code_R[row_R], return_inverse=True)
        return Column(code_R.astype(np.int64), tuple(column.names[v] for v in found))

    return dataclasses.replace(
        source,
        name=f"{source.name} ({domain})",
        x_R=torch.empty((len(row_R), *source.x_R.shape[1:]), dtype=source.x_R.dtype, device="meta"),
        y_R=source.y_R[row_R],
        train_rows=int((row_R < source.train_rows).sum()),
        columns={name: part(column) for name, column in source.columns.items()},
    )
