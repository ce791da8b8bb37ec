"""A table or a folder of images, some samples at a time, so that its size does not matter."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions

from idiolect.core.arrow_tables import open_parquet, parquet_batches, to_frame
from idiolect.core.errors import InputError
from idiolect.core.files import about_backslashes, expanded
from idiolect.core.objectives import TaskName
from idiolect.core.processor import cores
from idiolect.data.custom import folders
from idiolect.data.custom.archives import is_archive, unpacked
from idiolect.data.custom.arff import arff
from idiolect.data.custom.columns import check_frame
from idiolect.data.custom.form import Form, check_names
from idiolect.data.custom.hub import class_names, reason
from idiolect.data.custom.image_folders import TABLES, TEXT_FILES, by_levels, images_in, in_memory, metadata_of
from idiolect.data.custom.images import SUFFIXES, EncodedImage
from idiolect.data.custom.inside import Within
from idiolect.data.custom.json_lines import jsonl
from idiolect.data.custom.numbers import MISSING, Evidence, Marks, fit, fit_commas
from idiolect.data.custom.parts import Part, from_arrow, together
from idiolect.data.custom.several import is_pattern, matches
from idiolect.data.custom.text_files import (
    EXCEL,
    SPACES,
    Roles,
    check_target,
    convert,
    looks_like_data,
    marks_of,
    no_header,
    read_csv,
    read_csvs,
    readings_by,
    separator_of,
    without_missing,
)
from idiolect.data.custom.texts import Reading

_HEAD = 2**18  # bytes of a text file by which its form is known
_BLOCK = 2**22  # bytes of a text file that are read at a time
_CORES = 8  # that parse such blocks at most
_MARKS = tuple(map(re.compile, (
    rb" \d{3}(?!\d)", rb"'\d{3}(?!\d)", rb"\xc2\xa0\d{3}", rb"\xe2\x80[\x89\x99\xaf]\d{3}", rb"\xe2\x88\x92\d",
)))  # fmt: skip
"""One of these is in every text file with numbers such as 1 234, or with another minus; a literal first is fast."""
_COMMAS = {True: re.compile(rb'"[ +-]?\d[\d.]*,\d'), False: re.compile(rb",\d")}
"""Is in every text file with commas in numbers, by whether commas separate its cells."""
_OVERLAP = 2**16  # bytes of a block that are looked at again with the next one, as long as a row of empty cells


def whole(
    *places: str | Path, target: str | None, drop: Sequence[str] = (), roles: Roles | None = None,
    task: TaskName | None = None,
) -> list[Part]:  # fmt: skip
    """All samples that have a target of tables, or of folders of images, ``<class>/<image>`` or beside a metadata.csv.

    The target of folders of classes is the column "class", unless another name is given.

    Args:
        places: tables or folders, which may be compressed, or patterns such as ``visits-*.csv``; numbers are read in
            one way in all of them.
        target: the column of labels.
        drop: columns that are not used.
        roles: of the columns of text files; by default all others are features.
        task: what is learnt, if that is known.

    Raises:
        InputError: there is nothing of the kind, or it cannot be read.
    """
    options: dict[str, Any] = {"target": target, "client_column": None, "drop": list(drop), "resize": None}
    roles = roles or Roles(target, drop=drop)
    options |= {"group_column": None, "reading": Reading(), "task": task, "form": roles.form}
    with ExitStack() as opened:
        files_of = [{str(path): opened.enter_context(unpacked(path)) for path in _places(place)} for place in places]
        every = [file for files in files_of for file in files.values()]
        texts = read_csvs([file for file in every if file.is_file() and file.suffix.lower() in TEXT_FILES], roles)
        parts = [together({name: _whole(file, options, texts) for name, file in files.items()}) for files in files_of]
        return [part._replace(pictures=part.pictures and _kept(part.pictures, places)) for part in parts]


def _kept(pictures: list[EncodedImage], places: Sequence[str | Path]) -> list[EncodedImage]:
    """Images that are still there when archives are packed again."""
    return in_memory(pictures) if any(is_archive(Path(place)) for place in places) else pictures


def _whole(path: Path, options: dict[str, Any], texts: Mapping[Path, pd.DataFrame]) -> Part:
    within = Within(path.parent if path.is_file() else path)
    if path in texts:
        check_target(path, [str(c) for c in texts[path]], options["target"], options["form"])
        return folders.with_target(path, Part(texts[path]), options)
    if path.is_file():
        return folders.with_target(path, _file(path, within, options["form"]), options)
    if metadata_of(path):
        return folders.beside_metadata(path, options, within)
    return by_levels(path, options | {"target": options["target"] or "class"}, within)


def some(where: str | Path, size: int, roles: Roles, numbers: Callable[[str], bool]) -> Iterator[Part]:
    """The samples of a table or a folder of images, about ``size`` at a time, in order.

    Args:
        where: a table (.csv, .tsv, .data, .parquet, .jsonl, .arff), a folder of images, in folders or not, one of these
            in a .gz or .zip, or a pattern of tables; then a column "file" says which.
        size: samples at a time.
        roles: of the columns of a text file.
        numbers: says of a column's name whether it holds numbers.

    Raises:
        InputError: there is nothing of the kind, or it cannot be read.
    """
    several = is_pattern(expanded(where))
    for path in _places(where):
        with unpacked(path) as inside:
            for part in _some(inside, size, roles, numbers):
                yield part._replace(frame=part.frame.assign(file=path.name)) if several else part


def _some(path: Path, size: int, roles: Roles, numbers: Callable[[str], bool]) -> Iterator[Part]:
    within = Within(path.parent if path.is_file() else path)
    if path.is_dir():
        files = images_in(path, within)
        for start in range(0, len(files), size):
            pictures = [EncodedImage(str(file), file) for file in files[start : start + size]]
            yield Part(pd.DataFrame(index=range(len(pictures))), pictures)
    elif path.suffix.lower() == ".parquet":
        yield from _parquet(path, size, within, roles)
    elif path.suffix.lower() == ".jsonl":
        yield from _lines(path, size, roles)
    elif path.suffix.lower() in TEXT_FILES:
        yield from _csv(path, roles, numbers)
    else:
        yield _file(path, within, roles.form)


def _places(where: str | Path) -> list[Path]:
    """The files that a pattern means, or the file or folder at a path."""
    path = expanded(where)
    return matches(path) if is_pattern(path) else [_place(path)]


def _place(path: Path) -> Path:
    if not path.exists():
        fix = about_backslashes(path) or "give a table or a folder of images"
        raise InputError(f"there is no file or folder {path}: {fix}")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a pipe or a device: save the data in a file and give that")
    return path


def _file(path: Path, within: Within, form: Form) -> Part:
    kind = path.suffix.lower()
    if kind == ".parquet":
        return folders.parquet(path, [], within)
    if kind == ".jsonl":
        return Part(jsonl(path))
    if kind == ".arff":
        return Part(arff(path, form))
    if kind in SUFFIXES:
        return Part(pd.DataFrame(index=range(1)), [EncodedImage(str(path), path)])
    raise InputError(f"{path} is not a table that idiolect reads: give one of {', '.join(TABLES)}")


def _parquet(path: Path, size: int, within: Within, roles: Roles) -> Iterator[Part]:
    try:
        file = open_parquet(path)
        wanted = roles.feature_columns(file.schema_arrow.names)
        names = {name: of for name, of in class_names(file.schema_arrow, path).items() if name in wanted}
        for batch in parquet_batches(file, size):
            yield from_arrow(pa.Table.from_batches([batch]), names, str(path), within=within)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as parquet ({reason(error)}): write the file again") from None


def _lines(path: Path, size: int, roles: Roles) -> Iterator[Part]:
    """JSON objects. All are looked at first: some alone do not say which keys there are, and of what kind."""
    kinds: dict[str, set[type]] = {}
    for rows in _objects(path, size):
        for row in rows:
            for name, value in row.items():
                kinds.setdefault(name, set()).add(type(value))
    features = roles.feature_columns([*kinds])
    mixed = [name for name, of in kinds.items() if name not in features and len(of - {type(None)}) > 1]
    for rows in _objects(path, size):
        frame = pd.DataFrame(rows, columns=[*kinds])
        for name in mixed:
            is_numbers = kinds[name] <= {int, float, type(None)}
            frame[name] = frame[name].astype(float) if is_numbers else frame[name].map(_as_text, na_action="ignore")
        yield Part(frame)


def _objects(path: Path, size: int) -> Iterator[list[dict[str, Any]]]:
    wrong = f"{path} is not a table: write one JSON object per line"
    with path.open("rb") as file:
        while lines := list(islice(file, size)):
            try:
                rows = [json.loads(line) for line in lines if line.strip()]
            except (ValueError, RecursionError):
                raise InputError(wrong) from None
            if not all(isinstance(row, dict) for row in rows):
                raise InputError(wrong)
            if rows:
                yield rows


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _csv(path: Path, roles: Roles, numbers: Callable[[str], bool]) -> Iterator[Part]:
    """The file by Arrow's reader, which is fast, if its writing is plain; else all at once, with more patience.

    Where numbers may have other marks than decimal points, the whole file is looked at before its first row is given.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        text = ""
    plain = text.strip() and not text[0].isspace() and "\0" not in text and not EXCEL.match(text)
    separator, form = separator_of(text, path) if plain else SPACES, roles.form
    # Arrow has no options for these
    if separator == SPACES or any("=" in mark for mark in form.missing) or _is_odd(path, separator):
        yield Part(read_csv(path, roles))
        return
    first = pd.read_csv(io.StringIO(text), sep=separator, nrows=1, header=None, dtype=str, keep_default_na=False)
    names = [str(name).strip() or f"Unnamed: {i}" for i, name in enumerate(first.iloc[0])]
    if form.nameless:
        if form.names:
            check_names(form.names, len(names), path)
        names = form.names_for(len(names))
    elif looks_like_data(names):
        raise no_header(path, names)
    check_frame(pd.DataFrame(columns=names, index=[0]), str(path))
    parsing = ParseOptions(delimiter=separator, newlines_in_values='"' in text)
    parse = _in_parallel if "\n" in text and not parsing.newlines_in_values else _in_order

    features = roles.feature_columns(names)
    missing = (*MISSING, *form.missing)
    number_columns = [name for name in features if numbers(name)]
    candidates = [name for name in features if numbers(name) or (roles.as_texts and not roles.as_texts(name))]
    count = 0  # of rows that were given

    def rows(floats: Collection[str], decimal: str = ".") -> Iterator[pd.DataFrame]:
        """Some rows at a time: these columns as numbers, and all others as stripped texts.

        Numbers with a decimal comma stay texts where Arrow cannot read them.
        """
        types = {name: pa.float64() if name in floats else pa.string() for name in names}
        how = partial(ConvertOptions, null_values=missing, strings_can_be_null=False, decimal_point=decimal)
        ways = [how(column_types=types)]
        if decimal != ".":
            ways.append(how(column_types=dict.fromkeys(names, pa.string())))
        for table in parse(path, names, parsing, ways, 0 if form.nameless else 1):
            text_columns = [name for name in names if pa.types.is_string(table.schema.field(name).type)]
            texts = {name: _strip(table.column(name), missing if name in features else ("",)) for name in text_columns}
            columns = {name: texts[name] if name in texts else table.column(name) for name in names}
            yield to_frame(pa.table(columns), split_blocks=True)

    try:
        if _is_plain(path, text, separator, candidates):
            for frame in rows(number_columns):
                yield Part(frame)
                count += len(frame)
        else:
            evidence, label = Evidence(), [name for name in (roles.label(names),) if name is not None]
            for frame in rows(()):
                values = {name: frame[name] for name in (*candidates, *label)}
                evidence.add(str(path), values, readings_by(values))
            marks = marks_of(evidence, str(path), [separator], label, roles)
            bits = {name: evidence.bits(str(path), name) for name in candidates}
            commas = marks == Marks(",") and parse is _in_parallel
            floats = [name for name in number_columns if commas and fit(bits[name], marks)]
            for frame in rows(floats, marks.decimal if floats else "."):
                numeric = frame.select_dtypes("float").columns
                still = {name: of_column for name, of_column in bits.items() if name not in numeric}
                yield Part(pd.DataFrame(convert({name: frame[name] for name in names}, marks, still, roles)))
                count += len(frame)
    except (pa.ArrowException, OSError):
        yield Part(read_csv(path, roles).iloc[count:].reset_index(drop=True))  # the rest, with more patience
    else:
        if not count:
            yield Part(read_csv(path, roles))


