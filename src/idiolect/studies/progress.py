"""What a person sees while a study runs: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from types import TracebackType
from typing import Self

import rich.live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from idiolect.core.objectives import ACCURACY, Score
from idiolect.core.terminal import Text
from idiolect.report.tables import duration
from idiolect.simulation import Engine, Record
from idiolect.studies.cost import pace, seconds_of_all

Key = tuple[str, int]
_SILENT = 60.0  # after so many seconds without a line, the next round writes one


class Watcher:
    """Is told about the progress of a study. This one does nothing; others override what they show."""

    def __enter__(self) -> Self:
        """Start showing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """The plan: ``rounds`` for each method's label and seed, in this order, and how many are on disk.

        ``by`` is what ``advance`` is told; its name says so where it is of validation samples.
        """

    def start(self, label: str, seed: int, done: int) -> None:
        """A method starts with a seed; ``done`` rounds are already done."""

    def recorded(self, label: str, seed: int, round: int, records: Sequence[Record]) -> None:
        """What was recorded in a round that has ended; ``advance`` follows."""

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """A round has ended; ``score`` is the mean that the protocol asks for, if it was measured."""

    def diverged(self, label: str, seed: int, round: int) -> None:
        """A method's training diverged in a round, now or in an earlier run; it does not continue."""

    def stopped(self, label: str, seed: int, round: int, best: int) -> None:
        """A method stopped early after a round, now or in an earlier run; the ``best`` round counts."""


class Several(Watcher):
    """Tells several watchers.

    Args:
        watchers: in the order in which they are told.
    """

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers, self._open = watchers, ExitStack()

    def __enter__(self) -> Self:
        for one in self._watchers:
            self._open.enter_context(one)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """Tell it."""
        for one in self._watchers:
            one.plan(rounds, done, engine, by)

    def start(self, label: str, seed: int, done: int) -> None:
        """Tell it."""
        for one in self._watchers:
            one.start(label, seed, done)

    def recorded(self, label: str, seed: int, round: int, records: Sequence[Record]) -> None:
        """Tell it."""
        for one in self._watchers:
            one.recorded(label, seed, round, records)

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """Tell it."""
        for one in self._watchers:
            one.advance(label, seed, round, score)

    def diverged(self, label: str, seed: int, round: int) -> None:
        """Tell it."""
        for one in self._watchers:
            one.diverged(label, seed, round)

    def stopped(self, label: str, seed: int, round: int, best: int) -> None:
        """Tell it."""
        for one in self._watchers:
            one.stopped(label, seed, round, best)


@dataclass
class _Job:
    label: str
    seed: int
    done: int
    start_time: float | None = None
    last: float = 0.0
    """When its last round ended."""
    seconds: list[float] = field(default_factory=list)
    """Of each round in this run."""
    score: float | None = None
    diverged: bool = False
    stopped: bool = False

    @property
    def pace(self) -> float | None:
        """Seconds of a round, if one is done."""
        return pace(self.seconds) if self.seconds else None


