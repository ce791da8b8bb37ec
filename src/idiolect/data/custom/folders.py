"""Files and folders as a data set, and names on the Hugging Face hub."""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from idiolect.core import shared_memory
from idiolect.core.arrow_tables import open_parquet, read_parquet
from idiolect.core.errors import InputError
from idiolect.core.files import about_backslashes
from idiolect.core.import_path import is_dotted
from idiolect.core.option_spec import split_names
from idiolect.data.custom.arff import arff
from idiolect.data.custom.columns import find_target, listed
from idiolect.data.custom.hub import HUB_NAME, ON_HUB, from_disk, from_hub, reason
from idiolect.data.custom.images import SUFFIXES, EncodedImage
from idiolect.data.custom.inside import Within
from idiolect.data.custom.json_lines import jsonl
from idiolect.data.custom.parts import Part, are_splits, assemble, choose_splits, from_arrow, is_split, read_dataset
from idiolect.data.custom.plays import read_play
from idiolect.data.custom.programs import from_program
from idiolect.data.custom.text_files import PICTURES, Roles, looks_like_data, no_header, read_csvs
from idiolect.data.custom.texts import Reading
from idiolect.data.datasets.dataset import Source, TaskName
from idiolect.data.text.encoders import Encoder

log = logging.getLogger(__name__)

TEXT_FILES = (".csv", ".tsv")
TABLES = (*TEXT_FILES, ".parquet", ".jsonl", ".arff")
PLAY = ".txt"
_NAMELESS = (*TEXT_FILES, ".arff")
_BESIDE = ("metadata.csv", "labels.csv", "metadata.parquet", "metadata.jsonl")
_DEEPEST = 8
_LAYOUTS = (
    "give images as <folder>/<class>/<image> or <folder>/<client>/<class>/<image>, under train and test if you like, "
    "or beside a metadata.csv with the column file_name"
)


def open_data(
    where: str | Path,
    *,
    target: str | None = None,
    client_column: str | None = None,
    drop: Sequence[str] = (),
    resize: str | int | None = None,
    task: TaskName | None = None,
    text: str | None = None,
    tokens: str | Encoder | None = None,
    max_tokens: int | None = None,
    columns: str | None = None,
    outside: bool = False,
) -> Source:
    """Read a file, a folder or a name on the Hugging Face hub.

    Args:
        where: a table (.csv, .tsv, .parquet, .jsonl, .arff), of images too; a play (.txt); a folder of train and test
            tables, or of images, ``<class>/<image>`` or ``<client>/<class>/<image>`` with or without train and test
            above, or beside a metadata.csv or labels.csv whose column file_name names them; one of ``datasets``;
            ``hf:owner/name`` or ``hf:owner/name:config``, on the hub; or the import path of a function without
            arguments that gives a ``Source``, arrays (x, y) or (x, y, clients), a pandas DataFrame or a data set of
            ``datasets``.
        target: the column of labels; None for the only one called label, labels, target, class, diagnosis or y. Folders
            of classes need none.
        client_column: the column that says which client each sample belongs to; for folders of clients the name of that
            level, "client" if None. Without one, a partition divides the samples.
        drop: columns to leave out, such as identifiers; several may be joined by +.
        resize: for images, 32 or "32x24" for width x height in pixels.
        task: "classification" if the target's many different numbers are classes.
        text: the column of texts to learn from, or several joined by +, which a line end separates then; the other
            columns are not used.
        tokens: what a text is divided into: "words" (the default), "characters", "bytes", or an ``Encoder``.
        max_tokens: of a text that are used, 256 by default; longer texts are cut.
        columns: names for the columns of a CSV or ARFF file without names, in their order, joined by +.
        outside: whether files in other places are read, which a link in the folder or a name in a table (``file_name``,
            absolute or with ``..``) leads to: only for data from someone you trust.

    Raises:
        InputError: there is nothing of the kind, reading is not permitted, or a file, column or image cannot be used.
    """
    drop = [drop] if isinstance(drop, str) else list(drop)
    options: dict[str, Any] = {
        "target": target, "client_column": client_column, "drop": drop, "resize": resize, "task": task,
        "reading": Reading(text, tokens, max_tokens), "columns": columns,
    }  # fmt: skip
    try:
        return _open(where, options, outside)
    except OSError as error:
        what = error.filename or where
        raise InputError(
            f"cannot read {what} ({error.strerror or error}): allow reading it, or give another path"
        ) from error
    except UnicodeError as error:
        raise InputError(f"{where} has names or texts that are not UTF-8 ({error}): rename them") from error


