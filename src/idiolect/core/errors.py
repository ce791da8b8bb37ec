"""Errors: each message is one sentence that ends with the fix."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

_LIBRARY = re.compile(r"[\\/](torch|numpy|scipy|sklearn)[\\/]|^<|[\\/]lib[\\/]python[\d.]+[\\/](?!site-packages)")
_FULL = re.compile("allocate memory|out of memory")  # torch has no exception class for this on the CPU
_NEAR = 0.65  # of difflib's similarity: 'rnu' is near 'run', and 'tune' is not near 'bundle'


# control characters except tab and line end, direction marks, invisible characters except joiners, surrogates
_UNPRINTABLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_BREAK = re.compile(r"\s*[\r\n]\s*")


def printable(text: str, code: Callable[[str], str] = ascii) -> str:
    r"""A text whose control, direction and invisible characters are written as their codes.

    ``code`` gives the code of one such character, in quotes.

    >>> print(printable("a\x1b[31mb\u202e"))
    a\x1b[31mb\u202e
    """
    return _UNPRINTABLE.sub(lambda match: code(match[0])[1:-1], text)


class IdiolectError(Exception):
    """Base of every error that idiolect raises on purpose. The message is one line and safe to print."""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(_BREAK.sub(" ", str(message).strip())))


class InputError(IdiolectError, ValueError):
    """The caller asked for something impossible; the message names the argument and the fix. Exit code 2."""


class Disagreement(InputError):
    """Samples do not fit what others have or ask for. The message has names, sizes and units, and no sample's value."""


class RunError(IdiolectError, RuntimeError):
    """A run stopped: a client failed, or the disk is full. The message says what failed, when and where."""


class CodeError(RunError):
    """Code of a method, or another program's, failed or broke its contract: it would fail again unless it changes."""


class Diverged(RunError):
    """A client or the server computed a number that is not finite. Its method stops there."""


class Interrupted(IdiolectError):
    """The run was asked to stop. Everything up to the last complete round is on disk. Exit code 128 + ``signal``."""

    def __init__(self, message: str = "stopped", signal: int = 2) -> None:
        super().__init__(message)
        self.signal = signal


@contextmanager
def blame(where: str) -> Iterator[None]:
    """Turn any exception inside the block into a RunError that says where it happened.

    It is a ``CodeError`` unless the machine is to blame: its memory, its disk.
    """
    try:
        yield
    except IdiolectError:
        raise
    except Exception as error:
        of_machine = isinstance(error, OSError | MemoryError) or _FULL.search(str(error))
        kind = RunError if of_machine else CodeError
        raise kind(f"{where}: {type(error).__name__}: {error}{place(error)}") from error


def place(error: Exception) -> str:
    """The file and line of the innermost frame that is not in a well-known library."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _LIBRARY.search(f.filename)]
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if len(frames) > 1 else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known name, then all of them, at most 40. Case does not matter.

    >>> nearest("fedpca", ["fedavg", "fedpac"])
    "did you mean 'fedpac'? Known: fedavg, fedpac"
    >>> nearest("Mean-Radius", ["radius", "mean_radius"])
    "did you mean 'mean_radius'? Known: radius, mean_radius"
    >>> nearest("zzz", ["fedavg", "fedpac"])
    'known: fedavg, fedpac'
    """
    known = list(known)
    close, every = near(name, known), listed(known, 40)
    return f"known: {every}" if close is None else f"did you mean {close!r}? Known: {every}"


def near(name: str, names: Iterable[str]) -> str | None:
    """The known name that a misspelt one may mean, if one is near.

    >>> near("bundel", ["run", "bundle"]), near("tune", ["run", "bundle"])
    ('bundle', None)
    """
    names = list(names)
    plain = [_plain(k) for k in names]
    close = [_plain(name)] if _plain(name) in plain else difflib.get_close_matches(_plain(name), plain, 1, _NEAR)
    return names[plain.index(close[0])] if close else None


def _plain(name: str) -> str:
    """Only the letters and digits, in lower case."""
    return re.sub(r"[\W_]+", "", name).casefold() or name


def listed(names: Iterable[object], most: int = 20, between: str = ", ") -> str:
    """The names with commas in between, or something else; a long list is cut short."""
    every = [str(n) for n in names]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return (between.join(every[:most]) or "none") + more


def option(name: str, value: object = None) -> str:
    """An argument as the caller writes it: as an option of the command line (see ``as_options``), or as in Python.

    >>> option("out"), option("resume", True), option("engine", "processes")
    ('out=...', 'resume=True', "engine='processes'")
    >>> option("lr", 3 * 0.1)
    'lr=0.3'
    >>> with as_options():
    ...     option("out"), option("resume", True), option("engine", "processes")
    ('--out', '--resume', '--engine processes')
    >>> with as_options():
    ...     print(option("group_column", "Patient Nr"))
    --group-column 'Patient Nr'
    >>> with as_options(), in_a_file({"upload": "uploads", "rounds": "rounds"}):
    ...     option("out"), option("upload"), option("rounds", 5)
    ('--out', 'uploads', 'rounds: 5')
    """
    if isinstance(value, float):
        value = float(f"{value:.12g}")  # 3 * 0.1 is 0.3
    if name in _in_a_file:
        return _in_a_file[name] + ("" if value is None else f": {str(value).lower() if value is True else value}")
    if not _as_options:
        return f"{name}={'...' if value is None else repr(value)}"
    text = f"--{name.replace('_', '-')}"
    return text if value is None or value is True else f"{text} {shlex.quote(str(value))}"


_as_options = False


@contextmanager
def as_options() -> Iterator[None]:
    """Inside the block, messages of this process name the command line's options and commands."""
    global _as_options
    before, _as_options = _as_options, True
    try:
        yield
    finally:
        _as_options = before


def argument(name: str) -> str:
    """An argument's name alone, for a sentence that says something about it.

    >>> argument("secure_aggregation")
    'secure_aggregation'
    >>> with as_options():
    ...     argument("secure_aggregation")
    '--secure-aggregation'
    """
    return option(name).removesuffix("=...")


_in_a_file: Mapping[str, str] = {}


@contextmanager
def in_a_file(settings: Mapping[str, str]) -> Iterator[None]:
    """Inside the block, messages name these arguments as settings of a file: those that the command has no option for.

    ``settings`` are the names of settings by those of options.
    """
    global _in_a_file
    before, _in_a_file = _in_a_file, settings
    try:
        yield
    finally:
        _in_a_file = before


def on_command_line() -> bool:
    """Whether messages are for the command line."""
    return _as_options


def _written(value: object) -> bool:
    """Whether a value can be written in a file: text, numbers, lists and mappings of these, and models of settings."""
    if isinstance(value, Mapping | list | tuple):
        inside = value.values() if isinstance(value, Mapping) else value
        return all(isinstance(v, list | dict) or _written(v) for v in inside)
    return value is None or isinstance(value, str | int | float) or hasattr(value, "model_fields")


def brief(value: object, most: int = 80) -> str:
    """A value as it was written, shortened; some numbers are too long for Python to print.

    Of arrays, data frames and the like only the type is shown, because they may hold samples.

    >>> brief("abc"), brief([1, 2, 3], most=8), brief({1, 2})
    ("'abc'", '[1, 2...', 'a set')
    """
    if not _written(value):
        return f"a {type(value).__name__}"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= most else f"{text[: most - 3]}..."
