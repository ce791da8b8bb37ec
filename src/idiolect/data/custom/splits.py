"""Names of the training split and of the test split."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from idiolect.core.errors import listed

log = logging.getLogger(__name__)

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "validation", "valid", "val", "dev")


def choose_splits(names: Sequence[str], where: str) -> tuple[str, str | None]:
    """The names of the training split and of the test split: train and test, else the first two."""
    train = next((n for n in names if n.lower() in _TRAIN), names[0])
    rest = [n for n in names if n != train]
    test = next((n for usual in _TEST for n in rest if n.lower() == usual), rest[0] if rest else None)
    others = [n for n in rest if n != test]
    if others or (test and test.lower() != "test"):
        beside = f"; not used: {listed(others)}" if others else ""
        log.warning("%s: %s is the training split and %s the test split%s", where, train, test, beside)
    return train, test


def is_split(name: str) -> bool:
    """Whether this is a usual name of a split."""
    return name.lower() in (*_TRAIN, *_TEST)


def are_splits(names: Sequence[str]) -> bool:
    """Whether the names are those of splits and one is the training split."""
    return any(name.lower() in _TRAIN for name in names) and all(map(is_split, names))
