"""``idiolect reproduce``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli.options import (
    ENGINE,
    USUAL_ENGINE,
    AsJson,
    Quiet,
    RecipeForm,
    Track,
    Workers,
    conditions,
    flag,
    option,
)
from idiolect.cli.output import err_console, out_console, print_json, say
from idiolect.core.errors import InputError
from idiolect.studies.settings import OUTPUT, SETTINGS

_PANEL = "What is run"
_SEEDS, _PRECISION, _RUNS = SETTINGS["seeds"].shown, SETTINGS["precision"].shown, Path("runs", "reproduce")


def reproduce_command(
    recipe: Annotated[str, typer.Argument(help="A table or figure, for example fedpac/table1.", show_default=False)],
    only: Annotated[
        str | None,
        option(
            "Which cells, for example dataset=fashion_mnist,clients=20; several values as 20+100.", "all", panel=_PANEL
        ),
    ] = None,
    methods: Annotated[
        str | None, option("Only these methods of the table, separated by commas.", "all", panel=_PANEL)
    ] = None,
    seeds: Annotated[str, option("Seeds: 0,1,2 or 0-2.", _SEEDS, panel=_PANEL)] = _SEEDS,
    rounds: Annotated[
        int | None, option("Rounds, in place of the paper's; then no verdict is kept.", panel=_PANEL)
    ] = None,
    budget: Annotated[
        str | None,
        option(
            "Stop after 90s, 30m or 8h; the same command continues.", "until all is run", metavar="TIME", panel=_PANEL
        ),
    ] = None,
    tune: Annotated[
        bool,
        flag(
            "tune",
            "First choose each cell's settings among the values that the paper tuned over, on validation samples; a "
            "table of its own.",
            _PANEL,
        ),
    ] = False,
    trials: Annotated[
        int | None,
        option(
            "With --tune: at most so many trials for a cell.", "every combination of the paper's values", panel=_PANEL
        ),
    ] = None,
    dry_run: Annotated[bool, flag("dry-run", "Show what would run and how long it would take.", _PANEL)] = False,
    measure: Annotated[
        bool, flag("measure", "With --dry-run: time each method here, which may take minutes, and keep it.", _PANEL)
    ] = False,
    engine: Annotated[str, option("As for run.", USUAL_ENGINE, panel=ENGINE)] = USUAL_ENGINE,
    workers: Workers = None,
    precision: Annotated[
        str,
        option(
            "Of the networks' products, float32 or bf16; a cell keeps that of its numbers in --results.",
            _PRECISION,
            panel=ENGINE,
        ),
    ] = _PRECISION,
    out: Annotated[Path, option("Folder that gets the runs' folders.", str(_RUNS), panel=OUTPUT)] = _RUNS,
    results: Annotated[
        Path | None,
        option("Keep the numbers in this folder, a file for each cell; those it has are not run again.", panel=OUTPUT),
    ] = None,
    compare: Annotated[
        str | None, option("Compare two methods client by client, in each setting.", metavar="A,B", panel=OUTPUT)
    ] = None,
    export: Annotated[
        RecipeForm | None,
        option("Write the table (latex, csv), or all figures (png), into a folder of --out.", panel=OUTPUT),
    ] = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure, or part of it, and show its numbers beside the published ones.

    Example: idiolect reproduce fedpac/table1 --only dataset=fashion_mnist,clients=20 --budget 30m
    """
    from idiolect import engines, report
    from idiolect.reproduction import forecast, outcome_files, outcomes, pages, recipes, reproduce, searches, verdicts
    from idiolect.studies import Study, runner, trackers, watcher
    from idiolect.tuning.progress import watcher as search_watcher

    if measure and not dry_run:
        raise InputError("--measure is for --dry-run: it says how long a table takes, and trains nothing")
    table = recipes.get(recipe)
    tune = tune or table.is_always_tuned
    if trials is not None and not tune:
        raise InputError("--trials is for --tune: add --tune, or leave it out")
    cells = recipes.select(table, conditions(only), methods.split(",") if methods else None)
    if tune:
        table = searches.tuned_recipe(table)
        cells = searches.with_searches(table, cells, trials)
    seconds = _seconds(budget)
    # These lines check the settings: within a run, an error would count as a cell without data.
    settings: dict[str, Any] = {"seeds": seeds, "precision": precision} | ({} if rounds is None else {"rounds": rounds})
    study = Study(**settings)
    some = study.seeds
    runner.check_precision(study, engines.engine(engine, workers))
    for one in track or ():
        trackers.tracker(one)
    pair = _two(compare, pages.labels(cells)) if compare else None
    folder = results if rounds is None else None
    cells = [outcome_files.in_precision(table, c, folder, study.precision) for c in cells]
    cells = [searches.settled(table, c, out, folder, rounds=rounds) for c in cells]
    if others := sum(c.study is not None and c.study.precision != study.precision for c in cells):
        which = "1 cell keeps" if others == 1 else f"{others} cells keep"
        say(err_console, f"{which} the precision of the numbers in {results}, which is not {study.precision}")
    there = {c.slug: outcome_files.kept_results(table, c, folder) if folder else {} for c in cells}

    def outcomes_of(cell: recipes.Cell) -> Mapping[int, outcomes.SeedResult]:
        return there[cell.slug]

    if dry_run:
        rows = forecast.forecast(
            cells, out, rounds=rounds, seeds=some, workers=workers, measure=measure, known=outcomes_of
        )
        if as_json:
            print_json([r._asdict() for r in rows])
        else:
            out_console.print(forecast.render(table, rows))
        return
    planned = forecast.forecast(cells, out, rounds=rounds, seeds=some, workers=workers, known=outcomes_of)
    if sentence := forecast.sentence(planned):
        say(err_console, sentence)
    cell_results = list(
        reproduce.reproduce(
            cells, out, rounds=rounds, seeds=some, engine=engine, workers=workers, budget=seconds,
            watcher=None if quiet else lambda: watcher(err_console), track=track or (),
            told=lambda text: say(err_console, text), known=outcomes_of,
            search_watcher=None if quiet else lambda: search_watcher(err_console),
            keep=lambda result: outcome_files.keep(table, result, folder) if folder else None,
        )
    )  # fmt: skip
    if results is not None and rounds is not None:
        say(err_console, f"nothing is written to {results}, because --rounds makes this a trial")
    cells_with_data = [one.cell for one in cell_results if one.status != "no data"]
    head = verdicts.head(table, cell_results)
    runs = pages.runs_of(cells_with_data, out, rounds=rounds, seeds=some)
    page = pages.page(table, runs, out, head)
    whole = pages.runs_of(cells_with_data, out, rounds=rounds, seeds=some, whole=True) if pair else []
    comparisons = [(run, both) for run in whole if pair and (both := report.compared(run, *pair))]
    if as_json:
        print_json(
            {
                "recipe": table.name,
                "page": None if page is None else str(page),
                "cells": [verdicts.as_json(one) for one in cell_results],
                "compared": [{"setting": run.name} | both._asdict() for run, both in comparisons],
            }
        )
    else:
        out_console.print(verdicts.table(table, cell_results))
        for run, both in comparisons:
            say(out_console, f"\n{run.name}")
            out_console.print(report.render_comparison(run, both))
        if page is not None:
            say(out_console, f"\nPage: {page}")
    if pair and not comparisons:
        say(err_console, f"--compare {compare}: no setting has finished runs of both yet")
    if export:
        paths = pages.export(table, export.value, runs, head, out)
        for path in paths:
            say(err_console if as_json else out_console, f"Written: {path}")
        if not paths:
            say(err_console, f"--export {export.value}: there is nothing to write yet")
    if any(one.to_retry for one in cell_results):
        raise typer.Exit(1)


def _two(text: str, labels: Sequence[str]) -> tuple[str, str]:
    """The two labels in ``A,B``; labels may have commas."""
    pieces = text.split(",")
    for k in range(1, len(pieces)):
        one, other = ",".join(pieces[:k]), ",".join(pieces[k:])
        if one in labels and other in labels and one != other:
            return one, other
    raise InputError(f"--compare {text}: write two of {', '.join(map(repr, labels))}, separated by a comma")


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        seconds = float(text[:-1]) * units[text[-1:]]
        if not 0 < seconds < float("inf"):
            raise ValueError
        return seconds
    except (ValueError, KeyError):
        raise InputError(f"--budget {text}: write a time such as 90s, 30m or 8h") from None
