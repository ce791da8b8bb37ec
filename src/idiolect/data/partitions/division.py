"""Dividing a data set among clients by any partition, and checking the result."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np

from idiolect.core import keys
from idiolect.core.defaults import USUAL_CLIENTS
from idiolect.core.errors import InputError, nearest, option
from idiolect.core.import_path import by_path
from idiolect.core.option_spec import Spec, check
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions import flower
from idiolect.data.partitions.allocation import Rows, Split, shares_of_classes
from idiolect.data.partitions.apart import Splitting, divide_apart
from idiolect.data.partitions.flower import Partitioner
from idiolect.data.partitions.registry import PARTITIONS, check_target
from idiolect.data.partitions.sizes import draw_sizes

log = logging.getLogger(__name__)


def partition_of(spec: Spec) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function or the class of partitioners for a spec, and its checked options.

    Raises:
        InputError: unknown name, import path or option.
    """
    what = f"partition {spec.name}"
    if spec.name in PARTITIONS:
        return PARTITIONS[spec.name], check(PARTITIONS[spec.name], spec.options, what)
    if "." not in spec.name:
        raise InputError(f"unknown partition {spec.name!r}; {nearest(spec.name, PARTITIONS)}")
    code = by_path(spec.name, "partition")
    if flower.is_kind(code):
        flower.check(code, spec.options, what)
        return code, dict(spec.options)
    if not inspect.isfunction(code) or "source" not in inspect.signature(code).parameters:
        raise InputError(
            f"{what}: this is not a partition; give a function (source, clients, rng, *, options) -> Split, or a class "
            "of flwr_datasets.partitioner"
        )
    return code, check(code, spec.options, what)


def follows_a_column(spec: Spec) -> bool:
    """Whether the data determine how many clients this partition makes, if the user does not.

    Raises:
        InputError: as for ``partition_of``.
    """
    function, options = partition_of(spec)
    parameters = inspect.signature(function).parameters
    if flower.is_kind(function):
        return "num_partitions" not in parameters or "num_partitions" in options
    annotated = inspect.signature(function, eval_str=True).parameters
    return "clients" in parameters and type(None) in get_args(annotated["clients"].annotation)


def divide(
    source: Source, partition: Spec | Partitioner, clients: int | None, seed: int, sizes: Sequence[int],
    way: Splitting = Splitting(),  # noqa: B008  immutable
) -> Split:  # fmt: skip
    """Divide a source by a partition, with training sizes if they are given, and groups on one side each.

    Raises:
        InputError: as for ``partition_of``, or the partition fails or returns something that cannot be used.
    """
    rng = keys.generator(seed, "partition")
    draw = keys.generator(seed, "sizes")
    sizes_K: Rows | None = None  # where the partition itself keeps to them
    if not isinstance(partition, Spec):
        name = type(partition).__name__
        split = flower.from_flower(partition, source, clients, rng)
    else:
        name = partition.name
        function, options = partition_of(partition)
        if flower.is_kind(function):
            partitioner, more = flower.made(function, options, clients or USUAL_CLIENTS)
            split = flower.from_flower(partitioner, source, clients, rng, **more)
        else:
            check_target(source, name, name, f"iid, or natural with {option('client_column')}")
            count = clients or (None if follows_a_column(partition) else USUAL_CLIENTS)
            if sizes and count and "sizes_K" in inspect.signature(function).parameters:
                sizes_K = draw_sizes(sizes, count, draw)
            more = {} if sizes_K is None else {"sizes_K": sizes_K}
            call = partial(function, source, count, rng, **more, **options)
            split = call() if name in PARTITIONS else _guarded(call, name)
    _check_split(split, clients, len(source.y_R), name)
    split = divide_apart(split, source, way, keys.generator(seed, "groups"))
    if not sizes:
        return split
    if sizes_K is not None:
        have_K = np.array([len(rows) for rows in split.train])
        if (have_K < sizes_K).any():
            log.warning(
                "sizes: %d of %d clients have fewer training samples than they should, %d at least, because of groups "
                "or of a gap that is kept free", (have_K < sizes_K).sum(), len(have_K), have_K.min(),
            )  # fmt: skip
        if not (have_K > sizes_K).any():  # more where fewer are tested on, because of groups or classes
            return split
        sizes_K = np.minimum(have_K, sizes_K)
    else:
        sizes_K = draw_sizes(sizes, len(split.train), draw)
    return _capped(split, sizes_K, name, source.y_R.numpy() if way.each_class else None)


def _guarded(divide: Callable[[], Any], name: str) -> Split:
    """The result of the user's function, as a split."""
    try:
        split = divide()
        train, test = ([np.asarray(rows) for rows in part] for part in split[:2])
        if not all(rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer) for rows in [*train, *test]):
            raise TypeError("sample numbers are whole numbers, in one array for each client")
        return Split([r.astype(np.int64) for r in train], [r.astype(np.int64) for r in test], *split[2:])
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"partition {name} fails ({type(error).__name__}: {error}): it must return Split(train, test), each a list "
            "with an array of sample numbers for every client"
        ) from error


def _capped(split: Split, sizes_K: Rows, name: str, y_R: Rows | None) -> Split:
    """Limit each client to its first training samples, or to the first ones of each class by the labels ``y_R``."""
    have_K = [len(rows) for rows in split.train]
    k = int(np.argmin(np.array(have_K) - np.array(sizes_K)))
    if have_K[k] < sizes_K[k]:
        who = split.names[k] if split.names else k
        raise InputError(
            f"sizes: client {who} of partition {name} has {have_K[k]} training samples, not {sizes_K[k]}; the smallest "
            f"client has {min(have_K)}: take at most that many, or leave out sizes"
        )
    first = [_first(rows, int(size), y_R) for rows, size in zip(split.train, sizes_K, strict=True)]
    if not split.left:
        return split._replace(train=first)
    rest = [np.setdiff1d(rows, kept) for rows, kept in zip(split.train, first, strict=True)]
    return split._replace(train=first, left=[np.concatenate(parts) for parts in zip(split.left, rest, strict=True)])


def _first(rows: Rows, size: int, y_R: Rows | None) -> Rows:
    if y_R is None:
        return rows[:size]
    _, class_N, size_C = np.unique(y_R[rows], return_inverse=True, return_counts=True)
    part_C = shares_of_classes(size_C, size, size_C, np.arange(len(size_C)))
    return np.sort(np.concatenate([rows[class_N == c][:part] for c, part in enumerate(part_C)]))


def _check_split(split: Split, clients: int | None, rows: int, name: str) -> None:
    """Check what the rest of the program relies on, whoever wrote the partition."""
    count = len(split.train)
    if not 0 < count == len(split.test) == (clients or count):
        of_count = f" of {clients}" if clients else ""
        fits = f", or take clients={count}" if count else ""
        raise InputError(f"partition {name} made {count} clients{of_count}: return one entry per client{fits}")
    if split.names is not None and len(split.names) != count:
        raise InputError(f"partition {name} returns {len(split.names)} names for {count} clients: give each client one")
    for client, (train, test) in enumerate(zip(*split[:2], strict=True)):
        for kind, part in (("training", train), ("test", test)):
            if len(part) == 0:
                raise InputError(f"partition {name}: client {client} has no {kind} samples; take fewer clients")
    every = np.concatenate([*split.train, *split.test])
    if every.min() < 0 or every.max() >= rows or (not split.shared and len(np.unique(every)) < len(every)):
        raise InputError(f"partition {name} uses a sample twice or one that does not exist: draw without replacement")
