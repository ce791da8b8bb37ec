"""How clients' samples and labels are changed, so that no two see the same."""

from idiolect.data.shifts.transforms import KINDS, SHIFTS, Shifted, Who, corrupt, invert, noise, permute_labels, rotate

__all__ = ["KINDS", "SHIFTS", "Shifted", "Who", "corrupt", "invert", "noise", "permute_labels", "rotate"]
