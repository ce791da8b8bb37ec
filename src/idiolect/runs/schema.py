"""The tables of a run folder, and what a study must provide to have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from idiolect.core import files
from idiolect.core.evaluation_protocol import OLD_STAGES

RECORDS = pa.schema(
    {
        "study": pa.string(),
        "method": pa.string(),
        "seed": pa.int64(),
        "round": pa.int64(),
        "client": pa.int64(),
        "stage": pa.string(),
        "metric": pa.string(),
        "value": pa.float64(),
        "other": pa.int64(),
    }
)
"""The columns of ``records.parquet``: see ``idiolect.simulation.interfaces.Record``."""
TIMINGS = pa.schema({"method": pa.string(), "seed": pa.int64(), "round": pa.int64(), "seconds": pa.float64()})
"""The columns of ``timings.parquet``."""


def read_table(path: Path) -> pa.Table:
    """A table of a run folder, without its seal, of one version of a file that another job may replace.

    It is read in this thread alone: Arrow's own threads may still hold what they read when Python ends, and abort the
    process. So did 10 % of the processes that read ``io.BytesIO`` with ``pyarrow.parquet.read_table`` and ended.

    Raises:
        OSError: there is no such file, or it is not a regular file.
        ValueError: it has changed since it was sealed, or it is not parquet.
    """
    return pq.ParquetFile(pa.BufferReader(files.read(path))).read(use_threads=False).replace_schema_metadata(None)


def renamed(table: pa.Table) -> pa.Table:
    """A table of records with today's names and columns, so that older run folders can be read."""
    if "moment" in table.column_names:
        table = table.rename_columns(["stage" if name == "moment" else name for name in table.column_names])
        stage = table["stage"].cast(pa.string())
        for old, new in OLD_STAGES.items():
            stage = pc.if_else(pc.equal(stage, old), new, stage)
        table = table.set_column(table.column_names.index("stage"), "stage", stage)
    if {"stage", "metric"} <= set(table.column_names) and "other" not in table.column_names:
        table = _with_other(table)
    return table


def _with_other(table: pa.Table) -> pa.Table:
    """A table with the column ``other``, which was once a part of the server's metrics, as in ``combination[12]``."""
    stage, metric = (table[name].cast(pa.string()) for name in ("stage", "metric"))
    parts = pc.extract_regex(metric, r"^(?P<metric>.+)\[(?P<other>\d+)\]$")
    pair = pc.and_(pc.equal(stage, "server"), pc.is_valid(parts))
    other = pc.if_else(pair, pc.struct_field(parts, "other"), None).cast(pa.int64())
    metric = pc.if_else(pair, pc.struct_field(parts, "metric"), metric)
    return table.set_column(table.column_names.index("metric"), "metric", metric).append_column("other", other)


class Named(Protocol):
    """One method of a study."""

    @property
    def label(self) -> str:
        """Its label, which differs from those of the study's other methods."""


class Written(Protocol):
    """The parts of a study that its folder needs."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def methods(self) -> Sequence[Named]:
        """Its methods, in order."""

    @property
    def seeds(self) -> Sequence[int]:
        """Its seeds, in order."""

    @classmethod
    def look(cls, path: Path) -> Self:
        """The study that a file holds.

        Raises:
            InputError: there is none.
        """

    def to_yaml(self) -> str:
        """Its text, as it is written into a file."""

    def model_dump(self, *, exclude: set[str]) -> dict[str, Any]:
        """Its settings, without some."""

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same study with other settings."""
