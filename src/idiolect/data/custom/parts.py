"""Tables and images of the training and the test split, made into one ``Source``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch

from idiolect.core.arrow_tables import to_frame
from idiolect.core.errors import InputError
from idiolect.core.objectives import TaskName
from idiolect.core.option_spec import joined, split_names
from idiolect.data.custom import dates, images, tables
from idiolect.data.custom.columns import (
    check_frame,
    check_roles,
    codes,
    columns_to_drop,
    find,
    listed,
    targets_in,
    without_nan,
)
from idiolect.data.custom.form import Form, form_of
from idiolect.data.custom.identifiers import look_at_numbers, look_at_zeros, suspects
from idiolect.data.custom.images import EncodedImage
from idiolect.data.custom.inside import Within
from idiolect.data.custom.names import look, named
from idiolect.data.custom.questions import answered
from idiolect.data.custom.splits import choose_splits
from idiolect.data.custom.target import target_of
from idiolect.data.custom.texts import Reading
from idiolect.data.custom.unlabelled import labelled
from idiolect.data.custom.windows import list_columns, windows
from idiolect.data.datasets.dataset import Column, Encoding, Source
from idiolect.data.text.encoders import Encoder

log = logging.getLogger(__name__)


class Part(NamedTuple):
    """One split: a table, and an image for each of its rows or none."""

    frame: pd.DataFrame
    pictures: list[EncodedImage] | None = None


def from_frame(
    frame: pd.DataFrame,
    *,
    target: str | Sequence[str] | None = None,
    client_column: str | None = None,
    group_column: str | None = None,
    drop: Sequence[str] = (),
    task: TaskName | None = None,
    text: str | Sequence[str] | None = None,
    tokens: str | Encoder | None = None,
    max_tokens: int | None = None,
    missing: str | Sequence[str] | None = None,
    unlabelled: str | None = None,
    name: str = "table",
    test: pd.DataFrame | None = None,
) -> Source:
    """A data set from a pandas data frame; all columns except target, client and ``drop`` are features.

    Numbers stay numbers, NaN if missing, and a column with gaps adds a 0/1 feature. Texts and categories become one
    0/1 feature for each value. The index is not used.

    Args:
        frame: one row for each sample.
        target: the column of labels or of numbers to predict, or several columns of numbers, listed or joined by +;
            None for the only one called label, labels, target, class, diagnosis or y; or a question of two answers, as
            ``num>0``.
        client_column: the column that says which client each sample belongs to; else a partition divides the samples.
        group_column: the column that says which samples belong together, as those of one patient: a group is never on
            both sides of a split.
        drop: columns to leave out, such as identifiers; several may be joined by +.
        task: "classification", "regression" or "multilabel"; None takes many different numbers as numbers to predict,
            several columns of 0 and 1 as labels of which a sample can have several, and everything else as classes.
        text: the column of texts to learn from, or several, listed or joined by +, which a line end separates then; the
            other columns are not used.
        tokens: what a text is divided into: "words" (the default), "characters", "bytes", or an ``Encoder``.
        max_tokens: of a text that are used, 256 by default; longer texts are cut.
        missing: marks of missing values in features, joined by +; one of a single column as ``chol=0``.
        unlabelled: "drop" leaves rows without a target out; by default they are an error.
        name: what to call the data set.
        test: an official test split, with the same columns.

    Raises:
        InputError: a column is missing or cannot be used as asked, or no feature is left.
    """
    for one in (frame, test):
        if one is not None and not isinstance(one, pd.DataFrame):
            raise InputError(
                f"from_frame takes a pandas.DataFrame, not a {type(one).__name__}: arrays are for from_arrays"
            )
    target, text, form = joined(target), joined(text), form_of(missing=missing, unlabelled=unlabelled)
    splits = {name: frame} if test is None else {name: frame, f"{name} (test)": test}
    parts = [Part(*labelled(_with_names(f), None, target, where, form, task)) for where, f in splits.items()]
    return assemble(
        name, parts, target=target, client_column=client_column, group_column=group_column, drop=drop, task=task,
        reading=Reading(text, tokens, max_tokens), form=form,
    )  # fmt: skip


def from_dataset(
    dataset: Any,
    *,
    target: str | Sequence[str] | None = None,
    client_column: str | None = None,
    group_column: str | None = None,
    image_column: str | None = None,
    drop: Sequence[str] = (),
    resize: str | int | None = None,
    task: TaskName | None = None,
    text: str | Sequence[str] | None = None,
    tokens: str | Encoder | None = None,
    max_tokens: int | None = None,
    missing: str | Sequence[str] | None = None,
    unlabelled: str | None = None,
    name: str = "dataset",
) -> Source:
    """A data set from a ``Dataset`` of Hugging Face, or from train and test (else two splits) of a ``DatasetDict``.

    Args:
        dataset: images in one column, or a table, of texts too.
        target: the column of labels or of numbers to predict, or several columns of numbers, listed or joined by +;
            None for the only one called label, labels, target, class, diagnosis or y; or a question of two answers, as
            ``num>0``.
        client_column: the column that says which client each sample belongs to; else a partition divides the samples.
        group_column: the column that says which samples belong together, as those of one patient: a group is never on
            both sides of a split.
        image_column: the column of images, if there are several.
        drop: columns to leave out.
        resize: of images, 32 or "32x24" for width x height in pixels.
        task: "classification", "regression" or "multilabel"; None takes many different numbers as numbers to predict,
            several columns of 0 and 1 as labels of which a sample can have several, and everything else as classes.
        text: the column of texts to learn from, or several, listed or joined by +, which a line end separates then; the
            other columns are not used.
        tokens: what a text is divided into: "words" (the default), "characters", "bytes", or an ``Encoder``.
        max_tokens: of a text that are used, 256 by default; longer texts are cut.
        missing: marks of missing values in features, joined by +; one of a single column as ``chol=0``.
        unlabelled: "drop" leaves rows without a target out; by default they are an error.
        name: what to call the data set.

    Raises:
        InputError: a column is missing or cannot be used as asked, or an image cannot be read.
    """
    return read_dataset(
        dataset, target=joined(target), client_column=client_column, group_column=group_column,
        image_column=image_column, drop=drop, resize=resize,
        task=task, reading=Reading(joined(text), tokens, max_tokens), name=name,
        form=form_of(missing=missing, unlabelled=unlabelled),
    )  # fmt: skip


def read_dataset(
    dataset: Any,
    *,
    target: str | None = None,
    client_column: str | None = None,
    group_column: str | None = None,
    image_column: str | None = None,
    drop: Sequence[str] = (),
    resize: str | int | None = None,
    task: TaskName | None = None,
    reading: Reading = Reading(),  # noqa: B008  immutable
    form: Form = Form(),  # noqa: B008  immutable
    name: str = "dataset",
    within: Within | None = None,
) -> Source:
    """As ``from_dataset``; files of images must be ``within`` some folders."""
    if isinstance(dataset, Mapping) and dataset:
        keys = [key for key in choose_splits(list(map(str, dataset)), name) if key]
        splits = {f"{name} ({key})": dataset[key] for key in keys}
    else:
        splits = {name: dataset}
    drop = [drop] if isinstance(drop, str) else list(drop)
    parts = []
    for where, split in splits.items():
        if not hasattr(split, "with_format") or not hasattr(split, "features") or not hasattr(split, "__len__"):
            fix = (
                "load it whole, without streaming=True" if hasattr(split, "features") else "give one, or a DatasetDict"
            )
            raise InputError(f"{where} is a {type(split).__name__}, not a datasets.Dataset: {fix}")
        table = split.with_format("arrow")[:]
        classes = {column: kind.names for column, kind in split.features.items() if getattr(kind, "names", None)}
        part = from_arrow(table, classes, where, image_column=image_column, drop=drop, within=within)
        parts.append(Part(*labelled(part.frame, part.pictures, target, where, form, task)))
    return assemble(
        name, parts, target=target, client_column=client_column, group_column=group_column, drop=drop,
        resize=resize, task=task, reading=reading, form=form,
    )  # fmt: skip


def from_arrow(
    table: pa.Table,
    class_names: Mapping[str, Sequence[str]],
    where: str,
    *,
    image_column: str | None = None,
    drop: Sequence[str] = (),
    within: Within | None = None,
) -> Part:
    """A table in the hub's layout; ``class_names`` has the names for columns that contain numbers of classes."""
    drop = [name for text in drop for name in split_names(text, table.column_names)]
    image_columns = [field.name for field in table.schema if _holds_images(field.type) and field.name not in drop]
    if image_column is not None:
        image_columns = [c for c in image_columns if c == find(table.column_names, image_column, "image_column", where)]
        if not image_columns:
            raise InputError(
                f"image_column: column {image_column!r} of {where} contains no encoded images: give another column"
            )
    if len(image_columns) > 1:
        raise InputError(f"{where} has images in {listed(image_columns)}: keep one and drop the others")
    pictures = None
    if image_columns:
        column = table.column(image_columns[0])
        if pa.types.is_struct(column.type):
            has_path = column.type.get_field_index("path") >= 0
            content = pc.struct_field(column, "bytes").to_pylist()
            paths = pc.struct_field(column, "path").to_pylist() if has_path else [None] * len(content)
        else:
            content, paths = column.to_pylist(), [None] * len(column)
        if within:
            within.check([Path(path) for data, path in zip(content, paths, strict=True) if path and not data])
        pictures = [
            EncodedImage(f"row {i} of {where}" + (f" ({path})" if path else ""), data or (Path(path) if path else None))
            for i, (data, path) in enumerate(zip(content, paths, strict=True))
        ]
        table = table.drop_columns(image_columns)
    frame = to_frame(_plain(table).replace_schema_metadata(None))
    for name in frame:
        classes = class_names.get(str(name))
        if classes and name not in drop:
            frame[name] = named(frame[name], classes, f"column {name!r} of {where}")
    return Part(_with_names(frame.drop(columns=[c for c in frame if str(c).startswith("__index_level_")])), pictures)


