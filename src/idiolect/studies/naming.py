"""Partitions, shifts and networks that settings name, looked up and completed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pydantic
from pydantic import BaseModel

from idiolect import data, models
from idiolect.core.defaults import USUAL_PARTITION
from idiolect.core.errors import InputError, brief, nearest, option
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.import_path import may_import
from idiolect.core.option_spec import Spec, lower, options_of, scalar
from idiolect.models.pretrained import code_of

T = TypeVar("T")
_KEYS = ("name", "label", "options", "settings")
_MOST_SEEDS = 10_000
_EXAMPLES = {
    "methods": "fedpac:alignment=0.5",
    "lr_schedule": "cosine:warmup=5",
    "server_optimiser": "adam:lr=0.01",
    "privacy": "gaussian:norm=1.0,noise_multiplier=1.0",
    "robust": "trimmed_mean:share=0.2",
    "attacks": "sign_flip:clients=0-3",
}


def known_name(what: str, name: str, known: Sequence[str]) -> str:
    """A name, if it is known.

    Raises:
        InputError: it is unknown; the message has the nearest.
    """
    if name not in known:
        raise InputError(f"unknown {what} {name!r}; {nearest(name, known)}")
    return name


def path_of_model(name: str) -> str | None:
    """The import path of a network or of a backbone; None for one by name."""
    return code_of(models.choose(name, (1, 8, 8)))


def is_path(partition: Spec) -> bool:
    """Whether a partition is named by an import path."""
    return "." in partition.name and partition.name not in data.PARTITIONS


def complete_partition(spec: Spec) -> Spec:
    """The partition with all its options; unchanged if it may not be imported."""
    if is_path(spec) and not may_import():
        return spec
    function, options = data.partition_of(spec)
    return Spec(name=spec.name, options=_defaults(function) | options)


def complete_shift(spec: Spec) -> Spec:
    """The shift with all its options."""
    function, options = data.shift_of(spec)
    whom = {k: v for k, v in spec.options.items() if k == "clients"}
    return Spec(name=spec.name, options=_defaults(function) | options | whom)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    options = options_of(function) if inspect.isfunction(function) else {}
    return {k: p.default for k, p in options.items() if p.default is not None and p.default is not p.empty}


def share_of(value: object) -> object:
    """A share, as ``25%`` or ``0.25``, or a number of samples.

    Raises:
        ValueError: the text is neither.
    """
    if not isinstance(value, str):
        return value
    per_cent = value.strip().endswith("%")
    number = scalar(value.strip().removesuffix("%"))
    if not isinstance(number, int | float) or (per_cent and number > 100):
        raise ValueError(f"keep={value!r} is not valid: write a share such as 25% or 0.25, or a number of samples")
    return number / 100 if per_cent else number


def new_clients_of(value: object) -> object:
    """A number of new clients as a number; a share or names as they are.

    Raises:
        ValueError: the number is below 1.
    """
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(number, int) and number < 1:
        raise ValueError(f"new_clients={number} is not valid: leave it out, or give a number above 0")
    return number


def seeds_of(text: str) -> list[int]:
    """The seeds of a text.

    Raises:
        ValueError: it cannot be read, or has more than 10,000 seeds.

    >>> seeds_of("0,1,2"), seeds_of("0-2,7")
    ([0, 1, 2], [0, 1, 2, 7])
    """
    seeds: list[int] = []
    for piece in text.split(","):
        first, dash, last = (end.strip() for end in piece.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise ValueError(f"{option('seeds', text)}: write whole numbers separated by commas, as 0,1,2, or 0-2")
        if len(seeds) + int(last) - int(first) >= _MOST_SEEDS:
            raise ValueError(f"{option('seeds', text)}: that is more than {_MOST_SEEDS:,} seeds: give fewer")
        seeds += range(int(first), int(last) + 1)
    return seeds


def all_different(what: str, values: T, names: Sequence[Any]) -> T:
    """The values, if no two have the same name.

    Raises:
        InputError: two have.
    """
    twice = next((n for k, n in enumerate(names) if n in names[:k]), None)
    if twice is not None:
        raise InputError(f"{what} {twice!r} is given twice: give each {what} once")
    return values


def sentence(error: pydantic.ValidationError, model: type[BaseModel]) -> str:
    """What is wrong, in a sentence."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    setting, *inner = first["loc"]
    if setting == "methods" and first["type"] == "extra_forbidden":
        return f"methods: a method has no key {inner[-1]!r}; {nearest(str(inner[-1]), _KEYS)}"
    if setting == "protocol" and inner and first["type"] == "extra_forbidden":
        return f"protocol has no {inner[0]!r}; {nearest(str(inner[0]), Protocol.model_fields)}"
    if first["type"] == "extra_forbidden" and not inner:
        return f"unknown setting {setting!r}; {nearest(str(setting), model.model_fields)}"
    of_label = inner[-1:] == ["label"] and first["type"] != "missing"
    if (setting in _EXAMPLES or setting in ("partition", "shifts", "new_shifts", "methods")) and not of_label:
        example = _EXAMPLES.get(str(setting), USUAL_PARTITION)
        return f"{setting}: cannot read {brief(first['input'])}; write name:option=value, for example {example}"
    clear = of_label or setting == "protocol"
    inside = inner if clear else [step for step in inner if isinstance(step, int)]  # the text names the expected type
    where = ".".join(map(str, [setting, *inside]))
    return f"{where}={brief(first['input'])} is not valid: {lower(first['msg'])}"
