"""A data set that has been read, whether by name or the user's own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data.targets import Targets
from idiolect.data.text.tokens import Tokens

# R samples, C channels, H height, W width, F features

Header = Literal["none"]
"""Says that the first line of a text file is a row and not one of names."""
Unlabelled = Literal["error", "drop"]
"""What becomes of rows whose target is missing."""


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


@dataclass(frozen=True)
class Encoding:
    """How a column of a table becomes features, so that the same column of another table can become the same ones.

    Attributes:
        name: of the column.
        kind: "number", which is one feature, or "text", which is a 0/1 feature for each of ``texts``.
        texts: the known texts, in the order of their features.
        value: whether the numbers are a feature; they are not where all known ones were equal.
        gaps: whether a 0/1 feature, the last one, says that the value is missing.
        shift: is subtracted from the numbers before they are stored with 32 bits.
        scaled: whether the numbers are brought to mean 0 and standard deviation 1.
    """

    name: str
    kind: Literal["number", "text"] = "number"
    texts: tuple[str, ...] = ()
    value: bool = True
    gaps: bool = False
    shift: float = 0.0
    scaled: bool = True

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its features."""
        if self.kind == "text":
            return tuple(f"{self.name}={text}" for text in (*self.texts, *(["missing"] if self.gaps else [])))
        return (self.name,) * self.value + (f"{self.name} is missing",) * self.gaps

    @property
    def scales(self) -> tuple[bool, ...]:
        """For each of its features whether it is scaled."""
        return tuple(self.scaled and self.kind == "number" and name == self.name for name in self.features)


@dataclass(frozen=True, eq=False)
class Source:
    """A labelled set of rows: 8-bit images, numbers, ids, or several of them by name.

    Attributes:
        name: the name by which it was loaded.
        x_R: images (R, C, H, W), uint8, mapped from the cache file if there is one, to save memory; or float32
            (R, ...). In a table (R, F), NaN is a missing value. Whole numbers (R, ...) of 16 bits or more, such as the
            ids of words, stay as they are. A dict of such tensors, by name, where a sample has several.
        y_R: labels in 0..classes-1, int64; all 0 where there are ``targets``.
        classes: the number of classes; 1 where the target is numbers.
        class_names: one name per class; the target's name where it is numbers.
        mean: per channel or feature (axis 1), or one number for all, on a scale of 0 to 1 for images; None to take the
            training samples', and for a dict.
        std: per channel or feature, like ``mean``, and above 0.
        train_rows: samples [0, train_rows) are the official training split, the rest the official test split.
        columns: by name, what else is known of each sample.
        client_column: the column that says which client a sample belongs to, if there is one.
        group_column: the column that says which samples belong together, as those of one patient, if there is one.
        encodings: for a table, how each of its columns becomes features.
        few: if there is no client column, the columns that might be one: few texts, each in several samples.
        sizes: of whole numbers, one more than the largest that may occur, for one tensor or by name; 0 if that is not
            known.
        tokens: of texts, how they became ids.
        channels: of windows in columns of lists, the names of these columns.
        bits: of the grey values of images, before they became 8.
        targets: the targets where they are numbers or several labels; else None.

    Raises:
        InputError: mean or std is given without the other, has another number of values, or one that is not possible.
    """

    name: str
    x_R: Tree
    y_R: Tensor
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    train_rows: int
    columns: Mapping[str, Column] = field(default_factory=dict)
    client_column: str | None = None
    encodings: tuple[Encoding, ...] = ()
    few: tuple[str, ...] = ()
    sizes: int | Mapping[str, int] = 0
    tokens: Tokens | None = None
    channels: tuple[str, ...] = ()
    bits: int = 8
    targets: Targets | None = None
    group_column: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.x_R, dict):
            if self.mean is not None or self.std is not None:
                raise InputError(f"{self.name}: mean and std are for samples of one tensor: leave them out")
            return
        if (self.mean is None) != (self.std is None):
            raise InputError(f"{self.name}: mean and std belong together: give both, or neither")
        width = self.x_R.shape[1] if self.x_R.ndim > 1 else 1
        for what, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in (1, width):
                kind = "channels" if self.x_R.dtype == torch.uint8 else "features"
                raise InputError(
                    f"{self.name}: {what} has {len(values)} numbers for {width} {kind}: give one for all, or one for "
                    "each"
                )
            if any(not math.isfinite(v) or (what == "std" and v <= 0) for v in values or ()):
                above = " above 0" if what == "std" else ""
                raise InputError(f"{self.name}: {what} has a number that is not possible: give finite numbers{above}")

    @property
    def task(self) -> TaskName:
        """What is learnt of the target."""
        return "classification" if self.targets is None else self.targets.task

    @property
    def feature_names(self) -> tuple[str, ...]:
        """For a table, one name for each feature."""
        return tuple(name for encoding in self.encodings for name in encoding.features)

    @property
    def scaled(self) -> tuple[bool, ...]:
        """For a table, whether each feature is brought to mean 0 and standard deviation 1; else (), which means all."""
        return tuple(scales for encoding in self.encodings for scales in encoding.scales)

    def __repr__(self) -> str:
        """Shapes only: samples and labels may be private."""
        of = "" if self.client_column is None else f", client_column={self.client_column!r}"
        y = f"y_R={shape(self.y_R)}, classes={self.classes}"
        if self.targets is not None:
            y = f"targets={shape(self.targets.value_RD)}"
        return f"Source({self.name!r}, x_R={shape(self.x_R)}, {y}{of})"


def shape(x: Tree) -> str:
    """A tensor without its values: ``float32 (569, 31)``; several by name."""
    if isinstance(x, dict):
        return "{" + ", ".join(f"{name}: {shape(leaf)}" for name, leaf in x.items()) + "}"
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def digest(source: Source) -> str:
    """A short fingerprint of a source's samples, labels and columns."""
    hasher = hashlib.blake2b(digest_size=8)
    leaves = [leaf.numpy() for leaf in tree.leaves(source.x_R)]
    targets = [] if source.targets is None else [source.targets.value_RD.numpy()]
    for array in (*leaves, source.y_R.numpy(), *targets, *(c.code_R for c in source.columns.values())):
        hasher.update(str((array.shape, array.dtype)).encode())
        hasher.update(np.ascontiguousarray(array).data)
    return hasher.hexdigest()
