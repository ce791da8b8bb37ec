"""Where the images come from: scikit-learn, parquet files in a folder, or the Hugging Face hub.

To add a data set, add one ``Card`` to ``SETS``; one that is not a hub set of images brings its own ``read``.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from idiolect.errors import InputError, nearest

# R rows, C channels, H height, W width

log = logging.getLogger(__name__)

_IMAGES = ("image", "img")
_LABELS = ("label", "labels", "fine_label")


@dataclass(frozen=True, eq=False)
class Source:
    """A labelled set of 8-bit images.

    Attributes:
        name: the name it was loaded by.
        x_R: images (R, C, H, W), uint8; mapped from the cache file where there is one, to save memory.
        y_R: labels in 0..classes-1, int64.
        classes: the number of classes.
        class_names: one name per class.
        mean: per channel, on a scale of 0 to 1.
        std: per channel, on a scale of 0 to 1.
        train_rows: rows [0, train_rows) are the official training split, the rest the official test split.
    """

    name: str
    x_R: Tensor
    y_R: Tensor
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_rows: int


class Rows(NamedTuple):
    """What reading a data set gives."""

    x_R: Tensor
    y_R: Tensor
    train_rows: int


@dataclass(frozen=True)
class Card:
    """What is known of a data set before it is read.

    Attributes:
        title: what it shows, in a few words.
        reference: who published it.
        licence: its licence, as its publisher or the hub states it.
        train_rows: rows of the official training split.
        test_rows: rows of the official test split; 0 where there is none.
        shape: (C, H, W).
        class_names: one name per class, in label order.
        mean: per channel, on a scale of 0 to 1.
        std: per channel, on a scale of 0 to 1.
        read: (name, card, folder or None) -> Rows.
        hub: owner/name on the Hugging Face hub.
        hub_folder: the folder of the hub's parquet files.
    """

    title: str
    reference: str
    licence: str
    train_rows: int
    test_rows: int
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    read: Callable[[str, Card, Path | None], Rows]
    hub: str = ""
    hub_folder: str = ""


def load(name: str, data_dir: Path | None = None) -> Source:
    """Read a data set, from ``<data_dir>/<name>/{train,test}*.parquet`` or by its name on the Hugging Face hub.

    Args:
        name: one of ``names()``.
        data_dir: the folder of folders of parquet files; else the environment variable IDIOLECT_DATA; else the hub.

    Raises:
        InputError: unknown name, a file that is missing, broken or not this data set, or the hub out of reach.
    """
    card = _card(name)
    place = data_dir or os.environ.get("IDIOLECT_DATA")
    x_R, y_R, train_rows = card.read(name, card, Path(place).expanduser() if place else None)
    return Source(name, x_R, y_R, len(card.class_names), card.class_names, card.mean, card.std, train_rows)


def names() -> list[str]:
    """The names of all data sets."""
    return list(SETS)


def describe(name: str) -> dict[str, Any]:
    """What is known of a data set without reading it, ready for JSON; ``bytes`` is its size in memory.

    Raises:
        InputError: unknown name.
    """
    card = _card(name)
    rows = card.train_rows + card.test_rows
    return {
        "name": name,
        "title": card.title,
        "reference": card.reference,
        "licence": card.licence,
        "source": f"https://huggingface.co/datasets/{card.hub}" if card.hub else "bundled with scikit-learn",
        "rows": rows,
        "train_rows": card.train_rows,
        "test_rows": card.test_rows,
        "bytes": rows * math.prod(card.shape),
        "shape": list(card.shape),
        "classes": len(card.class_names),
        "class_names": list(card.class_names),
        "mean": list(card.mean),
        "std": list(card.std),
    }


def _card(name: str) -> Card:
    if name not in SETS:
        raise InputError(f"unknown data set {name!r}; {nearest(name, SETS)}")
    return SETS[name]


# --- readers


def _read_digits(name: str, card: Card, folder: Path | None) -> Rows:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x_R = np.rint(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    return Rows(torch.from_numpy(x_R), torch.from_numpy(bunch.target.astype(np.int64)), len(x_R))


class _Part(NamedTuple):
    """A stretch of rows that is not read yet."""

    where: str
    files: list[Path]
    open: Callable[[], tuple[int, Iterable[pa.Table]]]


def _read_images(name: str, card: Card, folder: Path | None) -> Rows:
    train, test = _parquet_parts(name, card, folder) if folder else _hub_parts(name, card)
    cache = _cache_file(name, card, [*train, *test])
    if cache and (rows := _from_cache(cache)):
        return rows
    rows = _decode(name, card, train, test)
    if cache and _to_cache(cache, rows):
        return _from_cache(cache) or rows
    return rows


def _parquet_parts(name: str, card: Card, folder: Path) -> tuple[list[_Part], list[_Part]]:
    here = folder / name
    mend = (
        f"fetch {_hub_files(card)} and put them at {here / 'train.parquet'} and {here / 'test.parquet'}, or leave out "
        "data_dir and IDIOLECT_DATA to fetch it by name"
    )
    if not here.is_dir():
        raise InputError(f"data set {name}: there is no folder {here}; {mend}")

    def split(which: str) -> list[_Part]:
        whole = here / f"{which}.parquet"
        files = [whole] if whole.exists() else sorted(f for f in here.glob(f"{which}-*.parquet") if f.is_file())
        if not files:
            raise InputError(f"data set {name}: {here} has no {which}.parquet; {mend}")
        return [_Part(str(f), [f], lambda f=f: _open_parquet(f)) for f in files]  # type: ignore[misc]

    return split("train"), split("test")


def _open_parquet(path: Path) -> tuple[int, Iterator[pa.Table]]:
    def broken(error: Exception) -> InputError:
        return InputError(f"{path} cannot be read as parquet ({_first_line(error)}): fetch the file again")

    def tables(file: pq.ParquetFile) -> Iterator[pa.Table]:
        try:
            for batch in file.iter_batches(batch_size=1000):
                yield pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            raise broken(error) from error

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise broken(error) from error
    return file.metadata.num_rows, tables(file)


def _hub_parts(name: str, card: Card) -> tuple[list[_Part], list[_Part]]:
    import datasets

    try:
        splits = [datasets.load_dataset(card.hub, split=which) for which in ("train", "test")]
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise InputError(
            f"data set {name} cannot be fetched from the Hugging Face hub ({_first_line(error)}); fetch "
            f"{_hub_files(card)} elsewhere, put them at <data_dir>/{name}/train.parquet and "
            f"<data_dir>/{name}/test.parquet, and give that data_dir or set IDIOLECT_DATA to it"
        ) from error

    def part(rows: Any, which: str) -> _Part:
        files = [Path(f["filename"]) for f in rows.cache_files]
        return _Part(f"{card.hub} ({which})", files, lambda: (len(rows), rows.with_format("arrow").iter(1000)))

    return [part(splits[0], "train")], [part(splits[1], "test")]


def _hub_files(card: Card) -> str:
    files = " and ".join(f"{card.hub_folder}/{which}-00000-of-00001.parquet" for which in ("train", "test"))
    return f"{files} from https://huggingface.co/datasets/{card.hub}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


# --- decoding


def _decode(name: str, card: Card, train: list[_Part], test: list[_Part]) -> Rows:
    opened = [(part.where, *part.open()) for part in (*train, *test)]
    for where, rows, _ in opened:
        if rows == 0:
            raise InputError(f"{where} has no rows: fetch the file again")
    total = sum(rows for _, rows, _ in opened)
    x_R = np.empty((total, *card.shape), np.uint8)
    y_R = np.empty(total, np.int64)
    start = 0
    for where, rows, tables in opened:
        done = 0
        for table in tables:
            here = slice(start + done, start + done + len(table))
            images, labels = _columns(table, where)
            y_R[here] = _labels(labels, where, done, name, card)
            for i, data in enumerate(images.to_pylist()):
                x_R[start + done + i] = _image(data, f"row {done + i} of {where}", name, card.shape)
            done += len(table)
        start += rows
    train_rows = sum(rows for _, rows, _ in opened[: len(train)])
    return Rows(torch.from_numpy(x_R), torch.from_numpy(y_R), train_rows)


def _columns(table: pa.Table, where: str) -> tuple[pa.Array, pa.Array]:
    image = next((c for c in _IMAGES if c in table.column_names), None)
    label = next((c for c in _LABELS if c in table.column_names), None)
    if image and label:
        images, labels = (table.column(c).combine_chunks() for c in (image, label))
        has_bytes = pa.types.is_struct(images.type) and images.type.get_field_index("bytes") >= 0
        if has_bytes and pa.types.is_integer(labels.type):
            return images.field("bytes"), labels
    found = ", ".join(f"{field.name}: {field.type}" for field in table.schema)
    raise InputError(
        f"{where} has the columns {found}; it needs image or img (a struct with the encoded bytes) and label, labels "
        "or fine_label (integers)"
    )


def _labels(labels: pa.Array, where: str, done: int, name: str, card: Card) -> NDArray[np.int64]:
    y_N = np.asarray(labels.fill_null(-1), dtype=np.int64)
    wrong = np.flatnonzero((y_N < 0) | (y_N >= len(card.class_names)))
    if wrong.size:
        label = labels[int(wrong[0])].as_py()
        raise InputError(
            f"row {done + wrong[0]} of {where} has the label {label}, where {name} has labels 0 to "
            f"{len(card.class_names) - 1}: put the files of {name} there"
        )
    return y_N


def _image(data: bytes | None, where: str, name: str, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data or b"")) as image:
            found = f"{image.width}x{image.height} in mode {image.mode}"
            x_HWC = np.asarray(image)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise InputError(f"{where} holds no readable image: fetch the file again") from error
    wanted = f"{shape[2]}x{shape[1]} in mode {'L' if shape[0] == 1 else 'RGB'}"
    if found != wanted:
        raise InputError(f"{where} is an image of {found}, where {name} has {wanted}: put the files of {name} there")
    return x_HWC.reshape(*shape[1:], shape[0]).transpose(2, 0, 1)


# --- the cache of decoded rows


def _cache_file(name: str, card: Card, parts: list[_Part]) -> Path | None:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    files = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for part in parts for f in part.files]
    if not os.path.isabs(home) or not files:
        return None
    key = json.dumps(["1", card.shape, len(card.class_names), files])
    return Path(home, "idiolect", f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors")


def _from_cache(path: Path) -> Rows | None:
    """The cached rows, mapped; None where there are none or they fail their check sum."""
    try:
        with safe_open(path, "pt") as file:
            x_R, y_R, about = file.get_tensor("x"), file.get_tensor("y"), file.metadata() or {}
    except (OSError, SafetensorError) as error:
        if path.exists():
            log.info("the cache %s is broken (%s) and is built again", path, error)
        return None
    return Rows(x_R, y_R, int(about["train_rows"])) if about.get("crc") == _crc(x_R, y_R) else None


def _to_cache(path: Path, rows: Rows) -> bool:
    """Write the rows beside their place and rename; whether it worked."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    about = {"train_rows": str(rows.train_rows), "crc": _crc(rows.x_R, rows.y_R)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"x": rows.x_R, "y": rows.y_R}, draft, metadata=about)
        draft.replace(path)
    except (OSError, SafetensorError) as error:
        log.info("no cache is kept at %s: %s", path, error)
        try:
            draft.unlink(missing_ok=True)
        except OSError:
            log.info("%s is left behind", draft)
        return False
    return True