def assemble(
    name: str,
    parts: Sequence[Part],
    *,
    target: str | None = None,
    client_column: str | None = None,
    group_column: str | None = None,
    drop: Sequence[str] = (),
    resize: str | int | None = None,
    task: TaskName | None = None,
    reading: Reading = Reading(),  # noqa: B008  immutable
    form: Form = Form(),  # noqa: B008  immutable
) -> Source:
    """One or two parts, training before test, as a ``Source``."""
    reading.check()
    size = images.parse_size(resize)
    frame = answered(form.known(_join(name, parts)), target, name)
    columns = [str(c) for c in frame]
    texts = reading.names(columns, name)
    goal = targets_in(columns, target, name)
    owner = None if client_column is None else find(columns, client_column, "client_column", name)
    out = columns_to_drop(columns, [drop] if isinstance(drop, str) else drop, name)
    group = None if group_column is None else find(columns, group_column, "group_column", name)
    check_roles({"target": goal, "client_column": [owner], "group_column": [group], "drop": out, "text": texts})
    pictures = [picture for part in parts for picture in part.pictures or ()]
    is_table = parts[0].pictures is None and not texts
    if parts[0].pictures is None and size:
        raise InputError(f"resize: {name} is a table, and resize is only for images: leave it out")
    if parts[0].pictures is not None and texts:
        raise InputError(f"text: {name} has images, and a sample is either an image or a text: leave text out")

    whats = {column: f"target {column!r} of {name}" for column in goal}
    y_R, class_names, targets = target_of({c: frame[c] for c in goal}, whats, task, table=is_table)
    owners = {}
    if owner is not None:
        owner_R = frame[owner].astype(object)  # so that even the values of a categorical column are sorted
        owners[owner] = Column(*codes(owner_R, f"client_column {owner!r} of {name}"))
        look(f"client_column {owner!r} of {name}", "client", owners[owner].code_R, owners[owner].names)
    if group is not None:
        owners[group] = Column(*codes(frame[group].astype(object), f"group_column {group!r} of {name}"))
    beside = [c for c in columns if c not in {*goal, owner, group, *out, *texts}]
    frame = form.known_features(frame, beside)
    part_R = (owners[owner].code_R if owner else 0) * len(parts) + np.repeat(
        np.arange(len(parts)), [len(part.frame) for part in parts]
    )
    counters = look_at_numbers({c: frame[c] for c in beside}, part_R, clients=owner is not None) if is_table else set()
    if is_table and owner is not None:
        look_at_zeros({c: frame[c] for c in beside}, owners[owner].code_R, owners[owner].names)
    few = suspects(frame, beside, owner, is_table, counters, grouped=group is not None)
    encodings: tuple[Encoding, ...] = ()
    tokens, channels, bits = None, tuple[str, ...](), 8
    if texts:
        x_R, tokens = reading.ids(frame, texts, name)
    elif is_table and list_columns(frame, beside):
        x_R, channels = windows(frame, beside, name), tuple(beside)
    elif is_table:
        frame, beside, further = dates.expanded(frame, beside)
        encodings = tables.fit_table(frame[beside], name, further)
        x_R = tables.encode(encodings, frame)
    else:
        x_R, bits, _ = images.read(pictures, size, name)
    return Source(
        name=name,
        x_R=x_R,
        y_R=torch.from_numpy(y_R),
        classes=len(class_names),
        class_names=class_names,
        mean=None,
        std=None,
        train_rows=len(parts[0].frame),
        columns=owners,
        client_column=owner,
        group_column=group,
        encodings=encodings,
        few=few,
        sizes=tokens.size if tokens else 0,
        tokens=tokens,
        channels=channels,
        bits=bits,
        targets=targets,
    )


