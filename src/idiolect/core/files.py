"""Writes files atomically, and reads them so that damage is noticed.

After a crash, too, a file has either its old content or its new one. A sealed file holds a digest of all its bytes, in
a place where its format allows text (metadata, a key of JSON).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from idiolect.core.errors import IdiolectError, InputError, RunError, option

_MARK = b"idiolect-sha256:"
_DIGITS = 64
UNSEALED = _MARK.decode() + _DIGITS * "0"
"""Takes the place of the digest in content that will be sealed."""
DRAFT = ".idiolect-*.tmp"
"""A pattern for the names of files that are being written."""


def about_backslashes(path: str | Path) -> str:
    r"""What to write in place of a path that has backslashes, where these do not separate folders; "" if nothing.

    >>> about_backslashes("images/train"), about_backslashes(r"images\train") if os.sep == "/" else ""
    ('', 'backslashes do not separate folders here: write images/train')
    """
    text = str(path)
    if os.sep == "\\" or "\\" not in text or os.path.lexists(os.path.expanduser(text)):
        return ""
    if re.match(r"[A-Za-z]:\\|\\\\", text):
        return "this is a path of Windows: give the path on this machine, with / between folders"
    return f"backslashes do not separate folders here: write {text.replace(chr(92), '/')}"


def expanded(path: str | Path) -> Path:
    """As ``expanded_text``, as a path."""
    return Path(expanded_text(path))


def expanded_text(path: str | Path) -> str:
    """A path as text whose ``~`` and variables of the environment (``$NAME``, ``${NAME}``) have their values.

    So a study names its data alike on every machine: ``$IDIOLECT_DATA/natural/school.parquet``.

    Raises:
        InputError: a variable is not set.

    >>> expanded_text("./visits.csv"), expanded_text("costs_in_$.csv")
    ('./visits.csv', 'costs_in_$.csv')
    """
    text = os.path.expanduser(path)
    if os.path.lexists(text):
        return text
    text = os.path.expandvars(text)
    if unset := re.search(r"\$(\w+)|\$\{(\w+)\}", text):
        name = unset[1] or unset[2]
        raise InputError(f"{path}: the variable {name} of the environment is not set: set it, or write the path out")
    return text


def write(path: Path, content: bytes | str, mode: int | None = None) -> None:
    """Write atomically, as ``drafted``.

    Raises:
        RunError: the path is not a regular file, the disk is full or the folder cannot be written.
    """
    with drafted(path, mode) as file:
        file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


@contextmanager
def drafted(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file to write into, which becomes ``path`` where the block ends without an error: fsync, rename, fsync again.

    An existing file keeps its mode and, where the system allows it, its owner. Anything but a regular file is left as
    it is. A link is not followed, because it may be part of a folder from someone else. With a ``mode``, such as 0o600
    for a secret, the file has no more rights than that from the first byte on, whatever an older one had.

    Raises:
        RunError: the path is not a regular file, the disk is full or the folder cannot be written.
    """
    draft = path.parent / DRAFT.replace("*", secrets.token_hex(8))
    has_draft = False
    try:
        old = _regular(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        usual = 0o666 if old is None else stat.S_IMODE(old.st_mode)
        descriptor = os.open(draft, flags, usual if mode is None else mode)
        has_draft = True
        with open(descriptor, "wb") as file:
            if old is not None and mode is None:
                _as_before(descriptor, old)
            yield file
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
        sync(path.parent)
    except IdiolectError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RunError(f"cannot write {path} ({reason}): free some space, or choose another place") from error
    finally:
        if has_draft:
            with suppress(OSError):
                draft.unlink()


def vacant(folder: Path) -> None:
    """Check that a folder can be written as a whole.

    Raises:
        InputError: there is something in it, or it is not a folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder: choose another with {option('out')}")


@contextmanager
def drafted_folder(folder: Path, mode: int = 0o777) -> Iterator[Path]:
    """A folder to write into, which becomes ``folder`` where the block ends without an error.

    Raises:
        InputError: ``folder`` is not ``vacant``.
        RunError: the disk is full or the folder cannot be written.
    """
    vacant(folder)
    draft = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.tmp"
    try:
        draft.mkdir(mode, parents=True)
        yield draft
        if folder.exists():
            folder.rmdir()
        draft.replace(folder)
    except RunError as error:  # of a file in it
        raise RunError(str(error).replace(str(draft), str(folder))) from error
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"cannot write {folder} ({reason}): free some space, or choose another place") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _regular(path: Path) -> os.stat_result | None:
    """The status of a file that will be replaced; None if there is no such file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status
    kind = "folder" if stat.S_ISDIR(status.st_mode) else "link" if stat.S_ISLNK(status.st_mode) else "device or a pipe"
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
    """Write the names of a folder's files to disk, where the system can.

    Raises:
        OSError: it failed.
    """
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes; the seal of a sealed file is checked.

    Raises:
        OSError: there is no such file, or it is not a regular file; a pipe, for example, could block for ever.
        ValueError: it is larger, or has changed since it was sealed.
    """
    with open(path, "rb", opener=_at_once) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a file but a device, a pipe or a folder", str(path))
        if most is not None and about.st_size > most:
            raise ValueError(f"it has {about.st_size:,} bytes, and at most {most:,} are read")
        content = file.read()
    if not intact(content):
        raise ValueError("its content has changed since it was written")
    return content


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # does not wait at a pipe without a writer


def digest(content: bytes) -> bytes:
    """The SHA-256 of some bytes, 32 bytes."""
    return hashlib.sha256(content).digest()


def sealed(content: bytes) -> bytes:
    """The content, with its digest in place of the last ``UNSEALED``."""
    at = content.rindex(UNSEALED.encode()) + len(_MARK)
    return b"".join((content[:at], _digest(content, at), content[at + _DIGITS :]))


def intact(content: bytes) -> bool:
    """Whether content is as it was sealed. Content without a seal, as of files that people write, counts as intact."""
    at = content.rfind(_MARK) + len(_MARK)
    return at < len(_MARK) or content[at : at + _DIGITS] == _digest(content, at)


def _digest(content: bytes, at: int) -> bytes:
    """The digest of all bytes, with zeros in place of the digest itself."""
    whole, view = hashlib.sha256(), memoryview(content)
    for part in (view[:at], _DIGITS * b"0", view[at + _DIGITS :]):
        whole.update(part)
    return whole.hexdigest().encode()
