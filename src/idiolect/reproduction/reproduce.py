"""Reproducing a recipe: its cells' runs, one after another, resumed if they were stopped, and their outcomes.

A run has one method with one seed. Its folder's name depends on what it computes, so that cells of different tables
share a run. The settings of a tuned cell are chosen by a search first, in a folder of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from idiolect import engines
from idiolect.core.errors import InputError, Interrupted, RunError
from idiolect.reproduction.outcomes import Outcome, SeedResult, Status, outcome
from idiolect.reproduction.recipes import Cell
from idiolect.reproduction.searches import chosen, search_run
from idiolect.reproduction.seed_runs import SeedRun, divergence_message, seed_runs
from idiolect.studies.progress import Watcher
from idiolect.studies.runner import run
from idiolect.studies.trackers import Make, Tracking
from idiolect.tuning import tune
from idiolect.tuning.progress import SearchWatcher

_USED_UP = "the time is used up: the same command continues from here"


def reproduce(
    cells: Sequence[Cell],
    out: Path,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    engine: str = "auto",
    workers: int | None = None,
    budget: float | None = None,
    watcher: Callable[[], Watcher] | None = None,
    track: Sequence[str | Make] = (),
    told: Callable[[str], None] = lambda text: None,
    known: Callable[[Cell], Mapping[int, SeedResult]] = lambda c: {},
    search_watcher: Callable[[], SearchWatcher] | None = None,
    keep: Callable[[Outcome], object] = lambda result: None,
) -> Iterator[Outcome]:
    """Run what cells still need, seed by seed so that every cell has one number early; yield each cell's outcome.

    If settings are yet to be chosen, cell by cell: its search, then its seeds.

    Args:
        cells: of a recipe.
        out: folder of the runs' folders.
        rounds: the rounds, if not the paper's.
        seeds: the seeds of every cell.
        engine, workers: as for ``run``.
        budget: seconds after which no run is started and the current one stops at its last whole round.
        watcher: shows each run.
        track: experiment trackers for each run, as for ``run``.
        told: gets a line before each run, and a sentence for each run that is not possible.
        known: results by seed for which a cell needs no run.
        search_watcher: shows each search.
        keep: gets what a cell has as soon as one of its runs has ended, so that nothing is lost if a later one stops.

    Raises:
        InputError: there is no such engine or tracker.
        Interrupted: a signal came; whole rounds are on disk.
    """
    engines.engine(engine, workers)
    Tracking(track)
    ends = None if budget is None else time.monotonic() + budget
    if any(c.is_open for c in cells):
        for number, c in enumerate(cells, 1):
            if c.is_open:
                show_search = search_watcher() if search_watcher else None
                found = _search(c, out, f"{number} of {len(cells)}", rounds, engine, workers, ends, show_search, told)
                if isinstance(found, Outcome):
                    yield found
                    continue
                c = found
            rest = None if ends is None else ends - time.monotonic()
            yield from reproduce(
                [c], out, rounds=rounds, seeds=seeds, engine=engine, workers=workers, budget=rest, watcher=watcher,
                track=track, told=told, known=known, keep=keep,
            )  # fmt: skip
        return
    reasons: dict[Path, tuple[Status, str]] = {}
    results = [known(c) for c in cells]

    def cell_outcome(c: Cell, mine: Mapping[int, SeedResult]) -> Outcome:
        result = outcome(c, seed_runs(c, out, rounds=rounds, seeds=seeds), reasons, mine)
        keep(result)
        return result

    jobs: dict[Path, tuple[SeedRun, list[tuple[Cell, Mapping[int, SeedResult]]]]] = {}
    for seed in seeds:
        for c, mine in zip(cells, results, strict=True):
            for one in seed_runs(c, out, rounds=rounds, seeds=[seed]) if seed not in mine else ():
                jobs.setdefault(one.folder, (one, []))[1].append((c, mine))
    for number, (one, its_cells) in enumerate(jobs.values(), 1):
        try:
            if one.complete or divergence_message(one.folder):
                continue
            if ends is not None and time.monotonic() > ends:
                told(_USED_UP)
                break
            use, seed = one.study.methods[0], one.study.seeds[0]
            which = f"{number} of {len(jobs)}: " if len(jobs) > 1 else ""
            told(f"{which}{one.study.name}, {use.label}, seed {seed}, in {one.folder}")
            seconds = None if ends is None else ends - time.monotonic()
            show = watcher() if watcher else None
            result = run(
                one.study, one.folder, engine=engine, workers=workers, resume=True, watcher=show, budget=seconds,
                track=track,
            )  # fmt: skip
            if result.diverged:
                told(f"diverged: it is not tried again until {one.folder} is deleted")
        except RunError as error:
            with suppress(InputError):  # the folder may be broken now
                if one.complete:
                    told(f"everything is measured, but {_alone(error)}")
                    continue
            reasons[one.folder] = "failed", _alone(error)
            told(f"failed: {_alone(error)}; the same command tries it again")
        except InputError as error:
            reasons[one.folder] = "no data", str(error)
            told(str(error))
        except Interrupted as error:
            if ends is None or time.monotonic() < ends:
                where = str(error).partition(";")[0]
                raise Interrupted(f"{where}; the same command continues from here", error.signal) from None
        else:
            for c, mine in its_cells:
                with suppress(InputError):  # of another seed's folder: the cell says it at the end
                    cell_outcome(c, mine)
    for c, mine in zip(cells, results, strict=True):
        try:
            yield cell_outcome(c, mine)
        except InputError as error:  # a broken folder, or one with another study
            yield Outcome(c, "no data", said=str(error), to_retry=True)


def _search(
    c: Cell, out: Path, where: str, rounds: int | None, engine: str, workers: int | None, ends: float | None,
    watcher: SearchWatcher | None, told: Callable[[str], None],
) -> Cell | Outcome:  # fmt: skip
    """Choose the settings of a cell: the cell with the choice, or why there is none."""
    one = search_run(c, out, rounds=rounds)
    rest = None if ends is None else ends - time.monotonic()
    if rest is not None and rest <= 0:
        return Outcome(c, "not run")
    try:
        if (tuning := one.tuning()) is None:
            label = one.study.methods[0].label
            told(f"{where}: {one.study.name}, {label}, a search in {one.plan.trials} trials, in {one.folder}")
            tuning = tune(
                one.study, one.plan.search, one.folder, trials=one.plan.trials, sampler=one.plan.sampler,
                halving=one.plan.halving, seed=one.plan.seed, engine=engine, workers=workers, resume=True,
                watcher=watcher, budget=rest,
            )  # fmt: skip
        return chosen(c, tuning) or Outcome(c, "diverged", said=f"every trial of {one.folder} diverged or was refused")
    except RunError as error:
        what = str(error).partition("; what was done is kept")[0]
        told(f"failed: {what}; the same command tries it again")
        return Outcome(c, "failed", said=what, to_retry=True)
    except InputError as error:
        told(str(error))
        return Outcome(c, "no data", said=str(error), to_retry=True)
    except Interrupted as error:
        if ends is None or time.monotonic() < ends:
            place = str(error).partition(";")[0]
            raise Interrupted(f"{place}; the same command continues from here", error.signal) from None
        told(_USED_UP)
        return Outcome(c, "not run")


def _alone(error: RunError) -> str:
    """What happened, without the advice for a single run, which ``run`` adds."""
    return str(error.__cause__ if isinstance(error.__cause__, RunError) else error)