def is_program(where: str | Path) -> bool:
    """Whether this is the import path of a function, and not that of a file."""
    path = Path(os.path.expanduser(where))
    return is_dotted(str(where)) and path.suffix.lower() not in (*TABLES, PLAY) and not os.path.exists(path)


def _open(where: str | Path, options: dict[str, Any], outside: bool) -> Source:
    path, columns = Path(os.path.expanduser(where)), options.pop("columns")
    if columns is not None and path.suffix.lower() not in _NAMELESS:
        raise InputError(f"columns is for files ending in {listed(_NAMELESS)} without names: leave it out")
    names = () if columns is None else tuple(split_names(columns, ()))
    if str(where).startswith(ON_HUB):
        name = str(where).removeprefix(ON_HUB)
        return read_dataset(from_hub(name), name=name, within=None if outside else Within.hub(), **options)
    if is_program(where):
        return from_program(str(where), **options)
    if not path.exists():
        raise _nothing(path)
    name = path.stem if path.is_file() else path.resolve().name
    within = None if outside else Within(path.parent if path.is_file() else path)
    if path.is_file() and path.suffix.lower() == PLAY:
        return read_play(path, options)
    if path.is_file():
        parts = [_table(path, options, within, _texts([path], options, within, names), names)]
    elif not path.is_dir():
        raise InputError(f"{path} is a pipe or a device, not a file or a folder: save the data in a file and give that")
    elif (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return read_dataset(from_disk(path), name=name, within=within, **options)
    elif (splits := _split_tables(path)) and not metadata_of(path):
        texts = _texts([file for files in splits for file in files], options, within)
        parts = [_tables(files, options, within, texts) for files in splits]
    else:
        places = [path] if metadata_of(path) else _split_folders(path)
        if any(map(metadata_of, places)):
            texts = _texts([table for place in places if (table := metadata_of(place))], options, within)
            parts = [beside_metadata(place, options, within, texts) for place in places]
        else:
            options |= {"target": options["target"] or "class", "task": "classification"}  # folders are classes
            parts = [by_levels(place, options, within) for place in places]
            if "client" in parts[0].frame and options["client_column"] is None:
                options["client_column"] = "client"
    return assemble(name, parts, **options)


# --- tables


def _texts(
    paths: Sequence[Path], options: dict[str, Any], within: Within | None, names: tuple[str, ...] = ()
) -> dict[Path, pd.DataFrame]:
    """Those of some tables that are text files, read together, so that their numbers are read in one way."""
    files = [path for path in paths if path.suffix.lower() in TEXT_FILES]
    if within:
        within.check(files)
    owner, of_texts = options["client_column"], options["reading"].columns is not None
    features = (lambda name: False) if of_texts else None  # then no column is one of numbers
    texts = [] if owner is None else [owner]
    return read_csvs(files, Roles(options["target"], texts, options["drop"], features, names=names))


def _table(
    path: Path, options: dict[str, Any], within: Within | None, texts: Mapping[Path, pd.DataFrame],
    names: Sequence[str] = (),
) -> Part:  # fmt: skip
    """One table, with an image for each row if it contains images or the names of their files."""
    if within:
        within.check([path])
    kind = path.suffix.lower()
    if kind == ".parquet":
        part = parquet(path, options["drop"], within)
    elif kind == ".jsonl":
        part = Part(jsonl(path))
    elif kind == ".arff":
        part = Part(arff(path, names))
    elif kind in TEXT_FILES:
        frame = texts[path]
        columns = [str(c) for c in frame]
        try:
            find_target(columns, options["target"], str(path))
        except InputError:
            if looks_like_data(columns):
                raise no_header(path, columns) from None
            raise
        part = Part(frame)
    else:
        raise InputError(
            f"{path} is not a table that idiolect reads: give one of {listed(TABLES)}, or a folder of images"
        )
    if PICTURES in part.frame and part.pictures is None:
        file_R = part.frame[PICTURES]
        paths = [None if pd.isna(file) else path.parent / str(file) for file in file_R]
        absent = [i for i, file in enumerate(paths) if file is None or not file.is_file()]
        if absent and (backslashes := about_backslashes(str(file_R.iloc[absent[0]]))):
            raise InputError(f"{path} names the image {file_R.iloc[absent[0]]}, which does not exist: {backslashes}")
        if absent:
            raise InputError(
                f"{path} names {len(absent)} images that do not exist (the first is {file_R.iloc[absent[0]]}): write "
                f"file_name relative to {path.parent}, or remove these rows"
            )
        if within:
            within.check([file for file in paths if file])
        return Part(part.frame.drop(columns=PICTURES), [EncodedImage(str(file), file) for file in paths])
    return part


def _tables(
    files: list[Path], options: dict[str, Any], within: Within | None, texts: Mapping[Path, pd.DataFrame]
) -> Part:
    """The shards of one split."""
    parts = [_table(file, options, within, texts) for file in files]
    if len({(*part.frame, part.pictures is None) for part in parts}) > 1:
        raise InputError(f"{listed(files)} have different columns: give all the same columns")
    pictures = None if parts[0].pictures is None else [one for part in parts for one in part.pictures or ()]
    return Part(pd.concat([part.frame for part in parts], ignore_index=True), pictures)


def parquet(path: Path, drop: list[str], within: Within | None) -> Part:
    """A parquet file, with an image for each row if it contains some.

    Raises:
        InputError: it cannot be read.
    """
    try:
        about = pq.read_metadata(path)
        groups = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
        shared_memory.check(
            max(sum(groups), 8 * about.num_rows * about.num_columns), f"the table {path}", "read a part of it"
        )
        table = read_parquet(open_parquet(path))
    except PermissionError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as parquet ({reason(error)}): write the file again") from error
    return from_arrow(table, _class_names(table.schema, path), str(path), drop=drop, within=within)


def _class_names(schema: pa.Schema, path: Path) -> dict[str, list[str]]:
    """The names of classes that ``datasets`` wrote into a parquet file, by column."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    if metadata is None:
        return {}
    try:
        kinds = (json.loads(metadata).get("info") or {}).get("features") or {}
        return {
            column: [str(name) for name in kind["names"]]
            for column, kind in kinds.items()
            if isinstance(kind, dict) and kind.get("_type") == "ClassLabel" and kind.get("names")
            if column in schema.names and pa.types.is_integer(schema.field(column).type)
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{path}: its metadata 'huggingface' cannot be read ({reason(error)}): write the file again without it"
        ) from error


def _split_tables(folder: Path) -> list[list[Path]]:
    """The folder's only table, or the tables of the training split and of the test split, if there are any."""
    files_of: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix.lower() in TABLES and not path.name.startswith("."):
            files_of.setdefault(path.stem.partition("-")[0], []).append(path)
    splits = {name: files for name, files in files_of.items() if is_split(name)}
    if are_splits(list(splits)):
        return [splits[split] for split in choose_splits(list(splits), str(folder)) if split]
    is_single = len(files_of) == 1 and not any(path.is_dir() for path in folder.iterdir())
    return [files[:1] for files in files_of.values() if len(files) == 1] if is_single else []


# --- folders of images


def metadata_of(folder: Path) -> Path | None:
    """The table in a folder of images that says what they are, or None."""
    return next((folder / name for name in _BESIDE if (folder / name).is_file()), None)


def _split_folders(folder: Path) -> list[Path]:
    """The folders of the training split and of the test split, or the folder itself."""
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    return [folder / split for split in choose_splits(names, str(folder)) if split] if are_splits(names) else [folder]


def beside_metadata(
    folder: Path, options: dict[str, Any], within: Within | None, texts: Mapping[Path, pd.DataFrame] | None = None
) -> Part:
    """Images beside the table that says what they are; ``texts`` are such tables that have been read."""
    path = metadata_of(folder)
    if path is None:
        raise InputError(f"{folder} has no metadata.csv, which the other split has: add it")
    part = _table(path, options, within, _texts([path], options, within) if texts is None else texts)
    if part.pictures is None:
        raise InputError(
            f"{path} has no column file_name ({listed(part.frame)}): give this name to the column of the image files"
        )
    beside = len(images_in(folder, None)) - len({picture.data for picture in part.pictures})
    if beside > 0:
        log.warning("%s: %d images are not in %s and are left out", folder, beside, path.name)
    return part


def by_levels(folder: Path, options: dict[str, Any], within: Within | None) -> Part:
    """Images whose folders say their class, and their client if there are two levels."""
    paths = images_in(folder, within)
    levels = [path.relative_to(folder).parts[:-1] for path in paths]
    depths = Counter(map(len, levels))
    if len(depths) > 1:
        examples = " and ".join(str(paths[[len(level) for level in levels].index(depth)]) for depth in sorted(depths))
        raise InputError(f"{folder} has images at different depths ({examples}): {_LAYOUTS}")
    depth = len(levels[0])
    if depth not in (1, 2):
        raise InputError(f"{folder} has images {depth} folders deep (for example {paths[0]}): {_LAYOUTS}")
    label, client = options["target"], options["client_column"]
    if client is not None and depth == 1:
        raise InputError(
            f"client_column: {folder} has folders for classes but none for clients: give images as "
            "<folder>/<client>/<class>/<image>, or leave client_column out"
        )
    full = {path.parent for path in paths}
    folders = (path for path in sorted(folder.glob("/".join("*" * depth))) if path.is_dir())
    empty = [path for path in folders if path not in full and not path.name.startswith(".")]
    if empty:
        log.warning("%s: %d folders contain no images and are left out (%s)", folder, len(empty), listed(empty, 3))
    columns = {label: [level[-1] for level in levels]}
    if depth == 2:
        columns = {client or "client": [level[0] for level in levels]} | columns
    if len(columns) < depth:
        raise InputError(f"target and client_column are both {label!r}: give the two levels of folders different names")
    return Part(pd.DataFrame(columns), [EncodedImage(str(path), path) for path in paths])


def images_in(folder: Path, within: Within | None) -> list[Path]:
    """Every image in the folder and below, in order of name.

    Raises:
        InputError: there is none.
    """
    images = []
    kinds: Counter[str] = Counter()
    for entry in _files(folder, within):
        path = Path(entry.path)
        kind = path.suffix.lower()
        if not entry.is_file() and path.exists():
            kinds["pipe, socket or device"] += 1
        elif kind in SUFFIXES:
            images.append(path)
        elif path.name not in _BESIDE:
            kinds[kind or path.name] += 1
    counts = listed((f"{count} {kind}" for kind, count in kinds.most_common()), 3)
    if not images:
        fix = _LAYOUTS
        if set(TABLES) & set(kinds):
            fix = "give one of its tables, or call them train and test, for example train.csv and test.csv"
        if ".dcm" in kinds:
            fix = "convert DICOM files to PNG or TIFF"
        raise InputError(f"{folder} has no images (files: {counts}): {fix}")
    if kinds:
        log.warning("%s: files that are not images are left out (%s)", folder, counts)
    return images


def _files(folder: str | Path, within: Within | None, depth: int = 0) -> Iterator[os.DirEntry[str]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if within and entry.is_symlink():
            within.check([Path(entry.path)])
        if not entry.is_dir():
            yield entry
        elif depth < _DEEPEST:  # a link to a folder above would never end
            yield from _files(entry.path, within, depth + 1)


def _nothing(path: Path) -> InputError:
    if backslashes := about_backslashes(path):
        return InputError(f"there is no file or folder {path}: {backslashes}")
    above = path.parent
    hub = f"; for a data set of the Hugging Face hub write {ON_HUB}{path}" if HUB_NAME.fullmatch(str(path)) else ""
    if not above.is_dir():
        return InputError(f"there is no folder {above}: give the path of a file or a folder{hub}")
    entries = sorted(p.name for p in above.iterdir() if not p.name.startswith("."))
    close = difflib.get_close_matches(path.name, entries, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{above} has {listed(entries, 8)}"
    return InputError(f"there is no file or folder {path}; {hint}{hub}")
