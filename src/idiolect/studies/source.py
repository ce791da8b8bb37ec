"""The samples of a study before they are divided among clients."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING

from idiolect import data
from idiolect.core.errors import InputError, listed
from idiolect.core.files import about_backslashes, expanded
from idiolect.data import Source
from idiolect.studies.backbones import encoder_of
from idiolect.studies.settings import OWN_DATA

if TYPE_CHECKING:
    from idiolect.studies.config import Study

OBJECT = "given: "
"""In a file, starts the text for an object that was given in Python."""

_READERS = ("from_frame", "from_dataset", "open_data", "from_arrays")
_OF_ARRAYS = {"client_column": "clients", "group_column": "groups"}  # what from_arrays calls them


def check_reading(study: Study) -> None:
    """Check that settings that say how data are read are given only where the study reads the user's own.

    Raises:
        ValueError: the data are a set by name, or a ``Source``, which is read already.
    """
    given = [name for name in OWN_DATA if getattr(study, name)]
    if study.data is None:
        of_set = given == ["client_column"] and study.client_column in data.describe(str(study.dataset))["columns"]
        if given and not of_set:
            raise ValueError(f"{given[0]} is for your own data: give data too, or leave {given[0]} out")
    elif given and isinstance(study.data, Source):
        *others, last = [f"data.{r}" for r in _READERS if set(given) <= set(signature(getattr(data, r)).parameters)]
        readers = f"{', '.join(others)} or {last}" if others else last
        arrays = listed(f"{name} as {_OF_ARRAYS[name]}" for name in given if name in _OF_ARRAYS)
        them = "it" if len(given) == 1 else "them"
        raise ValueError(
            f"{listed(given)} would change nothing, because data is a Source, which is read already: leave {them} out "
            f"here and give {them} to {readers}{'' if arrays == 'none' else f'; data.from_arrays takes {arrays}'}"
        )


def source_of(study: Study) -> Source:
    """The samples that a study names: the user's own, or a data set by name.

    Raises:
        InputError: there is nothing of the kind, or it cannot be read.
    """
    if isinstance(study.data, Source):
        return study.data
    if study.data is not None:
        if study.data.startswith(OBJECT):
            raise InputError(f"data {study.data}: they were given in a Python program: run the study from there")
        tokens = encoder_of(study)
        return data.open_data(
            study.data, target=study.target, client_column=study.client_column, group_column=study.group_column,
            drop=study.drop, resize=study.resize,
            task=study.task, text=study.text, tokens=tokens, max_tokens=study.max_tokens,
            header=study.header, columns=study.columns, missing=study.missing, unlabelled=study.unlabelled,
            categorical=study.categorical, layout=study.layout,
        )  # fmt: skip
    folder = None if study.data_dir is None else expanded(study.data_dir)
    if folder and not folder.is_dir():
        fix = about_backslashes(folder) or f"leave it out to download {study.dataset} by name"
        raise InputError(f"data_dir={study.data_dir}: there is no such folder; {fix}")
    return data.load(str(study.dataset), folder)
