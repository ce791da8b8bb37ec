"""Rows that processes share: one copy, in a file without a name that each of them maps."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core.errors import InputError, RunError

_UNKNOWN = 32e9  # bytes of memory of a machine that does not say


class File:
    """A file without a name, closed and gone when nobody holds it.

    Attributes:
        address: where this process has mapped it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.address: int | None = None
        weakref.finalize(self, os.close, descriptor)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy, in this process or another, has no part in it


class Shared(NamedTuple):
    """An empty tensor and the file that it stands in."""

    rows: Tensor
    file: File


def check(size: float, what: str, fix: str) -> None:
    """Nothing where the machine has room for so many bytes: at most half of its memory, or IDIOLECT_MEMORY bytes.

    Asked before anything is decoded: a small file can stand for more than any machine has.

    Raises:
        InputError: there is no room, or IDIOLECT_MEMORY is no number.
    """
    if size > most():
        raise InputError(
            f"{what} would take {size / 1e9:,.1f} GB, and half of this machine's memory, or IDIOLECT_MEMORY, is "
            f"{most() / 1e9:,.1f} GB: {fix}, or set IDIOLECT_MEMORY to more bytes"
        )


def most() -> float:
    """Bytes that the rows of a data set may take."""
    asked = os.environ.get("IDIOLECT_MEMORY")
    if asked is not None:
        try:
            return float(asked)
        except ValueError:
            raise InputError(f"IDIOLECT_MEMORY={asked} is no number of bytes: write one, as 16e9") from None
    return _memory() / 2


@cache
def _memory() -> float:
    """Bytes of memory of this machine, or of the part of it that this process may use."""
    found = [math.inf]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" where there is none
            found.append(int(Path(limit).read_text()))
    return min(found) if len(found) > 1 else _UNKNOWN


def shared(shape: tuple[int, ...], dtype: torch.dtype) -> Shared:
    """Room for rows that other processes can map too, with ``mapped``.

    Raises:
        RunError: the folder for temporary files has too little room.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        with tempfile.TemporaryFile() as opened:
            file = File(os.dup(opened.fileno()))
        _make_room(file.fileno(), max(1, size))
        memory = mmap.mmap(file.fileno(), max(1, size))
    except OSError as error:
        raise RunError(
            f"cannot hold {size / 1e6:,.0f} MB of rows in a temporary file ({error.strerror}): set TMPDIR to a folder "
            "with room"
        ) from error
    rows = _view(memory, shape, dtype)
    file.address = rows.data_ptr()
    return Shared(rows, file)


def mapped(descriptor: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The rows of such a file in another process; writing to them is seen by nobody else."""
    return _view(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY), shape, dtype)


def _make_room(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)  # a full disk is an error here and a crash later
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot say
                raise


def _view(memory: mmap.mmap, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if not math.prod(shape):  # which frombuffer refuses
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)