def together(parts: Mapping[str, Part]) -> Part:
    """Tables by name, such as those of several clients or the shards of one split, as one.

    Raises:
        InputError: they have different columns, or numbers in one and texts in another.
    """
    (first_name, first), *rest = parts.items()
    for name, part in parts.items():
        check_frame(part.frame, name)
    for name, part in rest:
        other = {str(column) for column in first.frame.columns.symmetric_difference(part.frame.columns)}
        if other or (first.pictures is None) != (part.pictures is None):
            lacks = {
                of: [str(c) for c in with_it.frame if c not in without.frame]
                for of, without, with_it in ((first_name, first, part), (name, part, first))
            }
            which = "".join(f"; {of} has no {listed(columns)}" for of, columns in lacks.items() if columns)
            raise InputError(
                f"{first_name} and {name} differ in the columns {listed(sorted(other) or ['of images'])}: give both "
                f"the same columns, or drop these{which}"
            )
    for column in first.frame:
        kinds = {name: _is_numeric(part.frame[column]) for name, part in parts.items()}
        number, text = (next((n for n, kind in kinds.items() if kind is wanted), None) for wanted in (True, False))
        if number is not None and text is not None:
            raise InputError(f"column {column!r} has numbers in {number} and texts in {text}: make both the same")
    pictures = None if first.pictures is None else [one for part in parts.values() for one in part.pictures or ()]
    if not rest:
        return first
    frames = [part.frame[list(first.frame)] for part in parts.values()]
    return Part(pd.concat(frames, ignore_index=True), pictures)


