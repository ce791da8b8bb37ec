"""Output of the command line: consoles, JSON, characters outside the terminal's encoding, and the last sentence."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from rich.console import Console

from idiolect.core import terminal
from idiolect.core.terminal import Text

_PLAIN = {"±": "+-", "…": ".", "·": "-", "█": "#", "▓": "*", "▒": "+", "░": "."}
out_console, err_console = Console(), Console(stderr=True)


def print_json(content: Any) -> None:
    """JSON in characters that the output can show."""
    narrow = not (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    print(terminal.as_json(content, narrow))


def say(console: Console, text: str) -> None:
    """Print a text as it is, not wrapped."""
    console.print(Text(text), soft_wrap=True)


def spell_out() -> None:
    """Escape characters that the terminal's encoding does not have, and bytes that are not characters."""
    codecs.register_error("idiolect", _escape)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors="idiolect")  # type: ignore[union-attr]


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in letters), error.end


def last_words(error: Exception) -> str:
    """A sentence for an error that no other code has explained."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory ({text or 'none is left'}): take fewer samples or workers, or smaller images"
        )
    if isinstance(error, RecursionError):
        return f"something that was read is nested too deeply ({text}): check the study and the data"
    if isinstance(error, UnicodeError):
        return f"a name or a text is not UTF-8 ({text}): rename it, or save it in UTF-8"
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename} ({error.strerror}): allow access, or give another path"
    what = error.strerror if isinstance(error, OSError) else None
    return f"cannot read or write ({what or text}): free some space, or send the output elsewhere"


def finish(sentence: str, code: int) -> NoReturn:
    """End the program with this sentence on standard error, if any, and this exit code."""
    with suppress(OSError):
        if sentence:
            say(err_console, f"idiolect: {sentence}")
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # a full disk or a closed pipe, which Python would report again at its end
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
