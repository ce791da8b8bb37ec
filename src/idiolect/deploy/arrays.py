"""Arrays as samples: what a bundle's network takes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.deploy.schema import Inputs, TensorPart


def samples_of(x: Any, inputs: Inputs, what: str) -> Tree:
    """Samples as stored, of images, of one array or of several by name.

    Args:
        x: the array, or arrays by name.
        inputs: what the bundle takes, other than the columns of a table.
        what: how messages call ``x``.

    Raises:
        ValueError: they are not what the bundle takes.
    """
    if inputs.kind == "images":
        return _images(np.asarray(x), inputs.shape, what)
    return _tensors(x, inputs.tensors, what) if inputs.tensors else _tensor(x, inputs, what)


def _tensors(x: Any, forms: Mapping[str, TensorPart], what: str) -> dict[str, Tensor]:
    if not isinstance(x, Mapping) or set(x) != set(forms):
        got = f"the names {', '.join(map(str, x))}" if isinstance(x, Mapping) else f"a {type(x).__name__}"
        raise ValueError(f"{what} is {got}: give a dict of arrays with the names {', '.join(forms)}")
    x_N = {name: _tensor(x[name], form, f"{what}[{name!r}]") for name, form in forms.items()}
    if len(lengths := {len(leaf) for leaf in x_N.values()}) > 1:
        raise ValueError(
            f"the arrays of {what} have {' and '.join(map(str, sorted(lengths)))} samples: give as many of each"
        )
    return x_N


def _tensor(x: Any, form: TensorPart, what: str) -> Tensor:
    """Samples (N, ...) of a form; whole numbers stay so."""
    x_N = _channels_first(np.asarray(x), form.shape)
    if x_N.dtype.kind not in "biuf" or not _fits(x_N, form.shape):
        raise ValueError(f"{what} has the shape {x_N.shape} of {x_N.dtype}: give numbers of shape (N, *{form.shape})")
    if form.ids is None:
        return torch.from_numpy(x_N.astype(np.float32).reshape(-1, *form.shape))
    if x_N.dtype.kind == "f" or (x_N.size and not 0 <= x_N.min() <= x_N.max() < (form.ids or np.inf)):
        most = f" below {form.ids}" if form.ids else ""
        raise ValueError(f"{what} has numbers that are no ids: give whole numbers from 0 on{most}")
    return torch.from_numpy(x_N.astype(np.int64).reshape(-1, *form.shape))


def _fits(x_N: NDArray[Any], shape: tuple[int, ...]) -> bool:
    """Whether each is a sample of a shape, but for axes of length 1, or all its numbers in a row."""
    own = x_N.shape[1:]
    return x_N.ndim > 0 and (x_N.size == 0 or own == (math.prod(shape),) or _long(own) == _long(shape))


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _images(x_N: NDArray[Any], shape: tuple[int, ...], what: str) -> Tensor:
    channels, height, width = shape
    whole = x_N.dtype == np.uint8 or (
        np.issubdtype(x_N.dtype, np.number) and ((x_N >= 0) & (x_N <= 255) & (x_N == np.round(x_N))).all()
    )
    if not whole:
        raise ValueError(f"{what} holds numbers that are not pixels: give 8-bit images, 0 to 255")
    x_N = _channels_first(x_N.astype(np.uint8), shape)
    if x_N.ndim < 2 or not _fits(x_N, shape):
        raise ValueError(
            f"{what} has the shape {x_N.shape}: give images of {width}x{height} pixels with {channels} channels"
        )
    return torch.from_numpy(np.ascontiguousarray(x_N).reshape(-1, channels, height, width))


def _channels_first(x_N: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Images (N, H, W, C) as (N, C, H, W), which is the form in training; others as they are."""
    if len(shape) == 3 and shape[0] in (1, 3) and x_N.shape[1:] == (*shape[1:], shape[0]) != shape:
        return x_N.transpose(0, 3, 1, 2)
    return x_N
