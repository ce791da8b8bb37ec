"""Specs from a run's files."""

from __future__ import annotations

from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec


def parsed(text: str) -> Spec:
    """A spec, or one with the whole text as its name if it cannot be parsed."""
    try:
        return Spec.parse(text)
    except InputError:  # a run can be shown whatever its files say
        return Spec(name=text)
