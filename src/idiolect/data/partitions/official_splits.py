"""Training and test samples of chosen classes, from the official splits if both are large enough."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable

import numpy as np

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Rows, Split, deal
from idiolect.data.partitions.sizes import span

log = logging.getLogger(__name__)


def deal_from_splits(
    what: str,
    source: Source,
    counts: Callable[[Rows], Rows],
    train_K: Rows,
    test_K: Rows,
    rng: np.random.Generator,
) -> Split:
    """Draw so many samples of each class as ``counts`` gives for sizes, from the official splits or else from all."""
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
            f"partition {what}: class {source.class_names[c]!r} of {source.name} has {stock_C[c]} samples and "
            f"{clients} clients with {span(train_K)} training samples and test_size={test_K[0]} need "
            f"{need_KC[:, c].sum()}; {' or '.join(fits) or 'fewer clients'} would fit"
        )
    if has_test:
        log.warning(
            "partition %s: the official splits of %s are too small for %d clients with %s training samples and "
            "test_size=%d, so training and test samples are drawn from both splits together",
            what, source.name, clients, span(train_K), test_K[0],
        )  # fmt: skip
    both = deal(y_R, np.arange(len(y_R)), np.concatenate([train_KC, test_KC]), rng)
    return Split(both[:clients], both[clients:])
