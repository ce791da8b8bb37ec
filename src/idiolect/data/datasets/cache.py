"""Tensors in the user's cache folder, checked when they are read; if the cache fails, this only costs time."""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

log = logging.getLogger(__name__)

_DAY = 86_400  # seconds


class CacheEntry(NamedTuple):
    """The content of a cache file; the tensors are mapped, not read."""

    tensors: dict[str, Tensor]
    about: dict[str, str]


def place(name: str) -> Path | None:
    """The place of the cache file of this name; None if there is no home folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "idiolect", f"{name}.safetensors") if os.path.isabs(home) else None


def mark(file: Path) -> list[str | int]:
    """What shows whether a file has changed, without reading it: place, size, inode, and two times.

    A program can set back the time of the last change of content. Only the system sets the time of the last change of
    the entry. On Windows that is the time at which the file was made.

    Raises:
        OSError: there is no such file.
    """
    about = file.stat()
    return [str(file.resolve()), about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns]


def load(path: Path) -> CacheEntry | None:
    """What the cache has at this place; None if there is nothing or its check sum is wrong."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
            about = dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        if path.exists():
            log.info("the cache %s is broken (%s) and is made again", path, error)
        return None
    return CacheEntry(tensors, about) if about.pop("crc", None) == _crc(tensors) else None


def save(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], mode: int | None = None) -> bool:
    """Write into a second file and rename it; returns whether this worked. A ``mode`` is the file's from the start."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode is not None:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        save_file(dict(tensors), draft, metadata={**about, "crc": _crc(tensors)})
        draft.replace(path)
    except (OSError, SafetensorError) as error:
        log.info("nothing can be cached at %s: %s", path, error)
        try:
            draft.unlink(missing_ok=True)
        except OSError:
            log.info("%s could not be removed", draft)
        return False
    return True


def trim(beside: Path, begins: str, most: float) -> None:
    """Remove the oldest of the files with this beginning, until they have at most ``most`` bytes together.

    ``beside``, which is one of them, stays; all have its suffix. Unfinished files that are more than a day old are
    removed too.
    """
    entries = []
    for file in [*beside.parent.glob(f"{begins}*{beside.suffix}"), *beside.parent.glob("*.tmp")]:
        with suppress(OSError):  # another process removes files too
            about = file.stat()
            if file.suffix != ".tmp":
                entries.append((about.st_mtime, about.st_size, file))
            elif about.st_mtime < time.time() - _DAY:
                file.unlink()
    total = sum(size for _, size, _ in entries)
    for _, size, file in sorted(entries):
        if total > most and file != beside:
            with suppress(OSError):
                file.unlink(missing_ok=True)
                total -= size


def _crc(tensors: Mapping[str, Tensor]) -> str:
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].numpy().data, zlib.crc32(name.encode(), crc))
    return str(crc)
