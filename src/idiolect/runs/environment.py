"""What numbers depend on besides their study: the machine and the versions of libraries."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from idiolect.core.version import __version__


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
