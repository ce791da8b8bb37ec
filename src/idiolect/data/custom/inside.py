"""A check that the files which a data set names are inside its folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from idiolect.core.errors import InputError


class Within:
    """Nothing outside these folders is read, wherever links and names lead."""

    def __init__(self, *folders: str | Path) -> None:
        self._roots = tuple(os.path.realpath(folder) for folder in folders)
        self._inside: dict[str, bool] = {}

    @classmethod
    def hub(cls) -> Within:
        """Where data sets of the Hugging Face hub are kept."""
        from datasets import config
        from huggingface_hub import constants

        return cls(config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH, constants.HF_HUB_CACHE)

    def check(self, files: Iterable[Path]) -> None:
        """Check that all are inside.

        Raises:
            InputError: one is not.
        """
        outside = next((file for file in files if not self._holds(file)), None)
        if outside is not None:
            raise InputError(
                f"{outside} leads out of {self._roots[0]}: copy the file into it, or, if you trust who made the data, "
                "read them from Python with idiolect.data.open_data(..., outside=True)"
            )

    def _holds(self, file: Path) -> bool:
        if os.path.islink(file):
            return self._is_inside(os.path.realpath(file))
        above = str(file.parent)
        if above not in self._inside:
            self._inside[above] = self._is_inside(os.path.realpath(above))
        return self._inside[above] and file.name != ".."

    def _is_inside(self, real: str) -> bool:
        return any(Path(real).is_relative_to(root) for root in self._roots)
