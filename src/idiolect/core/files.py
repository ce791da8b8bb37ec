"""Writing files so that a reader, and a machine that fails, see the old content or the new one and nothing between;
and reading them so that a damaged one is noticed.

A sealed file holds a digest of all its bytes, in a place that its format has for text (metadata, a key of JSON).
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from idiolect.core.errors import RunError

_MARK = b"idiolect-sha256:"
_DIGITS = 64
UNSEALED = _MARK.decode() + _DIGITS * "0"
"""Holds the place of the digest in content that is to be sealed."""
DRAFT = ".idiolect-*.tmp"
"""The names of files that are being written."""


def write(path: Path, content: bytes | str) -> None:
    """Write atomically: a temporary file beside it, fsync, rename, fsync of the folder.

    A file that is there keeps its mode and, where the system allows it, its owner. What is no regular file stays as it
    is; a link is not followed, for it may have come with somebody else's folder.

    Raises:
        RunError: there is something else than a regular file, the disk is full or the folder cannot be written.
    """
    draft = path.parent / DRAFT.replace("*", secrets.token_hex(8))
    made = False
    try:
        old = _regular(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(draft, flags, 0o666 if old is None else stat.S_IMODE(old.st_mode))
        made = True
        with open(descriptor, "wb") as file:
            if old is not None:
                _as_before(descriptor, old)
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
        sync(path.parent)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RunError(f"cannot write {path} ({reason}): make room, or choose another place") from error
    finally:
        if made:
            with suppress(OSError):
                draft.unlink()


def _regular(path: Path) -> os.stat_result | None:
    """What is known of a file that is to be replaced; None where there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    kind = "folder" if stat.S_ISDIR(found.st_mode) else "link" if stat.S_ISLNK(found.st_mode) else "device or a pipe"
    raise OSError(errno.EINVAL, f"it is a {kind}, not a file")


def _as_before(descriptor: int, old: os.stat_result) -> None:
    if not hasattr(os, "fchmod"):
        return
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with suppress(OSError):  # only root may give a file away
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def sync(folder: Path) -> None:
    """Bring the names of a folder's files to disk, where the system can.

    Raises:
        OSError: it could not.
    """
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file of at most so many bytes; one that is sealed is as it was written.

    Raises:
        OSError: there is no such file, or it is something else, such as a pipe, which could keep one waiting.
        ValueError: it is larger, or has changed since it was sealed.
    """
    with open(path, "rb", opener=_at_once) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no file, but a device, a pipe or a folder", str(path))
        if most is not None and about.st_size > most:
            raise ValueError(f"it has {about.st_size:,} bytes, and at most {most:,} are read")
        content = file.read()
    if not intact(content):
        raise ValueError("its content has changed since it was written")
    return content


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer


def sealed(content: bytes) -> bytes:
    """The content with its digest in the last place that ``UNSEALED`` holds."""
    at = content.rindex(UNSEALED.encode()) + len(_MARK)
    return b"".join((content[:at], _digest(content, at), content[at + _DIGITS :]))


def intact(content: bytes) -> bool:
    """Whether content is as it was sealed; what never was, as before there were seals, counts as intact."""
    at = content.rfind(_MARK) + len(_MARK)
    return at < len(_MARK) or content[at : at + _DIGITS] == _digest(content, at)


def _digest(content: bytes, at: int) -> bytes:
    """Of all bytes, those where the digest stands being zeros."""
    whole, view = hashlib.sha256(), memoryview(content)
    for part in (view[:at], _DIGITS * b"0", view[at + _DIGITS :]):
        whole.update(part)
    return whole.hexdigest().encode()
