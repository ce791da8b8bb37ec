"""Specs in words, and names of files."""

from __future__ import annotations

import re
from functools import lru_cache

from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec


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


def divided(partition: object, named: bool) -> str:
    """How samples were divided, in words; if the study did not say it, what followed from its data.

    >>> divided(None, True), divided("iid", True)
    ('natural', 'iid')
    >>> divided(None, False)
    'dirichlet (alpha 0.3), because the data have no clients'
    """
    if partition is None and not named:
        return plain("dirichlet:alpha=0.3") + ", because the data have no clients"
    return plain(partition or "natural")


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
