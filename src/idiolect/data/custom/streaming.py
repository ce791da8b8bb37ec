"""A table or a folder of images, some samples at a time, so that its size does not matter."""

from __future__ import annotations

import codecs
import io
import json
import os
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions

from idiolect.core.errors import InputError
from idiolect.core.processor import cores
from idiolect.data.custom import folders
from idiolect.data.custom.hub import said
from idiolect.data.custom.images import SUFFIXES, Encoded
from idiolect.data.custom.inside import Within
from idiolect.data.custom.parts import Part, from_arrow
from idiolect.data.custom.tables import EXCEL, check_frame, looks_like_data, no_header, read_csv, separator_of

_HEAD = 2**18  # bytes of a text file by which its form is known
_BLOCK = 2**22  # bytes of a text file that are read at a time
_CORES = 8  # that parse such blocks at most
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "n/a", "#N/A", "-nan", "<NA>", "NaN "]


def whole(where: str | Path, *, target: str | None) -> Part:
    """All samples of a labelled table, or of a folder of images, ``<class>/<image>`` or beside a metadata.csv.

    The target of folders of classes is the column "class", unless another name is given.

    Raises:
        InputError: there is nothing of the kind, or it cannot be read.
    """
    path = _place(where)
    within = Within(path.parent if path.is_file() else path)
    options: dict[str, Any] = {"target": target, "client_column": None, "drop": [], "resize": None}
    if path.is_file():
        return _file(path, within)
    if folders.metadata_of(path):
        return folders.beside_metadata(path, options, within)
    return folders.by_levels(path, options | {"target": target or "class"}, within)


def some(where: str | Path, size: int, numbers: Collection[str] = ()) -> Iterator[Part]:
    """The samples of a table or a folder of images, about ``size`` at a time, in order.

    Args:
        where: a table (.csv, .tsv, .parquet, .jsonl), or a folder of images, in folders or not.
        size: samples at a time.
        numbers: columns that hold numbers, for texts that a faster reader then reads.

    Raises:
        InputError: there is nothing of the kind, or it cannot be read.
    """
    path = _place(where)
    within = Within(path.parent if path.is_file() else path)
    if path.is_dir():
        files = folders.images_in(path, within)
        for start in range(0, len(files), size):
            pictures = [Encoded(str(file), file) for file in files[start : start + size]]
            yield Part(pd.DataFrame(index=range(len(pictures))), pictures)
    elif path.suffix.lower() == ".parquet":
        yield from _parquet(path, size, within)
    elif path.suffix.lower() == ".jsonl":
        yield from _lines(path, size)
    elif path.suffix.lower() in folders.TABLES:
        yield from _csv(path, numbers)
    else:
        yield _file(path, within)


def _place(where: str | Path) -> Path:
    path = Path(os.path.expanduser(where))
    if not path.exists():
        raise InputError(f"there is no file or folder {path}: give a table or a folder of images")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a pipe or a device: save the data in a file and give that")
    return path


def _file(path: Path, within: Within) -> Part:
    kind = path.suffix.lower()
    if kind == ".parquet":
        return folders.parquet(path, [], within)
    if kind == ".jsonl":
        return Part(folders.jsonl(path))
    if kind in folders.TABLES:
        return Part(read_csv(path))
    if kind in SUFFIXES:
        return Part(pd.DataFrame(index=range(1)), [Encoded(str(path), path)])
    raise InputError(f"{path} is not a table that idiolect reads: give one of {', '.join(folders.TABLES)}")


def _parquet(path: Path, size: int, within: Within) -> Iterator[Part]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(size):
                yield from_arrow(pa.Table.from_batches([batch]), {}, str(path), within=within)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as parquet ({said(error)}): write the file again") from None


def _lines(path: Path, size: int) -> Iterator[Part]:
    with path.open("rb") as file:
        while lines := list(islice(file, size)):
            try:
                rows = [json.loads(line) for line in lines if line.strip()]
            except (ValueError, RecursionError):
                raise InputError(f"{path} is not a table: write one JSON object per line") from None
            if not all(isinstance(row, dict) for row in rows):
                raise InputError(f"{path} is not a table: write one JSON object per line")
            yield Part(pd.DataFrame(rows))


def _csv(path: Path, numbers: Collection[str]) -> Iterator[Part]:
    """The file by Arrow's reader, which is fast, if its first block is plain; else all at once, with more patience."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        text = ""
    if not text.strip() or "\0" in text or EXCEL.match(text):
        yield Part(read_csv(path))
        return
    separator = separator_of(text)
    names = [str(c).strip() for c in pd.read_csv(io.StringIO(text), sep=separator, nrows=0, dtype=str).columns]
    if looks_like_data(names):
        raise no_header(path, names)
    check_frame(pd.DataFrame(columns=names, index=[0]), str(path))
    how = ConvertOptions(
        column_types={name: pa.float64() if name in numbers else pa.string() for name in names},
        null_values=_MISSING,
        strings_can_be_null=True,
        decimal_point="," if separator == ";" and "," in text else ".",
    )
    parsing = ParseOptions(delimiter=separator, newlines_in_values='"' in text)
    parsed = _in_parallel if "\n" in text and not parsing.newlines_in_values else _in_order
    begun = False
    try:
        for table in parsed(path, names, parsing, how):
            begun = True
            yield Part(table.to_pandas(split_blocks=True))  # columns are used one by one: no copy
    except (pa.ArrowException, OSError) as error:
        if begun:
            what = "a line has too many cells, or a text where the others have numbers"
            raise InputError(f"{path} cannot be read to its end ({what}): correct it") from error
    if not begun:
        yield Part(read_csv(path))


def _in_order(path: Path, names: list[str], parsing: ParseOptions, how: ConvertOptions) -> Iterator[pa.RecordBatch]:
    """Any text file, as one whose cells hold several lines; while one block is used, the next is parsed."""
    reading = ReadOptions(block_size=_BLOCK, column_names=names, skip_rows=1)
    with pyarrow.csv.open_csv(path, reading, parsing, how) as file, ThreadPoolExecutor(1) as reader:
        items = iter(file)
        coming = reader.submit(next, items, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield batch


def _in_parallel(path: Path, names: list[str], parsing: ParseOptions, how: ConvertOptions) -> Iterator[pa.Table]:
    """A text file whose lines are rows: every core parses a block of them, a few blocks ahead of what is used."""
    reading = ReadOptions(use_threads=False, block_size=2 * _BLOCK, column_names=names)

    def parse(lines: bytes) -> pa.Table:
        return pyarrow.csv.read_csv(pa.BufferReader(lines), reading, parsing, how)

    several = min(_CORES, cores())
    with path.open("rb") as file, ThreadPoolExecutor(several) as pool:
        file.readline()  # the names
        coming: deque[Future[pa.Table]] = deque()
        for lines in _lines_of(file):
            coming.append(pool.submit(parse, lines))
            if len(coming) > several:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The rest of a file as blocks of whole lines."""
    begun = b""
    while block := file.read(_BLOCK):
        lines, _, rest = (begun + block).rpartition(b"\n")
        if len(rest) > _BLOCK:
            raise pa.ArrowInvalid("a line is longer than a block")
        if lines.strip():
            yield lines
        begun = rest
    if begun.strip():
        yield begun
