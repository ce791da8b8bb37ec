"""Reading a data set by name: from scikit-learn, from files in a folder, or from the Hugging Face hub.

What is known of each set stands in ``sets.SETS``; its files are found, opened and decoded here, all in one way.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import math
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError, nearest
from idiolect.data import shared_memory
from idiolect.data.datasets import cache
from idiolect.data.datasets.catalogue import SETS, Card, Origin
from idiolect.data.datasets.dataset import Column, Source

# R rows, N rows of a batch, C channels, H height, W width

log = logging.getLogger(__name__)

_BATCH = 1000
_MOST_LABELS = 10**8  # in a compressed file
_MOST_TIMES = 1024  # the pixels wanted has an image that is resized, at most


def load(name: str, data_dir: Path | None = None) -> Source:
    """Read a data set, from ``<data_dir>/<name>/{train,test}*.parquet`` or by its name on the Hugging Face hub.

    A set of several domains is read from one table with a column domain, or else from ``<data_dir>/<name>/<domain>/``
    where there is such a folder and from the hub where there is none.

    Args:
        name: one of ``names()``.
        data_dir: the folder of folders of parquet files; else the environment variable IDIOLECT_DATA; else the hub.

    Raises:
        InputError: unknown name, a file that is missing, broken or not this data set, or the hub out of reach.
    """
    card = _card(name)
    place = data_dir or os.environ.get("IDIOLECT_DATA")
    folder = Path(os.path.expanduser(place)) / name if place else None
    x_R, y_R, train_rows, columns = _read(name, card, folder) if card.origin or card.domains else _digits()
    found, published = (train_rows, len(y_R) - train_rows), (card.train_rows, card.test_rows)
    if found != published:
        log.warning(
            "data set %s: the files hold %s training and %s test rows where %s and %s are published; results will not "
            "compare with published ones",
            name,
            *(f"{count:,}" for count in (*found, *published)),
        )
    return Source(
        name,
        x_R,
        y_R,
        len(card.class_names),
        card.class_names,
        card.mean,
        card.std,
        train_rows,
        columns,
        card.client_column,
    )


def names() -> list[str]:
    """The names of all data sets."""
    return list(SETS)


def at_hand(name: str, data_dir: str | None = None) -> bool:
    """Whether a data set can be read without fetching it: bundled, or in the folder of parquet files."""
    place = data_dir or os.environ.get("IDIOLECT_DATA")
    card = _card(name)
    return not (card.origin or card.domains) or bool(place and (Path(os.path.expanduser(place)) / name).is_dir())


def describe(name: str) -> dict[str, Any]:
    """What is known of a data set without reading it, ready for JSON; ``bytes`` is its size in memory.

    Raises:
        InputError: unknown name.
    """
    card = _card(name)
    rows = card.train_rows + card.test_rows
    pages = [origin.page for origin in ([card.origin] if card.origin else card.domains.values())]
    return {
        "name": name,
        "title": card.title,
        "reference": card.reference,
        "licence": card.licence,
        "source": "; ".join(pages) or "bundled with scikit-learn",
        "note": card.note,
        "rows": rows,
        "train_rows": card.train_rows,
        "test_rows": card.test_rows,
        "bytes": rows * math.prod(card.shape),
        "shape": list(card.shape),
        "classes": len(card.class_names),
        "class_names": list(card.class_names),
        "columns": list(card.columns),
        "client_column": card.client_column,
        "mean": list(card.mean) if card.mean else None,
        "std": list(card.std) if card.std else None,
    }


def _card(name: str) -> Card:
    if name not in SETS:
        raise InputError(f"unknown data set {name!r}; {nearest(name, SETS)}")
    return SETS[name]


class _Rows(NamedTuple):
    """What reading a data set gives."""

    x_R: Tensor
    y_R: Tensor
    train_rows: int
    columns: dict[str, Column]


def _digits() -> _Rows:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x_R = np.rint(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    return _Rows(torch.from_numpy(x_R), torch.from_numpy(bunch.target.astype(np.int64)), len(x_R), {})


def _read(name: str, card: Card, folder: Path | None) -> _Rows:
    train, test = _locate(name, card, folder)
    place = cache.place(_key(name, card, [*train, *test]))
    if place and (kept := cache.load(place)):
        return _unpack(kept)
    rows = _decode(name, card, train, test)
    if place and cache.save(place, *_pack(rows)) and (kept := cache.load(place)):
        return _unpack(kept)
    return rows


# --- where the files are


class _Part(NamedTuple):
    """Rows that are not read yet: a parquet or MATLAB file, or the two IDX files of images and labels."""

    files: tuple[Path, ...]
    domain: str | None


def _locate(name: str, card: Card, folder: Path | None) -> tuple[list[_Part], list[_Part]]:
    if card.origin:
        return _published(name, card, card.origin, folder, None)
    if folder and (train := _in_folder(folder, "train")):
        if test := _in_folder(folder, "test"):
            return [_Part(files, None) for files in train], [_Part(files, None) for files in test]
        raise InputError(
            f"data set {name}: {folder} has no test.parquet; put one there {_columns(card, *card.columns.values())}"
        )
    places = {domain: folder / domain if folder and (folder / domain).is_dir() else None for domain in card.domains}
    for domain, origin in card.domains.items():  # first, so that nothing is fetched in vain
        if not origin.hub and not places[domain]:
            here = f"{folder or f'<data_dir>/{name}'}/{domain}"
            raise InputError(
                f"data set {name}: its domain {domain} cannot be fetched by name; {_by_hand(card, origin, here)}"
                + ("" if folder else ", and give that data_dir or set IDIOLECT_DATA to it")
            )
    each = [_published(f"{name}/{d}", card, origin, places[d], d) for d, origin in card.domains.items()]
    return [part for train, _ in each for part in train], [part for _, test in each for part in test]


def _published(
    name: str, card: Card, origin: Origin, folder: Path | None, domain: str | None
) -> tuple[list[_Part], list[_Part]]:
    """The parts of both splits, in the folder if one is given, else on the hub."""

    def parts(split: str, files: tuple[str, ...]) -> list[_Part]:
        if not files:
            return []
        if folder:
            found = _in_folder(folder, split, files)
            if not found:
                lacks = f"{folder} has no {split}.parquet" if folder.is_dir() else f"there is no folder {folder}"
                fetch = ", or leave out data_dir and IDIOLECT_DATA to fetch it by name" if origin.hub else ""
                raise InputError(f"data set {name}: {lacks}; {_by_hand(card, origin, str(folder))}{fetch}")
        else:
            found = _group([_fetch(name, card, origin, file) for file in files])
        return [_Part(paths, domain) for paths in found]

    return parts("train", origin.train), parts("test", origin.test)


def _in_folder(folder: Path, split: str, published: tuple[str, ...] = ()) -> list[tuple[Path, ...]]:
    """The files of a split: one parquet file, its shards, or the published files; [] where there are none."""
    own_names = [PurePosixPath(file).name for file in published]
    aliases = [n.split("-")[0] for n in own_names if n.endswith(".parquet")]
    for alias in dict.fromkeys([split, *aliases]):
        whole = folder / f"{alias}.parquet"
        if whole.is_file():
            return [(whole,)]
        if shards := sorted(f for f in folder.glob(f"{alias}-*.parquet") if f.is_file()):
            return [(shard,) for shard in shards]
    files = [folder / n for n in own_names]
    return _group(files) if files and all(f.is_file() for f in files) else []


def _group(files: list[Path]) -> list[tuple[Path, ...]]:
    return [tuple(files)] if files[0].suffix == ".gz" else [(file,) for file in files]


def _fetch(name: str, card: Card, origin: Origin, file: str) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    here = try_to_load_from_cache(origin.hub, file, repo_type="dataset")
    if isinstance(here, str):
        return Path(here)
    log.warning("data set %s: fetching %s of %s from the Hugging Face hub", name, file, origin.hub)
    chatter = logging.getLogger("huggingface_hub")
    level = chatter.level
    chatter.setLevel(logging.ERROR)  # one sentence at the end says it all
    try:
        return Path(hf_hub_download(origin.hub, file, repo_type="dataset"))
    except OSError as error:
        raise InputError(
            f"data set {name} cannot be fetched from the Hugging Face hub ({_first_line(error)}); elsewhere, "
            f"{_by_hand(card, origin, f'<data_dir>/{name}')}, and give that data_dir or set IDIOLECT_DATA to it"
        ) from error
    finally:
        chatter.setLevel(level)


def _by_hand(card: Card, origin: Origin, here: str) -> str:
    """What to fetch and where to put it."""
    files = " and ".join([*origin.train, *origin.test])
    columns = _columns(card, *(card.columns.values() if card.origin else ()))
    places = f"{here}/train.parquet" + (f" and {here}/test.parquet" if origin.test else "")
    if origin.train[0].endswith(".parquet"):
        return f"fetch {files} from {origin.page} and put them at {places}, {columns}"
    return f"fetch {files} from {origin.page} and put them into {here}, or write {places} {columns}"


def _columns(card: Card, *more: str) -> str:
    both = f"with the columns {card.image[0]} (a struct with the encoded bytes) and {card.label[0]} (integers)"
    return both + "".join(f" and {column} (text)" for column in more)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


# --- what is in them


class _Opened(NamedTuple):
    """The labels and columns of a part, and its images still to come: encoded, or decoded as (N, C, H, W)."""

    where: str
    labels: pa.Array
    columns: dict[str, pa.Array]
    images: Iterator[list[bytes | None] | NDArray[np.uint8]]


def _open(part: _Part, card: Card) -> _Opened:
    path = part.files[0]
    formats: dict[str, tuple[str, Callable[..., _Opened]]] = {
        ".parquet": ("parquet", _open_parquet),
        ".gz": ("IDX", _open_idx),
        ".mat": ("a MATLAB file of X and y", _open_mat),
    }
    kind, reader = formats[path.suffix]
    broken = (pa.ArrowException, OSError, EOFError, ValueError, KeyError, NotImplementedError, zlib.error)

    def guarded(images: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from images
        except broken as error:
            raise blamed(error) from error

    def blamed(error: Exception) -> InputError:
        return InputError(f"{path} cannot be read as {kind} ({_first_line(error)}): fetch the file again")

    try:
        opened = reader(part, card)
    except InputError:
        raise
    except broken as error:
        raise blamed(error) from error
    if not len(opened.labels):
        raise InputError(f"{path} has no rows: fetch the file again")
    if part.domain:
        opened.columns["domain"] = pa.repeat(part.domain, len(opened.labels))
    return opened._replace(images=guarded(opened.images))


def _open_parquet(part: _Part, card: Card) -> _Opened:
    (path,) = part.files
    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    image = next((c for c in card.image if c in schema.names), "")
    label = next((c for c in card.label if c in schema.names), "")
    wanted = {} if part.domain else dict(card.columns)
    kinds = {c: schema.field(c).type for c in (image, label) if c}
    if (
        len(kinds) < 2
        or not pa.types.is_struct(kinds[image])
        or kinds[image].get_field_index("bytes") < 0
        or not pa.types.is_integer(kinds[label])
        or any(c not in schema.names for c in wanted.values())
    ):
        found = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise InputError(
            f"{path} has the columns {found}; it needs {' or '.join(card.image)} (a struct with the encoded bytes) and "
            f"{' or '.join(card.label)} (integers)" + "".join(f" and {c} (text)" for c in wanted.values())
        )
    table = file.read([label, *wanted.values()])
    columns = {key: _text(table.column(c).combine_chunks(), c, path, schema.metadata) for key, c in wanted.items()}
    images = (
        batch.column(0).field("bytes").to_pylist()
        for batch in file.iter_batches(batch_size=_BATCH, columns=[f"{image}.bytes"])
    )
    return _Opened(str(path), table.column(label).combine_chunks(), columns, images)


def _text(values: pa.Array, column: str, path: Path, metadata: dict[bytes, bytes] | None) -> pa.Array:
    """A column as text; the numbers of a class label as the names that the file's metadata gives them."""
    if values.null_count:
        row = int(np.flatnonzero(values.is_null())[0])
        raise InputError(f"row {row} of {path} has no {column}: fill it in or drop the row")
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        class_names = features.get(column, {}).get("names")
        if class_names and pa.types.is_integer(values.type):
            return pa.array(class_names, pa.string()).take(values)
        return values.cast(pa.string())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"{path} has metadata that do not fit ({error}): write the file again") from error


