"""Studies that wait in a folder for a server, which runs one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from idiolect.core.errors import InputError, option
from idiolect.federation.server.run import FILE

SETTLED = 5.0
"""Seconds since a file has changed last, after which it is read: it may still be on its way into the folder."""
State = Literal["waiting", "running", "done", "failed"]
_Stamp = tuple[int, int]


class Entry(NamedTuple):
    """A study of a queue."""

    study: str
    """The name of its file, without the ending."""
    state: State
    why: str = ""
    """Of a study that has failed."""


class Queue:
    """The studies in a folder, in the order of their files' names. The run of ``hearts.yaml`` is in ``OUT/hearts``.

    A file that has changed since its study has ended is taken again.

    Args:
        folder: where files of studies are put.
        out: folder of the runs.

    Raises:
        InputError: ``out`` is the folder of a single run.
    """

    def __init__(self, folder: Path, out: Path) -> None:
        if (out / FILE).exists():
            raise InputError(f"{out} holds the run of one study: give a folder for several with {option('out')}")
        self._folder, self._out = folder, out
        self._ends: dict[str, tuple[_Stamp, Entry]] = {}
        self._current: tuple[Path, _Stamp] | None = None

    def take(self) -> Path | None:
        """The next study's file, which runs from now on; None if none waits."""
        now = time.time()
        for path, stamp in self._files():
            if self._is_new(path, stamp) and abs(now - stamp[0] / 1e9) >= SETTLED:
                self._current = path, stamp
                return path
        return None

    def out(self, path: Path) -> Path:
        """The folder of a study's run."""
        return self._out / path.stem

    def end(self, state: Literal["done", "failed"], why: str = "") -> None:
        """Say how the study that was taken has ended."""
        assert self._current is not None
        (path, stamp), self._current = self._current, None
        self._ends[path.name] = stamp, Entry(path.stem, state, why)

    def entries(self) -> list[Entry]:
        """The studies whose files are in the folder, and how they stand."""
        current, entries = self._current, list[Entry]()
        for path, stamp in self._files():
            if current is not None and path == current[0]:
                entries.append(Entry(path.stem, "running"))
            elif self._is_new(path, stamp):
                entries.append(Entry(path.stem, "waiting"))
            else:
                entries.append(self._ends[path.name][1])
        return entries

    def _is_new(self, path: Path, stamp: _Stamp) -> bool:
        end = self._ends.get(path.name)
        return end is None or end[0] != stamp

    def _files(self) -> Iterator[tuple[Path, _Stamp]]:
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                with suppress(OSError):  # it was taken away meanwhile
                    about = path.stat()
                    if path.suffix in (".yaml", ".yml") and path.name[0] != "." and path.is_file():
                        yield path, (about.st_mtime_ns, about.st_size)
