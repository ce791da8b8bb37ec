"""What stands in a run folder, and what a study must tell of itself to have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

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
"""Of ``records.parquet``: see ``idiolect.simulation.rounds.Record``."""
TIMINGS = pa.schema({"method": pa.string(), "seed": pa.int64(), "round": pa.int64(), "seconds": pa.float64()})
"""Of ``timings.parquet``."""


def renamed(table: pa.Table) -> pa.Table:
    """A table of records with today's names and columns, as run folders of before are still read."""
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
    """A table with the column ``other``, which was once spelled into the server's metrics, as ``combination[12]``."""
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
        """What tells it from the study's other methods."""


class Written(Protocol):
    """A study, as far as its folder goes."""

    @property
    def name(self) -> str:
        """What it is called."""

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
            InputError: it holds none.
        """

    def to_yaml(self) -> str:
        """As it is written."""

    def model_dump(self, *, exclude: set[str]) -> dict[str, Any]:
        """Its settings, but for some."""

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same study with other settings."""
