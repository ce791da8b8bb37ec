"""One line for each event, on standard error; the server's are kept in its run's folder too."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from idiolect.core.errors import printable

FILE = "events.jsonl"
"""The name of the file of events in a run's folder."""


class Events:
    """Says what happens, from any thread.

    Args:
        file: where each event is kept as a line of JSON; None keeps none.
        quiet: whether standard error stays empty.
    """

    def __init__(self, file: Path | None = None, *, quiet: bool = False) -> None:
        self.file, self._quiet, self._lock = file, quiet, threading.Lock()
        self._before: deque[str] = deque(maxlen=1000)

    def keep(self, file: Path) -> None:
        """Keep events in a file from now on, and those so far."""
        with self._lock:
            self.file = file
            self._write("".join(self._before))
            self._before.clear()

    def __call__(self, what: str, /, **values: Any) -> None:
        """Say it; ``values`` are kept beside the sentence, as ``site="north", round=3``."""
        at = time.time()
        line = f"{time.strftime('%H:%M:%S', time.localtime(at))} {printable(what)}\n"
        with self._lock:
            if not self._quiet and sys.stderr is not None:
                sys.stderr.write(line)
                sys.stderr.flush()
            kept = json.dumps({"at": round(at, 3), "event": what} | values) + "\n"
            if self.file is None:
                self._before.append(kept)
            else:
                self._write(kept)

    def _write(self, lines: str) -> None:
        with suppress(OSError):  # on a full disk the run itself says so
            assert self.file is not None
            with self.file.open("a", encoding="utf-8") as file:
                file.write(lines)
