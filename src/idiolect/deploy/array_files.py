"""Samples in a file of arrays (.npz), as a bundle takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from idiolect.core import tree
from idiolect.core.errors import InputError, listed
from idiolect.core.files import expanded
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data.custom.form import Form
from idiolect.data.custom.npz import arrays_in
from idiolect.data.custom.parts import Part
from idiolect.data.custom.unlabelled import labelled_rows
from idiolect.deploy.arrays import samples_of
from idiolect.deploy.schema import Inputs

if TYPE_CHECKING:
    from idiolect.deploy.samples import Reader

_USUAL, _GOAL = "x", "y"


def read(
    where: str | Path, reader: Reader, target: str | None = None, numbers: Sequence[str] = ()
) -> tuple[Tree, Part]:
    """Samples as stored, and the arrays with one value for each as columns: labels, for example.

    Args:
        where: the file.
        reader: makes samples of arrays.
        target: of several numbers in one array (N, D), its name; None for y.
        numbers: the names of these, which become columns.

    Raises:
        InputError: the file cannot be read, or its arrays are not what the bundle takes.
    """
    path = expanded(where)
    if not path.is_file():
        raise InputError(f"there is no file {path}: give an .npz that is there")
    arrays = arrays_in(path)
    x_N = _samples(arrays, reader)
    count = len(tree.leaves(x_N)[0])
    for name, array in arrays.items():
        if len(array) != count:
            raise InputError(f"{path} has {len(array)} rows of {name!r} for {count} samples: give as many")
    columns = {name: array for name, array in arrays.items() if array.ndim == 1}
    goal = arrays.get(target or _GOAL)
    if goal is not None and goal.ndim == 2 and goal.shape[1] == len(numbers):
        columns |= dict(zip(numbers, goal.T, strict=True))
    return x_N, Part(pd.DataFrame(columns, index=range(count)))


def labelled(
    where: str | Path, reader: Reader, target: str | None, numbers: Sequence[str], form: Form, task: TaskName | None
) -> tuple[Tree, Part]:
    """As ``read``, those that have a target; ``form`` says whether others are left out.

    Raises:
        InputError: as ``read``, or a sample has no target and is not to be left out.
    """
    x_N, part = read(where, reader, target, numbers)
    goal = "+".join(f'"{name}"' for name in numbers) if numbers and set(numbers) <= set(part.frame) else target
    is_there_N = labelled_rows(part.frame, goal, str(where), form, task)
    if is_there_N is None:
        return x_N, part
    kept_N = torch.from_numpy(is_there_N)
    return tree.map(lambda x: x[kept_N], x_N), Part(part.frame[is_there_N].reset_index(drop=True))


def some(where: str | Path, reader: Reader, size: int) -> Iterator[tuple[Tree, pd.DataFrame]]:
    """As ``read``, so many samples at a time.

    Raises:
        InputError: as ``read``.
    """
    x_N, part = read(where, reader)
    for k, x_B in enumerate(tree.split(x_N, size)):
        yield x_B, part.frame[k * size : (k + 1) * size]


def _samples(arrays: Mapping[str, NDArray[Any]], reader: Reader) -> Tree:
    inputs, where = reader.inputs, reader.where
    x = _of_names(arrays, inputs, where)
    if inputs.kind == "table":
        names = [column.name for column in inputs.columns]
        if x.ndim != 2 or x.shape[1] != len(names):
            raise InputError(f"{where} has samples of shape {x.shape}: give (samples, {len(names)})")
        return reader.encode(Part(pd.DataFrame(dict(zip(names, x.T, strict=True)))))
    if inputs.tokens is not None and x.dtype.kind == "U":
        return reader.ids([str(text) for text in np.ravel(x)], inputs.tokens.tokens)
    try:
        return samples_of(x, inputs, f"x of {where}")
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None


def _of_names(arrays: Mapping[str, NDArray[Any]], inputs: Inputs, where: str) -> Any:
    """The array, or the arrays by name, that samples are made of; others are not used.

    Raises:
        InputError: one is missing, or it is not clear which is meant.
    """
    if inputs.tensors:
        if absent := [name for name in inputs.tensors if name not in arrays]:
            raise InputError(f"{where} has no array {absent[0]!r}: the bundle takes {listed(inputs.tensors, 8)}")
        return {name: arrays[name] for name in inputs.tensors}
    few = inputs.tokens is not None  # a row of ids, or a text
    several = [name for name, array in arrays.items() if array.ndim > 1 or (few and array.dtype.kind == "U")]
    name = _USUAL if _USUAL in arrays else several[0] if len(several) == 1 else None
    if name is None:
        raise InputError(f"{where} has the arrays {listed(arrays, 8)}: call the samples {_USUAL!r}")
    return arrays[name]
