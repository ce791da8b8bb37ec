"""Blocks of samples that follow each other in time: what methods' folds are made of where a split is in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.method import Blocks

# R samples of all clients, N training samples of one client

_MANY = 20  # blocks of a client with enough samples
_LENGTH = 4  # gaps, and one more sample: of such a block more than half is farther than a gap from the others


def blocks_of(train: Sequence[Tensor], place_R: NDArray[np.int64], gap: int) -> Blocks:
    """Each client's training samples in blocks, up to 20 of equal size, at least two.

    Args:
        train: the numbers of each client's training samples.
        place_R: each sample's place in its client's order.
        gap: within how many places two samples are too near to test one with a model of the other.
    """
    number_R, inner_R, count = np.zeros(len(place_R), np.int64), np.zeros(len(place_R)), 0
    for row_N in (rows.numpy() for rows in train):
        order_N = row_N[np.argsort(place_R[row_N], kind="stable")]
        length = max(-(-len(order_N) // _MANY), _LENGTH * gap + 1)
        parts = np.array_split(order_N, max(2, len(order_N) // length))
        parts = [part for part in parts if len(part)]
        for k, part_M in enumerate(parts):
            before = place_R[parts[k - 1][-1]] if k else -np.inf
            after = place_R[parts[k + 1][0]] if k + 1 < len(parts) else np.inf
            number_R[part_M] = count + k
            inner_R[part_M] = (place_R[part_M] - before > gap) & (after - place_R[part_M] > gap)
        count += len(parts)
    return Blocks(torch.from_numpy(number_R), torch.from_numpy(inner_R).to(torch.get_default_dtype()))
