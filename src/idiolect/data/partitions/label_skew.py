"""Clients differ in their mixture of classes: Dirichlet proportions, or a few classes each."""

from __future__ import annotations

import bisect
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import (
    Rows,
    Split,
    allocate,
    cut,
    deal,
    draw_classes,
    fill,
    held_out,
    suffices,
    train_test_split,
)
from idiolect.data.partitions.option_types import Fraction, Least, Size
from idiolect.data.partitions.sizes import rows_each, span

# R samples, K clients, C classes

Alpha = Annotated[float, Field(gt=0, le=1e6)]

_TRIES = 30_000  # 100 clients with alpha=0.1 on ten classes, a published setting, take some 2,000
_SHARES = 15_000_000  # drawn in all, for a second or two: with more clients or classes, fewer attempts
_HOPELESS = 1000  # if the best of so many attempts is not half way, none will succeed


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
    """Each class is divided in proportions p ~ Dir(alpha), among clients that have fewer than R/K samples so far.

    Every sample is used, and official splits are merged, so clients have different numbers of samples. The draw is
    repeated until the smallest client has ``min_rows``. The published rule sets the p of full clients to zero and
    renormalises. This is the same as drawing p among the others, which cannot all be zero.

    Args:
        alpha: concentration; small is heterogeneous.
        min_rows: samples of the smallest client; by default 63 (the released code's 50 / 0.8), or half the mean if
            that is less.
        cap: whether a client that has R/K samples gets nothing of the following classes; without it clients differ
            more in size.
        test_fraction: the share of a client's samples that it tests on, drawn at random.
        stratified: whether a client's test samples have the class proportions of its training samples.

    Raises:
        InputError: fewer than two samples per client, or no draw gives all clients ``min_rows``: in 30,000 draws, in
            fewer if clients x classes is above 500, or in 1,000 if none of these comes half way.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), section 5.1 and appendix C.1.2; the cap on full clients and
    ``min_rows`` are the released code's. FedPAC (Xu, Tong & Huang, ICLR 2023), appendix C.8, has 100 clients and
    alpha=1 and mentions neither: ``cap=false,min_rows=2``. FedLDA (McLaughlin & Su, 2023), column "Dir" of table 1,
    divides the whole set in this way.
    """
    each = rows_each(source, clients)
    least = max(2, min(63, each // 2)) if min_rows is None else min_rows
    if least > each:
        raise InputError(
            f"partition dirichlet: min_rows={least} is more than {clients} clients can have of {source.name}'s "
            f"{len(source.y_R)} samples; min_rows={each} is the most"
        )
    y_R = source.y_R.numpy()
    size_C = np.bincount(y_R, minlength=source.classes)
    best = 0
    for deals in range(1, max(1, min(_TRIES, _SHARES // (clients * source.classes))) + 1):
        count_KC = _dirichlet_counts(size_C, clients, rng, alpha, cap)
        smallest = int(count_KC.sum(1).min())
        if smallest >= least:
            return train_test_split(
                source, deal(y_R, np.arange(len(y_R)), count_KC, rng), test_fraction, stratified, rng
            )
        best = max(best, smallest)
        if deals == _HOPELESS and 2 * best < least:
            break
    fits = f"min_rows={best} fits, or take" if best >= 2 else "take"
    raise InputError(
        f"partition dirichlet: in {deals:,} draws with alpha={alpha:g}, one of {clients} clients always had fewer than "
        f"{least} samples; {fits} fewer clients or a larger alpha"
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
    """All clients have the same number of samples; each draws classes from its own prior p_k ~ Dir_C(alpha).

    Again and again, a random client that is not full draws a class from its prior, and a random sample of that class
    that no client has. If the class is used up, the client draws again, so the prior is renormalised over the others.
    If all classes of its prior are used up, the client draws uniformly among the classes that are left, so this always
    ends. Official splits are merged.

    Args:
        alpha: concentration of the priors; small is heterogeneous.
        rows: samples per client for training and testing together; null for all samples, divided equally.
        test_fraction: the share of a client's samples that it tests on, drawn at random. With training sizes n given, a
            client has round(n / (1 - test_fraction)) samples.
        stratified: whether a client's test samples have the class proportions of its training samples.

    Raises:
        InputError: the clients need more samples than there are.

    Source: FedLDA (McLaughlin & Su, 2023), section 4: 500 samples, alpha=0.1. FedCR (Zhang et al., ICML 2023), appendix
    A.1.1, non-iid_2, after FedDyn (Acar et al., ICLR 2021): rows=null, test_fraction=0.3 and alpha=0.5, or 0.3 for
    CIFAR-100.
    Differs from source: FedCR's released code never ends if all classes of a client's prior are used up.
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
    """All clients have the same number of samples, of ``per_client`` classes only, as equal as the classes allow.

    If too many clients have the same class, they take fewer samples of it and more of their other classes, so that all
    clients are full. Official splits are merged.

    Args:
        per_client: classes of a client.
        draw: "consecutive": client i has classes (i + j) mod C, j < per_client; "random": any, drawn for each client.
        rows: samples per client for training and testing together; null for all samples, divided equally.
        test_fraction: the share of a client's samples that it tests on, drawn at random. With training sizes n given, a
            client has round(n / (1 - test_fraction)) samples.
        stratified: whether a client's test samples have the class proportions of its training samples.

    Raises:
        InputError: the clients need more samples than there are, or than their classes have.

    Source: FedCR (Zhang et al., ICML 2023), section 5.1 and appendix A.1.1, non-iid_1: 5 classes, or 15 for CIFAR-100.
    Differs from source: the paper draws random classes, the released code takes consecutive ones; it fills clients
    sample by sample and lets them exchange samples if a class is used up.
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
        labels = present[first if draw == "consecutive" else draw_classes(len(present), per_client, clients, rng)]
        own_KC = np.zeros((clients, source.classes), bool)
        np.put_along_axis(own_KC, labels, True, axis=1)
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
        f"partition classes: {clients} clients cannot have {span(total_K)} samples each of {per_client} classes of "
        f"{source.name}, as some are used up; {fits if most >= 2 else 'fewer clients'} or a larger per_client fits"
    )


def _dirichlet_counts(size_C: Rows, clients: int, rng: np.random.Generator, alpha: float, cap: bool) -> Rows:
    """Samples per client and class (K, C)."""
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


def _totals(
    what: str, source: Source, clients: int, rows: int | None, sizes_K: Rows | None, test_fraction: float
) -> tuple[Rows, Rows]:
    """Samples per client, and how many are for testing, with training sizes or with a fixed number of samples."""

    def total(size_K: Rows) -> Rows:
        return np.maximum(np.rint(size_K / (1 - test_fraction)).astype(np.int64), size_K + 1)

    each = rows_each(source, clients)
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
            f"partition {what}: {clients} clients with {span(total_K)} samples each need {total_K.sum()} and "
            f"{source.name} has {len(source.y_R)}; {fits}{f' or clients={fewer}' if fewer else ''} would fit"
        )
    return total_K, test_K
