"""Arrow's tables, read from files and made into frames by the calling thread alone.

Arrow's own threads may still hold what they read when Python ends, and abort the process. And it starts as many as the
machine has cores, whatever this process may use of them (see ``idiolect.core.processor``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pandas as pd


def open_parquet(source: Path | pa.Buffer) -> pq.ParquetFile:
    """A parquet file, for ``read_parquet`` and ``parquet_batches``.

    Raises:
        OSError: it cannot be opened.
        pyarrow.ArrowException: it is not parquet.
    """
    return pq.ParquetFile(pa.BufferReader(source) if isinstance(source, pa.Buffer) else source, pre_buffer=False)


def read_parquet(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a parquet file, or some of its columns, with errors as those of ``open_parquet``."""
    return file.read(columns=columns, use_threads=False)


def parquet_batches(file: pq.ParquetFile, size: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a parquet file, ``size`` at a time, with errors as those of ``open_parquet``."""
    yield from file.iter_batches(size, columns=columns, use_threads=False)


def read_json(path: Path) -> pa.Table:
    """A file with one JSON object per line, with errors as those of ``open_parquet``."""
    return pa.json.read_json(path, pa.json.ReadOptions(use_threads=False))


def to_frame(table: pa.Table, *, split_blocks: bool = False) -> pd.DataFrame:
    """A table as a frame; ``split_blocks`` is for one whose columns are used one by one."""
    made: pd.DataFrame = table.to_pandas(use_threads=False, split_blocks=split_blocks)
    return made