def _strip(column: pa.ChunkedArray, missing: Sequence[str]) -> pa.ChunkedArray:
    """Stripped texts, null where missing."""
    text = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(text, pa.array(missing, pa.string())), None, text)


def _is_odd(path: Path, separator: str) -> bool:
    """Whether a file has rows of empty cells, or a space before a quotation mark, which Arrow reads as they stand."""
    mark = re.escape(separator.encode())
    empty, space = re.compile(rb"\n[ \t\"" + mark + rb"]*[\"" + mark + rb"]\r?(?:\n|\Z)"), re.compile(mark + rb' +"')
    return any(empty.search(lines) or (b' "' in lines and space.search(lines)) for lines in _overlapping(path))


def _overlapping(path: Path) -> Iterator[bytes]:
    """A file's blocks, each with the end of the one before."""
    with path.open("rb") as file:
        end = b""
        while block := file.read(_BLOCK):
            yield end + block
            end = block[-_OVERLAP:]


def _is_plain(path: Path, head: str, separator: str, numbers: Collection[str]) -> bool:
    """Whether the numbers of a text file surely have decimal points, and nothing between thousands."""
    patterns = (*_MARKS, _COMMAS[separator == ","])
    if any(pattern.search(lines) for lines in _overlapping(path) for pattern in patterns):
        return False
    if separator == ",":
        return True
    lines = head if len(head) < _HEAD else head.rpartition("\n")[0]
    try:
        rows = pd.read_csv(io.StringIO(lines), sep=separator, dtype=str, skipinitialspace=True)
    except pd.errors.ParserError:
        return False
    rows.columns = rows.columns.str.strip()
    bits_C = readings_by({name: without_missing(rows[name].str.strip()) for name in numbers if name in rows})
    return any(bits > 0 and not fit_commas(bits) for bits in bits_C)


