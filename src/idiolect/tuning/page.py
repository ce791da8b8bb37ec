"""The page of a search: what was chosen, the score over each setting, and every trial."""

from __future__ import annotations

from idiolect.core import files
from idiolect.report.page import placed, render_page
from idiolect.tuning.figures import STATES, figures
from idiolect.tuning.outcome import Tuning
from idiolect.tuning.space import said
from idiolect.tuning.trials import Trial


def write(tuning: Tuning) -> None:
    """Write the page into the folder of the search.

    Raises:
        RunError: it cannot be written.
    """
    trials, drawings = tuning.each_trial, list(figures(tuning))
    choices = tuning.chosen()
    chosen, titles = {(c.method, c.trial) for c in choices}, {c.method: c.title for c in choices}
    page = render_page(
        "tuning.html",
        placed("tune", drawings),
        title=tuning.study.name,
        facts=_facts(tuning),
        by=tuning.by.name,
        chosen=tuning.rows(),
        notes=tuning.notes(),
        figures=drawings,
        trials=[(titles[t.method], t.number, *_texts(t), (t.method, t.number) in chosen) for t in trials],
        result=None if tuning.result is None else tuning.result.page.relative_to(tuning.folder).as_posix(),
        tuned=tuning.tuned.to_yaml() if tuning.has_ended else None,
    )
    files.write(tuning.page, page)


def _facts(tuning: Tuning) -> list[tuple[str, str]]:
    study, plan = tuning.study, tuning.plan
    data = study.dataset or str(study.data)
    return [
        ("Data", data), ("Methods", str(len(study.methods))), ("Trials", f"{plan.trials} of each method"),
        ("Rounds", str(study.rounds)), ("Sampler", plan.sampler), ("Seed", str(plan.seed)),
        ("Validation", f"{plan.validation:.0%} of each client's training samples"),
    ]  # fmt: skip


def _texts(trial: Trial) -> tuple[str, int, str, str, str]:
    """Settings, rounds, score, loss and how it ended, as the table of trials shows them."""
    end = STATES[trial.state] + (f": {trial.said}" if trial.said else "")
    if not trial.rungs:
        return said(trial.values), 0, "", "", end
    return said(trial.values), trial.rounds, trial.value.text, f"{trial.value.loss:.3f}", end
