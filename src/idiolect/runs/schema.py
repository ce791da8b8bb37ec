"""The tables of a run folder, and what a study must provide to have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa

from idiolect.core import files
from idiolect.core.arrow_tables import open_parquet, read_parquet

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

    Raises:
        OSError: there is no such file, or it is not a regular file.
        ValueError: it has changed since it was sealed, or it is not parquet.
    """
    return read_parquet(open_parquet(pa.py_buffer(files.read(path)))).replace_schema_metadata(None)


class NamedMethod(Protocol):
    """One method of a study."""

    @property
    def label(self) -> str:
        """Its label, which differs from those of the study's other methods."""


class StudyFile(Protocol):
    """The parts of a study that its folder needs."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def methods(self) -> Sequence[NamedMethod]:
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
