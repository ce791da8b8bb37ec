"""Mean and standard deviation for the normalisation of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions import Rows

Normalise = Literal["reference", "training", "symmetric"]


def moments(source: Source, row_N: Rows, normalise: Normalise) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel or feature for normalisation; ``row_N`` are the training samples."""
    x_R = source.x_R
    if normalise == "symmetric":
        if x_R.dtype != torch.uint8:
            raise InputError("normalise=symmetric is for images, and these samples are numbers: take training")
        return (0.5,) * x_R.shape[1], (0.5,) * x_R.shape[1]
    if normalise == "reference" and source.mean is not None and source.std is not None:
        return _for_each(source.mean, x_R.shape[1]), _for_each(source.std, x_R.shape[1])
    axes = tuple(a for a in range(x_R.ndim) if a != 1)
    count, total, square = (np.zeros(x_R.shape[1]) for _ in range(3))
    for rows in torch.split(torch.from_numpy(row_N), 4096):
        x_N = x_R[rows].numpy().astype(np.float64) / (255 if x_R.dtype == torch.uint8 else 1)
        count += (~np.isnan(x_N)).sum(axes)
        total += np.nansum(x_N, axes)
        square += np.nansum(x_N**2, axes)
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    plain = ~np.array(source.scaled or (True,) * len(mean))
    std[plain | (std < 1e-8 * (1 + abs(mean)))] = 1.0
    mean[plain] = 0.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _for_each(values: Sequence[float], width: int) -> tuple[float, ...]:
    """One number for each of ``width`` channels or features, where one for all may be given."""
    return tuple(map(float, values)) * (width if len(values) == 1 else 1)
