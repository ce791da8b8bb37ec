"""How many samples clients have: sizes that differ between clients, and scarce data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Rows, Split

# K clients

USUAL_SIZE = 600
"""Training samples of a client of ``dominant`` and ``pathological``, unless sizes are given."""


def draw_sizes(sizes: Sequence[int], clients: int, rng: np.random.Generator) -> Rows:
    """Training samples per client, int64 (K,): one given size, or for each client one of several, drawn uniformly.

    Raises:
        InputError: there is no size, or one is below 1.

    Source: FedPAC (Xu, Tong & Huang, ICLR 2023), appendix C.6: 300, 600 or 1200.
    """
    if not sizes or min(sizes) < 1 or max(sizes) > 2**40:
        raise InputError(f"training sizes {list(sizes)} are not possible: give one or more numbers from 1 on")
    return rng.choice(np.asarray(sizes, np.int64), clients)


def scarce(split: Split, keep: float, rng: np.random.Generator) -> Split:
    """Keep some of each client's training samples, drawn at random; test samples stay.

    For the same state of ``rng`` the samples of a smaller ``keep`` are among those of a larger one.

    Args:
        split: the clients' samples.
        keep: a float in (0, 1] keeps floor(keep n) of a client's n training samples, at least one; an int keeps
            exactly that many.
        rng: for the draw.

    Raises:
        InputError: ``keep`` is out of range, or a client has fewer samples than that.

    Source: pFedFDA (McLaughlin & Su, NeurIPS 2024), section 5: 25, 50 and 75 percent.
    """
    if not keep > 0 or (isinstance(keep, float) and keep > 1):
        raise InputError(f"keep={keep} is not possible: give a fraction above 0 and up to 1.0, or a number of samples")
    least = min(len(rows) for rows in split.train)
    if isinstance(keep, int) and keep > least:
        who = next(k for k, rows in enumerate(split.train) if len(rows) < keep)
        client = split.names[who] if split.names else who
        raise InputError(
            f"keep={keep} is more than the {len(split.train[who])} training samples of client {client}; "
            f"keep={least} is the most that every client has"
        )

    def kept(rows: int) -> int:
        return keep if isinstance(keep, int) else max(1, math.floor(round(keep * rows, 9)))

    return split._replace(train=[rng.permutation(rows)[: kept(len(rows))] for rows in split.train])


def rows_each(source: Source, clients: int) -> int:
    """How many samples each client can have.

    Raises:
        InputError: fewer than two.
    """
    rows = len(source.y_R)
    if rows < 2 * clients:
        raise InputError(
            f"clients={clients} is too many for {source.name}: each needs a sample to train on and one to test on, so "
            f"{rows} samples are enough for at most {rows // 2} clients"
        )
    return rows // clients


def span(size_K: Rows) -> str:
    """The one size, or the smallest and the largest: ``300 to 1200``."""
    return f"{size_K.min()}" if size_K.min() == size_K.max() else f"{size_K.min()} to {size_K.max()}"
