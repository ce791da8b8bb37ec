"""The runs that a cell of a table needs: one of each method and seed, in a folder named after what it computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from idiolect import report
from idiolect.core.errors import InputError, option
from idiolect.reproduction.recipes import Cell
from idiolect.runs import checkpoint
from idiolect.runs.folder import CHECKPOINT_FILE, STUDY_FILE, files_of_cells, has_run
from idiolect.runs.store import difference, joined_rounds, settings_of_numbers
from idiolect.studies.config import Study
from idiolect.studies.method_use import label_of


def digest(study: Study) -> str:
    """A name for what a study computes: the same for studies that differ only in their names.

    Settings and options with default values do not count, so a new setting does not change the name. Another check
    shows whether a folder of this name really has this study.
    """
    usual = Study.model_construct(methods=()).model_dump(exclude={"name", "methods"})
    settings_of_study = settings_of_numbers(study) | {"protocol": study.protocol.model_dump(exclude_defaults=True)}
    settings = {k: v for k, v in settings_of_study.items() if k in usual and v != usual[k]}
    uses = [label_of(u.name, u.options, u.settings) for u in study.methods]
    text = json.dumps(_plain([settings, uses]), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def stem(study: Study) -> str:
    """What the name of a run's folder begins with: its data and its one method."""
    return f"{study.dataset or study.name.replace(' ', '_')}-{study.methods[0].name}"


def _plain(value: Any) -> Any:
    """Whole numbers as integers, so that 20 and 20.0 are the same."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class SeedRun(NamedTuple):
    """One run: a method with a seed."""

    study: Study
    folder: Path

    @property
    def done(self) -> int:
        """Rounds on disk.

        Raises:
            InputError: the folder has another study, for example from a version with other defaults.
        """
        if has_run(self.folder) and (
            differs := difference(
                settings_of_numbers(Study.look(self.folder / STUDY_FILE)), settings_of_numbers(self.study)
            )
        ):
            raise InputError(
                f"{self.folder} has another study ({differs}): move it away, or choose another with {option('out')}"
            )
        return max(map(checkpoint.rounds, files_of_cells(self.folder, CHECKPOINT_FILE)), default=0)

    @property
    def complete(self) -> bool:
        """Whether all rounds are on disk and their numbers are in the run's records, which are joined last.

        Raises:
            InputError: as ``done``.
        """
        return min(self.done, joined_rounds(self.folder)) >= self.study.rounds


def seed_runs(cell: Cell, out: Path, *, rounds: int | None = None, seeds: Sequence[int] = (0,)) -> list[SeedRun]:
    """The runs of a cell, one for each seed; none where it needs no training, or its settings are yet to be chosen."""
    if cell.study is None or cell.is_open:
        return []
    more = {} if rounds is None else {"rounds": rounds}
    runs = []
    for seed in seeds:
        study = cell.study.model_copy(update={"seeds": (seed,), **more})
        runs.append(SeedRun(study, out / f"{stem(study)}-{digest(study)}"))
    return runs


def divergence_message(folder: Path) -> str | None:
    """The message of a run in this folder whose training diverged, if it did.

    Raises:
        InputError: the file about it cannot be read.
    """
    return next((divergence.said for divergence in report.divergences(folder)), None)
