"""Files and folders as a data set, and names on the Hugging Face hub."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from idiolect.core import shared_memory
from idiolect.core.arrow_tables import open_parquet, read_parquet
from idiolect.core.errors import InputError, option
from idiolect.core.files import about_backslashes, expanded
from idiolect.core.import_path import has_module, is_dotted, may_import
from idiolect.core.objectives import TaskName
from idiolect.core.option_spec import split_names
from idiolect.data.custom import tables
from idiolect.data.custom.archives import GZIP, ZIP, unpacked
from idiolect.data.custom.arff import arff
from idiolect.data.custom.columns import listed
from idiolect.data.custom.form import NAMELESS, Form, form_of
from idiolect.data.custom.hub import HUB_NAME, ON_HUB, class_names, from_disk, from_hub, reason
from idiolect.data.custom.image_folders import TABLES, TEXT_FILES, by_levels, images_in, in_memory, metadata_of
from idiolect.data.custom.images import EncodedImage
from idiolect.data.custom.inside import Within
from idiolect.data.custom.json_lines import jsonl
from idiolect.data.custom.npz import NPZ, from_npz, is_npz
from idiolect.data.custom.parts import Part, assemble, from_arrow, read_dataset, together
from idiolect.data.custom.plays import read_play
from idiolect.data.custom.programs import from_program
from idiolect.data.custom.questions import columns_asked
from idiolect.data.custom.several import folder_of, is_pattern, matches, names_of, say, tables_in
from idiolect.data.custom.splits import are_splits, choose_splits, is_split
from idiolect.data.custom.text_files import PICTURES, Roles, check_target, read_csvs
from idiolect.data.custom.texts import Reading
from idiolect.data.custom.unlabelled import Lines, labelled
from idiolect.data.datasets.dataset import Source
from idiolect.data.text.encoders import Encoder

log = logging.getLogger(__name__)

PLAY = ".txt"
_FILES = (*TABLES, PLAY, NPZ, GZIP, ZIP)
_CLIENT = "client"


def open_data(
    where: str | Path,
    *,
    target: str | None = None,
    client_column: str | None = None,
    group_column: str | None = None,
    drop: Sequence[str] = (),
    resize: str | int | None = None,
    task: TaskName | None = None,
    text: str | None = None,
    tokens: str | Encoder | None = None,
    max_tokens: int | None = None,
    header: str | None = None,
    columns: str | None = None,
    missing: str | None = None,
    unlabelled: str | None = None,
    categorical: str | None = None,
    layout: str | None = None,
    outside: bool = False,
) -> Source:
    """Read a file, a folder or a name on the Hugging Face hub.

    Args:
        where: a table (.csv, .tsv, .data, .parquet, .jsonl, .arff), of images too; arrays by name (.npz), which are its
            columns; a play (.txt); a folder of train and test tables, or of images, ``<class>/<image>`` or
            ``<client>/<class>/<image>`` with or without train and test above, or beside a metadata.csv or labels.csv
            whose column file_name names them; several tables with
            one client in each, as ``sites/*.csv`` or their folder; one of these in a .gz or .zip; one of ``datasets``;
            ``hf:owner/name`` or ``hf:owner/name:config``, on the hub; or the import path of a function without
            arguments that gives a ``Source``, arrays (x, y) or (x, y, clients), a pandas DataFrame or a data set of
            ``datasets``.
        target: the column of labels; None for the only one called label, labels, target, class, diagnosis or y; or a
            question of two answers, as ``num>0``. Folders of classes need none.
        client_column: the column that says which client each sample belongs to; for folders of clients the name of that
            level, "client" if None. Without one, a partition divides the samples.
        group_column: the column that says which samples belong together, as those of one patient: a group is never on
            both sides of a split.
        drop: columns to leave out, such as identifiers; several may be joined by +.
        resize: for images, 32 or "32x24" for width x height in pixels.
        task: "classification", "regression" or "multilabel"; None takes many different numbers as numbers to predict,
            several columns of 0 and 1 as labels of which a sample can have several, and everything else as classes.
        text: the column of texts to learn from, or several joined by +, which a line end separates then; the other
            columns are not used.
        tokens: what a text is divided into: "words" (the default), "characters", "bytes", or an ``Encoder``.
        max_tokens: of a text that are used, 256 by default; longer texts are cut.
        header: "none" where the first line of a CSV or ARFF file is a row; its columns are then called 1, 2, ...
        columns: names for the columns of such a file, in their order, joined by +.
        missing: marks of missing values in features beside the usual ones, joined by +; one of a single column as
            COLUMN=MARK, for example ``chol=0``.
        unlabelled: "drop" leaves rows without a target out; by default they are an error.
        categorical: columns of a table whose numbers are codes of categories, joined by +.
        layout: what the paths of images say, as ``{class}/{class}/*_{client}``: a name in braces for a part, of several
            parts with one name all of them, and * for what says nothing.
        outside: whether files in other places are read, which a link in the folder or a name in a table (``file_name``,
            absolute or with ``..``) leads to: only for data from someone you trust.

    Raises:
        InputError: there is nothing of the kind, reading is not permitted, or a file, column or image cannot be used.
    """
    drop = [drop] if isinstance(drop, str) else list(drop)
    options: dict[str, Any] = {
        "target": target, "client_column": client_column, "group_column": group_column, "drop": drop, "resize": resize,
        "task": task, "reading": Reading(text, tokens, max_tokens), "layout": layout,
        "form": form_of(header, columns, missing, unlabelled, categorical),
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
    path = expanded(where)
    is_file = path.suffix.lower() in _FILES and path.suffix != ".data"  # which may be the name of a function
    return is_dotted(str(where)) and not is_file and not os.path.exists(path)


def _open(where: str | Path, options: dict[str, Any], outside: bool) -> Source:
    path = expanded(where)
    if str(where).startswith(ON_HUB):
        name = str(where).removeprefix(ON_HUB)
        return read_dataset(from_hub(name), name=name, within=None if outside else Within.hub(), **_plain(options))
    if is_program(where):
        if may_import() and not has_module(str(where)):
            raise _nothing(path, f" and no module {str(where).partition('.')[0]}")
        return from_program(str(where), **_plain(options))
    if is_pattern(path):
        return _of_clients(path, matches(path), folder_of(path), options, outside)
    if not path.exists():
        raise _nothing(path)
    with unpacked(path) as inside:
        archive = Path(path.stem).stem if path.suffix.lower() == GZIP else path.stem
        return _at(inside, options, outside, "" if inside == path else archive)


def _at(path: Path, options: dict[str, Any], outside: bool, archive: str = "") -> Source:
    """A file or a folder; one that was unpacked has the archive's name."""
    name, is_unpacked = archive or (path.stem if path.is_file() else path.resolve().name), bool(archive)
    within = None if outside else Within(path.parent if path.is_file() else path)
    if path.is_file() and path.suffix.lower() == PLAY:
        return read_play(path, _plain(options))
    if path.is_file() and is_npz(path):
        if within:
            within.check([path])
        return from_npz(path, name, **_plain(options))
    if path.is_file():
        parts = [_table(path, options, within, _texts([path], options, within))]
    elif not path.is_dir():
        raise InputError(f"{path} is a pipe or a device, not a file or a folder: save the data in a file and give that")
    elif (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return read_dataset(from_disk(path), name=name, within=within, **_plain(options))
    elif (splits := _split_tables(path)) and not metadata_of(path):
        texts = _texts([file for files in splits for file in files], options, within)
        parts = [_tables(files, options, within, texts) for files in splits]
    elif (files := tables_in(path)) and not metadata_of(path):
        return _of_clients(path, files, path, options, outside)
    else:
        places = [path] if metadata_of(path) else _split_folders(path)
        options["form"].refuse_names()
        if any(map(metadata_of, places)):
            texts = _texts([table for place in places if (table := metadata_of(place))], options, within)
            parts = [beside_metadata(place, options, within, texts) for place in places]
        else:
            options |= {"target": options["target"] or "class", "task": "classification"}  # folders are classes
            parts = [by_levels(place, options, within) for place in places]
            if _CLIENT in parts[0].frame and options["client_column"] is None:
                options["client_column"] = _CLIENT
        options = options | {"layout": None}
    if is_unpacked:
        parts = [part._replace(pictures=part.pictures and in_memory(part.pictures)) for part in parts]
    return assemble(name, parts, **_plain(options))


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The options without those of layouts.

    Raises:
        InputError: there is a layout, and nothing that has one.
    """
    if options["layout"] is not None:
        raise InputError("layout is for folders of images: leave it out")
    return {name: value for name, value in options.items() if name != "layout"}


def _of_clients(where: Path, files: list[Path], folder: Path, options: dict[str, Any], outside: bool) -> Source:
    """Tables with one client in each, whose name is the file's unless the tables have a column of clients."""
    name = folder.resolve().name
    with ExitStack() as opened:
        inside = [opened.enter_context(unpacked(file)) for file in files]
        within = None if outside else Within(folder, *(new.parent for new in inside if new not in files))
        texts = _texts(inside, options, within)
        parts = [_table(file, options, within, texts) for file in inside]
        owner = options["client_column"] or _CLIENT
        having = [file for file, part in zip(files, parts, strict=True) if owner in part.frame]
        if having and options["client_column"] is None:
            raise InputError(
                f"{where}: {having[0]} has a column {owner!r}: give {option('client_column', owner)} to take it, or "
                f"{option('client_column', 'file')} to take the names of the files"
            )
        if not having:
            names = names_of(files)
            say(where, names)
            parts = [
                Part(part.frame.assign(**{owner: client}), part.pictures)
                for part, client in zip(parts, names, strict=True)
            ]
        parts = [together({str(file): part for file, part in zip(files, parts, strict=True)})]
        return assemble(name, parts, **_plain(options | {"client_column": owner}))


# --- tables


def _texts(paths: Sequence[Path], options: dict[str, Any], within: Within | None) -> dict[Path, pd.DataFrame]:
    """Those of some tables that are text files, read together, so that their numbers are read in one way."""
    files = [path for path in paths if path.suffix.lower() in TEXT_FILES]
    if within:
        within.check(files)
    return read_csvs(files, _roles(options))


def _roles(options: Mapping[str, Any]) -> Roles:
    """What the columns of a table are for."""
    of_texts = options["reading"].columns is not None
    features = (lambda name: False) if of_texts else None  # then no column is one of numbers
    texts = [name for name in (options["client_column"], options["group_column"]) if name is not None]
    return Roles(options["target"], texts, options["drop"], features, form=options["form"])


def _table(path: Path, options: dict[str, Any], within: Within | None, texts: Mapping[Path, pd.DataFrame]) -> Part:
    """The rows of one table that have a target, with an image for each if it contains images or their files' names."""
    part = _rows(path, options, within, texts)
    labelled_part = with_target(path, part, options)
    if len(labelled_part.frame) == len(part.frame) and part.pictures is None:
        known, target = [str(c) for c in part.frame], options["target"]
        asked = {*columns_asked(target), *(split_names(target, known) if target else ())}
        features = [name for name in _roles(options).feature_columns(known) if name not in asked]
        tables.check_finite(part.frame, features, str(path), _lines(path, part.frame, options["form"]))
    return labelled_part


def _lines(path: Path, frame: pd.DataFrame, form: Form) -> Lines:
    """How a person counts the rows of a table; the index of a text file's has the numbers of its lines."""
    if path.suffix.lower() not in TEXT_FILES:
        return Lines.counted(len(frame), 1)
    how = "counting from 1" if form.nameless else "where the names of the columns are row 1"
    return Lines(frame.index.to_numpy(), how)


def with_target(path: Path, part: Part, options: Mapping[str, Any]) -> Part:
    """The samples of a table that have a target.

    Args:
        path: of the table.
        part: all its samples; the index of a text file's has the numbers of its rows.
        options: ``target``, ``form`` and, if it is known, ``task``.

    Raises:
        InputError: as ``labelled``.
    """
    form: Form = options["form"]
    lines, frame = _lines(path, part.frame, form), part.frame.reset_index(drop=True)
    return Part(*labelled(frame, part.pictures, options["target"], str(path), form, options.get("task"), lines))


def _rows(path: Path, options: dict[str, Any], within: Within | None, texts: Mapping[Path, pd.DataFrame]) -> Part:
    """One table, with an image for each row if it contains images or the names of their files."""
    if within:
        within.check([path])
    kind, form = path.suffix.lower(), options["form"]
    if kind not in NAMELESS:
        form.refuse_names()
    if kind == ".parquet":
        part = parquet(path, options["drop"], within)
    elif kind == ".jsonl":
        part = Part(jsonl(path))
    elif kind == ".arff":
        part = Part(arff(path, form))
    elif kind in TEXT_FILES:
        frame = texts[path]
        check_target(path, [str(c) for c in frame], options["target"], form)
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
    return together({str(file): _table(file, options, within, texts) for file in files})


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
    return from_arrow(table, class_names(table.schema, path), str(path), drop=drop, within=within)


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
    part = _rows(path, options, within, _texts([path], options, within) if texts is None else texts)
    if part.pictures is None:
        raise InputError(
            f"{path} has no column file_name ({listed(part.frame)}): give this name to the column of the image files"
        )
    beside = len(images_in(folder, None)) - len({picture.data for picture in part.pictures})
    if beside > 0:
        log.warning("%s: %d images are not in %s and are left out", folder, beside, path.name)
    return with_target(path, part, options)


def _nothing(path: Path, nor: str = "") -> InputError:
    if backslashes := about_backslashes(path):
        return InputError(f"there is no file or folder {path}: {backslashes}")
    above = path.parent
    hub = f"; for a data set of the Hugging Face hub write {ON_HUB}{path}" if HUB_NAME.fullmatch(str(path)) else ""
    if not above.is_dir():
        return InputError(f"there is no folder {above}: give the path of a file or a folder{hub}")
    entries = sorted(p.name for p in above.iterdir() if not p.name.startswith("."))
    close = difflib.get_close_matches(path.name, entries, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"{above} has {listed(entries, 8)}"
    return InputError(f"there is no file or folder {path}{nor}; {hint}{hub}")
