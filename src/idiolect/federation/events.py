"""One line for each event, on standard error; the server's are kept in its run's folder too."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect.core.errors import IdiolectError, printable

FILE = "events.jsonl"
"""The name of the file of events in a run's folder."""
STRANGERS = ("stranger", "site", "page")
"""Whose connections and requests are refused: of nobody in the roster, of a site, and at the operator's page."""
_MINUTE = 60.0
_OF_ALL, _OF_ONE = 20, 5  # lines of one minute
_KEYS = 1000


@dataclass
class _Rare:
    times: int = 0
    """Since it was said last."""
    at: float = float("-inf")


class Events:
    """Says what happens, from any thread.

    Args:
        file: where each event is kept as a line of JSON; None keeps none.
        quiet: whether standard error stays empty.
        as_json: whether it gets the lines of JSON that are kept, in place of sentences.
    """

    def __init__(self, file: Path | None = None, *, quiet: bool = False, as_json: bool = False) -> None:
        self.file, self.quiet, self.as_json, self._lock = file, quiet, as_json, threading.Lock()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._before: deque[str] = deque(maxlen=1000)
        self._rare: OrderedDict[Hashable, _Rare] = OrderedDict()
        self._of_one: OrderedDict[tuple[str, Any], deque[float]] = OrderedDict()
        self._of_all: dict[str, deque[float]] = {}
        self._left_out = 0
        self.listener: Callable[[dict[str, Any]], None] = lambda event: None
        """Is told each event as it is kept."""

    def keep(self, file: Path) -> None:
        """Keep events in a file from now on, and those so far."""
        with self._lock:
            self.file = file
            self._write("".join(self._before))
            self._before.clear()

    def hold(self) -> None:
        """Keep events in no file from now on, until there is one again."""
        with self._lock:
            self.file = None

    def __call__(self, what: str, /, **values: Any) -> None:
        """Say it; ``values`` are kept beside the sentence, as ``site="north", round=3``."""
        self._say(what, values, self.quiet)

    def _say(self, what: str, values: dict[str, Any], quiet: bool) -> None:
        at = time.time()
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} {_line(what)}\n"
        with self._lock:
            event = {"at": round(at, 3), "event": what} | values
            entry = json.dumps(event) + "\n"
            if not quiet:
                _print(entry if self.as_json else line)
            if self.file is None:
                self._before.append(entry)
            else:
                self._write(entry)
        self.listener(event)

    def note(self, what: str, /, **values: Any) -> None:
        """Keep it; say it only where no terminal shows the progress anyway."""
        shown = not self.as_json and sys.stderr is not None and sys.stderr.isatty()
        self._say(what, values, self.quiet or shown)

    def rarely(self, key: Hashable, what: str, /, **values: Any) -> None:
        """Say what others can make happen as often as they like: once in a minute for each key, with how often.

        In a minute no more than a few such lines are said of one site or address, and of all strangers together. What
        is left out is counted in the next ones.
        """
        now, site = time.monotonic(), values.get("site")
        whose = ("site", site) if site else ("address", values.get("address"))
        with self._lock:
            rare = self._rare.setdefault(key, _Rare())
            rare.times += 1
            of_one = self._of_one.setdefault(whose, deque(maxlen=_OF_ONE))
            budgets = (of_one, self._of_all.setdefault(whose[0], deque(maxlen=_OF_ALL)))
            full = any(len(stamps) == stamps.maxlen and now - stamps[0] < _MINUTE for stamps in budgets)
            if now - rare.at < _MINUTE or full:
                if len(self._rare) > _KEYS:
                    self._left_out += self._rare.popitem(last=False)[1].times
                if len(self._of_one) > _KEYS:
                    self._of_one.popitem(last=False)
                return
            times, rare.times, rare.at = rare.times, 0, now
            for stamps in budgets:
                stamps.append(now)
        self(what if times == 1 else f"{what} ({times:,} times since this was said last)", times=times, **values)

    def count_refusal(self, what: str, who: str) -> None:
        """Count an ``upload`` of a site, or a ``connection`` of one of ``STRANGERS``, that was refused."""
        with self._lock:
            self._refusals[what, who] += 1

    def refusals(self) -> Counter[tuple[str, str]]:
        """How many of each were refused, also those that ``rarely`` did not say."""
        with self._lock:
            return self._refusals.copy()

    def show(self, what: str) -> None:
        """Say it on standard error, also where that is quiet, and keep it nowhere: for a secret."""
        with self._lock:
            _print(f"{printable(what)}\n")

    def close(self) -> None:
        """Say what ``rarely`` has counted and not said."""
        with self._lock:
            rest = self._left_out + sum(rare.times for rare in self._rare.values())
            self._rare.clear()
            self._left_out = 0
        if rest:
            self(f"and {rest:,} more refused connections or requests, not listed one by one", times=rest)

    def _write(self, lines: str) -> None:
        with suppress(OSError):  # on a full disk the run itself says so
            assert self.file is not None
            with open(self.file, "a", encoding="utf-8", opener=_own) as file:
                file.write(lines)


class _Handler(logging.Handler):
    def __init__(self, say: Events) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say it as an event."""
        self._say(record.getMessage(), warning=True)


@contextmanager
def warnings_as_events(say: Events) -> Iterator[None]:
    """Warnings of idiolect are events too, and so is the error that ends the program."""
    logger, handler = logging.getLogger("idiolect"), _Handler(say)
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    except IdiolectError as error:
        say(f"ends: {error}", ended=True)
        raise
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
        say.close()


def read(file: Path, most: int) -> list[dict[str, Any]]:
    """The last events in a file, at most so many; none if there is no such file. A broken line is left out."""
    events: deque[dict[str, Any]] = deque(maxlen=most)
    with suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    events.append(event)
    return list(events)


def _own(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _line(what: str) -> str:
    """One line of a terminal, whatever others have put into it."""
    return printable(" ".join(what.splitlines()))


def _print(line: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it any more, or the disk is full: the work goes on
        if sys.stderr is not None:
            sys.stderr.write(line)
            sys.stderr.flush()
