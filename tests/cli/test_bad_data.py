"""Broken data files are said in a sentence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import SMALL, Command, refused
from PIL import Image


def _images(count: int, labels: list[int] | None = None, **columns: Any) -> pa.Table:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(buffer, "png")
    pictures = [{"bytes": buffer.getvalue(), "path": None}] * count
    return pa.table({"image": pictures, "label": labels or [k % 10 for k in range(count)]} | columns)


def _broken(case: str, train: Path) -> None:
    if case == "missing":
        train.unlink()
    elif case == "truncated":
        train.write_bytes(train.read_bytes()[:-100])
    elif case == "empty":
        train.write_bytes(b"")
    elif case == "no rows":
        pq.write_table(_images(10).slice(0, 0), train)
    elif case == "schema":
        pq.write_table(_images(10).rename_columns(["picture", "label"]), train)
    elif case == "labels":
        pq.write_table(_images(10, [0, 1, 2, 10, 4, 5, 6, 7, 8, 9]), train)
    elif case == "no picture":
        pq.write_table(_images(10).set_column(0, "image", [[{"bytes": b"png", "path": None}] * 10]), train)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", ["no train.parquet", "put them at"]),
        ("truncated", ["cannot be read as parquet", "download the file again"]),
        ("empty", ["cannot be read as parquet", "download the file again"]),
        ("no rows", ["has no rows", "download the file again"]),
        ("schema", ["picture", "it needs image"]),
        ("labels", ["row 3", "label 10", "0 to 9"]),
        ("no picture", ["row 0", "no readable image"]),
    ],
)
def test_bad_data_file(idiolect: Command, tmp_path: Path, case: str, words: list[str]) -> None:
    folder = tmp_path / "sets" / "mnist"
    folder.mkdir(parents=True)
    for which in ("train", "test"):
        pq.write_table(_images(40), folder / f"{which}.parquet")
    _broken(case, folder / "train.parquet")
    refused(idiolect(f"{SMALL} --dataset mnist --data-dir sets"), *words)
    assert [p.name for p in tmp_path.iterdir()] == ["sets"]
