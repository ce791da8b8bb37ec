"""Columns of lists, such as windows of sensors: channels x time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError, listed
from idiolect.data.custom.columns import as_float32

# R samples, C channels, T time steps


def list_columns(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Those of some columns whose first known cell is a list."""
    return [name for name in columns if _is_list(next((v for v in frame[name] if _is_list(v) or not _absent(v)), None))]


def windows(frame: pd.DataFrame, columns: Sequence[str], where: str, *, training: bool = True) -> Tensor:
    """The windows (R, C, T), float32, in columns of lists; in ``training``, float32 must tell their numbers apart.

    Each column is a channel, a list of T numbers in each cell; or the only column has in each cell C lists of T.

    Raises:
        InputError: a column has other cells than lists, lists have different lengths, or a number is missing.
    """
    if beside := [name for name in columns if name not in list_columns(frame, columns)]:
        raise InputError(
            f"{where} has lists in {listed([c for c in columns if c not in beside], 5)} and single values in "
            f"{listed(beside, 5)}: a sample is either a window or a row of a table, so drop the columns of one kind"
        )
    channels = [_channel(frame[name], f"column {name!r} of {where}", training) for name in columns]
    if len(channels) == 1 and channels[0].ndim == 3:
        return torch.from_numpy(channels[0])
    shapes = {name: one.shape[1:] for name, one in zip(columns, channels, strict=True)}
    deep = [name for name, shape in shapes.items() if len(shape) > 1]
    if deep:
        raise InputError(
            f"{where} has lists of lists in {listed(deep, 5)} and {len(columns) - 1} more columns of lists: give one "
            "column with channels x time, or a column for each channel"
        )
    if len(set(shapes.values())) > 1:
        lengths = listed([f"{name}: {shape[0]}" for name, shape in shapes.items()], 5)
        raise InputError(f"the columns of {where} have lists of different lengths ({lengths}): give all one length")
    return torch.from_numpy(np.stack(channels, axis=1))


def _channel(values: pd.Series[Any], what: str, training: bool) -> NDArray[np.float32]:
    """The lists of a column, (R, T), or the lists of lists, (R, C, T)."""
    rows = list(values)
    for r, cell in enumerate(rows):
        if not _is_list(cell):
            problem = "no list" if _absent(cell) else f"a {type(cell).__name__} where the others have lists"
            raise InputError(f"{what} has {problem} in row {r}, counting from 0: correct it or remove the row")
    arrays = [_array(cell, r, what) for r, cell in enumerate(rows)]
    shape = arrays[0].shape
    for r, array in enumerate(arrays):
        if array.shape != shape:
            sizes = [" x ".join(map(str, a.shape)) for a in (arrays[0], array)]
            raise InputError(
                f"{what} has lists of different lengths ({sizes[0]} in row 0, {sizes[1]} in row {r}, counting from 0): "
                "cut them into windows of one length"
            )
    if not 1 <= len(shape) <= 2 or 0 in shape:
        raise InputError(f"{what} has lists of shape {shape}: give lists of numbers, or lists of channels x time")
    with np.errstate(over="ignore"):
        x = as_float32(np.stack(arrays), what) if training else np.stack(arrays).astype(np.float32)
    if not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0, 0])
        raise InputError(f"{what} has a number that is missing or not finite in row {row}, counting from 0: fill it in")
    return x


def _array(cell: Any, row: int, what: str) -> NDArray[Any]:
    try:
        is_plain = isinstance(cell, np.ndarray) and cell.dtype != object
        plain = cell if is_plain else np.array([list(inner) if _is_list(inner) else inner for inner in cell])
        if plain.dtype.kind not in "fiub":
            raise ValueError(plain.dtype)
        return plain
    except (TypeError, ValueError):
        raise InputError(
            f"{what} has a list in row {row}, counting from 0, that is not of numbers, or whose lists have different "
            "lengths: correct it or remove the row"
        ) from None


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _absent(value: object) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA
