"""A data set that has been read, whether by name or the user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# R samples, C channels, H height, W width, F features


@dataclass(frozen=True, eq=False)
class Column:
    """What each sample belongs to: a writer, a domain, a hospital.

    Attributes:
        code_R: the place in ``names`` of each sample's value, int64.
        names: the values, sorted; each occurs at least once.
    """

    code_R: NDArray[np.int64]
    names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Column({len(self.names)} values in {len(self.code_R)} samples)"


@dataclass(frozen=True, eq=False)
class Source:
    """A labelled set of rows: 8-bit images, or numbers.

    Attributes:
        name: the name by which it was loaded.
        x_R: images (R, C, H, W), uint8, mapped from the cache file if there is one, to save memory; or float32
            (R, ...). In a table (R, F), NaN is a missing value.
        y_R: labels in 0..classes-1, int64.
        classes: the number of classes.
        class_names: one name per class.
        mean: per channel or feature (axis 1), on a scale of 0 to 1 for images; None to take the training samples'.
        std: per channel or feature, like ``mean``.
        train_rows: samples [0, train_rows) are the official training split, the rest the official test split.
        columns: by name, what else is known of each sample.
        client_column: the column that says which client a sample belongs to, if there is one.
        feature_names: for a table, one name for each feature.
        scaled: for a table, whether each feature is brought to mean 0 and standard deviation 1; () for all.
        few: if there is no client column, the columns that might be one: few texts, each in several samples.
    """

    name: str
    x_R: Tensor
    y_R: Tensor
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    train_rows: int
    columns: Mapping[str, Column] = field(default_factory=dict)
    client_column: str | None = None
    feature_names: tuple[str, ...] = ()
    scaled: tuple[bool, ...] = ()
    few: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Shapes only: samples and labels may be private."""
        of = "" if self.client_column is None else f", client_column={self.client_column!r}"
        return f"Source({self.name!r}, x_R={shape(self.x_R)}, y_R={shape(self.y_R)}, classes={self.classes}{of})"


def shape(x: Tensor) -> str:
    """A tensor without its values: ``float32 (569, 31)``."""
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def digest(source: Source) -> str:
    """A short fingerprint of a source's samples, labels and columns."""
    found = hashlib.blake2b(digest_size=8)
    for array in (source.x_R.numpy(), source.y_R.numpy(), *(c.code_R for c in source.columns.values())):
        found.update(str((array.shape, array.dtype)).encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
