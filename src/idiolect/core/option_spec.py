"""``name:key=value,...``: how methods, partitions and shifts are written, and checked against a function's signature.

The signature is the schema: a keyword-only parameter of the function is an option, its annotation the range.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar, cast

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from idiolect.core.documents import parse_yaml
from idiolect.core.errors import InputError, brief, nearest

T = TypeVar("T")
_QUOTED_NAME = re.compile(r'\s*\+\s*(?=(?:[^"]*"[^"]*")*[^"]*$)')  # a plus outside of double quotes
_CALL = re.compile(r"([^:(\s]+)\((.*)\)", re.DOTALL)


class Spec(BaseModel):
    """A name with options, for example ``dirichlet:alpha=0.3``.

    >>> Spec.parse("dirichlet:alpha=0.3,min_rows=5")
    Spec(name='dirichlet', options={'alpha': 0.3, 'min_rows': 5})
    >>> Spec.parse("domains:inside=dirichlet(alpha=0.3,min_rows=5)").options["inside"]
    'dirichlet(alpha=0.3,min_rows=5)'
    >>> str(Spec.parse("dirichlet:alpha=0.3"))
    'dirichlet:alpha=0.3'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return cls._split(value) if isinstance(value, str) else value

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Read ``name:key=value,...``; inside a value, ``name(key=value,...)``.

        Raises:
            InputError: the text has a piece that is not ``key=value``, or parentheses that do not match.
        """
        return cls(**cls._split(text))

    @staticmethod
    def _split(text: str) -> dict[str, Any]:
        match = _CALL.fullmatch(text.strip())
        name, rest = match.groups() if match else text.strip().partition(":")[::2]
        options: dict[str, Any] = {}
        for piece in _pieces(rest):
            key, equals, value = piece.partition("=")
            if not equals:
                raise InputError(f"cannot read {piece!r} in {text!r}: write options as name:key=value,key=value")
            options[key.strip()] = scalar(value)
        return {"name": name.strip(), "options": options}

    def __str__(self) -> str:
        options = ",".join(f"{k}={plain(v)}" for k, v in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def plain(value: object) -> str:
    """A value as it is written in a spec."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def scalar(text: str) -> Any:
    """Read a value as YAML does, and ``1e-4`` as a number.

    >>> [scalar(t) for t in ("0.3", "1e-4", "true", "multi", "0-4", "None")]
    [0.3, 0.0001, True, 'multi', '0-4', None]
    """
    if text.strip() == "None":
        return None
    for read in (float, parse_yaml) if "e" in text.lower() else (parse_yaml,):
        try:
            return read(text)
        except ValueError:
            continue
    return text.strip()


PLUS = "names are joined by +, and a name that has a + itself stands in double quotes, as '\"CD4+\"+age'"
"""How names are joined, for messages."""


def joined(names: T | Sequence[object]) -> T | str:
    """A list of names as one text, joined by +, in which a name with a + is quoted; all else as it is.

    >>> joined(["CD4+", "age"]), joined("age"), joined(None)
    ('"CD4+"+age', 'age', None)
    """
    if not isinstance(names, list | tuple):
        return cast(T, names)
    return "+".join(f'"{name}"' if "+" in str(name) else str(name) for name in names)


def split_names(text: str, known: Collection[str]) -> list[str]:
    """Names that are joined by +; one that itself contains a + stands in double quotes, or is recognised.

    A text that is exactly a known name is this name. Otherwise it is divided at each +, so that as many of the pieces
    as possible are known names.

    >>> split_names("CD4+", ["CD4+", "age"]), split_names("age+CD4+", ["CD4+", "age"])
    (['CD4+'], ['age', 'CD4+'])
    >>> split_names('"A+B"+C', ["A", "B", "C", "A+B"]), split_names("A+B", ["A", "B"])
    (['A+B', 'C'], ['A', 'B'])
    """
    if text in known:
        return [text]
    pieces = [piece for piece in _QUOTED_NAME.split(text) if piece is not None]
    names: list[str] = []
    at = 0
    while at < len(pieces):
        if pieces[at].startswith('"') and pieces[at].endswith('"') and len(pieces[at]) > 1:
            names.append(pieces[at][1:-1])
            at += 1
            continue
        ends = range(len(pieces), at, -1)  # the longest known name first
        end = next((end for end in ends if "+".join(pieces[at:end]).strip() in known), at + 1)
        names.append("+".join(pieces[at:end]).strip())
        at = end
    return names


