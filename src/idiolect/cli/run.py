"""``idiolect run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idiolect.cli.options import (
    COMMON,
    ENGINE,
    USUAL_ENGINE,
    AllowImport,
    AsJson,
    Quiet,
    StudyFile,
    Track,
    Workers,
    flag,
    option,
    with_settings,
)
from idiolect.cli.output import err_console, out_console, print_json, say
from idiolect.cli.study import study_of
from idiolect.core.errors import InputError
from idiolect.studies.settings import METHODS, OUTPUT, SETTINGS

if TYPE_CHECKING:
    from idiolect.studies import Result


@with_settings(name for name, setting in SETTINGS.items() if setting.option != "")
def run_command(
    settings: dict[str, Any],
    study: StudyFile = None,
    engine: Annotated[
        str, option("Where clients run: idiolect list engines.", USUAL_ENGINE, metavar="NAME", panel=COMMON)
    ] = USUAL_ENGINE,
    out: Annotated[Path | None, option("Folder of the run.", "runs/NAME", panel=COMMON)] = None,
    set_: Annotated[
        list[str] | None,
        option(
            "An option of a method, as pfedfda.ridge=0.5, or a setting of training for it alone, as fedavg.lr=0.1; "
            "repeat. In --methods it is written pfedfda:ridge=0.5.",
            "",
            "--set",
            metavar="NAME=VALUE",
            panel=METHODS,
        ),
    ] = None,
    workers: Workers = None,
    ray_address: Annotated[
        str | None, option("Ray cluster to run on, as auto or host:port.", "a Ray of its own", panel=ENGINE)
    ] = None,
    allow_import: AllowImport = False,
    resume: Annotated[bool, flag("resume", "Continue the run in --out.", OUTPUT)] = False,
    track: Track = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train methods on clients that differ, and compare them in a table and a page.

    Example: idiolect run --methods local,fedavg,fedpac --shift rotate:clients=0-4
    """
    from idiolect.studies import run, watcher
    from idiolect.studies.progress import Watcher

    whole = study_of(study, settings, set_ or [], out if resume else None, allow_import)
    show = Watcher() if quiet else watcher(err_console)
    result = run(
        whole, out, engine=_at(engine, ray_address), workers=workers, resume=resume, watcher=show, track=track or ()
    )
    if as_json:
        rows = [row.as_dict() for row in result.rows()]
        new_clients = [row.as_dict() for row in result.new_clients()]
        ran = result.runs[-1] if result.runs else None
        print_json({
            "run": str(result.folder), "report": str(result.page), "engine": ran, "methods": rows,
            "new_clients": new_clients, "diverged": [d._asdict() for d in result.diverged], "notes": result.notes(),
        })  # fmt: skip
    else:
        if not quiet:
            err_console.print()
        out_console.print(result.table())
        if (newcomers := result.new_clients_table()) is not None:
            out_console.print()
            out_console.print(newcomers)
        say(out_console, f"\n{_workload(result)}Report: {result.page}")
    if result.diverged:
        raise typer.Exit(1)


def _at(engine: str, ray_address: str | None) -> str:
    """The engine with the cluster that ``--ray-address`` names."""
    from idiolect.core.option_spec import Spec

    spec = Spec.parse(engine)
    if ray_address is None:
        return engine
    if spec.name not in ("auto", "ray"):
        raise InputError(f"--ray-address is for --engine ray, not {spec.name}: leave one of the two out")
    return str(Spec(name="ray", options=spec.options | {"address": ray_address}))


def _workload(result: Result) -> str:
    """How busy the workers were when the run was last finished."""
    from idiolect.report.tables import duration

    if not result.runs:
        return ""
    last = result.runs[-1]
    who = "1 worker was" if last["workers"] == 1 else f"{last['workers']} workers were"
    return f"{who} busy {last['busy']:.0%} of {duration(last['seconds'])}.\n"
