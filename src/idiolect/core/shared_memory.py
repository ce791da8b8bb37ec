"""Tensors that processes share, as samples: one copy, in a file without a name, which each process maps."""

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

from idiolect.core import tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.tree import Tree

_ALIGNED = 64  # bytes
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
    """Tensors whose values are not set, and the file that contains them."""

    rows: Tree
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


def shared(like: Tree, rows: int) -> Shared:
    """Memory for samples that other processes can map too, with ``mapped``.

    Args:
        like: a tensor of such samples, or a tree of them, with any number of samples.
        rows: the number of samples.

    Raises:
        RunError: the folder for temporary files has too little space.
    """
    size = _ends(like, rows)[-1]
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
    views = _views(memory, like, rows)
    file.address = tree.leaves(views)[0].data_ptr()
    return Shared(views, file)


def mapped(descriptor: int, like: Tree, rows: int) -> Tree:
    """The samples of such a file in another process; other processes do not see changes to them."""
    return _views(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY), like, rows)


def _ends(like: Tree, rows: int) -> list[int]:
    """Where each tensor ends in the file, in bytes; each begins at the next multiple of ``_ALIGNED``."""
    ends = [0]
    for leaf in tree.leaves(like):
        start = -(-ends[-1] // _ALIGNED) * _ALIGNED
        ends.append(start + rows * math.prod(leaf.shape[1:]) * leaf.dtype.itemsize)
    return ends


def _make_room(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)  # a full disk is an error here, and would be a crash later
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot say
                raise


def _views(memory: mmap.mmap, like: Tree, rows: int) -> Tree:
    flat, build = tree.flatten(like)
    starts = [-(-end // _ALIGNED) * _ALIGNED for end in _ends(like, rows)]
    return build([_view(memory, start, (rows, *a.shape[1:]), a.dtype) for start, a in zip(starts, flat, strict=False)])


def _view(memory: mmap.mmap, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if not math.prod(shape):  # which frombuffer refuses
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=start).view(shape)