def _in_order(
    path: Path, names: list[str], parsing: ParseOptions, ways: Sequence[ConvertOptions], head: int
) -> Iterator[pa.RecordBatch]:
    """Any text file, as one whose cells hold several lines; while one block is used, the next is parsed."""
    reading = ReadOptions(use_threads=False, block_size=_BLOCK, column_names=names, skip_rows=head)
    with pyarrow.csv.open_csv(path, reading, parsing, ways[0]) as file, ThreadPoolExecutor(1) as reader:
        items = iter(file)
        coming = reader.submit(next, items, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield batch


def _in_parallel(
    path: Path, names: list[str], parsing: ParseOptions, ways: Sequence[ConvertOptions], head: int
) -> Iterator[pa.Table]:
    """A text file whose lines are rows: every core parses a block of them, a few blocks ahead of what is used.

    A block has the first of the ways in which it can be read.
    """
    reading = ReadOptions(use_threads=False, block_size=2 * _BLOCK, column_names=names)

    def parse(lines: bytes) -> pa.Table:
        for how in ways[:-1]:
            with suppress(pa.ArrowInvalid):
                return pyarrow.csv.read_csv(pa.BufferReader(lines), reading, parsing, how)
        return pyarrow.csv.read_csv(pa.BufferReader(lines), reading, parsing, ways[-1])

    several = min(_CORES, cores())
    with path.open("rb") as file, ThreadPoolExecutor(several) as pool:
        for _ in range(head):
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
    start = b""
    while block := file.read(_BLOCK):
        lines, _, rest = (start + block).rpartition(b"\n")
        if len(rest) > _BLOCK:
            raise pa.ArrowInvalid("a line is longer than a block")
        if lines.strip():
            yield lines
        start = rest
    if start.strip():
        yield start
