"""Searches that choose a cell's settings over the values that its paper names, on validation samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from idiolect.core.errors import InputError, option
from idiolect.reproduction import outcome_files
from idiolect.reproduction.outcomes import protocol_of
from idiolect.reproduction.recipes import Cell, Choice, Recipe, Search, Tuned
from idiolect.reproduction.seed_runs import digest, stem
from idiolect.runs import checkpoint
from idiolect.runs.folder import CHECKPOINT_FILE, files_of_cells
from idiolect.studies import Study
from idiolect.studies.method_use import label_of, with_values
from idiolect.tuning import Tuning
from idiolect.tuning import plan as plans
from idiolect.tuning.plan import Plan
from idiolect.tuning.sampler import check_sampler
from idiolect.tuning.space import Choice as Values
from idiolect.tuning.space import size
from idiolect.tuning.trials import USUAL_SHARE, read, study_of_trials

SEED = 0
"""Of all trials, whatever the seeds of the cells are, so that seeds that are added later need no other search."""
_SAMPLER = "tpe"
_HOW = (
    f"The values of tuned settings are compared on {USUAL_SHARE:.0%} of each client's training samples, which trials "
    f"do not train on, with seed {SEED} and all rounds; the cell is then trained on all training samples."
)
_SILENT = "its paper says nothing of tuning"


def tuned_recipe(recipe: Recipe) -> Recipe:
    """A recipe whose cells are tuned as its paper says: another table, beside the one with the printed settings.

    Raises:
        InputError: the paper does not say what it tuned, or nothing of this recipe is tuned.
    """
    tuned = recipe.tuned
    if isinstance(tuned, str):
        raise InputError(f"{recipe.name} cannot be tuned, because {tuned or _SILENT}: leave out {option('tune', True)}")
    if not any(values_of(tuned, c) for c in recipe.cells):
        of_paper = f"it has no accuracy of a method that its paper tunes ({tuned.place})"
        why = of_paper if any(c.study for c in recipe.cells) else "it trains nothing"
        raise InputError(f"{recipe.name} has nothing to tune, because {why}: leave out {option('tune', True)}")
    if tuned.always:
        return replace(recipe, assumptions=(_HOW, *tuned.assumptions, *recipe.assumptions))
    how = (
        f"Values are those of the paper, {tuned.place}. On which samples it compared them is not said: here on "
        f"{USUAL_SHARE:.0%} of each client's training samples, which trials do not train on, with seed {SEED} and all "
        "rounds; the cell is then trained on all training samples. If a sentence below names a value of a tuned "
        "setting, it is that of the table without tuning.",
    )
    return replace(
        recipe, name=f"{recipe.name}-tuned", title=f"{recipe.title}, tuned as the paper says",
        assumptions=(*how, *tuned.assumptions, *recipe.assumptions),
    )  # fmt: skip


def with_searches(recipe: Recipe, cells: Sequence[Cell], trials: int | None = None) -> list[Cell]:
    """The cells, each with what is to be chosen for it; those of which the paper tuned nothing stay as they are.

    Args:
        recipe: a tuned one.
        cells: of it.
        trials: at most so many for a cell; None tries all values, and of several settings all combinations.

    Raises:
        InputError: none of the cells is tuned, there are fewer trials than settings, or Optuna is not installed.
    """
    check_sampler(_SAMPLER)
    searched = [with_search(recipe, c, trials) for c in cells]
    if all(c.search is None for c in searched):
        methods = ", ".join(dict.fromkeys(str(c.where["method"]) for c in recipe.cells if values_of(recipe.tuned, c)))
        raise InputError(f"none of these cells is tuned by the paper, only those of {methods}: choose one of them")
    return searched


def with_search(recipe: Recipe, c: Cell, trials: int | None = None) -> Cell:
    """A cell with what is to be chosen for it, or as it is.

    Raises:
        InputError: there are fewer trials than settings.
    """
    values = values_of(recipe.tuned, c)
    if c.study is None or not values:
        return c
    every = int(size({name: Values(each) for name, each in values.items()}))
    searched = replace(c, search=Search(values, every if trials is None else min(trials, every)))
    _plan(searched).check(c.study)
    return searched


def values_of(tuned: Tuned | str, c: Cell) -> dict[str, tuple[Any, ...]]:
    """What the paper tuned of a cell's method, and the values that it names.

    Not what makes the cell: a condition of it, or a part left out.
    """
    if isinstance(tuned, str) or c.study is None or c.reads == "minutes":
        return {}
    named = {**tuned.values.get("all", {}), **tuned.values.get(str(c.where.get("method")), {})}
    return {
        name: each
        for name, each in named.items()
        if name not in c.where and (tuned.always or now(c.study, name) in each)
    }


def now(study: Study, name: str) -> Any:
    """An option or setting of the method of a cell's study."""
    use = study.methods[0]
    return use.options[name] if name in use.options else getattr(study.of(use), name, None)


