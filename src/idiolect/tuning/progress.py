"""What a person sees while a search runs: a live table in a terminal, a line for each rung and method elsewhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from idiolect.core.objectives import ACCURACY, Score
from idiolect.core.terminal import Text
from idiolect.report.tables import duration
from idiolect.simulation import Engine
from idiolect.studies.notebook_progress import in_notebook, line_of_cell
from idiolect.studies.progress import Key, Live, Watcher
from idiolect.tuning.halving import order
from idiolect.tuning.space import said

if TYPE_CHECKING:
    from idiolect.tuning.trials import Trial

_PAUSE = 0.3  # seconds between two lines


class SearchWatcher(Watcher):
    """Is told about the progress of a search. This one does nothing; others override what they show."""

    def search(self, trials: Mapping[str, int], rungs: Sequence[int]) -> None:
        """The search: how many trials each method has, and the rounds of the rungs."""

    def rung(self, batch: int, rung: int, until: int, trials: Sequence[tuple[str, int, str]]) -> None:
        """A rung begins, in which these trials train until a round: method, number and label of each."""

    def ranked(self, trials: Sequence[Trial]) -> None:
        """A rung has ended; all trials so far."""


def leader(trials: Sequence[Trial], method: str) -> Trial | None:
    """The best trial of a method so far: of those that came furthest."""
    mine = [t for t in trials if t.method == method and t.rungs]
    return min(mine, key=lambda t: (-t.rounds, *order(t.value)), default=None)


def head(batch: int, rung: int, until: int, trials: int) -> str:
    """What a rung is, in words."""
    return f"batch {batch}, rung {rung}: {trials} trial{'s' * (trials > 1)} until round {until}"


class Lines(SearchWatcher):
    """A plain line for each method when a rung ends."""

    def __init__(self, console: Console) -> None:
        self._console, self._start = console, time.monotonic()
        self._trials: dict[str, list[int]] = {}

    def rung(self, batch: int, rung: int, until: int, trials: Sequence[tuple[str, int, str]]) -> None:
        """Write how many trials are in it."""
        self._trials, self._until = {}, until
        for method, number, _ in trials:
            self._trials.setdefault(method, []).append(number)
        self._say(head(batch, rung, until, len(trials)))

    def ranked(self, trials: Sequence[Trial]) -> None:
        """Write the best of each method in this rung, and the time."""
        for method, numbers in self._trials.items():
            mine = [t for t in trials if t.method == method and t.number in numbers and self._until in t.rungs]
            if one := min(mine, key=lambda t: order(t.value), default=None):
                values = said(one.values) or "nothing is searched"
                self._say(f"  {method}: best {one.value.text} on validation samples ({values})")
        self._say(f"  after {duration(time.monotonic() - self._start)}")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class Bars(Live, SearchWatcher):
    """A live table with a row for each method, never higher than the terminal."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._clock, self._lock, self._start = clock, threading.Lock(), clock()
        self._counts: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        self._rounds: dict[Key, int] = {}
        self._trials: list[Trial] = []
        self._head, self._until = "", 1

    def search(self, trials: Mapping[str, int], rungs: Sequence[int]) -> None:
        """Lay out the rows."""
        with self._lock:
            self._counts = dict(trials)

    def rung(self, batch: int, rung: int, until: int, trials: Sequence[tuple[str, int, str]]) -> None:
        """Start the bars again."""
        with self._lock:
            self._owner = {label: method for method, _, label in trials}
            self._rounds, self._until = {}, until
            self._head = head(batch, rung, until, len(trials))

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """Take what is on disk."""
        with self._lock:
            self._rounds |= done

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """Move a bar."""
        with self._lock:
            self._rounds[label, seed] = round

    def diverged(self, label: str, seed: int, round: int) -> None:
        """Count the trial as ended."""
        with self._lock:
            self._rounds[label, seed] = self._until

    def stopped(self, label: str, seed: int, round: int, best: int) -> None:
        """Take the trial as complete."""
        with self._lock:
            self._rounds[label, seed] = self._until

    def ranked(self, trials: Sequence[Trial]) -> None:
        """Show the best of each method."""
        with self._lock:
            self._trials = list(trials)

    def shown(self) -> RenderableType:
        """The view as it is now."""
        with self._lock:
            width = self._console.width
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
            table.add_column("method", no_wrap=True, overflow="ellipsis", max_width=max(10, width // 5))
            table.add_column("trials", justify="right", no_wrap=True)
            table.add_column("", width=width // 6)
            table.add_column("validation", justify="right", no_wrap=True)
            table.add_column("best so far", no_wrap=True, overflow="ellipsis")
            room = max(1, self._console.height - 4)
            for method, count in list(self._counts.items())[:room]:
                mine = [label for label, owner in self._owner.items() if owner == method]
                done = sum(min(n, self._until) for (label, _), n in self._rounds.items() if label in set(mine))
                bar = ProgressBar(max(1, len(mine) * self._until), done, width=width // 6)
                one = leader(self._trials, method)
                ended = sum(t.method == method and t.state != "running" for t in self._trials)
                accuracy, values = ("", "") if one is None else (one.value.text, said(one.values))
                table.add_row(Text(method), f"{ended}/{count}", bar, accuracy, Text(values))
            elapsed = duration(self._clock() - self._start)
            foot = Text(f"{self._head}; {elapsed}" if self._head else "", no_wrap=True, overflow="ellipsis")
            return Group(table, foot)


class Line(SearchWatcher):
    """One line, which is written anew: how far the rung is, and the best of each method.

    Args:
        show: shows a text in place of the one before.
        clock: in seconds.
    """

    def __init__(self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock, self._start, self._shown_at = show, clock, clock(), -math.inf
        self._lock, self._rounds, self._whole, self._head, self._best = threading.Lock(), 0, 0, "", ""

    def rung(self, batch: int, rung: int, until: int, trials: Sequence[tuple[str, int, str]]) -> None:
        """Say how many trials are in it."""
        with self._lock:
            self._head = head(batch, rung, until, len(trials))
            self._rounds, self._whole = 0, len(trials) * until
        self._write(at_once=True)

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """Take what is on disk."""
        with self._lock:
            self._rounds = sum(done.values())

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """Count the round."""
        with self._lock:
            self._rounds += 1
        self._write()

    def ranked(self, trials: Sequence[Trial]) -> None:
        """Name the best of each method."""
        leaders = [leader(trials, method) for method in dict.fromkeys(t.method for t in trials)]
        with self._lock:
            self._best = "; ".join(f"{t.method} {t.value.text} ({said(t.values)})" for t in leaders if t)
        self._write(at_once=True)

    def _write(self, at_once: bool = False) -> None:
        with self._lock:
            now = self._clock()
            if at_once or now - self._shown_at >= _PAUSE:
                self._shown_at = now
                parts = [f"{self._head}, {self._rounds} of {self._whole} rounds", duration(now - self._start)]
                self._show("; ".join([*parts, *filter(None, [self._best])]))


def usual_watcher() -> SearchWatcher:
    """A line in a notebook, and nothing elsewhere."""
    return Line(line_of_cell()) if in_notebook() else SearchWatcher()


def watcher(console: Console) -> SearchWatcher:
    """A live table in a terminal, lines elsewhere."""
    return Bars(console) if console.is_terminal else Lines(console)
