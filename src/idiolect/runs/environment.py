"""What numbers depend on besides their study: the machine and the versions of libraries."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idiolect.core.documents import read_json
from idiolect.core.errors import InputError
from idiolect.core.version import __version__
from idiolect.runs.folder import ENGINE_FILE

_START = ("engine", "options", "workers", "seconds", "busy", "versions", "machine")


def machine() -> str:
    """This machine in a few words."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{name}, {os.cpu_count()} cores{gpu}"


def versions() -> dict[str, str]:
    """Versions of everything that can change a number."""
    return {
        "idiolect": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def starts(folder: Path) -> list[dict[str, Any]]:
    """The engine, the machine and the versions of each start of a study; empty if none are recorded.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / ENGINE_FILE
    try:
        entries = read_json(path) if path.exists() else []
        if not isinstance(entries, list) or not all(isinstance(start, dict) for start in entries):
            raise ValueError("it is not a list of mappings")
        for start in entries:
            start.pop("seal", None)
            if missing := [k for k in _START if k not in start]:
                raise ValueError(f"it has an entry without {missing[0]!r}")
            if not isinstance(start["versions"], dict) or not isinstance(start["options"], dict):
                raise ValueError("its versions or options are not a mapping")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it, or delete it") from None
    return entries
