"""Files that are compressed: a table in gzip, and a table or a folder in a zip archive."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from idiolect.core import shared_memory
from idiolect.core.errors import InputError

GZIP, ZIP = ".gz", ".zip"
_OTHERS = (".tar", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_BLOCK = 2**20  # bytes that are decompressed at a time
_ODD = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError)


def is_archive(path: Path) -> bool:
    """Whether a path ends like that of a compressed file which is read."""
    return path.suffix.lower() in (GZIP, ZIP)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The file or the folder in a compressed file, for as long as the block lasts; other paths as they are.

    A zip archive is a folder; of one with a single file or folder in it, this one. It is unpacked into a temporary
    folder, which has the archive's name. Nothing is written outside of it, whatever the names in the archive.

    Raises:
        InputError: the file is broken, encrypted, empty or of another kind, or would take too much room.
    """
    if path.suffix.lower() in _OTHERS and path.is_file():
        raise InputError(f"{path} is an archive of a kind that is not read: unpack it, or save it as {GZIP} or {ZIP}")
    if not is_archive(path) or not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="idiolect-") as place:
        try:
            if path.suffix.lower() == GZIP:
                inside = _gunzip(path, Path(place))
            else:
                inside = _unzip(path, Path(place) / path.name)
        except PermissionError:
            raise
        except _ODD as error:
            raise InputError(f"{path} cannot be unpacked ({error or type(error).__name__}): save it again") from error
        with _named(f"{place}{os.sep}", str(path).removesuffix(path.name)):
            yield inside


@contextmanager
def _named(place: str, name: str) -> Iterator[None]:
    """What is said or raised in the block has a name for a place."""
    make = logging.getLogRecordFactory()

    def named(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        if place in (text := record.getMessage()):
            record.msg, record.args = text.replace(place, name), ()
        return record

    logging.setLogRecordFactory(named)
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(place, name)) from error
    finally:
        logging.setLogRecordFactory(make)


def _gunzip(path: Path, place: Path) -> Path:
    file = place / path.stem
    size = 0
    with gzip.open(path) as packed, file.open("wb") as out:
        while block := packed.read(_BLOCK):
            size += len(block)
            _check(size, path)
            out.write(block)
    return file


def _unzip(path: Path, folder: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if not _is_hidden(entry.filename)]
        if any(entry.flag_bits & 1 for entry in entries):
            raise InputError(f"{path} is encrypted: unpack it, and give the folder")
        if any(stat.S_ISLNK(entry.external_attr >> 16) for entry in entries):
            raise InputError(f"{path} has links in it: put in the files themselves")
        files = [entry for entry in entries if not entry.is_dir()]
        if not files:
            raise InputError(f"{path} has no files in it: give one with a table or with images")
        _check(sum(entry.file_size for entry in files), path)
        for entry in entries:
            archive.extract(entry, folder)  # which keeps to the folder and to the size that the entry says
    root = _only(folder)
    inside = _only(root) if root.is_dir() else root
    return inside if inside.is_file() else root


def _only(folder: Path) -> Path:
    """What is in a folder if it is one thing; else the folder."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 else folder


def _check(size: float, path: Path) -> None:
    shared_memory.check(size, f"{path}, unpacked,", "unpack a part of it")
    if size > shutil.disk_usage(tempfile.gettempdir()).free:
        raise InputError(f"{path} needs {size / 1e9:,.1f} GB unpacked, more than is free in {tempfile.gettempdir()}")


def _is_hidden(name: str) -> bool:
    parts = Path(name).parts
    return not parts or parts[0] == "__MACOSX" or any(part.startswith(".") for part in parts)
