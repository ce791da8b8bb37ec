"""Mean and standard deviation for the normalisation of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.inputs import Moments, is_integer
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions import Rows

Normalise = Literal["reference", "training", "symmetric", "none"]
_Pair = tuple[tuple[float, ...], tuple[float, ...]]
_NEAR = 1e-3  # of the mean: below that, the difference of two large sums says little of the standard deviation


def moments(source: Source, row_N: Rows, normalise: Normalise) -> tuple[Moments, Moments]:
    """Mean and standard deviation per channel or feature for normalisation; ``row_N`` are the training samples.

    Whole numbers have none. Samples of several tensors have them by name.

    Raises:
        InputError: samples that are not images cannot be normalised so.
    """
    if isinstance(source.x_R, dict):
        pairs = {name: _moments(x_R, source, row_N, normalise) for name, x_R in source.x_R.items()}
        return {name: mean for name, (mean, _) in pairs.items()}, {name: std for name, (_, std) in pairs.items()}
    return _moments(source.x_R, source, row_N, normalise)


def _moments(x_R: Tensor, source: Source, row_N: Rows, normalise: Normalise) -> _Pair:
    if is_integer(x_R):
        return (), ()
    width = x_R.shape[1] if x_R.ndim > 1 else 1
    if normalise == "none":
        return (0.0,) * width, (1.0,) * width
    if normalise == "symmetric":
        if x_R.dtype != torch.uint8:
            raise InputError("normalise=symmetric is for images, and these samples are numbers: take training")
        return (0.5,) * width, (0.5,) * width
    if normalise == "reference" and source.mean is not None and source.std is not None:
        return _for_each(source.mean, width), _for_each(source.std, width)
    axes = tuple(a for a in range(x_R.ndim) if a != 1)
    count, total, square = (np.zeros(width) for _ in range(3))
    for x_N in _rows(x_R, row_N):
        count += (~np.isnan(x_N)).sum(axes)
        total += np.nansum(x_N, axes)
        square += np.nansum(x_N**2, axes)
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    if (near := std < _NEAR * abs(mean)).any():
        std[near] = _about(x_R, row_N, mean, count)[near]
    plain = ~np.array(source.scaled or (True,) * len(mean))
    std[plain | (std <= 1e-8 * abs(mean))] = 1.0
    mean[plain] = 0.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _rows(x_R: Tensor, row_N: Rows) -> Iterator[NDArray[np.float64]]:
    for rows in torch.split(torch.from_numpy(row_N), 4096):
        yield x_R[rows].numpy().astype(np.float64) / (255 if x_R.dtype == torch.uint8 else 1)


def _about(x_R: Tensor, row_N: Rows, mean: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard deviation per channel or feature, about means that are known."""
    axes, square = tuple(a for a in range(x_R.ndim) if a != 1), np.zeros_like(mean)
    for x_N in _rows(x_R, row_N):
        square += np.nansum((x_N - mean.reshape(-1, *(1,) * (x_R.ndim - 2))) ** 2, axes)
    return np.sqrt(square / np.maximum(count, 1))


def _for_each(values: Sequence[float], width: int) -> tuple[float, ...]:
    """One number for each of ``width`` channels or features, where one for all may be given."""
    return tuple(map(float, values)) * (width if len(values) == 1 else 1)
