"""What stands in a run folder, and what a study must tell of itself to have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self


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
