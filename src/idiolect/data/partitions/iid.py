"""Every client has a random share of all samples."""

from __future__ import annotations

import numpy as np

from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Split, train_test_split
from idiolect.data.partitions.option_types import Fraction
from idiolect.data.partitions.sizes import rows_each


def iid(
    source: Source,
    clients: int,
    rng: np.random.Generator,
    *,
    test_fraction: Fraction = 0.2,
    stratified: bool = False,
) -> Split:
    """Equal, random shares of all samples; official splits are merged, and the remainder is left out.

    Args:
        test_fraction: the share of a client's samples that it tests on.
        stratified: whether a client's test samples have the class proportions of its training samples.

    Raises:
        InputError: fewer than two samples per client.
    """
    each = rows_each(source, clients)
    order_R = rng.permutation(len(source.y_R))
    return train_test_split(
        source, list(order_R[: each * clients].reshape(clients, each)), test_fraction, stratified, rng
    )