def _open_idx(part: _Part, card: Card) -> _Opened:
    """LeCun's format: a magic number, the sizes as 32-bit integers of the big end first, then the bytes."""
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

    return _Opened(str(images_path), pa.array(labels.astype(np.int64)), {}, images())


def _idx_header(file: gzip.GzipFile) -> tuple[int, int, int, int]:
    magic, rows, height, width = np.frombuffer(file.read(16), ">u4").tolist()
    return magic, rows, height, width


def _open_mat(part: _Part, card: Card) -> _Opened:
    """SVHN's format: images X (H, W, C, R) and labels y (R, 1), of which some write the digit 0 as 10."""
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    (path,) = part.files
    try:
        for variable, shape, _ in whosmat(path):
            shared_memory.check(math.prod(shape), f"{variable} of {path}", "fetch the file again")
        content = loadmat(path, variable_names=["X", "y"])
    except MatReadError as error:
        raise ValueError(error) from error
    x_HWCR, y_R = content["X"], content["y"].reshape(-1).astype(np.int64)
    height, width, channels, rows = x_HWCR.shape
    if (channels, height, width) != card.shape or rows != len(y_R) or x_HWCR.dtype != np.uint8:
        raise ValueError(f"X has the shape {x_HWCR.shape}, y has {len(y_R)} labels")
    images = (x_HWCR[..., i : i + _BATCH].transpose(3, 2, 0, 1) for i in range(0, rows, _BATCH))
    return _Opened(str(path), pa.array(np.where(y_R == 10, 0, y_R)), {}, images)