class Live(Watcher):
    """Shows what ``shown`` gives in a terminal, while something runs.

    Args:
        console: the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        self._live = rich.live.Live(
            console=self._console, get_renderable=self.shown, refresh_per_second=4, vertical_overflow="crop"
        )
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def shown(self) -> RenderableType:
        """The view as it is now."""
        return Text("")


class Bars(Live):
    """A live table: the progress of each method and seed, and a line for all; never higher than the terminal."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._clock, self._lock = clock, threading.Lock()
        self._jobs: dict[Key, _Job] = {}

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """Lay out the rows."""
        with self._lock:
            self._rounds, self._engine, self._by = rounds, engine, by
            self._start_time, self._work_before = self._clock(), engine.seconds
            self._jobs = {key: _Job(*key, done=min(n, rounds)) for key, n in done.items()}

    def start(self, label: str, seed: int, done: int) -> None:
        """Take the method's row out of the queue."""
        with self._lock:
            job = self._jobs[label, seed]
            job.done = done
            job.start_time = job.last = self._clock()

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """Move its bar."""
        with self._lock:
            job, now = self._jobs[label, seed], self._clock()
            job.seconds.append(now - job.last)
            job.done, job.last = round, now
            job.score = job.score if score is None else score

    def diverged(self, label: str, seed: int, round: int) -> None:
        """Write it in the method's row."""
        with self._lock:
            self._jobs[label, seed].diverged = True

    def stopped(self, label: str, seed: int, round: int, best: int) -> None:
        """Take the method as complete."""
        with self._lock:
            self._jobs[label, seed].stopped = True

    def shown(self) -> RenderableType:
        """The view as it is now."""
        with self._lock:
            if not self._jobs:
                return Text("")
            jobs = list(self._jobs.values())
            complete = [j for j in jobs if self._is_complete(j)]
            divergent = [j for j in jobs if j.diverged]
            rest = [j for j in jobs if not self._is_complete(j) and not j.diverged]
            running = [j for j in rest if j.start_time is not None]
            queue = [j for j in rest if j.start_time is None]
            room = self._console.height - 3  # the header, the line for all, and the line of the cursor
            lines: list[RenderableType] = []
            if len(jobs) > room:
                lines.append(_line(f"{len(complete)} finished: {_names(complete, self._by)}"))
                if divergent:
                    lines.append(_line(f"{len(divergent)} diverged: {_names(divergent)}"))
                    room -= 1
                jobs = running + queue
                if len(jobs) + 1 > room:
                    lines.append(_line(f"{len(queue)} queued: {_names(queue)}"))
                    jobs = running[: max(1, room - 2)]
            return Group(self._table(jobs), *lines, _line(self._whole(running, queue)))

    def _table(self, jobs: Sequence[_Job]) -> Table:
        width = self._console.width
        bar, seed = width // 6, min(10, max([4, *(len(str(j.seed)) for j in jobs)]))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("method", no_wrap=True, overflow="ellipsis", max_width=max(10, width - bar - seed - 36))
        table.add_column("seed", justify="right", no_wrap=True, overflow="ellipsis", max_width=seed)
        table.add_column("", width=bar)
        for header in ("round", self._by.name.split(" ")[0] if self._by.unit else self._by.header, "left"):
            table.add_column(header, justify="right", no_wrap=True)
        for j in jobs:
            at = ProgressBar(self._rounds, j.done, width=bar)
            score = "" if j.score is None else self._by.brief(j.score)
            row = (Text(j.label), str(j.seed), at, f"{j.done}/{self._rounds}", score, self._left(j))
            table.add_row(*row, style="dim" if j.start_time is None else "")
        return table

    def _is_complete(self, job: _Job) -> bool:
        return job.stopped or job.done >= self._rounds

    def _left(self, job: _Job) -> str:
        if job.stopped:
            return "stopped"
        if job.done >= self._rounds:
            return "done"
        if job.diverged:
            return "diverged"
        if job.start_time is None:
            return "queued"
        return "" if job.pace is None else duration(self._rest(job, job.pace))

    def _rest(self, job: _Job, pace: float) -> float:
        """Seconds that a job still takes; a current round that takes longer than usual counts as ended."""
        rest = (self._rounds - job.done) * pace
        return rest if job.start_time is None else rest - min(pace, self._clock() - job.last)

    def _whole(self, running: Sequence[_Job], queue: Sequence[_Job]) -> str:
        jobs, workers = list(self._jobs.values()), self._engine.workers
        elapsed = self._clock() - self._start_time
        busy = min(float(workers), (self._engine.seconds - self._work_before) / elapsed) if elapsed > 0 else 0.0
        rounds = sum(j.done if j.diverged or j.stopped else self._rounds for j in jobs)
        parts = [
            f"{sum(j.done for j in jobs)} of {rounds} rounds",
            f"{len(running)} running, {len(queue)} queued",
            f"{busy:.1f} of {workers} {'worker' if workers == 1 else 'workers'} busy",
        ]
        rest = self._time_left([*running, *queue])
        return "; ".join([*parts, f"{duration(rest)} left"] if rest else parts)

    def _time_left(self, jobs: Sequence[_Job]) -> float | None:
        """Seconds left for all; a queued job is as fast as its method so far, or as the mean; some run side by side."""
        paces: dict[str, list[float]] = {}
        for j in self._jobs.values():
            if j.pace is not None:
                paces.setdefault(j.label, []).append(j.pace)
        if not paces or not jobs:
            return None
        means = {label: fmean(values) for label, values in paces.items()}
        usual = fmean(means.values())
        return seconds_of_all([self._rest(j, j.pace or means.get(j.label, usual)) for j in jobs], self._engine.lanes)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _names(jobs: Sequence[_Job], by: Score | None = None) -> str:
    """Methods, each once, with the number of seeds if several, or with their mean score."""
    groups: dict[str, list[_Job]] = {}
    for j in jobs:
        groups.setdefault(j.label, []).append(j)

    def one(label: str, mine: Sequence[_Job]) -> str:
        scores = [j.score for j in mine if j.score is not None]
        if by is not None and scores:
            return f"{label} {by.brief(sum(scores) / len(scores))}"
        return label if len(mine) == 1 else f"{label} x{len(mine)}"

    return ", ".join(one(label, mine) for label, mine in groups.items()) or "none"


class Lines(Watcher):
    """A plain line at each evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._since: dict[str, float] = {}
        self._total: dict[str, int] = {}
        self._rounds: dict[str, int] = {}
        self._last_line: dict[str, float] = {}
        self._by = ACCURACY

    def plan(self, rounds: int, done: Mapping[Key, int], engine: Engine, by: Score = ACCURACY) -> None:
        """Remember how many rounds each method has, over all its seeds."""
        self._by = by
        for label, _ in done:
            self._total[label] = self._total.get(label, 0) + rounds

    def start(self, label: str, seed: int, done: int) -> None:
        """Write how far the method is."""
        first, total = label not in self._since, self._total[label]
        self._since.setdefault(label, time.monotonic())
        self._rounds[label] = self._rounds.get(label, 0) + done
        if first or done:
            rounds = "1 round" if total == 1 else f"{total} rounds"
            self._say(f"{label}: {self._rounds[label]} of {rounds} done" if done else f"{label}: {rounds}")

    def advance(self, label: str, seed: int, round: int, score: float | None) -> None:
        """Write the score if it was measured, and the round if nothing was written for a minute."""
        self._rounds[label] += 1
        now = time.monotonic()
        if score is not None or now - self._last_line.get(label, self._since[label]) >= _SILENT:
            self._last_line[label] = now
            suffix = "" if score is None else f", {self._by.name} {self._by.brief(score)}"
            self._say(f"{label}: seed {seed}, round {round}{suffix}, {now - self._since[label]:.0f} s")

    def diverged(self, label: str, seed: int, round: int) -> None:
        """Say so."""
        self._say(f"{label}: seed {seed}, diverged in round {round}")

    def stopped(self, label: str, seed: int, round: int, best: int) -> None:
        """Say so, and which round counts."""
        self._say(f"{label}: seed {seed}, stopped after round {round}; round {best} counts")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def watcher(console: Console) -> Watcher:
    """A live view in a terminal, lines elsewhere."""
    return Bars(console) if console.is_terminal else Lines(console)
