"""Shifts: changes of some clients' samples or labels, so that clients differ."""

from idiolect.data.shifts.corruptions import Images
from idiolect.data.shifts.selection import SHIFTS, members, shift_of
from idiolect.data.shifts.transforms import (
    KINDS,
    Shifted,
    Who,
    corrupt,
    invert,
    noise,
    permute_labels,
    rotate,
    shuffle_labels,
    translate,
)

OF_LABELS = (permute_labels, shuffle_labels)
"""Those that change classes."""

__all__ = [
    "KINDS",
    "OF_LABELS",
    "SHIFTS",
    "Images",
    "Shifted",
    "Who",
    "corrupt",
    "invert",
    "members",
    "noise",
    "permute_labels",
    "rotate",
    "shift_of",
    "shuffle_labels",
    "translate",
]
