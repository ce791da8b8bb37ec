"""What must be said under a table of results, wherever it is shown."""

from __future__ import annotations

from idiolect.report.common_clients import sentences
from idiolect.report.measures import missing, suggestion
from idiolect.report.unfinished import advice
from idiolect.runs.reader import Run, once


@once
def notes(run: Run) -> list[str]:
    """Sentences about a run's table: which clients do not count or lack a measure, and how runs in it differ."""
    return [*sentences(run), *missing(run), *run.manifest.get("notes", ())]


@once
def said(run: Run) -> list[str]:
    """The notes, and what to try where training seems not to be finished: for people, not for a paper."""
    return [*notes(run), *suggestion(run), *advice(run)]
