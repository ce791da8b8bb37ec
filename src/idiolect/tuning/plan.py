"""What a search is, beside the study: the ranges, and how many trials of which kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from idiolect.core import files
from idiolect.core.documents import read_json, read_yaml, sealed_json
from idiolect.core.errors import InputError, brief, option
from idiolect.core.option_spec import lower
from idiolect.runs.folder import MANIFEST_FILE, SEARCH_FILE, elsewhere
from idiolect.runs.store import difference, settings_of_numbers
from idiolect.studies import Study
from idiolect.tuning.space import spaces, written

STUDY_FILE, PLAN_FILE = "base.yaml", SEARCH_FILE
"""The study that is tuned, and how; a run's folder has a file ``study.yaml``."""


class Plan(BaseModel):
    """How a study is tuned.

    Attributes:
        search: ranges, as texts, by the name of an option or setting.
        trials: of each method.
        sampler: what proposes the later half of the trials.
        halving: one in so many trials goes on after the first cut; 1: all.
        seed: of the training of trials, and of what they try.
        validation: share of each client's training samples that the choice is made on.
        refit: whether the tuned study is run afterwards, on training and validation samples together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    search: dict[str, str]
    trials: PositiveInt
    sampler: str
    halving: Annotated[int, Field(ge=1, le=100)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    validation: Annotated[float, Field(gt=0, lt=1)]
    refit: bool

    @classmethod
    def of(cls, **settings: Any) -> Plan:
        """A plan, checked.

        Raises:
            InputError: a setting is out of range.
        """
        try:
            return cls(**settings)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{where}={brief(first['input'])} is not valid: {lower(first['msg'])}") from None

    def check(self, study: Study) -> None:
        """Check that the trials suffice for what is searched, and that the study can be refitted if it shall be.

        Raises:
            InputError: a range is wrong, a method has more settings to search than trials, or a refit has no samples to
                choose a threshold on.
        """
        if self.refit and (how := study.protocol.threshold) != "half":
            fit = option("refit", True)
            raise InputError(
                f"{fit} trains on all training samples, and threshold={how} is chosen on samples that are not trained "
                f"on: leave out {fit} and run tuned.yaml after the search, or leave threshold out"
            )
        for label, space in spaces(study, self.search).items():
            if len(space) > self.trials:
                what = f"{self.trials} trial{'s' * (self.trials > 1)} for {len(space)} settings of {label}"
                raise InputError(f"{what} ({', '.join(space)}): give more trials, or search fewer settings")


def write(folder: Path, study: Study, plan: Plan) -> None:
    """Write what is searched into the folder of a search.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    texts = {
        STUDY_FILE: study.to_yaml(),
        PLAN_FILE: yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
    }
    files.write(folder / MANIFEST_FILE, sealed_json({name: _digest(text.encode()) for name, text in texts.items()}))
    for name, text in texts.items():
        files.write(folder / name, text)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digests(content: bytes) -> list[str]:
    """The digests of a file with and without a refit, of which ``write`` may have been cut off between two files."""
    yes, no = b"\nrefit: true\n", b"\nrefit: false\n"
    return [_digest(content), _digest(content.replace(yes, no)), _digest(content.replace(no, yes))]


def has_search(folder: Path) -> bool:
    """Whether a folder has a search that has begun."""
    return (folder / PLAN_FILE).exists()


def has_hardly_begun(folder: Path) -> bool:
    """Whether a folder has only what a search leaves that was killed at its very start."""
    return {path.name for path in folder.iterdir() if path.name[0] != "."} <= {MANIFEST_FILE, STUDY_FILE}


def read(folder: Path) -> Plan:
    """The plan in the folder of a search.

    Raises:
        InputError: there is none, or it is broken.
    """
    path = folder / PLAN_FILE
    try:
        content = read_yaml(path)
        return Plan(**content)
    except FileNotFoundError:
        raise InputError(f"{folder} has no search: give the folder of one") from None
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read ({reason}): restore it, or choose another folder") from None


def same(folder: Path, study: Study, plan: Plan) -> None:
    """Check that the folder has this search, with or without a refit.

    Raises:
        InputError: it has another one.
    """
    unchanged(folder)
    there, before = read(folder), Study.look(folder / STUDY_FILE)
    differs = difference(settings_of_numbers(before), settings_of_numbers(study)) or difference(
        there.model_dump(exclude={"refit"}), plan.model_dump(exclude={"refit"})
    )
    if differs:
        raise InputError(f"{folder} has another search ({differs}): {elsewhere()}, or resume with the same settings")


def unchanged(folder: Path) -> None:
    """Check that nobody has edited the study or the plan of a search.

    Raises:
        InputError: somebody has.
    """
    path = folder / MANIFEST_FILE
    try:
        beginning = read_json(path)
        edited = [
            name for name in (STUDY_FILE, PLAN_FILE) if beginning[name] not in _digests(files.read(folder / name))
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is missing or broken ({reason}): restore it, or choose another folder") from None
    if edited:
        what = f"{folder / edited[0]} has changed since the search began"
        raise InputError(f"{what}: undo this change, or {elsewhere()}")


def texts(search: Mapping[str, Any] | str) -> dict[str, str]:
    """The ranges of a search as texts; ``default`` alone stands for what methods declare.

    Raises:
        InputError: a range cannot be read.
    """
    return {search: ""} if isinstance(search, str) else written(search)
