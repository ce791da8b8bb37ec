"""Rows that processes share: one copy, in a file without a name that each of them maps."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.errors import RunError


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
