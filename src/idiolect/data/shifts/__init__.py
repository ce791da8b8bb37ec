"""How clients' samples and labels are changed, so that no two see the same."""

from idiolect.data.shifts.corruptions import Images
from idiolect.data.shifts.selection import SHIFTS, members, shift_of
from idiolect.data.shifts.transforms import KINDS, Shifted, Who, corrupt, invert, noise, permute_labels, rotate

__all__ = [
    "KINDS",
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
]
