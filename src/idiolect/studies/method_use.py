"""A method of a study, with its options and its label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from idiolect import methods
from idiolect.core.errors import InputError
from idiolect.core.import_path import may_import
from idiolect.core.option_spec import Spec
from idiolect.studies.naming import sentence

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^/\\\x00]+$")]


class Use(BaseModel):
    """One method of a study, with all its options. ``label`` tells two uses of one method apart.

    Inside ``no_imports``, one that is named by its import path has the options that were given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    label: Name
    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        if isinstance(value, str):
            value = Spec.parse(value)
        if isinstance(value, Spec):
            value = {"label": str(value), "name": value.name, "options": value.options}
        if isinstance(value, Mapping) and "name" in value:
            name, options = str(value["name"]), value.get("options") or {}
            if may_import() or not methods.registry.is_path(name):
                options = methods.settle(name, options)
            value = {"label": name} | dict(value) | {"options": options}
        return value


def use(name: str, *, label: str | None = None, **options: Any) -> Use:
    """A method with options, for ``Study(methods=[...])``.

    Raises:
        InputError: unknown method or option, or a value out of range.

    >>> use("fedpac", alignment=0.5).options["alignment"]
    0.5
    """
    text = str(Spec(name=name, options=options)) if label is None else label
    try:
        return Use.model_validate({"label": text, "name": name, "options": options})
    except pydantic.ValidationError as error:
        raise InputError(sentence(error, Use)) from None


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """A label: the method with the options that differ from its defaults, or with its preset.

    >>> label_of("fedpac", {"alignment": 1.0, "head_epochs": 2})
    'fedpac:head_epochs=2'
    """
    defaults = methods.get(name).options
    if "preset" not in options:
        options = {k: v for k, v in methods.settle(name, options).items() if v != defaults[k]}
    return str(Spec(name=name, options=dict(options)))


def title_of(use: Use) -> str:
    """The user's label, or the method's title with its options, or the name in the literature for these options."""
    entry = methods.get(use.name)
    if use.label != use.name and not use.label.startswith(f"{use.name}:"):
        return use.label
    for title, options in entry.variants.items():
        if use.options == entry.options | options and (use.label != use.name or use.options != entry.options):
            return title
    return entry.title + use.label.removeprefix(use.name).replace(":", ", ", 1)
