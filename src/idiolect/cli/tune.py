"""``idiolect tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from idiolect.cli.options import (
    COMMON,
    SEARCH,
    USUAL_ENGINE,
    AllowImport,
    AsJson,
    Quiet,
    StudyFile,
    Workers,
    flag,
    option,
    with_settings,
)
from idiolect.cli.output import err_console, out_console, print_json, say
from idiolect.cli.study import study_of
from idiolect.core.errors import InputError
from idiolect.studies.settings import METHODS, OUTPUT, SETTINGS

_UNUSED = {"save_predictions", "measures"}  # a search measures nothing but validation samples


@with_settings(name for name, setting in SETTINGS.items() if setting.option != "" and name not in _UNUSED)
def tune_command(
    settings: dict[str, Any],
    study: StudyFile = None,
    search: Annotated[
        list[str] | None,
        option(
            "What is searched, as lr=0.001..0.3:log, batch_size=10,50 or fedpac.alignment=0.1..10:log; repeat. "
            "default: the ranges that methods declare, and one of lr.",
            "default",
            metavar="NAME=RANGE",
            panel=SEARCH,
        ),
    ] = None,
    trials: Annotated[int | None, option("Trials of each method.", "20", panel=SEARCH)] = None,
    sampler: Annotated[
        str | None, option("What proposes the second half of the trials: tpe, gp or random.", "tpe", panel=SEARCH)
    ] = None,
    halving: Annotated[
        int | None,
        option(
            "One in so many trials goes on after 1/5 of the rounds, fewer after 3/5; 1 trains all to the end.",
            "2",
            panel=SEARCH,
        ),
    ] = None,
    seed: Annotated[
        int | None, option("Seed of the trials, and of what they try.", "the study's first seed", panel=SEARCH)
    ] = None,
    refit: Annotated[
        bool,
        flag("refit", "Then run the tuned study, on training and validation samples together.", SEARCH),
    ] = False,
    set_: Annotated[
        list[str] | None,
        option(
            "An option or a setting of a method, as for idiolect run.", "", "--set", metavar="NAME=VALUE", panel=METHODS
        ),
    ] = None,
    engine: Annotated[
        str, option("Where clients run: idiolect list engines.", USUAL_ENGINE, metavar="NAME", panel=COMMON)
    ] = USUAL_ENGINE,
    out: Annotated[Path | None, option("Folder of the search.", "runs/NAME-tune", panel=COMMON)] = None,
    workers: Workers = None,
    allow_import: AllowImport = False,
    resume: Annotated[bool, flag("resume", "Continue the search in --out.", OUTPUT)] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose settings for every method on validation samples, with the same number of trials for each.

    Example: idiolect tune --methods fedavg,fedpac --search lr=0.001..0.3:log --trials 20 --refit
    """
    from idiolect.studies import watcher
    from idiolect.studies.progress import Watcher
    from idiolect.tuning import plan as plans
    from idiolect.tuning import tune
    from idiolect.tuning.progress import SearchWatcher
    from idiolect.tuning.progress import watcher as search_watcher

    given: dict[str, Any] = {"trials": trials, "sampler": sampler, "halving": halving, "seed": seed}
    options = {name: value for name, value in given.items() if value is not None}
    ranges = _ranges(search)
    if resume and out is not None and plans.has_search(out):  # what is given must be what is there
        plans.unchanged(out)
        before = plans.read(out)
        whole = study_of(study or out / plans.STUDY_FILE, settings, set_ or [], None, allow_import)
        options = {name: getattr(before, name) for name in given} | options
        ranges = dict(before.search) if search is None else ranges
    elif resume and not (search or settings or study or set_):
        raise InputError(f"{out} has no search to resume: give --out the folder of one, or leave out --resume")
    else:
        whole = study_of(study, settings, set_ or [], None, allow_import)
    tuning = tune(
        whole, ranges, out, **options, refit=refit, engine=engine, workers=workers, resume=resume,
        watcher=SearchWatcher() if quiet else search_watcher(err_console),
        refit_watcher=Watcher() if quiet else watcher(err_console),
    )  # fmt: skip
    result = tuning.result
    if as_json:
        rows = None if result is None else [row.as_dict() for row in result.rows()]
        print_json({
            "search": str(tuning.folder), "report": str(tuning.page), "tuned": str(tuning.folder / "tuned.yaml"),
            "chosen": [c.as_dict() for c in tuning.chosen()], "notes": tuning.notes(), "methods": rows,
        })  # fmt: skip
    else:
        if not quiet:
            err_console.print()
        out_console.print(tuning.table())
        say(out_console, "\n" + "\n".join(tuning.notes()))
        if result is not None:
            out_console.print()
            out_console.print(result.table())
            say(out_console, f"\nReport: {result.page}")
        else:
            say(out_console, f"\nMeasure it on test samples: idiolect run {tuning.folder / 'tuned.yaml'}")
        say(out_console, f"Search: {tuning.page}")
    if any(c.score is None for c in tuning.chosen()) or (result is not None and result.diverged):
        raise typer.Exit(1)


def _ranges(texts: list[str] | None) -> dict[str, str]:
    """The ranges that ``--search`` gives, by name.

    Raises:
        InputError: one cannot be read, or is given twice.
    """
    ranges: dict[str, str] = {}
    for text in texts or ["default"]:
        name, equals, range = text.partition("=")
        name = name.strip()
        if not equals and name != "default":
            raise InputError(f"--search {text}: write NAME=RANGE, such as lr=0.001..0.3:log, or default")
        if name in ranges:
            raise InputError(f"--search {text}: {name} is given twice: give each range once")
        ranges[name] = range.strip()
    return ranges
