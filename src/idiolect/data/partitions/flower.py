"""Partitioners of Flower Datasets, as splits."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

import numpy as np

from idiolect.core.errors import InputError, nearest
from idiolect.core.import_path import optional
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Split, cut, held_out

_OURS = ("test_fraction", "stratified")


class Partitioner(Protocol):
    """The parts of ``flwr_datasets.partitioner.Partitioner`` that are used."""

    dataset: Any

    @property
    def num_partitions(self) -> int:
        """How many partitions there are."""

    def load_partition(self, partition_id: int) -> Any:
        """One partition, a ``datasets.Dataset``."""


def is_kind(thing: object) -> TypeGuard[type[Partitioner]]:
    """Whether something is a class of partitioners."""
    return inspect.isclass(thing) and hasattr(thing, "load_partition")


def made(kind: type[Partitioner], options: Mapping[str, Any], clients: int) -> tuple[Partitioner, dict[str, Any]]:
    """A partitioner of a class, and the options for ``from_flower``.

    If they are not given, ``num_partitions`` is ``clients`` and ``partition_by`` is ``label``.

    Raises:
        InputError: an option is unknown or refused.
    """
    check(kind, options, f"partition {kind.__name__}")
    own = {k: v for k, v in options.items() if k not in _OURS}
    parameters = inspect.signature(kind).parameters
    usual = {k: v for k, v in (("num_partitions", clients), ("partition_by", "label")) if k in parameters}
    try:
        return kind(**usual | own), {k: v for k, v in options.items() if k in _OURS}
    except (ValueError, TypeError) as error:
        raise InputError(f"partition {kind.__name__} cannot be made ({error}): fix its options") from error


def check(kind: type[Partitioner], options: Mapping[str, Any], what: str) -> None:
    """Check the names of a partitioner's options.

    Raises:
        InputError: an option is unknown.
    """
    parameters = [*inspect.signature(kind).parameters, *_OURS]
    for key in options:
        if key not in parameters:
            raise InputError(f"{what} has no option {key!r}; {nearest(key, parameters)}")


def from_flower(
    partitioner: Partitioner,
    source: Source,
    clients: int | None,
    rng: np.random.Generator,
    test_fraction: float = 0.2,
    stratified: bool = False,
) -> Split:
    """Divide a source by a partitioner of Flower Datasets; each partition is a client, and official splits are merged.

    A copy of the partitioner is used. It gets the columns ``label`` (a number), ``row`` (the sample's number in the
    source) and those of the source, as strings. Its random draws depend on its own seed.

    Args:
        partitioner: a ``flwr_datasets.partitioner.Partitioner`` that has no data yet.
        source: the data.
        clients: the expected number of partitions; None for any.
        rng: for the draw of test samples, and for their order.
        test_fraction: the share of a client's samples that it tests on, in (0, 1).
        stratified: whether a client's test samples have the class proportions of its training samples.

    Raises:
        InputError: the partitioner has data, fails, makes another number of partitions, gives a sample twice, or gives
            a client fewer than two.
    """
    kind = type(partitioner).__name__
    datasets = optional("datasets", "datasets", f"partition {kind}")  # slow to import, and workers do not need it
    columns = {name: np.array(column.names)[column.code_R] for name, column in source.columns.items()}
    y_R = source.y_R.numpy()
    own = copy.deepcopy(partitioner)
    try:
        own.dataset = datasets.Dataset.from_dict({**columns, "label": y_R, "row": np.arange(len(y_R))})
        parts = [own.load_partition(k) for k in range(own.num_partitions)]
        rows_K = [np.asarray(part["row"][:], np.int64) for part in parts]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise InputError(
            f"{kind} cannot divide {source.name} ({error}): give a new partitioner that fits these data"
        ) from error
    if clients not in (None, len(rows_K)):
        raise InputError(f"{kind} makes {len(rows_K)} partitions, but clients={clients}: take clients={len(rows_K)}")
    for k, rows in enumerate(rows_K):
        if len(rows) < 2:
            raise InputError(f"{kind}: partition {k} has {len(rows)} samples of {source.name}; take fewer partitions")
    every = np.concatenate(rows_K)
    if len(np.unique(every)) < len(every):
        raise InputError(
            f"{kind} uses a sample of {source.name} twice; take a partitioner whose partitions are disjoint"
        )
    test_K = held_out(np.array([len(rows) for rows in rows_K]), test_fraction)
    return cut([rng.permutation(rows) for rows in rows_K], test_K, y_R if stratified else None, rng)
