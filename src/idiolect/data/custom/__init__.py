"""The user's own data: files, folders, arrays, frames and Hugging Face data sets, each read into a ``Source``."""

from idiolect.data.custom.arrays import Duplicates, duplicates, from_arrays
from idiolect.data.custom.folders import is_program, open_data
from idiolect.data.custom.parts import from_dataset, from_frame
from idiolect.data.custom.plays import from_play

__all__ = [
    "Duplicates",
    "duplicates",
    "from_arrays",
    "from_dataset",
    "from_frame",
    "from_play",
    "is_program",
    "open_data",
]
