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
    "label": pa.int64(),
}  # fmt: skip


class ClientPredictions(NamedTuple):
    """The predictions of a client's test samples: N of them, C classes."""

    stage: str
    client: int
    label_N: NDArray[np.int64]
    p_NC: NDArray[np.float64]


def probability(number: int) -> str:
    """The name of a class's column."""
    return f"probability[{number}]"


def save(folder: Path, method: str, seed: int, clients: Sequence[ClientPredictions], mode: int = 0o666) -> None:
    """Write the predictions of a method with a seed into its folder; a sample is numbered within its client.

    A new file gets ``mode``.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    clients = sorted(clients, key=lambda f: f.client)
    count = [len(f.label_N) for f in clients]
    p_RC = np.concatenate([f.p_NC for f in clients])
    columns: dict[str, Any] = {
        "method": [method] * sum(count),
        "seed": np.full(sum(count), seed),
        "client": np.repeat([f.client for f in clients], count),
        "stage": [f.stage for f in clients for _ in f.label_N],
        "sample": np.concatenate([np.arange(n) for n in count]),
        "label": np.concatenate([f.label_N for f in clients]),
    }
    columns |= {probability(c): p_C for c, p_C in enumerate(p_RC.T)}
    _write(folder / PREDICTIONS_FILE, pa.table(columns, schema=_schema(p_RC.shape[1])), mode)


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

    Raises:
        InputError: it is missing or cannot be read.
    """
    if not (run / PREDICTIONS_FILE).exists():
        raise InputError(f"{run} has no {PREDICTIONS_FILE}: run a study with save_predictions to its end")
    return _read(run / PREDICTIONS_FILE, "resume the run, which writes it again")


def _schema(classes: int) -> pa.Schema:
    return pa.schema(_KEYS | {probability(c): pa.float64() for c in range(classes)})


def _write(path: Path, table: pa.Table, mode: int = 0o666) -> None:
    buffer = io.BytesIO()
    pq.write_table(table.combine_chunks().replace_schema_metadata({"seal": files.UNSEALED}), buffer)
    files.write(path, files.sealed(buffer.getvalue()), mode)


def _read(path: Path, fix: str) -> pa.Table:
    try:
        table = read_table(path)
        schema = _schema(max(1, len(table.column_names) - len(_KEYS)))
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path} cannot be read ({reason}): restore it, or {fix}") from None
