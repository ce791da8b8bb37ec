"""The form of one sample, as a network takes it: a tensor, or several by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from idiolect.core import keys
from idiolect.core.tree import Tree

T = TypeVar("T")
Shape = tuple[int, ...]
Moments = tuple[float, ...] | Mapping[str, tuple[float, ...]]
"""A number per channel or feature, none for whole numbers; of samples with several tensors this by name."""


class Input(NamedTuple):
    """The form of one tensor of a sample."""

    shape: Shape
    """Without the axis of the samples."""
    integer: bool = False
    """Whether it holds whole numbers, such as the ids of words, which stay as they are: the network gets int64. Else
    the network gets floating-point numbers."""
    size: int = 0
    """Of whole numbers, one more than the largest; 0 where that is not known."""


Inputs = Input | dict[str, Input]
"""The form of a sample: one tensor, or several by name."""
Form = Inputs | Shape | Mapping[str, Input | Shape]
"""The same, where a bare shape stands for floating-point numbers."""


def inputs_of(form: Form) -> Inputs:
    """A form written out.

    >>> inputs_of((1, 28, 28))
    Input(shape=(1, 28, 28), integer=False, size=0)
    """
    if isinstance(form, Mapping):
        return {name: one if isinstance(one, Input) else Input(tuple(one)) for name, one in form.items()}
    return form if isinstance(form, Input) else Input(tuple(form))


def each(inputs: Inputs, function: Callable[[Input], T]) -> T | dict[str, T]:
    """What a function makes of each input: one result, or one by name."""
    return {n: function(i) for n, i in inputs.items()} if isinstance(inputs, dict) else function(inputs)


def shapes(inputs: Inputs) -> Any:
    """The shape of a sample, or the shapes of its tensors by name."""
    return each(inputs, lambda one: one.shape)


def form_of(x_R: Tree, sizes: Mapping[str, int] | int = 0) -> Inputs:
    """The form of samples (R, ...) as stored.

    Args:
        x_R: a tensor, or several by name.
        sizes: one more than the largest id, for one tensor or by name.
    """
    if isinstance(x_R, dict):
        of = sizes if isinstance(sizes, Mapping) else {}
        return {name: _form(leaf, of.get(name, 0)) for name, leaf in x_R.items()}
    return _form(x_R, sizes if isinstance(sizes, int) else 0)


def _form(x_R: Tensor, size: int) -> Input:
    integer = is_integer(x_R)
    return Input(tuple(x_R.shape[1:]), integer, size if integer else 0)


def is_integer(x: Tensor) -> bool:
    """Whether a tensor holds whole numbers that stay as they are; 8-bit ones are images, and become numbers."""
    return not x.dtype.is_floating_point and x.dtype not in (torch.uint8, torch.bool)


def blank(inputs: Inputs, rows: int) -> Tree:
    """Samples of zeros, as a network takes them; of ones where they are ids, because 0 stands for no word at all."""

    def of(one: Input) -> Tensor:
        if not one.integer:
            return torch.zeros(rows, *one.shape)
        return torch.full((rows, *one.shape), int(one.size != 1), dtype=torch.int64)

    return each(inputs, of)


def synthetic(inputs: Inputs, rows: int, key: Tensor) -> Tree:
    """Synthetic samples, as a network takes them: normal numbers, and ids below the size (below 2 without one)."""

    def one(name: str, form: Input) -> Tensor:
        shape, draw = (rows, *form.shape), keys.fold(key, name) if name else key
        if not form.integer:
            return keys.normal(draw, shape)
        return (keys.bits(draw, math.prod(shape)) & 0x7FFFFFFF).view(shape) % (form.size or 2)

    return {n: one(n, i) for n, i in inputs.items()} if isinstance(inputs, dict) else one("", inputs)
