"""The folder of a run: the names of what is in it, a new one, and one that is kept for one process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import filelock

from idiolect.core.errors import InputError, RunError, option

STUDY_FILE = "study.yaml"
MANIFEST_FILE = "manifest.json"
SEARCH_FILE = "search.yaml"
"""Of the folder of a search, whose trials are in runs of their own: see ``idiolect.tuning``."""
BUNDLE_FILE = "bundle.json"
"""Of a bundle, which is no run: see ``idiolect.deploy``."""
ENGINE_FILE = "engine.json"
"""On which engines, machines and versions it ran."""
DIVERGED_FILE = "diverged.json"
PAGE_FILE = "report.html"
COMPARISON_FILE = "comparison.html"
RECORDS_FILE, TIMINGS_FILE, PREDICTIONS_FILE = "records.parquet", "timings.parquet", "predictions.parquet"
"""Of the run, and of each of its cells."""
CHECKPOINT_FILE = "checkpoint.safetensors"
"""Of a cell."""
CELLS = "cells"
"""Has the folder of each method with each seed."""
_FOLDERS_LOCK = os.name == "posix"


def has_run(folder: Path) -> bool:
    """Whether a folder has a run that has begun."""
    return (folder / STUDY_FILE).exists()


def cell_folder(folder: Path, labels: Sequence[str], label: str, seed: int) -> Path:
    """Where a run keeps the records and the checkpoint of one of its methods and a seed."""
    number = labels.index(label) + 1
    name = f"{number:02d}-{re.sub(r'[^A-Za-z0-9._=,-]', '_', label)}"[:100]
    return folder / CELLS / f"{name}-seed{seed}"


def files_of_cells(folder: Path, name: str) -> list[Path]:
    """The file of this name in each cell of a run that has one."""
    return sorted(folder.glob(f"{CELLS}/*/{name}"))


def client_states(cell: Path) -> Path:
    """Where a cell keeps the states of many clients."""
    return cell / "clients"


def elsewhere() -> str:
    """How a message ends whose folder cannot be used."""
    return f"choose another folder with {option('out')}"


def new_folder(name: str) -> Path:
    """``runs/name``, or the first free one of ``runs/name-2``, ...; it is made at once."""
    number, folder = 1, Path("runs", name)
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = Path("runs", f"{name}-{number}")
        except OSError as error:
            raise RunError(
                f"cannot make the folder {folder} ({error.strerror}): choose one with {option('out')}"
            ) from error


def hold(folder: Path) -> Callable[[], object]:
    """Keep other processes out until what this returns is called, or the process ends.

    The folder is made if it does not exist. The folder itself is locked, which leaves no file; on Windows a file in it.
    """
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise InputError(f"cannot use {folder} as a folder (it is a file): {elsewhere()}") from None
        except OSError as error:
            raise RunError(f"cannot make the folder {folder} ({error.strerror}): {elsewhere()}") from None
        if not _FOLDERS_LOCK:
            return _hold_file(folder)
        import fcntl

        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot use {folder} as a folder ({error.strerror}): {elsewhere()}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise _used_by_another(folder) from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return lambda: None
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return partial(os.close, descriptor)
        os.close(descriptor)  # the process that had it has removed it


def _hold_file(folder: Path) -> Callable[[], object]:
    lock = filelock.FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise _used_by_another(folder) from None
    except (OSError, NotImplementedError):  # a file system without locks
        return lambda: None
    return lock.release


def _used_by_another(folder: Path) -> InputError:
    return InputError(f"another process uses {folder}: wait for it, or {elsewhere()}")


def holds_something(folder: Path) -> bool:
    """Whether there is more than a run leaves that was killed at its very start."""
    try:
        return folder.exists() and any(p.name != MANIFEST_FILE and p.name[0] != "." for p in folder.iterdir())
    except OSError as error:
        raise InputError(f"cannot use {folder} as a folder ({error.strerror}): {elsewhere()}") from None
