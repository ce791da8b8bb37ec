"""Predictions of a site's model, some samples at a time, written as they come."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from torch import Tensor

from idiolect.core import files
from idiolect.core.errors import InputError
from idiolect.data.custom.form import Form
from idiolect.deploy import labels, numbers
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.samples import ROW, stream
from idiolect.deploy.schema import About
from idiolect.deploy.usual import usual_of
from idiolect.simulation.thresholds import HALF

# N samples, C classes, D numbers of a target


_LABEL = "label"


class Counts(NamedTuple):
    """How many samples were predicted, and of how many the answer was withheld."""

    samples: int
    abstained: int


def predict(
    bundle: Bundle,
    where: str | Path,
    out: Path,
    *,
    client: str | int | None = None,
    level: float | None = None,
    resize: bool = False,
    as_is: Sequence[str] = (),
    form: Form = Form(),  # noqa: B008  immutable
) -> Counts:
    """Predict the samples of a file or folder and write them as a table.

    The table has ``row``, the number of each row in its file (from 1 on; empty lines do not count), the columns that
    are not inputs (or the images' names), ``label``, a probability ``p_CLASS`` for each class and, with
    ``level``, ``set``: the classes that could be right, joined by "|". Where this is one class, ``label`` is it,
    also where the bundle's threshold says the other; else ``label`` is empty.

    Where numbers are predicted, there is a column with the name of each in place of ``label``, in the units of the
    data, and where the bundle was made from a site's samples ``NAME_std``, the standard deviation of errors. With
    ``level`` there are ``NAME_low`` and ``NAME_high``, between which the number is for this share of samples.

    Where a sample can have several labels, ``labels`` has those that are predicted, joined by "|", and ``p_LABEL`` the
    probability of each. With ``level``, ``labels`` has those that a sample has, and ``undecided`` those that it may
    have: for this share of samples, a label in ``labels`` is there, and one in neither is not.

    Args:
        bundle: with a model that is ready.
        where: the samples: a table, a folder of images, one of these in a .gz or .zip, or a pattern of tables.
        out: a file .parquet or .csv.
        client: whose model, where the bundle has several.
        level: of the sets or intervals, as 0.9: on average they hold the right class, or the number, for this share of
            samples like the site's own.
        resize: whether images of another size are stretched.
        as_is: columns whose numbers are used although they look like those of another unit.
        form: how tables are written.

    Raises:
        InputError: the samples are not what the bundle takes, the file cannot have this name, or the bundle was made
            without samples, which ``level`` needs.
        RunError: the disk is full.
    """
    _check_name(out)
    tables = table_of(bundle, level, client)
    bundle.ready()
    model, method = bundle.model(client), bundle.predicting
    return save(out, (
        tables(finite(log_probabilities(model, method, x_N), of_numbers=bool(bundle.about.targets)), beside)
        for x_N, beside in stream(
            where, bundle.about.inputs, resize=resize, as_is=as_is, form=form, usual=usual_of(bundle.about)
        )
    ))  # fmt: skip


def table_of(
    bundle: Bundle, level: float | None, client: str | int | None = None
) -> Callable[[Tensor, pd.DataFrame], pa.Table]:
    """What makes a table of what a model predicts (N, ...) and of columns beside it; see ``predict``.

    Raises:
        InputError: the level is not between 0 and 1, or the bundle has nothing that it can be taken from.
    """
    about = bundle.about
    if about.targets:
        half_D = None if level is None else numbers.half_widths(about, level)
        return lambda scaled_ND, beside: number_table(numbers.unscaled(scaled_ND, about.targets), about, half_D, beside)
    at = bundle.thresholds(client)
    if about.labels:
        half_L = None if level is None else numbers.half_widths(about, level)
        names = (labels.UNDECIDED, labels.LABELS, *(f"p_{name}" for name in about.labels))
        return lambda logp_NL2, beside: labels.table(logp_NL2, about, at, half_L, _beside(beside, names))
    threshold = None if level is None else threshold_of(about, level)
    return lambda logp_NC, beside: prediction_table(logp_NC.exp(), about.classes, threshold, beside, *at)


def finite(output_NC: Tensor, *, of_numbers: bool = False) -> Tensor:
    """What is predicted, where it is finite; the logarithm of a probability may be minus infinity.

    Raises:
        InputError: some are none, as where a network of one's own divides by the length of an empty text.
    """
    wrong_NC = ~output_NC.isfinite() if of_numbers else output_NC.isnan() | output_NC.isposinf()
    if count := int(wrong_NC.flatten(1).any(1).sum()):
        raise InputError(
            f"the model gives no prediction for {count} of {len(output_NC)} samples, because its network makes "
            "numbers that are not finite from them, as from an empty text: leave them out, or mend the network"
        )
    return output_NC


def save(out: Path, tables: Iterable[pa.Table]) -> Counts:
    """Write tables of ``prediction_table`` or ``number_table`` into one file, whole or not at all.

    Raises:
        InputError: the file cannot have this name, or there are no tables.
        RunError: the disk is full.
    """
    _check_name(out)
    samples = abstained = 0

    def counting() -> Iterator[pa.Table]:
        nonlocal samples, abstained
        for table in tables:
            samples += len(table)
            abstained += table.column(_LABEL).null_count if _LABEL in table.column_names else 0
            yield table

    _write(out, counting())
    return Counts(samples, abstained)


def _check_name(out: Path) -> None:
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise InputError(f"out={out} is not a name that idiolect writes: end it in .parquet or .csv")


def prediction_table(
    p_NC: Tensor, classes: Sequence[str], threshold: float | None, beside: pd.DataFrame, second: float = HALF
) -> pa.Table:
    """Probabilities as a table; see ``predict``.

    Args:
        p_NC: the probabilities.
        classes: their names.
        threshold: the least probability of a class in a set; None without sets.
        beside: further columns.
        second: the second of two classes is predicted above this probability, where there are no sets.
    """
    names = pa.array(classes, pa.string())
    most_likely = second == HALF or threshold is not None  # the class of a set with one class is the most likely
    label = names.take(pa.array((p_NC.argmax(1) if most_likely else (p_NC[:, 1] > second).long()).numpy()))
    columns = _beside(beside, (_LABEL, "set", *(f"p_{name}" for name in classes)))
    if threshold is not None:
        inside_NC = p_NC >= threshold
        sets = ["|".join(c for c, ok in zip(classes, row, strict=True) if ok) for row in inside_NC.tolist()]
        label = pa.compute.if_else(pa.array((inside_NC.sum(1) == 1).numpy()), label, pa.scalar(None, pa.string()))
        columns["set"] = pa.array(sets, pa.string())
    columns = {**columns, _LABEL: label}
    columns |= {f"p_{name}": pa.array(p_NC[:, k].numpy()) for k, name in enumerate(classes)}
    return pa.table(columns)


def number_table(value_ND: Tensor, about: About, half_D: Sequence[float] | None, beside: pd.DataFrame) -> pa.Table:
    """Numbers as a table; see ``predict``."""
    names = {target.name for target in about.targets}
    columns: dict[str, pa.Array] = {}
    for d, target in enumerate(about.targets):
        value_N = value_ND[:, d].numpy()
        beyond = {}
        if about.site is not None and about.site.errors:
            beyond["std"] = np.full(len(value_N), about.site.errors[d].std)
        if half_D is not None:
            beyond |= {"low": value_N - half_D[d], "high": value_N + half_D[d]}
        columns[target.name] = pa.array(value_N)
        for what, number_N in beyond.items():
            plain = f"{target.name}_{what}"
            columns[f"{what} of {target.name}" if plain in names else plain] = pa.array(number_N)
    return pa.table(_beside(beside, tuple(columns)) | columns)


def _beside(beside: pd.DataFrame, taken: Sequence[str]) -> dict[str, pa.Array]:
    """Rows' numbers, if they have some, and columns of the data, with other names where these are taken."""
    columns = {str(c): _array(beside[c]) for c in beside}
    rows = {ROW: pa.array(beside.index.to_numpy())} if beside.index.name == ROW else {}
    for name in (*taken, *rows):
        if name in columns:
            columns[f"{name} of the data"] = columns.pop(name)
    return rows | columns


def threshold_of(about: About, level: float) -> float:
    """The least probability that a class needs to be in a set at this level.

    Split conformal prediction: with s_i the probability of the right class of the site's own samples, each by a model
    made without it, the threshold is the k-th least of them, k = floor((n + 1) (1 - level)); 0 where k is 0, so that
    every class is in every set.

    Where samples belong to groups, each group counts alike, and so do its samples: the threshold is the largest score
    such that the weights of those below it, with 1 / (G + 1) for a group that is not known, are at most 1 - level.

    Source: Sadinle, Lei & Wasserman, Least Ambiguous Set-Valued Classifiers, JASA 2019; with the scores of all folds in
    place of one split, as in cross-conformal prediction (Vovk, 2015), whose guarantee is 1 - 2 (1 - level). Of groups:
    Lee, Barber & Willett, Distribution-free inference with hierarchical data, 2023.

    Raises:
        InputError: the level is not between 0 and 1, or the bundle has no scores.
    """
    if not 0 < level < 1:
        raise InputError(f"level={level:g} is not between 0 and 1: give the share of sets that hold the right class")
    site = about.site
    if site is None or not site.scores:
        raise InputError(
            "this bundle was made without samples, which a level needs: join with it first, or leave it out"
        )
    scores = sorted(site.scores)
    if not site.score_weights:
        k = math.floor((len(scores) + 1) * (1 - level) + 1e-9)
        return scores[k - 1] if k else 0.0
    below = 1 - math.fsum(site.score_weights)
    threshold = 0.0
    for score, weight in zip(scores, site.score_weights, strict=True):
        if below > 1 - level + 1e-9:
            break
        threshold, below = score, below + weight
    return threshold


def _write(out: Path, tables: Iterator[pa.Table]) -> None:
    """Write tables with the columns of the first into one file, whole or not at all."""
    first = next(tables, None)
    if first is None:
        raise InputError("there are no samples to predict: give some")
    first = first.cast(pa.schema([f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in first.schema]))
    # Probabilities hardly repeat: to look for repeated ones takes longer than to write them.
    repeated = [f.name for f in first.schema if not pa.types.is_floating(f.type) and f.name != ROW]
    parquet = partial(pq.ParquetWriter, use_dictionary=repeated)
    kind = parquet if out.suffix.lower() == ".parquet" else pyarrow.csv.CSVWriter
    with files.drafted(out) as file, kind(file, first.schema) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(_like(table, first.schema))


def _like(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A later table with the columns of the first, empty where it has none.

    Raises:
        InputError: a column has values of another kind, or is not in the first.
    """
    if extra := [name for name in table.column_names if name not in schema.names]:
        raise InputError(
            f"column {extra[0]!r} is not in the first of the files: add it there, or leave it out of the others"
        )
    columns = []
    for field in schema:
        if field.name not in table.column_names or table.column(field.name).null_count == len(table):
            columns.append(pa.nulls(len(table), field.type))
            continue
        column = table.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException:
            raise InputError(
                f"column {field.name!r} has {_kind(column.type)} further down, and {_kind(field.type)} in the first "
                "rows: write them alike, or leave the column out"
            ) from None
    return pa.table(columns, schema=schema)


def _kind(type: pa.DataType) -> str:
    """What is in a column of this type, in words."""
    if pa.types.is_dictionary(type):
        return _kind(type.value_type)
    if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type):
        return "numbers"
    return "texts" if pa.types.is_string(type) or pa.types.is_large_string(type) else "other values"


def _array(values: pd.Series[Any]) -> pa.Array:
    """A column of the data; where it has values of several kinds, as texts."""
    try:
        array = pa.array(values, from_pandas=True)
    except pa.ArrowException:
        array = pa.array(values.map(str, na_action="ignore"), from_pandas=True)
    return pa.nulls(len(array)) if array.null_count == len(array) else array
