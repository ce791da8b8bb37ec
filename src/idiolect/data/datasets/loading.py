"""Reading a data set by name: from scikit-learn, from files in a folder, or from the Hugging Face hub.

``catalogue.SETS`` describes each set; decoded samples are kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.core.errors import InputError, nearest
from idiolect.core.files import expanded
from idiolect.data.datasets import cache
from idiolect.data.datasets.catalogue import SETS, Card
from idiolect.data.datasets.dataset import Column, Source
from idiolect.data.datasets.decoding import Samples, decode
from idiolect.data.datasets.files import PartFiles, locate

log = logging.getLogger(__name__)


def load(name: str, data_dir: Path | None = None) -> Source:
    """Read a data set, from ``<data_dir>/<name>/{train,test}*.parquet`` or by its name on the Hugging Face hub.

    A set of several domains is read from one table with a column domain, or else from ``<data_dir>/<name>/<domain>/``.
    Domains without such a folder are downloaded from the hub.

    Args:
        name: one of ``names()``.
        data_dir: the folder with a folder for each data set; else the environment variable IDIOLECT_DATA; else the hub.

    Raises:
        InputError: unknown name, a file that is missing, broken or from another data set, or no connection to the hub.
    """
    card = _card(name)
    place = data_dir or os.environ.get("IDIOLECT_DATA")
    folder = expanded(place) / name if place else None
    x_R, y_R, train_rows, columns = _read(name, card, folder) if card.origin or card.domains else _digits()
    counts, published_counts = (train_rows, len(y_R) - train_rows), (card.train_rows, card.test_rows)
    if counts != published_counts:
        log.warning(
            "data set %s: the files hold %s training and %s test samples where %s and %s are published; results will "
            "not compare with published ones",
            name,
            *(f"{count:,}" for count in (*counts, *published_counts)),
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
    """Whether a data set can be read without a download: bundled, or in the data folder."""
    place = data_dir or os.environ.get("IDIOLECT_DATA")
    card = _card(name)
    return not (card.origin or card.domains) or bool(place and (expanded(place) / name).is_dir())


def describe(name: str) -> dict[str, Any]:
    """The facts about a data set that need no reading, ready for JSON; ``bytes`` is its size in memory.

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


def _digits() -> Samples:
    spec = find_spec("sklearn")  # its file is read without importing it, which takes seconds
    assert spec is not None
    assert spec.origin is not None
    rows = np.loadtxt(Path(spec.origin).parent / "datasets/data/digits.csv.gz", np.uint8, delimiter=",")
    x_R = np.rint(rows[:, :-1].reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Samples(torch.from_numpy(x_R), torch.from_numpy(rows[:, -1].astype(np.int64)), len(x_R), {})


def _read(name: str, card: Card, folder: Path | None) -> Samples:
    train, test = locate(name, card, folder)
    place = cache.place(_key(name, card, [*train, *test]))
    if place and (entry := cache.load(place)):
        return _unpack(entry)
    rows = decode(name, card, train, test)
    if place and cache.save(place, *_pack(rows)) and (entry := cache.load(place)):
        return _unpack(entry)
    return rows


def _key(name: str, card: Card, parts: list[PartFiles]) -> str:
    """A name for the decoded samples of these files, read in this way."""
    files = [(part.domain, *cache.mark(f)) for part in parts for f in part.files]
    way = [card.shape, len(card.class_names), str(card.labels), card.transposed, card.convert, card.resize]
    key = json.dumps(["3", way, card.image, card.label, dict(card.columns), files])
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _pack(rows: Samples) -> tuple[dict[str, Tensor], dict[str, str]]:
    codes = {f"column.{key}": torch.from_numpy(column.code_R) for key, column in rows.columns.items()}
    about = {
        "train_rows": str(rows.train_rows),
        "columns": json.dumps({key: column.names for key, column in rows.columns.items()}),
    }
    return {"x": rows.x_R, "y": rows.y_R, **codes}, about


def _unpack(entry: cache.CacheEntry) -> Samples:
    columns = {
        key: Column(entry.tensors[f"column.{key}"].numpy(), tuple(names))
        for key, names in json.loads(entry.about["columns"]).items()
    }
    return Samples(entry.tensors["x"], entry.tensors["y"], int(entry.about["train_rows"]), columns)
