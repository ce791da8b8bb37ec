"""A method of a study, with its options and its label."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from idiolect import methods
from idiolect.core.errors import InputError
from idiolect.core.import_path import may_import
from idiolect.core.option_spec import Spec
from idiolect.studies import local_training
from idiolect.studies.local_training import NAMES
from idiolect.studies.naming import sentence

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^/\\\x00]+$")]


class Use(BaseModel):
    """One method of a study, with all its options. ``label`` tells two uses of one method apart.

    ``settings`` are those of training that the method has for itself, as ``lr``; of the others it takes the study's.
    Among ``options`` they may be given too: a name that is not an option of the method.

    Inside ``no_imports``, one that is named by its import path has the options that were given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    label: Name
    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        if isinstance(value, str):
            value = Spec.parse(value)
        if isinstance(value, Spec):
            value = {"label": str(value), "name": value.name, "options": value.options}
        if isinstance(value, Mapping) and "name" in value:
            name, options, settings = str(value["name"]), value.get("options") or {}, value.get("settings") or {}
            if may_import() or not methods.registry.is_path(name):
                options, own = divide(name, options) if isinstance(options, Mapping) else (options, {})
                options = methods.settle(name, options, beside=NAMES)
                settings = checked(name, own, settings)
            value = {"label": name} | dict(value) | {"options": options, "settings": settings}
        return value

    @pydantic.model_serializer(mode="wrap")
    def _short(self, serialize: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the settings where it has none, as in most studies."""
        fields: dict[str, Any] = serialize(self)
        return fields if self.settings else {k: v for k, v in fields.items() if k != "settings"}


def divide(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a method, and the settings of training among them: the names that are not options of it.

    Raises:
        InputError: unknown method, or a name is neither; the message has the nearest.
    """
    entry = methods.get(name)
    settings = {k: v for k, v in options.items() if k in NAMES and k not in entry.options}
    return {k: v for k, v in options.items() if k not in settings}, settings


def checked(name: str, among_options: Mapping[str, Any], settings: object) -> dict[str, Any]:
    """A method's own settings of training, checked: those that were given among its options, and the others.

    Raises:
        InputError: one is unknown or out of range.
    """
    if not isinstance(settings, Mapping):
        raise InputError(f"method {name}: settings={settings!r} is not valid: write a mapping, such as lr: 0.1")
    try:
        return local_training.checked({**among_options, **settings})
    except InputError as error:
        raise InputError(f"method {name}: {error}") from None


def use(name: str, *, label: str | None = None, **options: Any) -> Use:
    """A method with options, and with settings of training of its own, for ``Study(methods=[...])``.

    Raises:
        InputError: unknown method or option, or a value out of range.

    >>> use("fedpac", alignment=0.5).options["alignment"]
    0.5
    >>> use("fedavg", lr=0.1, local_epochs=2).settings
    {'local_epochs': 2, 'lr': 0.1}
    """
    if not isinstance(name, str):
        raise InputError(
            f"a method is a {type(name).__name__}: give its name, or the import path of your own, as a text"
        )
    text = str(Spec(name=name, options=options)) if label is None else label
    return _valid({"label": text, "name": name, "options": options})


def merged(one: Use, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A method's options and settings with other values of some; a preset replaces all options.

    A name that is an option and a setting is the option.

    Raises:
        InputError: a name is neither.
    """
    options, settings = divide(one.name, values)
    return ({} if "preset" in options else one.options) | options, one.settings | settings


def with_values(one: Use, values: Mapping[str, Any], label: str | None = None) -> Use:
    """A method with other values of some of its options and settings: see ``merged``.

    Raises:
        InputError: it does not take one of them.
    """
    options, settings = merged(one, values)
    return _valid({"label": label or one.label, "name": one.name, "options": options, "settings": settings})


def _valid(fields: dict[str, Any]) -> Use:
    try:
        return Use.model_validate(fields)
    except pydantic.ValidationError as error:
        raise InputError(sentence(error, Use)) from None


def label_of(name: str, options: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> str:
    """A label: the method with the options that differ from its defaults, or with its preset, and its own settings.

    >>> label_of("fedpac", {"alignment": 1.0, "head_epochs": 2})
    'fedpac:head_epochs=2'
    """
    defaults = methods.get(name).options
    if "preset" not in options:
        options = {k: v for k, v in methods.settle(name, options, beside=NAMES).items() if v != defaults[k]}
    return str(Spec(name=name, options=dict(options) | dict(settings or {})))


def hidden_settings(use: Use) -> dict[str, Any]:
    """The options that differ from the defaults, and the settings, that a method's label does not show.

    Of a label that a person chose, which may stand for options, only the settings.

    >>> hidden_settings(use("fedpac", alignment=2.0, lr=0.1)), hidden_settings(use("fedpac", label="mine", lr=0.1))
    ({}, {'lr': 0.1})
    """
    shown: Mapping[str, Any] = {}
    is_usual = use.label == use.name or use.label.startswith(f"{use.name}:")
    if is_usual:
        with suppress(InputError):
            shown = Spec.parse(use.label).options
    options = {}
    if is_usual and "preset" not in shown:
        defaults = methods.get(use.name).options
        options = {k: v for k, v in use.options.items() if v != defaults.get(k)}
    return {k: v for k, v in (options | use.settings).items() if k not in shown}


def title_of(use: Use) -> str:
    """The user's label, or the method's title with its options, or the name in the literature for these options."""
    entry = methods.get(use.name)
    if use.label != use.name and not use.label.startswith(f"{use.name}:"):
        return use.label
    for title, options in entry.variants.items():
        is_this = use.options == entry.options | options and not use.settings
        if is_this and (use.label != use.name or use.options != entry.options):
            return title
    return entry.title + use.label.removeprefix(use.name).replace(":", ", ", 1)
