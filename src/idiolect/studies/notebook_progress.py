"""What a notebook shows while a study runs: one line, which is written anew."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from idiolect.core.errors import listed, printable
from idiolect.core.objectives import ACCURACY, Score
from idiolect.report.tables import duration
from idiolect.simulation import Engine
from idiolect.studies.progress import Bars, Key, Watcher

_PAUSE = 0.3  # seconds between two lines
_NAMED = 3  # methods and seeds that run


class Line(Bars):
    """The methods that run, the rounds of all, and the time that is left, in one line.

    Args:
        show: shows a text in place of the one before.
        clock: in seconds.
    """

    def __init__(self, show: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Console(file=io.StringIO()), clock)
        self._show, self._last_time, self._last_text = show, -_PAUSE, ""
        self._writing = threading.Lock()  # methods that run side by side are told of in threads

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._jobs:
            self._write(at_once=True)

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """Show how many rounds there are."""
        super().plan(rounds, done, engine, by)
        self._write(at_once=True)

    def start(self, label: str, seed: int, done: int) -> None:
        """Name the method."""
        super().start(label, seed, done)
        self._write()

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """Count the round."""
        super().advance(label, seed, round, score)
        self._write()

    def diverged(self, label: str, seed: int, round: int) -> None:
        """Say so."""
        super().diverged(label, seed, round)
        self._write()

    def stopped(self, label: str, seed: int, round: int, best: int) -> None:
        """Take it as complete."""
        super().stopped(label, seed, round, best)
        self._write()

    def text(self) -> str:
        """The line as it is now."""
        with self._lock:
            jobs = list(self._jobs.values())
            rest = [job for job in jobs if job.done < self._rounds and not (job.diverged or job.stopped)]
            running = [job for job in rest if job.start_time is not None]
            parts = [
                f"{job.label}, seed {job.seed}: round {job.done} of {self._rounds}"
                + ("" if job.score is None else f", {self._by.name} {self._by.brief(job.score)}")
                for job in running[:_NAMED]
            ]
            parts += [f"{len(running) - _NAMED} more"] if len(running) > _NAMED else []
            if divergent := [f"{job.label}, seed {job.seed}" for job in jobs if job.diverged]:
                parts.append(f"diverged: {listed(divergent, _NAMED)}")
            if not rest:
                parts += [f"{label} {self._by.brief(fmean(values))}" for label, values in self._scores().items()]
            queue = [job for job in rest if job.start_time is None]
            whole = self._whole(running, queue) if rest else f"finished after {self._elapsed()}"
            return printable("; ".join([*parts, whole]))

    def _scores(self) -> dict[str, list[float]]:
        values: dict[str, list[float]] = {}
        for job in self._jobs.values():
            if job.score is not None and not job.diverged:
                values.setdefault(job.label, []).append(job.score)
        return values

    def _elapsed(self) -> str:
        return duration(self._clock() - self._start_time)

    def _write(self, at_once: bool = False) -> None:
        with self._writing:
            text, now = self.text(), self._clock()
            if text != self._last_text and (at_once or now - self._last_time >= _PAUSE):
                self._last_text, self._last_time = text, now
                self._show(text)


def usual_watcher() -> Watcher:
    """A line in a notebook, and nothing elsewhere."""
    return Line(line_of_cell()) if in_notebook() else Watcher()


def in_notebook() -> bool:
    """Whether this is a cell of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def line_of_cell() -> Callable[[str], object]:
    """A function that shows a text in the cell that runs, in place of the one before."""
    display: Any = import_module("IPython.display").display  # only where it is there already
    handles: list[Any] = []

    def show(text: str) -> None:
        content = {"text/plain": text}
        if handles:
            handles[0].update(content, raw=True)
        else:
            handles.append(display(content, raw=True, display_id=True))

    return show
