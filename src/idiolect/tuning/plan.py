"""What a search is, beside the study: the ranges, and how many trials of which kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from idiolect.core import files
from idiolect.core.documents import read_yaml
from idiolect.core.errors import InputError, brief
from idiolect.core.option_spec import lower
from idiolect.runs.folder import elsewhere
from idiolect.runs.store import difference, settings_of_numbers
from idiolect.studies import Study
from idiolect.tuning.space import spaces, written

STUDY_FILE, PLAN_FILE = "base.yaml", "search.yaml"
"""The study that is tuned, and how; a run's folder has a file ``study.yaml``."""


class Plan(BaseModel):
    """How a study is tuned.

    Attributes:
        search: ranges, as texts, by the name of an option or setting.
        trials: of each method.
        sampler: what proposes the later half of the trials.
        halving: one in so many trials goes on from each rung; 1: all train to the end.
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
        """Check that the trials suffice for what is searched.

        Raises:
            InputError: a range is wrong, or a method has more settings to search than trials.
        """
        for label, space in spaces(study, self.search).items():
            if len(space) > self.trials:
                what = f"{self.trials} trial{'s' * (self.trials > 1)} for {len(space)} settings of {label}"
                raise InputError(f"{what} ({', '.join(space)}): give more trials, or search fewer settings")


def write(folder: Path, study: Study, plan: Plan) -> None:
    """Write what is searched into the folder of a search.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    files.write(folder / STUDY_FILE, study.to_yaml())
    files.write(folder / PLAN_FILE, yaml.safe_dump(plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def has_search(folder: Path) -> bool:
    """Whether a folder has a search that has begun."""
    return (folder / PLAN_FILE).exists()


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
    """Check that the folder has this search.

    Raises:
        InputError: it has another one.
    """
    there, before = read(folder), Study.look(folder / STUDY_FILE)
    differs = difference(settings_of_numbers(before), settings_of_numbers(study)) or difference(
        there.model_dump(), plan.model_dump()
    )
    if differs:
        raise InputError(f"{folder} has another search ({differs}): {elsewhere()}, or resume with the same settings")


def texts(search: Mapping[str, Any] | str) -> dict[str, str]:
    """The ranges of a search as texts; ``default`` alone stands for what methods declare.

    Raises:
        InputError: a range cannot be read.
    """
    return {search: ""} if isinstance(search, str) else written(search)
