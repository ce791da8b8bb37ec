"""The clients that authors' programs drew: the same whatever the data seed."""

from __future__ import annotations

import numpy as np

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Split
from idiolect.data.partitions.label_skew import Alpha
from idiolect.data.partitions.option_types import Fraction
from idiolect.data.partitions.sizes import rows_each

# R samples, K clients, C classes

_SEED = 42
_LEAST = 62.5  # samples of the smallest client: a batch of 50 to train on, and a fifth to test on
_TRIES = 20_000  # for CIFAR-10 with alpha=0.1 it takes 5,266


def dirichlet_official(
    source: Source, clients: int, rng: np.random.Generator, *, alpha: Alpha = 0.5, test_fraction: Fraction = 0.2
) -> Split:
    """The clients of pFedFDA's released code: ``dirichlet`` as its numpy drew it with seed 42, whatever the data seed.

    Class by class, numpy's older generator shuffles the samples and draws the proportions; those of clients that have
    R/K samples become 0. Draws go on until the smallest client has 62.5 samples, or half the mean if that is less. Each
    client's samples are divided by scikit-learn with seed 42. How many samples of a class a client has depends on the
    sizes of the classes alone: with the same data set they are the authors'. The samples themselves are so if training
    and test samples come in the authors' order.

    Args:
        alpha: concentration; small is heterogeneous.
        test_fraction: the share of a client's samples that it tests on, not stratified.

    Raises:
        InputError: fewer than two samples per client, or no draw gives all clients enough.

    Source: the released code of pFedFDA (McLaughlin & Su, NeurIPS 2024).
    """
    from sklearn.model_selection import train_test_split  # slow to import

    each = rows_each(source, clients)
    least = max(2, min(_LEAST, each // 2))
    y_R = source.y_R.numpy()
    rows_C = [np.flatnonzero(y_R == label) for label in range(source.classes)]
    draw = np.random.RandomState(_SEED)
    for _ in range(_TRIES):
        before = draw.get_state()
        sizes_CK = _sizes(rows_C, clients, alpha, draw)
        if sizes_CK is not None and sizes_CK.sum(0).min() >= least:
            draw.set_state(before)
            rows_K = _dealt(rows_C, sizes_CK, alpha, draw)
            halves = [train_test_split(rows, train_size=1 - test_fraction, random_state=_SEED) for rows in rows_K]
            return Split([train for train, _ in halves], [test for _, test in halves])
    raise InputError(
        f"partition dirichlet_official: in {_TRIES:,} draws with alpha={alpha:g}, one of {clients} clients always had "
        f"fewer than {least:g} samples; take fewer clients or a larger alpha"
    )


def _sizes(rows_C: list[np.ndarray], clients: int, alpha: float, draw: np.random.RandomState) -> np.ndarray | None:
    """How many samples of each class a draw gives each client; None if a class has only full clients to go to."""
    full = sum(map(len, rows_C)) / clients
    sizes_CK = np.zeros((len(rows_C), clients), np.int64)
    for label, rows in enumerate(rows_C):
        draw.shuffle(np.empty_like(rows))  # takes as many random numbers as the samples
        p_K = draw.dirichlet(np.full(clients, alpha)) * (sizes_CK.sum(0) < full)
        if not p_K.sum() > 0:
            return None
        ends_K = (np.cumsum(p_K / p_K.sum()) * len(rows)).astype(np.int64)[:-1]
        sizes_CK[label] = np.diff(ends_K, prepend=0, append=len(rows))
    return sizes_CK


def _dealt(
    rows_C: list[np.ndarray], sizes_CK: np.ndarray, alpha: float, draw: np.random.RandomState
) -> list[np.ndarray]:
    """The samples of each client, in the draw that gave these sizes."""
    parts_CK = []
    for rows, sizes_K in zip(rows_C, sizes_CK, strict=True):
        shuffled = rows.copy()
        draw.shuffle(shuffled)
        draw.dirichlet(np.full(len(sizes_K), alpha))
        parts_CK.append(np.split(shuffled, np.cumsum(sizes_K)[:-1]))
    return [np.concatenate(parts) for parts in zip(*parts_CK, strict=True)]
