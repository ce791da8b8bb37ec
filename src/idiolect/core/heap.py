"""The heap of a program that trains."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

# Every step needs the same buffers as the step before. glibc would return some to the system in between, which would
# clear and map them again: 200 page faults a step with CIFAR-CNN. So they are kept, up to a limit.
_MAPPED, _KEPT = 32 << 20, 1 << 30  # bytes: larger buffers are mapped each by itself; what is kept at most
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
TUNABLES = f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold={_MAPPED}:glibc.malloc.trim_threshold={_KEPT}"
"""The same for a new process, in the variable GLIBC_TUNABLES, and with large pages."""


def keep_heap() -> None:
    """Let this process keep memory that it has freed for its next step, up to 1 GiB.

    Nothing happens without glibc, or where GLIBC_TUNABLES has settings of its own for the heap.
    """
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError, TypeError):  # other C libraries have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