def split_list(text: str) -> list[str]:
    """Split a comma-separated list of specs; a piece with ``=`` and no name belongs to the spec before it.

    >>> split_list("local,fedpac:alignment=0,threshold=0,fedavg")
    ['local', 'fedpac:alignment=0,threshold=0', 'fedavg']
    """
    out: list[str] = []
    for piece in _pieces(text):
        head = piece.partition("=")[0]
        if out and "=" in piece and ":" not in head:
            out[-1] += ("," if ":" in out[-1] else ":") + piece
        else:
            out.append(piece)
    return out


def _pieces(text: str) -> list[str]:
    """The pieces between the commas outside of parentheses."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    if depth:
        raise InputError(f"cannot read {text!r}: its parentheses do not match")
    return [p for p in (piece.strip() for piece in pieces) if p]


@lru_cache(maxsize=1000)
def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a function: its keyword-only parameters with their annotations evaluated."""
    signature = inspect.signature(function, eval_str=True)
    return {k: p for k, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check(
    function: Callable[..., Any], options: Mapping[str, Any], what: str, beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Validate options against a signature and return them converted; ``what`` names the owner in the message.

    ``beside`` are options that are handled elsewhere, which a misspelt option may have meant.

    Raises:
        InputError: unknown option (with the nearest name), wrong type or out of range.

    >>> def f(*, alpha: pydantic.PositiveFloat = 0.5): ...
    >>> check(f, {"alpha": 1}, "partition dirichlet")
    {'alpha': 1.0}
    """
    parameters = options_of(function)
    for key in options:
        if key not in parameters:
            raise InputError(f"{what} has no option {key!r}; {nearest(key, [*parameters, *beside])}")
    try:
        checked = _model(function, tuple(options))(**options)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{what}: {first['loc'][0]}={brief(first['input'])} is not valid: {lower(first['msg'])}"
        ) from None
    return {k: getattr(checked, k) for k in options}


@lru_cache(maxsize=1000)
def _model(function: Callable[..., Any], names: tuple[str, ...]) -> type[BaseModel]:
    """Some options of a function as one model. To make one takes milliseconds, and recipes need hundreds."""
    parameters = options_of(function)
    fields: dict[str, Any] = {k: (parameters[k].annotation, ...) for k in names}
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, coerce_numbers_to_str=True)
    return pydantic.create_model("Options", __config__=config, **fields)


def lower(sentence: str) -> str:
    """The sentence with a small first letter, to continue another one."""
    return sentence[:1].lower() + sentence[1:]


def made(spec: Spec, makers: Mapping[str, Callable[..., Any]], what: str) -> Any:
    """What one of several makers makes, chosen by the name of a spec and called with its options.

    Raises:
        InputError: unknown name or option, an option that is left out, or a value out of range.
    """
    if spec.name not in makers:
        raise InputError(f"unknown {what} {spec.name!r}; {nearest(spec.name, makers)}")
    make = makers[spec.name]
    options = check(make, spec.options, f"{what} {spec.name}")
    for name, about in options_of(make).items():
        if about.default is about.empty and name not in options:
            raise InputError(f"{what} {spec.name} needs {name}: write {spec.name}:{name}=0.1, or another number")
    return make(**options)


def complete(spec: Spec, build: Callable[[Spec], Any]) -> Spec:
    """The spec with all options of the dataclass that ``build`` makes of it.

    Raises:
        InputError: as ``build``.
    """
    return Spec(name=spec.name, options=asdict(build(spec)))


def public_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions that specs can name: the public ones that a module defines, in its order."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
