"""Arrays as a data set, and samples that several clients have."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.objectives import TaskName
from idiolect.core.tree import Tree
from idiolect.data.custom.columns import as_float32, codes, labels, listed, shift_of, without_nan
from idiolect.data.custom.form import form_of
from idiolect.data.custom.names import look
from idiolect.data.custom.target import target_of
from idiolect.data.custom.texts import list_of_texts
from idiolect.data.custom.unlabelled import rows_with_target
from idiolect.data.datasets.dataset import Column, Encoding, Source
from idiolect.data.text.encoders import Encoder
from idiolect.data.text.tokens import Tokens, ids_of, tokens_of

log = logging.getLogger(__name__)

# R samples, C channels, H height, W width, F features

_CHANNELS = (1, 3)
_BLOCK = 4096  # rows that are looked at together
_MOST_IDS = 2**24


class Duplicates(NamedTuple):
    """How many samples more than one client has, and two such clients."""

    rows: int
    pair: tuple[int, int] | None


def from_arrays(
    x: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor],
    y: ArrayLike | Tensor,
    *,
    clients: ArrayLike | Tensor | None = None,
    groups: ArrayLike | Tensor | None = None,
    name: str = "arrays",
    class_names: Sequence[str] | None = None,
    task: TaskName | None = None,
    test: Sequence[Any] | None = None,
    tokens: str | Encoder | None = None,
    max_tokens: int | None = None,
    unlabelled: str | None = None,
) -> Source:
    """A data set from NumPy arrays, torch tensors or lists.

    Args:
        x: images, uint8, (R, H, W), (R, H, W, C) or (R, C, H, W) with 1 or 3 channels; or numbers, (R, F) with NaN
            where one is missing, or finite floats (R, ...), of which (R, H, W, C) becomes (R, C, H, W). A column of
            (R, F) whose numbers float32 cannot tell apart has its median subtracted. Whole numbers of 16 bits or more
            (R, ...) are ids, as those of words, and stay as they are. Or texts, (R,), which become ids. Or a dict of
            arrays by name, where a network takes several.
        y: one label per row, whole numbers or texts, (R,); or numbers to predict, (R,) or, several together, (R, D);
            or, for each of L labels of which a sample can have several, 0 or 1, (R, L).
        clients: which client each sample belongs to, numbers or texts, (R,); else a partition divides the samples.
        groups: which samples belong together, as those of one patient, numbers or texts, (R,): a group is never on
            both sides of a split. With an official test split, of all its samples after those for training.
        name: what to call the data set.
        class_names: what y's numbers 0, 1, ... mean, or y's texts in the order you want; by default y's values, sorted.
            Of labels (R, L) their names.
        task: "classification", "regression" or "multilabel"; None takes many different numbers as numbers to predict,
            columns of 0 and 1 as labels of which a sample can have several, and everything else as classes. With
            ``class_names`` y (R,) is always classes.
        test: an official test split (x, y) or (x, y, clients).
        tokens: what a text is divided into: "words" (the default), "characters", "bytes", or an ``Encoder``.
        max_tokens: of a text that are used, 256 by default; longer texts are cut.
        unlabelled: "drop" leaves samples without a label or number out; by default they are an error.

    Raises:
        InputError: lengths or shapes do not fit, a label is missing or infinite, an array is masked, or a number is
            not finite.
    """
    if test is not None and (not isinstance(test, tuple | list) or len(test) != (2 if clients is None else 3)):
        problem = f"has {len(test)} parts" if isinstance(test, tuple | list) else f"is a {type(test).__name__}"
        raise InputError(f"test {problem}: give (x, y), and its clients if the training samples have theirs")
    splits = [(x, y, clients)] if test is None else [(x, y, clients), (*test, None)[:3]]
    samples = _samples([part[0] for part in splits], tokens, max_tokens)
    counts, table = samples.counts, bool(samples.encodings)
    goal = _goal([part[1] for part in splits], counts, task, class_names)
    beside = {} if clients is None else {"client": _column([part[2] for part in splits], counts, "clients")}
    beside |= {} if groups is None else {"group": _column([groups], [sum(counts)], "groups")}
    is_there_R = rows_with_target(goal, listed, form_of(unlabelled=unlabelled).unlabelled, task)
    if is_there_R is not None:
        samples = samples.of(is_there_R)
        goal, beside = ({name: _kept(values, is_there_R) for name, values in of.items()} for of in (goal, beside))
    if class_names is None or len(goal) > 1:
        y_R, names, targets = target_of(goal, {name: name for name in goal}, task, table=table)
    else:
        y_R, names = _classes(goal, class_names, task)
        targets = None
    columns = {}
    for column, values in beside.items():
        columns[column] = Column(*codes(values, f"{column}s"))
    if clients is not None:
        look("clients", "client", columns["client"].code_R, columns["client"].names)
    return Source(
        name=name,
        x_R=samples.x_R,
        y_R=torch.from_numpy(y_R),
        classes=len(names),
        class_names=names,
        mean=None,
        std=None,
        train_rows=samples.counts[0],
        columns=columns,
        client_column=None if clients is None else "client",
        group_column=None if groups is None else "group",
        encodings=samples.encodings,
        sizes=samples.tokens.size if samples.tokens else samples.sizes,
        tokens=samples.tokens,
        targets=targets,
    )


class _Samples(NamedTuple):
    """The samples of one or two splits, together, and how many each has."""

    x_R: Tree
    counts: list[int]
    encodings: tuple[Encoding, ...] = ()
    tokens: Tokens | None = None
    sizes: int | dict[str, int] = 0
    """Of ids, one more than the largest, by name where there are several tensors."""

    def of(self, is_kept_R: NDArray[np.bool_]) -> _Samples:
        """Some of them."""
        ends = np.cumsum(self.counts)[:-1]
        counts = [int(part.sum()) for part in np.split(is_kept_R, ends)]
        return self._replace(x_R=tree.map(lambda x: x[torch.from_numpy(is_kept_R)], self.x_R), counts=counts)


def _several(splits: Sequence[Any], what: Sequence[str]) -> _Samples:
    """Arrays by name."""
    first = splits[0]
    for values, name in zip(splits, what, strict=False):
        if not isinstance(values, Mapping) or not values or values.keys() != first.keys():
            raise InputError(f"x and x of test differ: give {name} as a dict with the same names, at least one")
    if odd := next((n for n in first if not isinstance(n, str) or not n.isidentifier()), None):
        raise InputError(f"x has the name {odd!r}: give names of the network's arguments")
    parts: dict[str, _Samples] = {}
    for key in first:
        whats = [f"{name}[{key!r}]" for name in what]
        if any(list_of_texts(values[key], text) is not None for values, text in zip(splits, whats, strict=False)):
            raise InputError(f"{whats[0]} has texts: give their ids, or texts alone as x")
        parts[key] = _of_one([values[key] for values in splits], whats, least=1)
    counts = next(iter(parts.values())).counts
    for key, part in parts.items():
        if part.counts != counts:
            raise InputError(
                f"x[{key!r}] has {part.counts[0]} rows, and x[{next(iter(parts))!r}] {counts[0]}: give as many"
            )
    sizes = {key: part.sizes for key, part in parts.items() if isinstance(part.sizes, int) and part.sizes}
    return _Samples({key: part.x_R for key, part in parts.items()}, counts, sizes=sizes)


def _samples(splits: Sequence[Any], tokens: str | Encoder | None, most: int | None) -> _Samples:
    what = ("x", "x of test")
    if any(isinstance(values, Mapping) for values in splits):
        if tokens is not None or most is not None:
            raise InputError("tokens and max_tokens are for texts alone as x: leave them out")
        return _several(splits, what)
    texts = [list_of_texts(values, name) for values, name in zip(splits, what, strict=False)]
    known = [of_split for of_split in texts if of_split is not None]
    if known and len(known) == len(splits):
        how = tokens_of(tokens, most)
        x_R = ids_of([text for of_split in known for text in of_split], how, "x")
        return _Samples(x_R, list(map(len, known)), tokens=how)
    if known:
        raise InputError("x and x of test differ (one has texts): give both the same type and shape")
    if tokens is not None or most is not None:
        raise InputError(f"{'max_tokens' if tokens is None else 'tokens'} is for texts, and x has none: leave it out")
    return _of_one(splits, what)


def _of_one(splits: Sequence[Any], what: Sequence[str], least: int = 2) -> _Samples:
    """An array of each split, with at least so many axes."""
    rows = [_rows(_array(values, name), name, least) for values, name in zip(splits, what, strict=False)]
    if len({(*x_R.shape[1:], _is_images(x_R)) for x_R in rows}) > 1:
        shapes = " and ".join(f"{x_R.dtype} {x_R.shape}" for x_R in rows)
        raise InputError(f"x and x of test differ ({shapes}): give both the same type and shape")
    every_R = rows[0] if len(rows) == 1 else np.concatenate(rows)
    if _are_ids(every_R):
        size = int(every_R.max()) + 1
        kind = next(k for k in (np.int16, np.int32, np.int64) if size <= np.iinfo(k).max)
        return _Samples(torch.from_numpy(every_R.astype(kind, order="C")), [len(part) for part in rows], sizes=size)
    encodings = _encodings(every_R) if every_R.ndim == 2 and least == 2 else ()
    if _is_images(every_R):
        every_R = _writable(every_R)
    else:
        every_R = as_float32(every_R, what[0]) if every_R.ndim > 2 else _float32(every_R, encodings)
    return _Samples(torch.from_numpy(every_R), [len(part) for part in rows], encodings)


def _kept(values: pd.Series[Any], is_kept_R: NDArray[np.bool_]) -> pd.Series[Any]:
    return values[is_kept_R].reset_index(drop=True)


def duplicates(x_R: Tree, code_N: NDArray[np.int64], row_N: NDArray[np.int64] | None = None) -> Duplicates:
    """The samples whose exact content more than one client has.

    Args:
        x_R: the samples.
        code_N: which client each belongs to.
        row_N: the rows of these samples, in any order; None for all.
    """
    leaves = tree.leaves(x_R)
    digest_N = np.empty(len(code_N), dtype=f"V{16 * len(leaves)}")
    every = torch.arange(len(code_N)) if row_N is None else torch.from_numpy(row_N)
    at = 0
    for rows_B in torch.split(every, _BLOCK):
        arrays = [leaf[rows_B].numpy().reshape(len(rows_B), -1) for leaf in leaves]
        digests = [[hashlib.blake2b(row.data, digest_size=16).digest() for row in x_Bd] for x_Bd in arrays]
        digest_N[at : at + len(rows_B)] = [b"".join(row) for row in zip(*digests, strict=True)]
        at += len(rows_B)
    _, content_N = np.unique(digest_N, return_inverse=True)
    pairs = np.unique(np.stack([content_N, code_N], axis=1), axis=0)
    is_common = np.bincount(pairs[:, 0]) > 1
    rows = int(is_common[content_N].sum())
    if not rows:
        return Duplicates(0, None)
    first = pairs[pairs[:, 0] == np.flatnonzero(is_common)[0], 1]
    return Duplicates(rows, (int(first[0]), int(first[1])))


def _array(values: ArrayLike | Tensor, what: str) -> NDArray[Any]:
    if np.ma.is_masked(values):
        raise InputError(
            f"{what} is a masked array, and NumPy would use the values under the mask: fill them in, as "
            f"x.astype(float).filled(np.nan) for missing numbers of x, or remove those rows"
        )
    try:
        if not isinstance(values, Tensor):
            return np.asarray(values)
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{what} cannot be read as an array ({type(error).__name__}): give a NumPy array, a dense "
            "tensor, or a list whose rows all have the same length"
        ) from error


def _are_ids(x_R: NDArray[Any]) -> bool:
    return x_R.dtype.kind in "iu" and x_R.dtype.itemsize > 1 and x_R.ndim < 3


def _is_images(x_R: NDArray[Any]) -> bool:
    return x_R.dtype == np.uint8 and x_R.ndim > 2


def _rows(x_R: NDArray[Any], what: str, least: int) -> NDArray[Any]:
    """Images (R, C, H, W), or numbers (R, ...) that float32 can hold."""
    if x_R.ndim < least or not x_R.size:
        raise InputError(f"{what} has the shape {x_R.shape}: give one row of numbers, or one image, per label")
    if _is_images(x_R):
        return _channels_first(x_R, what)
    if x_R.dtype.kind not in "fiub":
        raise InputError(f"{what} holds {x_R.dtype}, not numbers: give images as uint8, or numbers as float32")
    if _are_ids(x_R):
        if x_R.min() < 0 or x_R.max() >= _MOST_IDS:
            odd = int(x_R.min()) if x_R.min() < 0 else int(x_R.max())
            raise InputError(
                f"{what} holds whole numbers, which are ids from 0 to {_MOST_IDS - 1:,}, and one is {odd:,}: give "
                "amounts as floating-point numbers, as x.astype(float)"
            )
        log.warning("%s holds whole numbers, which are taken as ids; give amounts as floating-point numbers", what)
        return x_R
    if x_R.dtype.kind != "f" and x_R.ndim > 2:
        raise InputError(
            f"{what} holds {x_R.dtype} of shape {x_R.shape}: give images as uint8 of 0 to 255, else float32"
        )
    with np.errstate(over="ignore"):
        numbers_R = x_R.astype(np.float32, copy=False)
    wrong = ~np.isfinite(numbers_R) if x_R.ndim > 2 else np.isinf(numbers_R)
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        kind = "a number that is not finite" if x_R.ndim > 2 else "an infinite number"
        raise InputError(f"{what} holds {kind} (row {row}, counting from 0): correct it or remove the row")
    last = x_R.ndim == 4 and x_R.shape[3] in _CHANNELS and x_R.shape[1] not in _CHANNELS
    return x_R.transpose(0, 3, 1, 2) if last else x_R


def _encodings(x_RF: NDArray[Any]) -> tuple[Encoding, ...]:
    """How the columns of an array become features: as they are, less the median where float32 needs that."""
    exact = np.can_cast(x_RF.dtype, np.float32)
    shifts = [0.0 if exact else shift_of(x_R.astype(np.float64)) for x_R in x_RF.T]
    if columns := [str(i) for i, shift in enumerate(shifts) if shift]:
        log.info(
            "columns of x whose median was subtracted, because 32 bits cannot tell their numbers apart: %s",
            listed(columns),
        )
    return tuple(Encoding(str(i), shift=shift) for i, shift in enumerate(shifts))


def _float32(x_R: NDArray[Any], encodings: Sequence[Encoding]) -> NDArray[np.float32]:
    if any(encoding.shift for encoding in encodings):
        x_R = x_R.astype(np.float64) - [encoding.shift for encoding in encodings]
    return x_R.astype(np.float32, order="C")


def _channels_first(x_R: NDArray[Any], what: str) -> NDArray[Any]:
    if x_R.ndim == 3:
        return x_R[:, None]
    ends = [x_R.ndim == 4 and x_R.shape[axis] in _CHANNELS for axis in (1, 3)]
    if ends == [True, False]:
        return x_R
    if ends == [False, True]:
        return x_R.transpose(0, 3, 1, 2)
    why = "has 1 or 3 at both ends" if all(ends) else "has no axis of 1 or 3 channels"
    raise InputError(
        f"{what} of shape {x_R.shape} {why}: give grey images as (R, H, W), colour ones as (R, H, W, 3) or (R, 3, H, W)"
    )


def _writable(x_R: NDArray[Any]) -> NDArray[Any]:
    x_R = np.ascontiguousarray(x_R)
    return x_R if x_R.flags.writeable else x_R.copy()


def _column(parts: Sequence[Any], counts: Sequence[int], what: str) -> pd.Series[Any]:
    """One value per row of all splits, joined."""
    columns = []
    for values, count in zip(parts, counts, strict=True):
        array = _array(values, what)
        if array.dtype.names:
            raise InputError(
                f"{what} holds records ({listed(array.dtype.names, 5)}): give one of these, as {what}[name]"
            )
        if array.ndim != 1:
            fix = ", for example y.argmax(axis=1)" if what == "y" and array.ndim == 2 else ""
            raise InputError(f"{what} has the shape {array.shape}: give one value per row{fix}")
        if len(array) != count:
            raise InputError(f"{what} has {len(array)} values for {count} rows of x: give one value per row")
        columns.append(without_nan(pd.Series(array)))
    return pd.concat(columns, ignore_index=True)


def _goal(
    splits: Sequence[Any], counts: Sequence[int], task: TaskName | None, names: Sequence[str] | None
) -> dict[str, pd.Series[Any]]:
    """The target, or what is predicted together: y[0], y[1] and so on of an array (R, D), or ``names``."""
    arrays = [_array(values, "y") for values in splits]
    widths = {array.shape[1] for array in arrays if array.ndim == 2 and array.dtype.kind in "fiub" and array.size}
    if len(widths) != 1 or any(array.ndim != 2 for array in arrays):
        return {"y": _column(splits, counts, "y")}
    two = all(np.isin(array, (0, 1)).all() for array in arrays)
    hot = two and all((array.sum(-1) == 1).all() for array in arrays) and task != "multilabel"
    [width] = widths
    if hot or ((width == 1 or not two) and any(array.dtype.kind != "f" for array in arrays)):
        return {"y": _column(splits, counts, "y")}
    if names is not None and (len(set(names)) != width or not two):
        raise InputError(
            f"y has {width} columns and class_names {len(names)} names: give each of several labels, 0 or 1, its own, "
            "and numbers to predict none"
        )
    names = [f"y[{d}]" for d in range(width)] if names is None else [str(name) for name in names]
    return {name: _column([array[:, d] for array in arrays], counts, "y") for d, name in enumerate(names)}


def _classes(
    goal: Mapping[str, pd.Series[Any]], class_names: Sequence[str], task: TaskName | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if task not in (None, "classification"):
        raise InputError(f"class_names are for classes, and this is a {task}: leave them out")
    y_R, texts = labels(goal["y"], "y")
    look("y", "class", y_R, texts)
    names = tuple(map(str, class_names))
    numbers = {str(i): i for i in range(len(names))}
    place = numbers if set(texts) <= set(numbers) else {name: i for i, name in enumerate(names)}
    strange = [name for name in texts if name not in place]
    if strange or len(set(names)) < len(names):
        raise InputError(
            f"y holds {listed(strange or texts, 5)}, which {len(names)} class_names ({listed(names, 5)}) do not cover: "
            f"give each class one name, and y as 0 to {len(names) - 1} or as these names"
        )
    return np.array([place[name] for name in texts], np.int64)[y_R], names
