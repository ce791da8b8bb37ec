"""Clients, or groups of clients, from the values of a column."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np

from idiolect.core import tree
from idiolect.core.errors import InputError, nearest
from idiolect.core.option_spec import Spec, check
from idiolect.data.datasets.dataset import Column, Source
from idiolect.data.partitions.allocation import Rows, Split, deal, train_test_split, whole
from idiolect.data.partitions.option_types import Fraction, Least, Size
from idiolect.data.partitions.registry import PARTITIONS, check_target

# R samples, V values of a column

log = logging.getLogger(__name__)

_FRACTION = 0.2


def natural(
    source: Source,
    clients: int | None,
    rng: np.random.Generator,
    *,
    column: str | None = None,
    min_rows: Least | None = None,
    official_split: bool | None = None,
    test_fraction: Fraction = _FRACTION,
    stratified: bool = False,
) -> Split:
    """A client for every value of a column: writers, hospitals; with a number of clients, the first by name.

    Args:
        column: the name of the column; null for the data set's own client column.
        min_rows: leave out clients with fewer samples, or with samples in only one official split that is kept, and
            log how many they are. With null all clients are used, and one that cannot both train and test is an error.
        official_split: whether a client trains on its samples of the official training split and tests on the others,
            and not on a ``test_fraction`` of all; null means true if the data have an official test split.
        test_fraction: the share of a client's samples that it tests on, drawn at random; not with an official
            split that is kept.
        stratified: whether a client's test samples have the class proportions of its training samples; not with an
            official split that is kept.

    Raises:
        InputError: no such column, fewer values than clients, or a client that has too few samples.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), section 5.1: the writers of EMNIST, with test_fraction=0.2.
    Differs from source: the released code takes the first 1,000 writers in no particular order, and LEAF (Caldas et
    al., 2018), which divides their samples, uses a tenth for testing by default.
    """
    by = _column(source, column, "natural")
    has_test = source.train_rows < len(source.y_R)
    if official_split and not has_test:
        raise InputError(f"partition natural: {source.name} has no official test split; take official_split=false")
    official = has_test and official_split is not False
    if official and (stratified or test_fraction != _FRACTION):
        what = "stratified" if stratified else "test_fraction"
        raise InputError(
            f"partition natural: {what} is not possible, because the official test split of {source.name} is kept: "
            "leave it out, or give official_split=false too"
        )
    rows_V = np.split(np.argsort(by.code_R, kind="stable"), np.bincount(by.code_R).cumsum()[:-1])

    def lacks(rows: Rows) -> str:
        if official and not rows.min() < source.train_rows <= rows.max():
            return f"no samples in the official {'training' if rows.min() >= source.train_rows else 'test'} split"
        return "a single sample, which cannot be divided" if len(rows) < (min_rows or 2) else ""

    lack_V = [lacks(rows) for rows in rows_V]
    values = [v for v, lack in enumerate(lack_V) if min_rows is None or not lack]
    if len(values) < len(rows_V):
        log.info("partition natural: %d of %d clients are left out", len(rows_V) - len(values), len(rows_V))
    again = "divide all samples again with partition natural:official_split=false"
    if official and all("official" in lack for lack in lack_V):
        raise InputError(
            f"partition natural: no client of {source.name} has samples in both official splits; give each client some "
            f"in both, or {again}"
        )
    if not values or len(values) < (clients or 0):
        limit = f" with min_rows={min_rows}" if min_rows else ""
        raise InputError(
            f"partition natural: clients={clients or 'null'} is not possible: {source.name} has {len(values)}{limit}; "
            f"take fewer clients{' or a smaller min_rows' if min_rows else ''}"
        )
    values = values[:clients]
    if lacking := [v for v in values if lack_V[v]]:
        first, *others = lacking
        more = f" ({len(others)} more cannot both train and test)" if others else ""
        ways = "leave such clients out with partition natural:min_rows=2"
        if "official" in lack_V[first]:
            ways = f"give it some there, {ways}, or {again}"
        raise InputError(
            f"partition natural: client {by.names[first]!r} of {source.name} has {lack_V[first]}{more}; {ways}"
        )
    rows_K = [rng.permutation(rows_V[v]) for v in values]
    names = tuple(by.names[v] for v in values)
    if official:
        first_test = source.train_rows
        return Split([rows[rows < first_test] for rows in rows_K], [rows[rows >= first_test] for rows in rows_K], names)
    return train_test_split(source, rows_K, test_fraction, stratified, rng)._replace(names=names)


def domains(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    *,
    column: str | None = None,
    inside: str = "dirichlet(alpha=0.5)",
    train_rows: Size | None = None,
) -> Split:
    """The same number of clients for every value of a column, and another partition divides the samples of a value.

    Args:
        column: the name of the column; null for the data set's own client column.
        inside: the partition of each domain with its options in parentheses.
        train_rows: at most so many of each domain's official training samples, drawn with its class proportions; all
            official test samples are used. Null takes all.

    Raises:
        InputError: no such column or partition, a number of clients that cannot be divided equally over the
            domains, or an error of the inner partition.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), appendix D.1: the five domains of DIGIT-5, four clients each.
    """
    by = _column(source, column, "domains")
    spec = Spec.parse(inside)
    if spec.name not in PARTITIONS:
        raise InputError(f"partition domains: unknown inside={spec.name!r}; {nearest(spec.name, PARTITIONS)}")
    check_target(source, spec.name, f"domains: inside={spec.name}", "inside=iid")
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


def _column(source: Source, name: str | None, what: str) -> Column:
    name = source.client_column if name is None else name
    if name is None:
        which = f"give column, {nearest('', source.columns)}" if source.columns else "take another, such as dirichlet"
        raise InputError(f"partition {what}: {source.name} does not say which client a sample belongs to; {which}")
    if name not in source.columns:
        raise InputError(f"partition {what}: {source.name} has no column {name!r}; {nearest(name, source.columns)}")
    return source.columns[name]


def _part(source: Source, row_R: Rows, domain: str) -> Source:
    """Some samples of a source, as a source to divide. Its samples have a shape but cannot be read."""

    def part(column: Column) -> Column:
        values, code_R = np.unique(column.code_R[row_R], return_inverse=True)
        return Column(code_R.astype(np.int64), tuple(column.names[v] for v in values))

    return dataclasses.replace(
        source,
        name=f"{source.name} ({domain})",
        x_R=tree.map(lambda a: a.new_empty((len(row_R), *a.shape[1:]), device="meta"), source.x_R),
        y_R=source.y_R[row_R],
        train_rows=int((row_R < source.train_rows).sum()),
        columns={name: part(column) for name, column in source.columns.items()},
    )


def _fewer(source: Source, row_R: Rows, train_rows: int, rng: np.random.Generator) -> Rows:
    """The samples with at most ``train_rows`` of the official training split, in its class proportions; ascending."""
    y_R = source.y_R.numpy()
    train_R = row_R[row_R < source.train_rows]
    if len(train_R) <= train_rows:
        return row_R
    size_C = np.bincount(y_R[train_R], minlength=source.classes)
    share = np.float64(train_rows / len(train_R))
    (drawn_R,) = deal(y_R, train_R, whole(size_C[None] * share, np.array([train_rows])), rng)
    return np.sort(np.concatenate([drawn_R, row_R[row_R >= source.train_rows]]))
