"""The files of which pages are made."""

from __future__ import annotations

from functools import cache
from importlib import resources

import jinja2


def file_text(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files("idiolect.report").joinpath(name).read_text(encoding="utf-8")


@cache
def templates() -> jinja2.Environment:
    """The templates, which escape all that is put into them."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(file_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
