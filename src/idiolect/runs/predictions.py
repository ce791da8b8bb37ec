"""Predictions of test samples: a table for each method and seed, and ``predictions.parquet`` with all of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from idiolect.core import files
from idiolect.core.errors import InputError
from idiolect.runs.folder import PREDICTIONS_FILE
from idiolect.runs.schema import read_table

_KEYS = {
    "method": pa.string(), "seed": pa.int64(), "client": pa.int64(), "stage": pa.string(), "sample": pa.int64(),
}  # fmt: skip
LABEL = "label"


class ClientPredictions(NamedTuple):
    """The predictions of a client's test samples: N of them, C classes or D numbers or labels."""

    stage: str
    client: int
    truth_N: NDArray[np.int64] | NDArray[np.float64]
    """Labels (N,), or numbers (N, D), or for each of D labels 0 or 1."""
    p_NC: NDArray[np.float64]
    """Class probabilities, or numbers (N, D), or probabilities of labels."""


def probability(number: int) -> str:
    """The name of a class's column."""
    return f"probability[{number}]"


def truth(number: int) -> str:
    """The name of a number's column."""
    return f"target[{number}]"


def prediction(number: int) -> str:
    """The name of the column of what was predicted of a number."""
    return f"prediction[{number}]"


def save(folder: Path, method: str, seed: int, clients: Sequence[ClientPredictions], mode: int = 0o666) -> None:
    """Write the predictions of a method with a seed into its folder; a sample is numbered within its client.

    A new file gets ``mode``.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    clients = sorted(clients, key=lambda f: f.client)
    count = [len(f.truth_N) for f in clients]
    truth_R, p_RC = np.concatenate([f.truth_N for f in clients]), np.concatenate([f.p_NC for f in clients])
    columns: dict[str, Any] = {
        "method": [method] * sum(count),
        "seed": np.full(sum(count), seed),
        "client": np.repeat([f.client for f in clients], count),
        "stage": [f.stage for f in clients for _ in f.truth_N],
        "sample": np.concatenate([np.arange(n) for n in count]),
    }
    if truth_R.ndim == 1:
        columns |= {LABEL: truth_R} | {probability(c): p_R for c, p_R in enumerate(p_RC.T)}
        schema = _of_classes(p_RC.shape[1])
    else:
        for d, (number_R, p_R) in enumerate(zip(truth_R.T, p_RC.T, strict=True)):
            columns |= {truth(d): number_R, prediction(d): p_R}
        schema = _of_numbers(p_RC.shape[1])
    _write(folder / PREDICTIONS_FILE, pa.table(columns, schema=schema), mode)


def merge(run: Path, folders: Iterable[Path]) -> None:
    """Write the run's table from those of its methods and seeds, in this order; if there are none, nothing is written.

    Raises:
        InputError: one is missing or cannot be read.
        RunError: the disk is full or the folder cannot be written.
    """
    if tables := [_read(folder / PREDICTIONS_FILE, "delete its folder to run this part again") for folder in folders]:
        _write(run / PREDICTIONS_FILE, pa.concat_tables(tables))


def read(run: Path) -> pa.Table:
    """The table of a run: ``method``, ``seed``, ``client``, ``stage``, ``sample``, ``label``, ``probability[c]``.

    Where numbers are predicted, ``target[d]`` and ``prediction[d]`` of each take the place of the last two; of several
    labels they are 0 or 1, and a probability.

    Raises:
        InputError: it is missing or cannot be read.
    """
    if not (run / PREDICTIONS_FILE).exists():
        raise InputError(f"{run} has no {PREDICTIONS_FILE}: run a study with save_predictions to its end")
    return _read(run / PREDICTIONS_FILE, "resume the run, which writes it again")


def _of_classes(classes: int) -> pa.Schema:
    return pa.schema(_KEYS | {LABEL: pa.int64()} | {probability(c): pa.float64() for c in range(classes)})


def _of_numbers(count: int) -> pa.Schema:
    return pa.schema(_KEYS | {name(d): pa.float64() for d in range(count) for name in (truth, prediction)})


def _write(path: Path, table: pa.Table, mode: int = 0o666) -> None:
    buffer = io.BytesIO()
    pq.write_table(table.combine_chunks().replace_schema_metadata({"seal": files.UNSEALED}), buffer)
    files.write(path, files.sealed(buffer.getvalue()), mode)


def _read(path: Path, fix: str) -> pa.Table:
    try:
        table = read_table(path)
        rest = len(table.column_names) - len(_KEYS)
        schema = _of_classes(max(1, rest - 1)) if LABEL in table.column_names else _of_numbers(max(1, rest // 2))
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read ({reason}): restore it, or {fix}") from None
