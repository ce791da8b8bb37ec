"""What a person sees while a study runs: a bar per method in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column


class Watcher(Protocol):
    """Told how a study goes on."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""

    def start(self, label: str, total: int, done: int) -> None:
        """A method begins with one more seed, of which ``done`` rounds are done; ``total`` is that of all its seeds."""

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """A round is over; ``accuracy`` is the mean over clients where it was measured."""


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def start(self, label: str, total: int, done: int) -> None:
        """Nothing."""

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """Nothing."""


class Bars(Silent):
    """A live bar per method, with the accuracy last measured."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=28)),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds  {task.fields[accuracy]:<14}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start(self, label: str, total: int, done: int) -> None:
        """Add the method's bar."""
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total, completed=0, accuracy="")
        self._bars.advance(self._tasks[label], done)

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """Move it."""
        self._bars.advance(self._tasks[label])
        if accuracy is not None:
            self._bars.update(self._tasks[label], accuracy=f"accuracy {accuracy:.1%}")


class Lines(Silent):
    """A plain line at each evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._since: dict[str, float] = {}
        self._done: dict[str, int] = {}

    def start(self, label: str, total: int, done: int) -> None:
        """Say where the method stands."""
        first = label not in self._since
        self._since.setdefault(label, time.monotonic())
        self._done[label] = self._done.get(label, 0) + done
        if first or done:
            self._say(f"{label}: {self._done[label]} of {total} rounds done" if done else f"{label}: {total} rounds")

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        """Say the accuracy where it was measured."""
        self._done[label] += 1
        if accuracy is not None:
            seconds = time.monotonic() - self._since[label]
            self._say(f"{label}: seed {seed}, round {round}, accuracy {accuracy:.1%}, {seconds:.0f} s")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def watcher(console: Console) -> Watcher:
    """Bars in a terminal, lines elsewhere."""
    return Bars(console) if console.is_terminal else Lines(console)
