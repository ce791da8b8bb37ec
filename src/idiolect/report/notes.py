"""What must be said under a table of results, wherever it is shown."""

from __future__ import annotations

from idiolect.report.common_clients import sentences
from idiolect.report.measures import missing, suggestion
from idiolect.report.unfinished import advice
from idiolect.runs.reader import Run, once
from idiolect.runs.store import text_of


@once
def notes(run: Run) -> list[str]:
    """Sentences about a run's table: which clients do not count or lack a measure, and how runs in it differ."""
    return [*own_settings(run), *sentences(run), *missing(run), *run.manifest.get("notes", ())]


def own_settings(run: Run) -> list[str]:
    """A sentence about the settings of training that methods have for themselves, if some do."""
    each = [
        f"{run.titles[label]} {', '.join(f'{k} {text_of(v)}' for k, v in about['settings'].items())}"
        for label, about in run.manifest["methods"].items()
        if about.get("settings")
    ]
    return [f"Methods with settings of training of their own: {'; '.join(each)}."] if each else []


@once
def said(run: Run) -> list[str]:
    """The notes, and what to try where training seems not to be finished: for people, not for a paper."""
    return [*notes(run), *suggestion(run), *advice(run)]
