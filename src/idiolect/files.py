"""Writing files so that a reader, and a machine that fails, see the old content or the new one and nothing between."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from idiolect.errors import RunError


def write(path: Path, content: bytes | str) -> None:
    """Write atomically: a temporary file beside it, fsync, rename, fsync of the folder.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}): make room, or choose another folder") from error
    finally:
        with suppress(OSError):
            draft.unlink()


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