# --- decoding


def _decode(name: str, card: Card, train: list[_Part], test: list[_Part]) -> _Rows:
    opened = [_open(part, card) for part in (*train, *test)]
    labels = [_labels(part, name, card) for part in opened]
    keep = [y < len(card.class_names) for y in labels]
    kept = [int(k.sum()) for k in keep]
    columns = {}
    for key in card.columns:
        values = [part.columns[key].filter(pa.array(k)) for part, k in zip(opened, keep, strict=True)]
        columns[key] = _column(pa.concat_arrays(values))
    _check_domains(name, card, columns)
    shared_memory.check(
        sum(kept) * math.prod(card.shape), f"{name}: {sum(kept):,} rows", f"put the files of {name} there"
    )
    x_R = np.empty((sum(kept), *card.shape), np.uint8)  # filled batch by batch: there is no second copy
    start = 0
    for part, keep_R in zip(opened, keep, strict=True):
        row = 0
        for batch in part.images:
            chosen_N = np.flatnonzero(keep_R[row : row + len(batch)])
            here = x_R[start : start + len(chosen_N)]
            if isinstance(batch, np.ndarray):
                here[:] = batch[chosen_N]
            else:
                for to, i in enumerate(chosen_N):
                    here[to] = _image(batch[i], f"row {row + i} of {part.where}", name, card)
            if card.transposed:
                here[:] = here.swapaxes(2, 3).copy()
            row, start = row + len(batch), start + len(chosen_N)
    y_R = np.concatenate([y[k] for y, k in zip(labels, keep, strict=True)])
    return _Rows(torch.from_numpy(x_R), torch.from_numpy(y_R), sum(kept[: len(train)]), columns)


