"""Reads images, labels and columns from the files of a data set, whatever their format."""

from __future__ import annotations

import io
import math
import warnings
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core import shared_memory
from idiolect.core.errors import InputError
from idiolect.data.datasets.catalogue import Card
from idiolect.data.datasets.dataset import Column
from idiolect.data.datasets.files import PartFiles
from idiolect.data.datasets.formats import PartContent, open_part

# R samples, N samples of a batch, C channels, H height, W width

_MOST_TIMES = 1024  # an image that is resized has at most so many times the pixels that are wanted


class Samples(NamedTuple):
    """What reading a data set returns."""

    x_R: Tensor
    y_R: Tensor
    train_rows: int
    columns: dict[str, Column]


def decode(name: str, card: Card, train: list[PartFiles], test: list[PartFiles]) -> Samples:
    """Read the files of both splits.

    Raises:
        InputError: a file is missing, broken or from another data set.
    """
    parts = [open_part(part, card) for part in (*train, *test)]
    labels = [_labels(part, name, card) for part in parts]
    keep = [y < len(card.class_names) for y in labels]
    counts = [int(k.sum()) for k in keep]
    columns = {}
    for key in card.columns:
        values = [part.columns[key].filter(pa.array(k)) for part, k in zip(parts, keep, strict=True)]
        columns[key] = _column(pa.concat_arrays(values))
    _check_domains(name, card, columns)
    shared_memory.check(
        sum(counts) * math.prod(card.shape), f"{name}: {sum(counts):,} samples", f"put the files of {name} there"
    )
    x_R = np.empty((sum(counts), *card.shape), np.uint8)  # filled batch by batch: there is no second copy
    start = 0
    for part, keep_R in zip(parts, keep, strict=True):
        row = 0
        for batch in part.images:
            row_N = np.flatnonzero(keep_R[row : row + len(batch)])
            space = x_R[start : start + len(row_N)]
            if isinstance(batch, np.ndarray):
                space[:] = batch[row_N]
            else:
                for to, i in enumerate(row_N):
                    space[to] = _image(batch[i], f"row {row + i} of {part.where}", name, card)
            if card.transposed:
                space[:] = space.swapaxes(2, 3).copy()
            row, start = row + len(batch), start + len(row_N)
    y_R = np.concatenate([y[k] for y, k in zip(labels, keep, strict=True)])
    return Samples(torch.from_numpy(x_R), torch.from_numpy(y_R), sum(counts[: len(train)]), columns)


def _labels(part: PartContent, name: str, card: Card) -> NDArray[np.int64]:
    """The labels from 0; samples with labels above the classes are left out."""
    possible = card.labels or range(len(card.class_names))
    y_R = np.asarray(part.labels.fill_null(possible.start - 1), dtype=np.int64)
    wrong = np.flatnonzero((y_R < possible.start) | (y_R >= possible.stop))
    if wrong.size:
        raise InputError(
            f"row {wrong[0]} of {part.where} has the label {part.labels[int(wrong[0])].as_py()}, where the files of "
            f"{name} have labels {possible.start} to {possible.stop - 1}: put the files of {name} there"
        )
    return y_R - possible.start


def _column(values: pa.Array) -> Column:
    encoding = values.dictionary_encode()
    texts = np.asarray(encoding.dictionary.to_pylist())
    order = np.argsort(texts)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Column(rank[np.asarray(encoding.indices)], tuple(texts[order].tolist()))


def _check_domains(name: str, card: Card, columns: dict[str, Column]) -> None:
    if not card.domains:
        return
    names, domains = set(columns["domain"].names), set(card.domains)
    if names != domains:
        odd = "its files have the domains" if names - domains else "its files have only the domains"
        raise InputError(
            f"data set {name}: {odd} {', '.join(sorted(names))}; it needs samples of {', '.join(sorted(domains))}: "
            f"rename the domains, or put the files of {name} there"
        )


def _image(data: bytes | None, where: str, name: str, card: Card) -> NDArray[np.uint8]:
    from PIL import Image

    channels, height, width = card.shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound here is lower
            source = Image.open(io.BytesIO(data or b""))
        with source as file:
            most = _MOST_TIMES * width * height
            if file.width * file.height > most or not (card.resize or file.size == (width, height)):
                has = mode if card.convert else file.mode
                raise InputError(
                    f"{where} is an image of {file.width}x{file.height} in mode {has}, where {name} has "
                    f"{width}x{height} in mode {mode}: put the files of {name} there"
                )
            image: Image.Image = file.convert(mode) if card.convert else file
            form = f"{image.width}x{image.height} in mode {image.mode}"
            if card.resize and image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            x_HWC = np.asarray(image)
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise InputError(f"{where} has no readable image: download the file again") from error
    if image.size != (width, height) or image.mode != mode:
        raise InputError(
            f"{where} is an image of {form}, where {name} has {width}x{height} in mode {mode}: put the files of "
            f"{name} there"
        )
    return x_HWC.reshape(height, width, channels).transpose(2, 0, 1)
