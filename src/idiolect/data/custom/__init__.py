"""The user's own data: files, folders, arrays, frames and Hugging Face data sets, each read into a ``Source``."""

from idiolect.data.custom.arrays import Duplicates, duplicates, from_arrays
from idiolect.data.custom.folders import is_program, open_data
from idiolect.data.custom.parts import from_dataset, from_frame

__all__ = ["Duplicates", "duplicates", "from_arrays", "from_dataset", "from_frame", "is_program", "open_data"]