def _labels(part: _Opened, name: str, card: Card) -> NDArray[np.int64]:
    """The labels from 0; those past the classes are of rows that are left out."""
    allowed = card.labels or range(len(card.class_names))
    y_R = np.asarray(part.labels.fill_null(allowed.start - 1), dtype=np.int64)
    wrong = np.flatnonzero((y_R < allowed.start) | (y_R >= allowed.stop))
    if wrong.size:
        raise InputError(
            f"row {wrong[0]} of {part.where} has the label {part.labels[int(wrong[0])].as_py()}, where the files of "
            f"{name} have labels {allowed.start} to {allowed.stop - 1}: put the files of {name} there"
        )
    return y_R - allowed.start


def _column(values: pa.Array) -> Column:
    coded = values.dictionary_encode()
    found = np.asarray(coded.dictionary.to_pylist())
    order = np.argsort(found)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Column(rank[np.asarray(coded.indices)], tuple(found[order].tolist()))


def _check_domains(name: str, card: Card, columns: dict[str, Column]) -> None:
    if not card.domains:
        return
    found, known = set(columns["domain"].names), set(card.domains)
    if found != known:
        odd = "its files have the domains" if found - known else "its files have only the domains"
        raise InputError(
            f"data set {name}: {odd} {', '.join(sorted(found))}; it needs rows of {', '.join(sorted(known))}: rename "
            f"the domains, or put the files of {name} there"
        )


