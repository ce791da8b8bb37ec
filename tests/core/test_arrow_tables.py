"""Files are read, and made into frames, without threads of Arrow, which could end the process as it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from idiolect.core.arrow_tables import open_parquet, parquet_batches, read_json, read_parquet, to_frame

FRAME = pd.DataFrame({"a": np.arange(3000.0), "b": np.arange(3000) % 7, "c": [f"t{i % 3}" for i in range(3000)]})
READERS = {
    "parquet": "folders.parquet(Path('t.parquet'), [], None)",
    "jsonl": "folders.jsonl(Path('t.jsonl'))",
    "stream of parquet": "next(iter(streaming.some('t.parquet', 100, Roles('b'), lambda name: name == 'a')))",
    "whole stream": "list(streaming.some('t.parquet', 100, Roles('b'), lambda name: name == 'a'))",
    "stream of jsonl": "next(iter(streaming.some('t.jsonl', 100, Roles('b'), lambda name: name == 'a')))",
    "records": "to_frame(read_table(Path('t.parquet')))",
    "images": "next(formats.open_part(FilePart((Path('i.parquet'),), ''), SETS['cifar10']).images)",
}
PROGRAM = """
import os, sys
from pathlib import Path
import pyarrow as pa
from idiolect.core.arrow_tables import to_frame
from idiolect.data.custom import folders, streaming
from idiolect.data.custom.text_files import Roles
from idiolect.data.datasets import formats
from idiolect.data.datasets.catalogue import SETS
from idiolect.data.datasets.files import PartFiles as FilePart
from idiolect.runs.schema import read_table
before = len(os.listdir("/proc/self/task"))
for line in sys.argv[1:]:
    exec(line)
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    FRAME.to_parquet(folder / "t.parquet", row_group_size=200)
    FRAME.to_json(folder / "t.jsonl", orient="records", lines=True)
    images = pa.array([{"bytes": b"x", "path": None}] * 2000)
    pq.write_table(pa.table({"img": images, "label": pa.array([0] * 2000)}), folder / "i.parquet", row_group_size=200)
    return folder


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux tells the threads of a process")
def test_no_reader_starts_threads(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *READERS.values()], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert dict(zip(READERS, done.stdout.splitlines(), strict=True)) == dict.fromkeys(READERS, "0")


def test_what_is_read(place: Path) -> None:
    pd.testing.assert_frame_equal(to_frame(read_parquet(open_parquet(place / "t.parquet"))), FRAME)
    pd.testing.assert_frame_equal(
        to_frame(read_parquet(open_parquet(place / "t.parquet"), ["c", "a"])), FRAME[["c", "a"]]
    )
    buffer = pa.py_buffer((place / "t.parquet").read_bytes())
    pd.testing.assert_frame_equal(to_frame(read_parquet(open_parquet(buffer))), FRAME)
    pd.testing.assert_frame_equal(to_frame(read_json(place / "t.jsonl")), FRAME, check_dtype=False)
    batches = list(parquet_batches(open_parquet(place / "t.parquet"), 700, ["a"]))
    pd.testing.assert_frame_equal(to_frame(pa.Table.from_batches(batches)), FRAME[["a"]])
    assert max(map(len, batches)) <= 700


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises((OSError, pa.ArrowException)):
        open_parquet(tmp_path / "t.parquet")
    with pytest.raises(OSError, match="nothing"):
        open_parquet(tmp_path / "nothing.parquet")
