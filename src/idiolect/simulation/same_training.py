"""Whether two methods train alike, so that one training can serve both: by their functions, not by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Method
from idiolect.simulation.interfaces import State

_TRAINING = ("init_server", "init_client", "send", "local", "aggregate", "combine")
_CODE = ("co_code", "co_names", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals",
         "co_cellvars", "co_exceptiontable")  # fmt: skip
_PLAIN = (int, float, str, bytes, type(None), torch.dtype, torch.device)


def same_training(a: Method, b: Method) -> bool:
    """Whether all functions but ``personalise`` and ``predict`` compute the same.

    Two functions do if their code is the same and all values are the same that they take from around them: options,
    the task, other functions. An option that a method uses only in ``personalise`` or ``predict`` is none of these. In
    doubt the answer is no.
    """
    return all(_same(getattr(a, name), getattr(b, name), ()) for name in _TRAINING)


def same_state(a: State, b: State) -> bool:
    """Whether two states are equal to the bit: round, server and all clients."""
    pairs = [(a.server, b.server), *zip(a.clients, b.clients, strict=True)]
    return a.round == b.round and all(_same_trees(one, other) for one, other in pairs)


def _same_trees(a: Any, b: Any) -> bool:
    one, other = tree.named(a), tree.named(b)
    return one.keys() == other.keys() and all(_same_tensors(one[name], other[name]) for name in one)


def _same_tensors(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def _same(a: Any, b: Any, above: Sequence[tuple[int, int]]) -> bool:
    """Whether two values are the same. ``above``: the pairs that are being compared, as a function may hold itself."""
    if a is b or (id(a), id(b)) in above:
        return True
    if type(a) is not type(b):
        return False
    above = (*above, (id(a), id(b)))

    def each(xs: Sequence[Any], ys: Sequence[Any]) -> bool:
        return len(xs) == len(ys) and all(_same(x, y, above) for x, y in zip(xs, ys, strict=True))

    if isinstance(a, _PLAIN):
        return repr(a) == repr(b)  # 0.0 is not -0.0
    if isinstance(a, Tensor):
        return _same_tensors(a, b)
    if isinstance(a, tuple | list):
        return each(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and each(list(a.values()), list(b.values()))
    if isinstance(a, partial):
        return each((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
    if isinstance(a, MethodType):
        return a.__func__ is b.__func__ and _same(a.__self__, b.__self__, above)
    if isinstance(a, CellType):
        return each(_content(a), _content(b))
    if isinstance(a, CodeType):
        return all(getattr(a, k) == getattr(b, k) for k in _CODE) and each(a.co_consts, b.co_consts)
    if isinstance(a, FunctionType):
        names = _names(a.__code__)
        return each(
            (a.__code__, a.__defaults__, a.__kwdefaults__, a.__closure__, _taken(a, names)),
            (b.__code__, b.__defaults__, b.__kwdefaults__, b.__closure__, _taken(b, names)),
        )
    if is_dataclass(a):
        compared = [f.name for f in fields(a) if f.compare]
        return each([getattr(a, name) for name in compared], [getattr(b, name) for name in compared])
    return False


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not yet filled
        return ()


def _names(code: CodeType) -> list[str]:
    """The names that a function and those inside it look up, in order."""
    inside = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*code.co_names, *inside]


def _taken(function: FunctionType, names: Sequence[str]) -> dict[str, Any]:
    """What a function takes from its module."""
    return {name: function.__globals__[name] for name in names if name in function.__globals__}