class SearchRun(NamedTuple):
    """The search of a cell, in a folder that is named after what it computes; cells that need the same share it."""

    study: Study
    """As trials run it."""
    plan: Plan
    folder: Path

    @property
    def rounds(self) -> int:
        """Of all trials."""
        return self.plan.trials * self.study.rounds

    @property
    def done(self) -> int:
        """Rounds that are done, of all trials; those that have ended keep no state."""
        states = [f for batch in self.folder.glob("trials-*") for f in files_of_cells(batch, CHECKPOINT_FILE)]
        ended = [t.rounds for t in read(self.folder) if t.state != "running"]
        return sum(map(checkpoint.rounds, states)) + sum(ended)

    def tuning(self) -> Tuning | None:
        """What came out; None if it has not ended.

        Raises:
            InputError: the folder has another search, or is broken.
        """
        if not plans.has_search(self.folder):
            return None
        plans.same(self.folder, self.study, self.plan)
        tuning = Tuning(self.folder, self.plan, self.study)
        return tuning if tuning.has_ended else None


def search_run(c: Cell, out: Path, *, rounds: int | None = None) -> SearchRun:
    """The search of an open cell."""
    assert c.study is not None
    more = {} if rounds is None else {"rounds": rounds}
    measured = c.study.model_copy(update={"protocol": protocol_of(c), **more})
    study = study_of_trials(measured, SEED).model_copy(update={"name": c.study.name})
    plan = _plan(c)
    text = json.dumps([digest(study), plan.model_dump()], sort_keys=True)
    name = f"{stem(study)}-tune-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return SearchRun(study, plan, out / name)


def _plan(c: Cell) -> Plan:
    """All trials train to the end, as a grid is searched, and each is compared there."""
    assert c.search is not None
    return Plan.of(
        search=plans.texts(c.search.values), trials=c.search.trials, sampler=_SAMPLER, halving=1, seed=SEED,
        validation=USUAL_SHARE, refit=False,
    )  # fmt: skip


def with_choice(c: Cell, choice: Choice) -> Cell:
    """The cell with what was chosen; if that is what the paper prints, with the study that it had."""
    assert c.study is not None
    study = c.study
    if changes := {name: value for name, value in choice.values.items() if value != now(study, name)}:
        use = with_values(study.methods[0], changes)
        label = label_of(use.name, use.options, use.settings)
        study = study.with_methods([use.model_copy(update={"label": label})])
    return replace(c, study=study, choice=choice)


def chosen(c: Cell, tuning: Tuning) -> Cell | None:
    """The cell with what its search chose; None if no trial reached the last round."""
    (one,) = tuning.chosen()
    assert c.study is not None
    return None if one.score is None else with_choice(c, Choice(one.values, one.score, digest(c.study)))


def settled(recipe: Recipe, c: Cell, out: Path, folder: Path | None, *, rounds: int | None = None) -> Cell:
    """An open cell with its choice, if the files of results have one, or a search has ended; else as it is.

    Raises:
        InputError: the file of results is broken.
    """
    if not c.is_open:
        return c
    if folder and (content := outcome_files.current(recipe, c, folder)):
        return with_choice(*outcome_files.with_search(c, content))
    with suppress(InputError):  # a broken search is told when the cell runs, so that the others do too
        tuning = search_run(c, out, rounds=rounds).tuning()
        return (tuning and chosen(c, tuning)) or c
    return c
