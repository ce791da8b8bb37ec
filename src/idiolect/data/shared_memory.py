"""Samples that processes share: one copy, in a file without a name, which each process maps."""

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

_UNKNOWN = 32e9  # bytes of memory, if the machine does not say


class File:
    """A file without a name, which is removed when nothing uses it any more.

    Attributes:
        address: the address at which this process has mapped it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.address: int | None = None
        weakref.finalize(self, os.close, descriptor)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy, in this process or another, does not share it


class Shared(NamedTuple):
    """An empty tensor and the file that contains it."""

    rows: Tensor
    file: File


def check(size: float, what: str, fix: str) -> None:
    """Check that so many bytes are at most half of the machine's memory, or at most IDIOLECT_MEMORY.

    This is checked before anything is decoded: a small file can become larger than any memory.

    Raises:
        InputError: they are more, or IDIOLECT_MEMORY is not a number.
    """
    if size > most():
        raise InputError(
            f"{what} would take {size / 1e9:,.1f} GB, and half of this machine's memory, or IDIOLECT_MEMORY, is "
            f"{most() / 1e9:,.1f} GB: {fix}, or set IDIOLECT_MEMORY to more bytes"
        )


def most() -> float:
    """Bytes that the samples of a data set may take."""
    text = os.environ.get("IDIOLECT_MEMORY")
    if text is not None:
        try:
            return float(text)
        except ValueError:
            raise InputError(f"IDIOLECT_MEMORY={text} is not a number of bytes: write one, for example 16e9") from None
    return _memory() / 2


@cache
def _memory() -> float:
    """Bytes of memory of this machine, or of the part that this process may use."""
    limits = [math.inf]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" if there is no limit
            limits.append(int(Path(limit).read_text()))
    return min(limits) if len(limits) > 1 else _UNKNOWN


def shared(shape: tuple[int, ...], dtype: torch.dtype) -> Shared:
    """Memory for samples that other processes can map too, with ``mapped``.

    Raises:
        RunError: the folder for temporary files has too little space.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        with tempfile.TemporaryFile() as opened:
            file = File(os.dup(opened.fileno()))
        _make_room(file.fileno(), max(1, size))
        memory = mmap.mmap(file.fileno(), max(1, size))
    except OSError as error:
        raise RunError(
            f"cannot put {size / 1e6:,.0f} MB of samples into a temporary file ({error.strerror}): set TMPDIR to a "
            "folder with room"
        ) from error
    rows = _view(memory, shape, dtype)
    file.address = rows.data_ptr()
    return Shared(rows, file)


def mapped(descriptor: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The samples of such a file in another process; other processes do not see changes to them."""
    return _view(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY), shape, dtype)


def _make_room(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)  # a full disk is an error here, and would be a crash later
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot say
                raise


def _view(memory: mmap.mmap, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if not math.prod(shape):  # which frombuffer refuses
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)