def _is_numeric(values: pd.Series[Any]) -> bool | None:
    """Whether a column has numbers; None where it has no values."""
    known = values.dropna().infer_objects()
    return bool(pd.api.types.is_numeric_dtype(known)) if len(known) else None


def _join(name: str, parts: Sequence[Part]) -> pd.DataFrame:
    names = (name,) if len(parts) == 1 else (f"{name}: the training split", "the test split")
    return together(dict(zip(names, parts, strict=True))).frame


def _with_names(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.set_axis([str(c) for c in frame.columns], axis=1).reset_index(drop=True)
    if frame.columns.has_duplicates:  # which has a message of its own
        return frame
    return frame.assign(**{str(c): without_nan(frame[c]) for c in frame if not pd.api.types.is_numeric_dtype(frame[c])})


def _plain(table: pa.Table) -> pa.Table:
    """A table whose columns of other packages' types, such as Array2D of ``datasets``, are the lists behind them."""
    for k, field in enumerate(table.schema):
        if isinstance(field.type, pa.ExtensionType):
            chunks = [chunk.storage for chunk in table.column(k).chunks]
            table = table.set_column(k, field.name, pa.chunked_array(chunks, field.type.storage_type))
    return table


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        kind = kind.field("bytes").type if kind.get_field_index("bytes") >= 0 else kind
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
