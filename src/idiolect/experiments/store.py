"""A run's folder: the study, the manifest, and per method and seed a cell with its records and its checkpoint."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from idiolect import files
from idiolect.engines import Record, State
from idiolect.engines.checkpoint import load, save
from idiolect.errors import InputError
from idiolect.experiments.study import Study

RECORDS = pa.schema(
    [
        ("study", pa.string()), ("method", pa.string()), ("seed", pa.int64()), ("round", pa.int64()), ("client", pa.int64()),
        ("moment", pa.string()), ("metric", pa.string()), ("value", pa.float64()),
    ]  # fmt: skip
)
TIMINGS = pa.schema([("method", pa.string()), ("seed", pa.int64()), ("round", pa.int64()), ("seconds", pa.float64())])


class Cell:
    """One method with one seed: what it has recorded, and how far it has come on disk."""

    def __init__(self, folder: Path, study: str, label: str, seed: int) -> None:
        self.folder = folder / "cells" / f"{re.sub(r'[^A-Za-z0-9._=,-]', '_', label)}-seed{seed}"
        self._about = {"study": study, "method": label, "seed": seed}
        self._records: list[Record] = []
        self._seconds: list[float] = []

    def add(self, records: list[Record], seconds: float) -> None:
        """Take one round's records and its wall time."""
        self._records += records
        self._seconds.append(seconds)

    def save(self, state: State) -> None:
        """Put everything so far on disk. The checkpoint comes last: what is ahead of it is dropped by ``load``."""
        columns = dict(zip(Record._fields, zip(*self._records, strict=True), strict=True)) if self._records else {}
        self._write("records.parquet", RECORDS, columns, len(self._records))
        rounds = {"round": range(1, len(self._seconds) + 1), "seconds": self._seconds}
        self._write("timings.parquet", TIMINGS, rounds, len(self._seconds))
        save(state, self.folder / "checkpoint.safetensors")

    def _write(self, name: str, schema: pa.Schema, columns: dict[str, Any], count: int) -> None:
        about = {k: [v] * count for k, v in self._about.items() if k in schema.names}
        empty: dict[str, Any] = {name: [] for name in schema.names}
        table = pa.table({name: (empty | about | columns)[name] for name in schema.names}, schema=schema)
        files.write(self.folder / name, _bytes(table))

    def load(self, start: State) -> State:
        """The state last saved, or ``start``; records and times ahead of it are forgotten."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return start
        state = load(path, start)
        records = _read(self.folder / "records.parquet").to_pylist()
        self._records = [Record(*(r[f] for f in Record._fields)) for r in records if r["round"] <= state.round]
        self._seconds = [r["seconds"] for r in _read(self.folder / "timings.parquet").to_pylist()][: state.round]
        return state


class Store:
    """The folder of one run.

    Raises:
        InputError: the folder exists and is not to be resumed, or holds another study or other data.
    """

    def __init__(self, folder: Path, study: Study, manifest: dict[str, Any], *, resume: bool) -> None:
        self.folder, self.study = folder, study
        started = (folder / "study.yaml").exists()
        if started and resume:
            self._same(manifest)
        elif folder.exists() and (not folder.is_dir() or any(not p.name.startswith(".") for p in folder.iterdir())) and not resume:
            raise InputError(f"{folder} exists: choose another --out, or continue the run in it with --resume")
        else:
            files.write(folder / "manifest.json", json.dumps(manifest, indent=1))
            files.write(folder / "study.yaml", study.to_yaml())

    def _same(self, manifest: dict[str, Any]) -> None:
        there = Study.read(self.folder / "study.yaml")
        old, new = there.model_dump(exclude={"name", "data_dir"}), self.study.model_dump(exclude={"name", "data_dir"})
        if (differs := next((k for k in new if old[k] != new[k]), None)) is not None:
            raise InputError(
                f"{self.folder} holds another study ({differs}: {_brief(old[differs])} there, {_brief(new[differs])} here): "
                "choose another --out, or resume it without other settings"
            )
        if json.loads((self.folder / "manifest.json").read_text())["hash"] != manifest["hash"]:
            raise InputError(f"the data have changed since the run in {self.folder} was started: choose another --out")

    def cell(self, label: str, seed: int) -> Cell:
        """The cell of a method and a seed."""
        return Cell(self.folder, self.study.name, label, seed)

    def merge(self) -> None:
        """Join the cells' records into the run's, in the order of the study."""
        cells = [self.cell(u.label, seed).folder for u in self.study.methods for seed in self.study.seeds]
        for name, schema in (("records.parquet", RECORDS), ("timings.parquet", TIMINGS)):
            tables = [_read(c / name) for c in cells if (c / name).exists()]
            files.write(self.folder / name, _bytes(pa.concat_tables([schema.empty_table(), *tables])))


def _bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is not readable ({error}): delete its folder to run this part again") from error


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
