"""The user's own data: files, folders, arrays, frames and Hugging Face data sets, each read into a ``Source``."""

from idiolect.data.own.arrays import Duplicates, duplicates, from_arrays
from idiolect.data.own.folders import is_program, open_data
from idiolect.data.own.parts import from_dataset, from_frame

__all__ = ["Duplicates", "duplicates", "from_arrays", "from_dataset", "from_frame", "is_program", "open_data"]