def _crc(x_R: Tensor, y_R: Tensor) -> str:
    return str(zlib.crc32(y_R.numpy().data, zlib.crc32(x_R.numpy().data)))


# --- the data sets

_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

SETS: dict[str, Card] = {
    "digits": Card(
        title="handwritten digits, 8x8 grey",
        reference="Alpaydin & Kaynak 1998, the test part, as bundled with scikit-learn",
        licence="CC BY 4.0",
        train_rows=1797,
        test_rows=0,
        shape=(1, 8, 8),
        class_names=tuple("0123456789"),
        mean=(0.3053,),
        std=(0.3759,),
        read=_read_digits,
    ),
    "mnist": Card(
        title="handwritten digits, 28x28 grey",
        reference="LeCun, Bottou, Bengio & Haffner 1998",
        licence="MIT, as stated on the hub",
        train_rows=60_000,
        test_rows=10_000,
        shape=(1, 28, 28),
        class_names=tuple("0123456789"),
        mean=(0.1307,),
        std=(0.3081,),
        read=_read_images,
        hub="ylecun/mnist",
        hub_folder="mnist",
    ),
    "fashion_mnist": Card(
        title="articles of clothing, 28x28 grey",
        reference="Xiao, Rasul & Vollgraf 2017",
        licence="MIT",
        train_rows=60_000,
        test_rows=10_000,
        shape=(1, 28, 28),
        class_names=(
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        mean=(0.1307,),
        std=(0.3081,),
        read=_read_images,
        hub="zalando-datasets/fashion_mnist",
        hub_folder="fashion_mnist",
    ),
    "cifar10": Card(
        title="animals and vehicles, 32x32 colour",
        reference="Krizhevsky 2009",
        licence="none stated; research use",
        train_rows=50_000,
        test_rows=10_000,
        shape=(3, 32, 32),
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        read=_read_images,
        hub="uoft-cs/cifar10",
        hub_folder="plain_text",
    ),
    "cifar100": Card(
        title="a hundred kinds of things, 32x32 colour",
        reference="Krizhevsky 2009",
        licence="none stated; research use",
        train_rows=50_000,
        test_rows=10_000,
        shape=(3, 32, 32),
        class_names=tuple(_CIFAR100.split()),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        read=_read_images,
        hub="uoft-cs/cifar100",
        hub_folder="cifar100",
    ),
}
