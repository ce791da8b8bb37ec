"""The command line: ``idiolect run``, ``idiolect report``, ``idiolect list``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.table import Table

from idiolect import __version__, data, engines, methods, models, report
from idiolect.errors import IdiolectError, InputError, Interrupted, nearest
from idiolect.experiments import Study, run, watcher
from idiolect.experiments.progress import Silent
from idiolect.spec import Spec, options_of, scalar, split_list

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
                  help="Personalised federated learning: train, compare and understand.")  # fmt: skip
out_console, err_console = Console(), Console(stderr=True)


class Kind(str, Enum):
    """What ``idiolect list`` lists."""

    methods = "methods"
    datasets = "datasets"
    partitions = "partitions"
    shifts = "shifts"
    models = "models"
    engines = "engines"


def _version(asked: bool) -> None:
    if asked:
        print(f"idiolect {__version__}")
        raise typer.Exit


@app.callback()
def idiolect(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Personalised federated learning: train, compare and understand."""


@app.command("run")
def run_command(
    study: Annotated[Path | None, typer.Argument(metavar="[STUDY.yaml]", help="A study; options below override it.", show_default=False)] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set (see: idiolect list datasets).", show_default="digits")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, separated by commas, with options as fedpac:alignment=0.", show_default="fedavg,fedavg_ft")] = None,
    partition: Annotated[str | None, typer.Option(help="How rows are split over clients.", show_default="dirichlet:alpha=0.3")] = None,
    shift: Annotated[list[str] | None, typer.Option(help="A change of some clients' images, as rotation:degrees=90,clients=0-4; repeat to compose.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Network; auto takes the papers' for the data.", show_default="auto")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="20")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.", show_default="30")] = None,
    participation: Annotated[float | None, typer.Option(help="Share of the clients in each round.", show_default="1.0")] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Epochs per client and round.", show_default="5")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step.", show_default="50")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.01")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum.", show_default="0.5")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.", show_default="0.0005")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.", show_default="0")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="METHOD.OPTION=VALUE", help="An option of a method, as pfedfda.ridge=1.0; repeat.", show_default=False)] = None,
    engine: Annotated[str, typer.Option(help="auto, sequential or processes; the numbers are the same.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Worker processes.", show_default="one per core")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with DATASET/{train,test}.parquet.", show_default="$IDIOLECT_DATA, else the hub")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default="runs/NAME")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The table as JSON on standard output.")] = False,
) -> None:  # fmt: skip
    """Train methods on clients that differ, and compare them in a table and a page.

    Example: idiolect run --methods local,fedavg,fedpac --shift rotation:degrees=90,clients=0-4 --rounds 10
    """
    given = {
        "dataset": dataset, "methods": split_list(methods) if methods is not None else None,
        "partition": partition, "shifts": shift, "model": model, "clients": clients, "rounds": rounds,
        "participation": participation, "local_epochs": local_epochs, "batch_size": batch_size, "lr": lr,
        "momentum": momentum, "weight_decay": weight_decay, "seeds": _numbers(seeds), "data_dir": _text(data_dir),
    }  # fmt: skip
    settings = {k: v for k, v in given.items() if v is not None}
    whole = _study(study, settings, set_ or [], out if resume else None)
    show = Silent() if quiet else watcher(err_console)
    result = run(whole, out, engine=engine, workers=workers, resume=resume, watcher=show)
    page = result.folder / "report.html"
    if as_json:
        print(json.dumps({"run": str(result.folder), "report": str(page), "methods": report.as_json(result.rows())}, indent=1))
    else:
        out_console.print(result.table())
        out_console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)


def _study(path: Path | None, settings: dict[str, Any], sets: Sequence[str], resumed: Path | None) -> Study:
    base: dict[str, Any] = {}
    there = resumed / "study.yaml" if resumed else None
    if path is None and there is not None and there.exists():
        path = there
    if path is not None:
        base = Study.read(path).model_dump()
    elif resumed is not None and not settings:
        raise InputError(f"{resumed} holds no study to resume: give --out the folder of a run, or the study to start")
    study = Study(**base | settings)
    return study.model_copy(update={"methods": _with(study, sets)}) if sets else study


def _with(study: Study, sets: Sequence[str]) -> tuple[Any, ...]:
    uses = [u.model_dump() for u in study.methods]
    for text in sets:
        target, equals, value = text.partition("=")
        label, dot, option = target.rpartition(".")
        if not (equals and dot):
            raise InputError(f"--set {text}: write METHOD.OPTION=VALUE, for example pfedfda.ridge=1.0")
        meant = [u for u in uses if label in (u["name"], u["label"])]
        if not meant:
            raise InputError(f"--set {text}: method {label!r} is not in this study; {nearest(label, [u['label'] for u in uses])}")
        for u in meant:
            preset = methods.get(u["name"]).presets.get(value, {}) if option == "preset" else {}
            u["options"] = u["options"] | preset | {option: scalar(value)}
    return Study(methods=uses).methods


def _numbers(text: str | None) -> list[Any] | None:
    return None if text is None else [scalar(t) for t in text.split(",") if t.strip()]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="The page.", show_default="report.html in the (first) run's folder")] = None,
) -> None:
    """Draw the page of one run, or of several side by side."""
    page = report.write(runs, out or runs[0] / "report.html")
    out_console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)


@app.command("list")
def list_command(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON on standard output.")] = False,
) -> None:
    """List what there is, with options and defaults."""
    entries = _LISTS[kind.value]()
    if as_json:
        print(json.dumps(entries, indent=1, default=str))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, entry in entries.items():
        options = ", ".join(f"{k}={v}" for k, v in entry.get("options", {}).items())
        table.add_row(f"[bold]{name}[/]", entry["summary"] + (f"\n[dim]{options}[/]" if options else ""))
    out_console.print(table)


def _functions(known: Any) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "summary": (f.__doc__ or name).strip().partition("\n")[0],
            "options": {k: None if p.default is p.empty else p.default for k, p in options_of(f).items()},
        }
        for name, f in known.items()
    }


def _methods() -> dict[str, dict[str, Any]]:
    entries = {name: methods.get(name) for name in methods.names()}
    return {
        n: {"title": e.title, "summary": f"{e.title}: {e.summary}" if e.summary else e.title, "options": e.options, "presets": e.presets}
        for n, e in entries.items()
    }


def _datasets() -> dict[str, dict[str, Any]]:
    return {name: {"summary": _about(data.describe(name))} | data.describe(name) for name in data.names()}


def _about(entry: dict[str, Any]) -> str:
    return ", ".join(str(v) for v in entry.values() if isinstance(v, str | int))


_LISTS = {
    "methods": _methods,
    "datasets": _datasets,
    "partitions": lambda: _functions(data.PARTITIONS),
    "shifts": lambda: _functions(data.SHIFTS),
    "models": lambda: _functions(models.NETWORKS),
    "engines": lambda: {n: {"summary": e.__doc__ or n} for n, e in engines.ENGINES.items()},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: an error is one sentence on standard error and exit code 2."""
    try:
        code = app(arguments, standalone_mode=False)
    except Interrupted as stop:
        err_console.print(str(stop), markup=False, highlight=False, soft_wrap=True)
        sys.exit(128 + signal.SIGINT)
    except IdiolectError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str) -> None:
    err_console.print(f"idiolect: {sentence}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
