"""Opening a file of a data set: parquet, IDX or MATLAB."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from idiolect.core import shared_memory
from idiolect.core.arrow_tables import open_parquet, parquet_batches, read_parquet
from idiolect.core.errors import InputError
from idiolect.data.datasets.catalogue import Card
from idiolect.data.datasets.files import PartFiles, first_line

# R samples, N samples of a batch, C channels, H height, W width

_BATCH = 1000
_MOST_LABELS = 10**8  # in a compressed file


class PartContent(NamedTuple):
    """The labels and columns of a part, and its images still to come: encoded, or decoded as (N, C, H, W)."""

    where: str
    labels: pa.Array
    columns: dict[str, pa.Array]
    images: Iterator[list[bytes | None] | NDArray[np.uint8]]


def open_part(part: PartFiles, card: Card) -> PartContent:
    """Read labels and columns, and get ready to read images.

    Raises:
        InputError: the file is broken, empty or lacks a column; for images, when they are read.
    """
    path = part.files[0]
    formats: dict[str, tuple[str, Callable[..., PartContent]]] = {
        ".parquet": ("parquet", _open_parquet),
        ".gz": ("IDX", _open_idx),
        ".mat": ("a MATLAB file of X and y", _open_mat),
    }
    kind, reader = formats[path.suffix]
    faults = (pa.ArrowException, OSError, EOFError, ValueError, KeyError, NotImplementedError, zlib.error)

    def careful(images: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from images
        except faults as error:
            raise fault(error) from error

    def fault(error: Exception) -> InputError:
        return InputError(f"{path} cannot be read as {kind} ({first_line(error)}): download the file again")

    try:
        content = reader(part, card)
    except InputError:
        raise
    except faults as error:
        raise fault(error) from error
    if not len(content.labels):
        raise InputError(f"{path} has no rows: download the file again")
    if part.domain:
        content.columns["domain"] = pa.repeat(part.domain, len(content.labels))
    return content._replace(images=careful(content.images))


def _open_parquet(part: PartFiles, card: Card) -> PartContent:
    (path,) = part.files
    file = open_parquet(path)
    schema = file.schema_arrow
    image = next((c for c in card.image if c in schema.names), "")
    label = next((c for c in card.label if c in schema.names), "")
    extra = {} if part.domain else dict(card.columns)
    kinds = {c: schema.field(c).type for c in (image, label) if c}
    if (
        len(kinds) < 2
        or not pa.types.is_struct(kinds[image])
        or kinds[image].get_field_index("bytes") < 0
        or not pa.types.is_integer(kinds[label])
        or any(c not in schema.names for c in extra.values())
    ):
        form = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise InputError(
            f"{path} has the columns {form}; it needs {' or '.join(card.image)} (a struct with the encoded bytes) and "
            f"{' or '.join(card.label)} (integers)" + "".join(f" and {c} (text)" for c in extra.values())
        )
    table = read_parquet(file, [label, *extra.values()])
    columns = {key: _text(table.column(c).combine_chunks(), c, path, schema.metadata) for key, c in extra.items()}
    images = (batch.column(0).field("bytes").to_pylist() for batch in parquet_batches(file, _BATCH, [f"{image}.bytes"]))
    return PartContent(str(path), table.column(label).combine_chunks(), columns, images)


def _text(values: pa.Array, column: str, path: Path, metadata: dict[bytes, bytes] | None) -> pa.Array:
    """A column as text; the numbers of a class label as the names that the file's metadata gives them."""
    if values.null_count:
        row = int(np.flatnonzero(values.is_null())[0])
        raise InputError(f"row {row} (counting from 0) of {path} has no {column}: fill it in or drop the row")
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        class_names = features.get(column, {}).get("names")
        if class_names and pa.types.is_integer(values.type):
            return pa.array(class_names, pa.string()).take(values)
        return values.cast(pa.string())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"{path} has metadata that do not fit its columns ({error}): write the file again") from error


def _open_idx(part: PartFiles, card: Card) -> PartContent:
    """LeCun's format: a magic number, the sizes as big-endian 32-bit integers, then the bytes."""
    images_path, labels_path = part.files
    with gzip.open(labels_path) as file:
        labels = np.frombuffer(file.read(8 + _MOST_LABELS), np.uint8, offset=8)
    with gzip.open(images_path) as file:
        magic, rows, height, width = _idx_header(file)
    if magic != 2051 or (1, height, width) != card.shape or rows != len(labels):
        raise ValueError(f"{rows} images of {width}x{height}, {len(labels)} labels")

    def images() -> Iterator[NDArray[np.uint8]]:
        with gzip.open(images_path) as file:
            _idx_header(file)
            for start in range(0, rows, _BATCH):
                count = min(_BATCH, rows - start)
                pixels = np.frombuffer(file.read(count * height * width), np.uint8)
                yield pixels.reshape(count, 1, height, width)

    return PartContent(str(images_path), pa.array(labels.astype(np.int64)), {}, images())


def _idx_header(file: gzip.GzipFile) -> tuple[int, int, int, int]:
    magic, rows, height, width = np.frombuffer(file.read(16), ">u4").tolist()
    return magic, rows, height, width


def _open_mat(part: PartFiles, card: Card) -> PartContent:
    """SVHN's format: images X (H, W, C, R) and labels y (R, 1); some files write the digit 0 as 10."""
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    (path,) = part.files
    try:
        for variable, shape, _ in whosmat(path):
            shared_memory.check(math.prod(shape), f"{variable} of {path}", "download the file again")
        content = loadmat(path, variable_names=["X", "y"])
    except MatReadError as error:
        raise ValueError(error) from error
    x_HWCR, y_R = content["X"], content["y"].reshape(-1).astype(np.int64)
    height, width, channels, rows = x_HWCR.shape
    if (channels, height, width) != card.shape or rows != len(y_R) or x_HWCR.dtype != np.uint8:
        raise ValueError(f"X has the shape {x_HWCR.shape}, y has {len(y_R)} labels")
    images = (x_HWCR[..., i : i + _BATCH].transpose(3, 2, 0, 1) for i in range(0, rows, _BATCH))
    return PartContent(str(path), pa.array(np.where(y_R == 10, 0, y_R)), {}, images)
