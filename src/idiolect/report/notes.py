"""What must be said under a table of results, wherever it is shown."""

from __future__ import annotations

from idiolect.core.errors import listed
from idiolect.report.common_clients import sentences
from idiolect.report.measures import missing, suggestion
from idiolect.report.unfinished import advice
from idiolect.runs.reader import Run, once
from idiolect.runs.store import text_of

_NAMED = 12  # methods and seeds that a sentence lists


@once
def notes(run: Run) -> list[str]:
    """Sentences about a run's table: which clients do not count or lack a measure, and how runs in it differ."""
    blind = ["No test sample was measured: all numbers are of validation samples."] if run.part == "validation" else []
    of_run = run.manifest.get("notes", ())
    settings = [*personal_weights(run), *own_settings(run)]
    return [*blind, *settings, *sentences(run), *_early_ends(run), *missing(run), *coinciding(run), *of_run]


def personal_weights(run: Run) -> list[str]:
    """A sentence about the weights that each client keeps by the study's rule, if there is one."""
    kept = run.study.get("personal")
    return [f"Weights that stay at each client: {kept}."] if kept else []


def own_settings(run: Run) -> list[str]:
    """A sentence about the options and settings of methods that their names do not show, if there are some."""
    each = [
        f"{run.titles[label]} ({', '.join(f'{k} {text_of(v)}' for k, v in about['settings'].items())})"
        for label, about in run.manifest["methods"].items()
        if about.get("settings")
    ]
    return [f"Methods with settings of their own: {', '.join(each)}."] if each else []


def coinciding(run: Run) -> list[str]:
    """A sentence about the methods that did the same thing, which some do where a frozen backbone leaves no body."""
    if "backbone" not in run.manifest:
        return []
    r = run.records[run.records["metric"].isin((run.score.metric, "loss")) & (run.records["client"] >= 0)]
    groups: dict[bytes, list[str]] = {}
    for label, rows in r.groupby("method", sort=False):
        numbers = rows.sort_values(["seed", "round", "client", "stage", "metric"])
        groups.setdefault(numbers[["seed", "round", "client", "value"]].to_numpy().tobytes(), []).append(str(label))
    same = [listed([run.titles[label] for label in labels], _NAMED) for labels in groups.values() if len(labels) > 1]
    return [f"The same numbers for every client, because no body is learnt: {'; '.join(same)}."] if same else []


def _early_ends(run: Run) -> list[str]:
    """A sentence about the methods and seeds that stopped early; empty if none did."""
    if not run.stopped:
        return []
    each = [
        f"{run.titles[label]}, seed {seed}: stopped after round {stop.round}, round {stop.best} counts"
        for (label, seed), stop in run.stopped.items()
    ]
    better = "rose" if run.score.more_is_better else "fell"
    return [f"The validation {run.score.name} no longer {better}. {listed(each, _NAMED, '; ')}."]


@once
def said(run: Run) -> list[str]:
    """The notes, and what to try where training seems not to be finished: for people, not for a paper."""
    return [*notes(run), *suggestion(run), *advice(run)]
