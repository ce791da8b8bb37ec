"""What this process may use of the machine."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_GROUP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def cores() -> int:
    """The number of processor cores that this process may use, at least 1.

    Those that the system lets it run on, or fewer if its group of processes (Linux's cgroup, as containers have one)
    has a quota of processor time.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(count, quota())))


def quota() -> float:
    """The least quota of this process's group and of those above it, in cores; infinite without one."""
    try:
        lines = [line.split(":", 2) for line in _GROUP.read_text().splitlines()]
    except OSError:
        return math.inf
    least = math.inf
    for _, kinds, group in lines:
        if kinds and "cpu" not in kinds.split(","):
            continue
        root = _ROOT / kinds if kinds else _ROOT
        inside = root / group.lstrip("/")
        for folder in (inside, *inside.parents):
            if not folder.is_relative_to(root):
                break
            with suppress(OSError, ValueError, ZeroDivisionError):  # no such file, or no quota
                if kinds:
                    of, per = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    of, per = (folder / "cpu.max").read_text().split()
                if float(of) > 0:
                    least = min(least, float(of) / float(per))
    return least
