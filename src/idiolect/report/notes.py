"""What must be said under a table of results, wherever it is shown."""

from __future__ import annotations

from idiolect.report.common_clients import sentences
from idiolect.report.unfinished import advice
from idiolect.runs.reader import Run, once


@once
def notes(run: Run) -> list[str]:
    """Sentences about a run's table of results: which clients do not count in it, and why."""
    return sentences(run)


@once
def said(run: Run) -> list[str]:
    """The notes, and what to try where training seems not to be finished: for people, not for a paper."""
    return [*notes(run), *advice(run)]
