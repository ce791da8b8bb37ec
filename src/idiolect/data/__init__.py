"""Clients' data: a data set, a partition and shifts, which ``build`` puts together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from idiolect.data.datasets.dataset import Column, Encoding, Source, digest
from idiolect.data.datasets.loading import at_hand, describe, load, names
from idiolect.data.federated import FederatedData, build
from idiolect.data.inventory import holdings, manifest
from idiolect.data.new_clients import conditions_of
from idiolect.data.normalisation import Normalise
from idiolect.data.partitions import PARTITIONS, Split, follows_a_column, partition_of
from idiolect.data.shifts import SHIFTS, members, shift_of

if TYPE_CHECKING:
    from idiolect.data.custom import from_arrays, from_dataset, from_frame, from_play, is_program, open_data

_OWN = ("from_arrays", "from_dataset", "from_frame", "from_play", "is_program", "open_data")
__all__ = [
    "PARTITIONS",
    "SHIFTS",
    "Column",
    "Encoding",
    "FederatedData",
    "Normalise",
    "Source",
    "Split",
    "at_hand",
    "build",
    "conditions_of",
    "describe",
    "digest",
    "follows_a_column",
    "from_arrays",
    "from_dataset",
    "from_frame",
    "from_play",
    "holdings",
    "is_program",
    "load",
    "manifest",
    "members",
    "names",
    "open_data",
    "partition_of",
    "shift_of",
]


def __getattr__(name: str) -> Any:
    """Import the readers of the user's own data on first use: worker processes do not need them."""
    if name in _OWN:
        return getattr(import_module("idiolect.data.custom"), name)
    raise AttributeError(f"module 'idiolect.data' has no attribute {name!r}")
