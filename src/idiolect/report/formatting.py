"""Specs in words, and names of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from idiolect.core.defaults import USUAL_PARTITION
from idiolect.core.errors import InputError
from idiolect.core.objectives import TaskName
from idiolect.core.option_spec import Spec

_AGAIN = "official splits divided again"


def plain(text: object) -> str:
    """A spec in words; options that are off are left out.

    >>> plain("dirichlet:alpha=0.3,min_rows=5"), plain("digits")
    ('dirichlet (alpha 0.3, min_rows 5)', 'digits')
    """
    spec = _parse(text)
    if isinstance(spec, str):
        return spec
    options = ", ".join(k if v is True else f"{k} {v}" for k, v in spec.options.items() if v is not False)
    return f"{spec.name} ({options})" if options else spec.name


def divided(partition: object, by_user: bool, official: bool | None = None, task: TaskName = "classification") -> str:
    """How samples were divided, in words; if the study did not say it, what followed from its data.

    ``official``: whether an official test split was kept; None if there was none. ``task``: what is learnt.

    >>> divided(None, True), divided("iid", True)
    ('natural', 'iid')
    >>> divided(None, False)
    'dirichlet (alpha 0.3), because the data have no clients'
    >>> divided(None, False, task="regression")
    'iid, because the data have no clients'
    >>> divided("natural:test_fraction=0.2,stratified=false", True, official=True)
    'natural, official test split'
    >>> divided("natural:test_fraction=0.2,official_split=false", True, official=False)
    'natural (test_fraction 0.2), official splits divided again'
    """
    if partition is None and not by_user:
        usual = USUAL_PARTITION if task == "classification" else "iid"
        words = plain(usual) + ", because the data have no clients"
    else:
        spec = _parse(partition or "natural")
        if isinstance(spec, Spec) and official is not None:
            implied = {"official_split", *(("test_fraction", "stratified") if official else ())}
            spec = Spec(name=spec.name, options={k: v for k, v in spec.options.items() if k not in implied})
        words = plain(spec)
    return words + ("" if official is None else f", {'official test split' if official else _AGAIN}")


def official_words(manifest: Mapping[str, Any]) -> str:
    """A sentence about which test samples a run's clients have, if its data have an official test split.

    >>> official_words({}), official_words({"official_split": True}), official_words({"official_split": False})
    ('', 'Tested on the official test split.', 'Official splits divided again.')
    """
    official = manifest.get("official_split")
    if official is None:
        return ""
    return "Tested on the official test split." if official else f"{_AGAIN.capitalize()}."


@lru_cache(maxsize=1024)
def short(text: str) -> str:
    """A shift in few words, short enough for an axis.

    >>> short("rotate:degrees=90"), short("")
    ('rotate 90', '')
    """
    spec = _parse(text)
    if isinstance(spec, str):
        return spec
    return " ".join([spec.name, *(str(v) for v in spec.options.values() if v is not False)])


def capital(text: str) -> str:
    """A text with a capital first letter, the others as they are.

    >>> capital("weights of pFedFDA"), capital("")
    ('Weights of pFedFDA', '')
    """
    return text[:1].upper() + text[1:]


def file_name(text: str) -> str:
    """A text as a part of the name of a file.

    >>> file_name("my run/../2")
    'my-run-..-2'
    """
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-")


def _parse(value: object) -> Spec | str:
    try:
        return Spec.model_validate(value)
    except (InputError, ValueError):
        return str(value)
