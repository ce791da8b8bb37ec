"""What can go wrong, each said in one sentence that ends with the mend."""

from __future__ import annotations

import difflib
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_LIBRARY = re.compile(r"[\\/](torch|numpy|scipy|sklearn)[\\/]|^<|[\\/]lib[\\/]python[\d.]+[\\/](?!site-packages)")


class IdiolectError(Exception):
    """Base of every error that idiolect raises on purpose."""


class InputError(IdiolectError, ValueError):
    """The caller asked for something impossible; the message names the option and the mend. Exit code 2."""


class RunError(IdiolectError, RuntimeError):
    """A run stopped: a client failed or diverged, or the disk is full. The message says who, when and where."""


class Diverged(RunError):
    """A client or the server computed a number that is not finite. Going on would give the same again."""


class Interrupted(IdiolectError):
    """The run was asked to stop. Everything up to the last whole round is on disk. Exit code 128 + ``signal``."""

    def __init__(self, message: str = "stopped", signal: int = 2) -> None:
        super().__init__(message)
        self.signal = signal


@contextmanager
def blame(where: str) -> Iterator[None]:
    """Turn whatever a method raises inside the block into a RunError that says where it happened."""
    try:
        yield
    except IdiolectError:
        raise
    except Exception as error:
        raise RunError(f"{where}: {type(error).__name__}: {error}{_place(error)}") from error


def _place(error: Exception) -> str:
    """The file and line of the innermost frame that is nobody else's library."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _LIBRARY.search(f.filename)]
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if len(frames) > 1 else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, then all of them.

    >>> nearest("fedpca", ["fedavg", "fedpac"])
    "did you mean 'fedpac'? Known: fedavg, fedpac"
    >>> nearest("zzz", ["fedavg", "fedpac"])
    'known: fedavg, fedpac'
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    every = ", ".join(known) or "none"
    return f"did you mean {close[0]!r}? Known: {every}" if close else f"known: {every}"