def _image(data: bytes | None, where: str, name: str, card: Card) -> NDArray[np.uint8]:
    from PIL import Image

    channels, height, width = card.shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound here is lower
            opened = Image.open(io.BytesIO(data or b""))
        with opened as file:
            most = _MOST_TIMES * width * height
            if file.width * file.height > most or not (card.resize or file.size == (width, height)):
                has = mode if card.convert else file.mode
                raise InputError(
                    f"{where} is an image of {file.width}x{file.height} in mode {has}, where {name} has "
                    f"{width}x{height} in mode {mode}: put the files of {name} there"
                )
            image: Image.Image = file.convert(mode) if card.convert else file
            found = f"{image.width}x{image.height} in mode {image.mode}"
            if card.resize and image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            x_HWC = np.asarray(image)
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise InputError(f"{where} holds no readable image: fetch the file again") from error
    if image.size != (width, height) or image.mode != mode:
        raise InputError(
            f"{where} is an image of {found}, where {name} has {width}x{height} in mode {mode}: put the files of "
            f"{name} there"
        )
    return x_HWC.reshape(height, width, channels).transpose(2, 0, 1)


# --- the decoded rows in the cache


def _key(name: str, card: Card, parts: list[_Part]) -> str:
    """A name for the decoded rows of these files, read in this way."""
    files = [(part.domain, *cache.mark(f)) for part in parts for f in part.files]
    way = [card.shape, len(card.class_names), str(card.labels), card.transposed, card.convert, card.resize]
    key = json.dumps(["3", way, card.image, card.label, dict(card.columns), files])
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _pack(rows: _Rows) -> tuple[dict[str, Tensor], dict[str, str]]:
    codes = {f"column.{key}": torch.from_numpy(column.code_R) for key, column in rows.columns.items()}
    about = {
        "train_rows": str(rows.train_rows),
        "columns": json.dumps({key: column.names for key, column in rows.columns.items()}),
    }
    return {"x": rows.x_R, "y": rows.y_R, **codes}, about


def _unpack(kept: cache.Kept) -> _Rows:
    columns = {
        key: Column(kept.tensors[f"column.{key}"].numpy(), tuple(found))
        for key, found in json.loads(kept.about["columns"]).items()
    }
    return _Rows(kept.tensors["x"], kept.tensors["y"], int(kept.about["train_rows"]), columns)
