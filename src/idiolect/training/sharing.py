"""Rounds that several methods share: one function made them of equal arguments, so that one training serves all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from types import MethodType
from typing import Any, ParamSpec

import torch
from torch import Tensor

from idiolect.core.method import Method, Rounds

P = ParamSpec("P")
_MARK = "__rounds__"


def shared(function: Callable[P, Rounds[Any, Any]]) -> Callable[P, Rounds[Any, Any]]:
    """Let methods whose rounds this function makes, from equal arguments, train once.

    Arguments are compared by value: numbers, texts, tensors, and all fields of a task, so also the settings of
    training. What the rounds compute must depend on the arguments alone. Each of their functions is marked; one that is
    replaced afterwards has no mark, so that the method trains by itself.
    """

    @wraps(function)
    def wrapper(*args: P.args, **options: P.kwargs) -> Rounds[Any, Any]:
        rounds = function(*args, **options)
        origin = (
            f"{function.__module__}.{function.__qualname__}",
            torch.get_default_dtype(),
            _key(args),
            _key(options),
        )
        return Rounds(*(_mark(part, (name, *origin)) for name, part in rounds._asdict().items()))

    return wrapper


def same_training(a: Method, b: Method) -> bool:
    """Whether two methods have the same rounds, so that one training serves both."""
    same_rounds = all(_same(getattr(a, name), getattr(b, name)) for name in Rounds._fields)
    return same_rounds and a.stand_by is b.stand_by and a.full_rounds == b.full_rounds and a.own_start == b.own_start


def _same(one: Any, other: Any) -> bool:
    mark = getattr(one, _MARK, None)
    return (
        one is other
        or (mark is not None and mark == getattr(other, _MARK, None))
        or (not callable(one) and bool(one == other))
    )


def _mark(part: Any, mark: Hashable) -> Any:
    """A function with a mark; what is a function of a module is the same everywhere and needs none."""
    if isinstance(part, MethodType):
        part = partial(part)
    if callable(part) and (isinstance(part, partial) or "<locals>" in getattr(part, "__qualname__", "")):
        setattr(part, _MARK, mark)
    return part


def _key(value: Any) -> Hashable:
    """What is equal for equal values; an object that has no value of its own stands for itself."""
    if mark := getattr(value, _MARK, None):
        return _MARK, mark
    if isinstance(value, Tensor):
        return Tensor, value.dtype, tuple(value.shape), repr(value.tolist())
    if isinstance(value, tuple | list):
        return type(value), *map(_key, value)
    if isinstance(value, Mapping):
        return type(value), *((_key(k), _key(v)) for k, v in value.items())
    if isinstance(value, partial):
        return partial, _key(value.func), _key(value.args), _key(value.keywords)
    if isinstance(value, MethodType):
        return MethodType, value.__func__, _key(value.__self__)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(_key(getattr(value, f.name)) for f in fields(value) if f.compare)
    if isinstance(value, float):
        return float, value.hex()  # 0.0 is not -0.0, and 1.0 is not 1
    return type(value), value
