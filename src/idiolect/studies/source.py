"""The samples of a study before they are divided among clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idiolect import data
from idiolect.core.errors import InputError
from idiolect.core.files import about_backslashes, expanded
from idiolect.data import Source
from idiolect.studies.backbones import encoder_of

if TYPE_CHECKING:
    from idiolect.studies.config import Study

OBJECT = "given: "
"""In a file, starts the text for an object that was given in Python."""


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
