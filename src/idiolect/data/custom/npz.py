"""Arrays by name in a file of NumPy (.npz) as a data set."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core import shared_memory
from idiolect.core.errors import InputError, listed
from idiolect.core.objectives import TaskName
from idiolect.data.custom.arrays import from_arrays
from idiolect.data.custom.columns import columns_to_drop, find, find_target
from idiolect.data.custom.form import Form
from idiolect.data.custom.questions import answered, question_in
from idiolect.data.custom.texts import Reading
from idiolect.data.datasets.dataset import Source

NPZ = ".npz"
"""The ending of such files."""


def is_npz(where: str | Path) -> bool:
    """Whether this is the name of such a file."""
    return Path(where).suffix.lower() == NPZ


def arrays_in(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file by their names, each with a row for each sample. Nothing is unpickled.

    Raises:
        InputError: it is not such a file, an array has objects or no rows, or they are too large for the memory.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        shared_memory.check(size, f"the arrays of {path}", "write fewer samples into it")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError) as error:
        fix = "write numbers or texts into it with numpy.savez"
        what = "it has Python objects" if "allow_pickle" in str(error) else " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as arrays ({what}): {fix}") from None
    if not arrays:
        raise InputError(f"{path} has no arrays: write some into it with numpy.savez")
    if flat := [name for name, array in arrays.items() if np.shape(array)[:1] in ((), (0,))]:
        raise InputError(f"{path} has {flat[0]!r} without rows: write arrays with a row for each sample")
    return arrays


def from_npz(
    path: Path, name: str, *, target: str | None, client_column: str | None, group_column: str | None,
    drop: Sequence[str], resize: str | int | None, task: TaskName | None, reading: Reading, form: Form,
) -> Source:  # fmt: skip
    """A data set from a file of arrays: what is not the label, the client, the group or dropped is the sample.

    One array is a sample's only tensor; several are given to the network by their names.

    Args:
        path: of the file.
        name: of the data set.
        target: as those that follow, see ``open_data``; columns are arrays here.
        client_column: see ``open_data``.
        group_column: see ``open_data``.
        drop: see ``open_data``.
        resize: see ``open_data``.
        task: see ``open_data``.
        reading: which array has texts, and how they become ids.
        form: of a table, which arrays have not.

    Raises:
        InputError: the file or one of its arrays cannot be used.
    """
    arrays, where = arrays_in(path), str(path)
    names = list(arrays)
    question = question_in(target, names, where)
    label = find_target(names, target, where) if question is None else question.column
    beside = [
        None if column is None else find(names, column, setting, where)
        for setting, column in (("client_column", client_column), ("group_column", group_column))
    ]
    out = columns_to_drop(names, drop, where)
    used = [one for one in (label, *beside, *out) if one is not None]
    if len(set(used)) < len(used):
        raise InputError(f"target, client_column, group_column and drop name {listed(used)}: give different arrays")
    if resize:
        raise InputError(f"resize is for image files, and {path} has arrays: leave it out")
    form.refuse_names()
    if form.categorical:
        raise InputError(f"categorical is for tables, and {path} has arrays: leave it out")
    if form.missing:
        raise InputError(f"missing is for tables, and {path} has arrays: write NaN for a missing number")
    reading.check()
    samples = _samples(arrays, used, reading, where)
    x = samples if len(samples) > 1 else next(iter(samples.values()))
    y = arrays[label]
    if question is not None and y.ndim == 1:
        y = answered(pd.DataFrame({label: y}), target, where)[str(target)].astype(str).to_numpy()
    clients, groups = (None if column is None else arrays[column] for column in beside)
    try:
        return from_arrays(
            x, y, clients=clients, groups=groups, name=name, task=task, tokens=reading.tokens,
            max_tokens=reading.most, unlabelled=form.unlabelled,
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _samples(
    arrays: Mapping[str, NDArray[Any]], used: Sequence[str], reading: Reading, where: str
) -> dict[str, NDArray[Any]]:
    """The arrays that samples are made of.

    Raises:
        InputError: there is none, or one that is to have texts has none.
    """
    texts = reading.names(list(arrays), where)
    if len(texts) > 1 or set(used) & set(texts):
        raise InputError(f"text: {where} has arrays, of which one can be the texts: name one that is nothing else")
    if texts and arrays[texts[0]].dtype.kind != "U":
        raise InputError(f"text: {texts[0]!r} of {where} has no texts: name the array that has some")
    names = texts or [name for name in arrays if name not in used]
    if not names:
        raise InputError(f"{where} has no array beside those of labels and clients: add the samples, as x")
    return {name: arrays[name] for name in names}
