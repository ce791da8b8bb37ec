"""The command line: ``idiolect run``, ``describe``, ``reproduce``, ``diff``, ``report`` and ``list``.

What a command needs is imported when it runs, so that help is quick.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from idiolect import __version__
from idiolect.core import terminal
from idiolect.core.errors import IdiolectError, InputError, Interrupted, RunError, as_options, nearest
from idiolect.core.option_spec import plain
from idiolect.core.terminal import Text

if TYPE_CHECKING:
    from idiolect.studies import Result, Study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_MEMORY = re.compile("can't allocate memory|out of memory")  # torch has no exception of its own for it on the CPU
_STOPPED = 128 + signal.SIGINT
_UNREAD = 128 + 13  # as SIGPIPE ends other programs
_PLAIN = {"±": "+-", "…": ".", "·": "-", "█": "#", "▓": "*", "▒": "+", "░": "."}
_RUNS = Path("runs", "reproduce")
out_console, err_console = Console(), Console(stderr=True)
UsageError: Any = typer.BadParameter.__mro__[1]  # click's, which typer brings along under changing names


class Kind(StrEnum):
    """What ``idiolect list`` lists."""

    methods = "methods"
    datasets = "datasets"
    partitions = "partitions"
    shifts = "shifts"
    models = "models"
    engines = "engines"
    recipes = "recipes"


class Form(StrEnum):
    """What ``--export`` writes."""

    latex = "latex"
    csv = "csv"
    png = "png"


def _version(asked: bool) -> None:
    if asked:
        print(f"idiolect {__version__}")
        raise typer.Exit


@app.callback()
def idiolect(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Personalised federated learning: train, compare and understand."""


def _option(help: str, default: str = "", *names: str, metavar: str | None = None, panel: str | None = None) -> Any:
    help += rf" [dim]\[{default}][/]" if default else ""
    return typer.Option(*names, help=help, show_default=False, metavar=metavar, rich_help_panel=panel)


_COMPARED, _OWN, _CLIENTS = "What is compared, on what", "Data of your own", "Who holds what"
_TRAINING, _RUN = "Training", "The run"

StudyFile = Annotated[
    Path | None,
    typer.Argument(metavar="STUDY.yaml", help="A study; options override its settings.", show_default=False),
]
Dataset = Annotated[str | None, _option("Data set by name.", "digits", panel=_COMPARED)]
DataDir = Annotated[
    Path | None, _option("Holds DATASET/{train,test}.parquet.", "$IDIOLECT_DATA, else the hub", panel=_COMPARED)
]
Data = Annotated[
    str | None,
    _option(
        "In place of a data set by name: a folder of images, a CSV or parquet file, a data set of the Hugging Face hub "
        "(hf:owner/name), or module.function that gives arrays.",
        "",
        "--data",
        metavar="WHERE",
        panel=_OWN,
    ),
]
Target = Annotated[
    str | None,
    _option("Column that is to be predicted.", "the one called label, target, ...", metavar="COLUMN", panel=_OWN),
]
ClientColumn = Annotated[
    str | None, _option("Column that says whose row it is: a client for each value.", metavar="COLUMN", panel=_OWN)
]
Drop = Annotated[str | None, _option("Columns to leave out, joined by +.", metavar="COLUMNS", panel=_OWN)]
Resize = Annotated[
    str | None, _option("Bring images to one size, as 32 or 32x24 (width x height).", metavar="SIZE", panel=_OWN)
]
Partition = Annotated[
    str | None,
    _option(
        "How rows are split, or module.function that does.",
        "by the client column, else dirichlet:alpha=0.3",
        panel=_CLIENTS,
    ),
]
Clients = Annotated[int | None, _option("Number of clients.", "20, or all of the client column", panel=_CLIENTS)]
Sizes = Annotated[
    str | None,
    _option("Training rows per client: 600, or 300+600+1200 to draw one each.", "from the partition", panel=_CLIENTS),
]
Keep = Annotated[str | None, _option("Keep 25% or 50 (rows) of each client's training rows.", "all", panel=_CLIENTS)]
Shift = Annotated[
    list[str] | None,
    _option(
        "How some clients' rows differ, as corrupt:clients=0-49 or rotate:groups=4; repeat.",
        metavar="<str>",
        panel=_CLIENTS,
    ),
]
NewClients = Annotated[
    str | None,
    _option("Who joins after training: the last 10 or 20%, or names joined by +.", "nobody", panel=_CLIENTS),
]
NewShift = Annotated[
    list[str] | None,
    _option(
        "What else new clients are measured under, as corrupt:kind=each,severity=3; repeat.",
        metavar="<str>",
        panel=_CLIENTS,
    ),
]
Normalised = Annotated[
    str | None,
    _option(
        "By the set's usual mean and spread (reference), by its training rows' (training), or to -1..1 (symmetric).",
        "reference",
        "--normalise",
        panel=_COMPARED,
    ),
]
DataSeed = Annotated[int | None, _option("Seed of the split and the shifts.", "0", panel=_CLIENTS)]
Track = Annotated[
    list[str] | None,
    _option(
        "Also tell tensorboard, mlflow or wandb what is measured, as tensorboard:DIR, mlflow:URI or wandb:PROJECT; "
        "repeat.",
        metavar="TRACKER",
        panel=_RUN,
    ),
]
AllowImport = Annotated[
    bool,
    _option(
        "Let the file of the study, or of the run to resume, name code by its import path; such code is run.",
        "",
        "--allow-import",
        panel=_RUN,
    ),
]
AsJson = Annotated[bool, _option("Print the table as JSON.", "", "--json", panel=_RUN)]


def _about_data(**given: Any) -> dict[str, Any]:
    """The settings of the data that were given."""
    given["data_dir"] = None if given["data_dir"] is None else str(given["data_dir"])
    return {k: v for k, v in given.items() if v is not None}


@app.command("run")
def run_command(
    study: StudyFile = None,
    dataset: Dataset = None,
    methods: Annotated[
        str | None,
        _option("Separated by commas; options as fedpac:alignment=0.", "fedavg,fedavg_ft", panel=_COMPARED),
    ] = None,
    set_: Annotated[
        list[str] | None,
        _option(
            "An option of a method, as pfedfda.ridge=0.5; repeat.",
            "",
            "--set",
            metavar="NAME=VALUE",
            panel=_COMPARED,
        ),
    ] = None,
    model: Annotated[
        str | None,
        _option("Network, or module.function of one; auto takes the papers' for the data.", "auto", panel=_COMPARED),
    ] = None,
    seeds: Annotated[str | None, _option("Separated by commas.", "0", panel=_COMPARED)] = None,
    data_dir: DataDir = None,
    normalise: Normalised = None,
    data: Data = None,
    target: Target = None,
    client_column: ClientColumn = None,
    drop: Drop = None,
    resize: Resize = None,
    clients: Clients = None,
    partition: Partition = None,
    sizes: Sizes = None,
    keep: Keep = None,
    shift: Shift = None,
    new_clients: NewClients = None,
    new_shift: NewShift = None,
    data_seed: DataSeed = None,
    rounds: Annotated[int | None, _option("Communication rounds.", "30", panel=_TRAINING)] = None,
    participation: Annotated[
        float | None, _option("Share of the clients in each round.", "1.0", panel=_TRAINING)
    ] = None,
    local_epochs: Annotated[int | None, _option("Epochs per client and round.", "5", panel=_TRAINING)] = None,
    batch_size: Annotated[int | None, _option("Rows per step.", "50", panel=_TRAINING)] = None,
    lr: Annotated[float | None, _option("Learning rate.", "0.01", panel=_TRAINING)] = None,
    momentum: Annotated[float | None, _option("Momentum.", "0.5", panel=_TRAINING)] = None,
    weight_decay: Annotated[float | None, _option("Weight decay.", "0.0005", panel=_TRAINING)] = None,
    augment: Annotated[
        str | None, _option("Crop and mirror training images at random (crop_flip).", "none", panel=_TRAINING)
    ] = None,
    drop_last: Annotated[
        bool | None,
        _option("Leave out the rows that do not fill a batch.", "", "--drop-last/--no-drop-last", panel=_TRAINING),
    ] = None,
    protocol: Annotated[
        str | None,
        _option(
            "What the number is: whose models, when, which round, how averaged; as moment=received,weighting=row or "
            "round=best_validation,validation=0.2.",
            "every client's personal model after the last round, clients counting alike",
            panel=_TRAINING,
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None, _option("Rounds between evaluations.", "a tenth of them", panel=_TRAINING)
    ] = None,
    engine: Annotated[
        str,
        _option(
            "auto, sequential, processes, vectorised or ray, with options as vectorised:chunk=20; the numbers are the "
            "same (vectorised rounds otherwise).",
            "auto",
            panel=_RUN,
        ),
    ] = "auto",
    ray_address: Annotated[
        str | None, _option("Ray cluster to run on, as auto or host:port.", "a Ray of its own", panel=_RUN)
    ] = None,
    workers: Annotated[int | None, _option("Worker processes.", "one per core", panel=_RUN)] = None,
    out: Annotated[Path | None, _option("Folder of the run.", "runs/NAME", panel=_RUN)] = None,
    resume: Annotated[bool, _option("Continue the run in --out.", "", "--resume", panel=_RUN)] = False,
    allow_import: AllowImport = False,
    track: Track = None,
    quiet: Annotated[bool, _option("Show no progress.", "", "--quiet", panel=_RUN)] = False,
    as_json: AsJson = False,
) -> None:
    """Train methods on clients that differ, and compare them in a table and a page.

    Example: idiolect run --methods local,fedavg,fedpac --shift rotate:degrees=90,clients=0-4
    """
    from idiolect.studies import run, watcher
    from idiolect.studies.progress import Silent

    settings = _about_data(
        dataset=dataset, data_dir=data_dir, data=data, target=target, client_column=client_column, drop=drop,
        resize=resize, clients=clients, partition=partition, sizes=sizes, keep=keep, shifts=shift,
        new_clients=new_clients, new_shifts=new_shift, data_seed=data_seed, normalise=normalise,
        methods=methods, model=model, seeds=seeds, rounds=rounds, participation=participation,
        local_epochs=local_epochs, batch_size=batch_size, lr=lr, momentum=momentum, weight_decay=weight_decay,
        augment=augment, drop_last=drop_last, protocol=protocol, evaluate_every=evaluate_every,
    )  # fmt: skip
    whole = _study(study, settings, set_ or [], out if resume else None, allow_import)
    show = Silent() if quiet else watcher(err_console)
    result = run(
        whole, out, engine=_at(engine, ray_address), workers=workers, resume=resume, watcher=show, track=track or ()
    )
    page = result.folder / "report.html"
    if as_json:
        rows = [row._asdict() for row in result.rows()]
        joined = [row._asdict() for row in result.joined()]
        ran = result.runs[-1] if result.runs else None
        _print_json({
            "run": str(result.folder), "report": str(page), "engine": ran, "methods": rows, "joined": joined,
            "diverged": [d._asdict() for d in result.diverged],
        })  # fmt: skip
    else:
        if not quiet:
            err_console.print()
        out_console.print(result.table())
        if (newcomers := result.joined_table()) is not None:
            out_console.print()
            out_console.print(newcomers)
        _say(out_console, f"\n{_worked(result)}Report: {page}")
    if result.diverged:
        raise typer.Exit(1)


def _at(engine: str, ray_address: str | None) -> str:
    """The engine with the cluster that ``--ray-address`` names."""
    from idiolect.core.option_spec import Spec

    asked = Spec.parse(engine)
    if ray_address is None:
        return engine
    if asked.name not in ("auto", "ray"):
        raise InputError(f"--ray-address goes with --engine ray, not {asked.name}: leave one of the two out")
    return str(Spec(name="ray", options=asked.options | {"address": ray_address}))


def _worked(result: Result) -> str:
    """How busy the workers were when the run was last finished."""
    from idiolect.report.tables import duration

    if not result.runs:
        return ""
    last = result.runs[-1]
    who = "1 worker was" if last["workers"] == 1 else f"{last['workers']} workers were"
    return f"{who} busy {last['busy']:.0%} of {duration(last['seconds'])}.\n"


def _study(
    path: Path | None, settings: dict[str, Any], sets: Sequence[str], resumed: Path | None, allow_import: bool
) -> Study:
    """The study that a file, options and ``--set`` describe together; a run to be resumed has its own file.

    Code that an option names is the user's own word, code that the file names is not.
    """
    from idiolect.studies import Study
    from idiolect.studies.config import names_code

    if path is None and resumed is not None:
        if (resumed / "study.yaml").exists():
            path = resumed / "study.yaml"
        elif not settings and not sets:
            raise InputError(f"{resumed} holds no run to resume: give --out the folder of one, or leave out --resume")
    there = Study.look(path) if path else None
    written = there.model_dump(exclude_unset=True) if there else {}  # the rest depends on what is overridden
    by_name, own_data = ("dataset", "data_dir"), ("data", "target", "client_column", "drop", "resize")
    for own, other in (("data", by_name), ("dataset", own_data)):
        if own in settings:  # the one takes the other's place
            written = {k: v for k, v in written.items() if k not in other}
    if "data" in settings or "client_column" in settings:  # which say how rows are divided
        written = {k: v for k, v in written.items() if k not in ("partition", "clients")}
    if path and there and not allow_import:
        named = {k: v for k, v in there.imports().items() if k in written and k not in settings}
        if named:
            raise names_code(path, named)
    study = Study(**written | settings)
    return Study(**study.model_dump() | {"methods": _with(study, sets)})


def _with(study: Study, sets: Sequence[str]) -> list[dict[str, Any]]:
    """The study's methods with the options that ``--set`` gives."""
    from idiolect.core.option_spec import scalar
    from idiolect.studies.config import labelled

    uses = [u.model_dump() for u in study.methods]
    given: list[dict[str, Any]] = [{} for _ in uses]
    for text in sets:
        target, equals, value = text.partition("=")
        label, dot, option = target.strip().rpartition(".")
        if not (equals and dot):
            raise InputError(f"--set {text}: write METHOD.OPTION=VALUE, for example pfedfda.ridge=1.0")
        meant = [mine for u, mine in zip(uses, given, strict=True) if label in (u["name"], u["label"])]
        if not meant:
            hint = nearest(label, [u["label"] for u in uses])
            raise InputError(f"--set {text}: method {label!r} is not in this study; {hint}")
        for mine in meant:
            mine[option] = scalar(value)
    for u, mine in zip(uses, given, strict=True):
        u["options"] = ({} if "preset" in mine else u["options"]) | mine  # a preset begins anew
        if mine and (u["label"] == u["name"] or u["label"].startswith(f"{u['name']}:")):
            u["label"] = labelled(u["name"], u["options"])
    return uses


@app.command("describe")
def describe_command(
    study: StudyFile = None,
    dataset: Dataset = None,
    model: Annotated[str | None, _option("Network that is to fit the rows.", "auto", panel=_COMPARED)] = None,
    data_dir: DataDir = None,
    normalise: Normalised = None,
    data: Data = None,
    target: Target = None,
    client_column: ClientColumn = None,
    drop: Drop = None,
    resize: Resize = None,
    clients: Clients = None,
    partition: Partition = None,
    sizes: Sizes = None,
    keep: Keep = None,
    shift: Shift = None,
    new_clients: NewClients = None,
    new_shift: NewShift = None,
    data_seed: DataSeed = None,
    show: Annotated[
        str | None,
        _option("Clients whose images are shown, as 0-2+50.", "the first of each shift", metavar="CLIENTS", panel=_RUN),
    ] = None,
    out: Annotated[Path | None, _option("The page.", "runs/describe.html", panel=_RUN)] = None,
    allow_import: AllowImport = False,
    as_json: AsJson = False,
) -> None:
    """Show how clients differ before anything is trained: who holds what, how much, how unlike, how it looks.

    Example: idiolect describe --dataset cifar10 --clients 100 --shift corrupt:clients=0-49
    """
    from idiolect.data import heterogeneity, members
    from idiolect.report import description as drawing

    settings = _about_data(
        dataset=dataset, data_dir=data_dir, data=data, target=target, client_column=client_column, drop=drop,
        resize=resize, clients=clients, partition=partition, sizes=sizes, keep=keep, shifts=shift,
        new_clients=new_clients, new_shifts=new_shift, data_seed=data_seed, normalise=normalise, model=model,
    )  # fmt: skip
    whole = _study(study, settings, [], None, allow_import)
    federation = whole.federation()
    whole.task(federation)  # a network that does not fit the rows is said here
    about = heterogeneity.describe_clients(federation)
    written = whole.model_dump(mode="json")
    shown = sorted(members(show, len(about.train_KC), "--show")) if show else drawing.typical(federation, about)
    facts = drawing.facts(written, federation, about)
    page = drawing.write_description(facts, federation, about, shown, out or Path("runs", "describe.html"))
    if as_json:
        _print_json(drawing.as_json(written, federation, about) | {"page": str(page)})
    else:
        out_console.print(drawing.terminal(facts, federation, about))
        _say(out_console, f"\nPage: {page}")


@app.command("reproduce")
def reproduce_command(
    recipe: Annotated[str, typer.Argument(help="A table or figure, as fedpac/table1.", show_default=False)],
    only: Annotated[
        str | None,
        _option("Which cells, as dataset=fashion_mnist,clients=20; values joined by +.", "all", panel=_COMPARED),
    ] = None,
    methods: Annotated[str | None, _option("Of the table's methods these.", "all", panel=_COMPARED)] = None,
    seeds: Annotated[str, _option("Separated by commas.", "0", panel=_COMPARED)] = "0",
    rounds: Annotated[int | None, _option("In place of the paper's: then no verdict is kept.", "", panel=_RUN)] = None,
    budget: Annotated[
        str | None,
        _option("Stop after 90s, 30m or 8h; the same command goes on.", "until all is run", metavar="TIME", panel=_RUN),
    ] = None,
    dry_run: Annotated[
        bool, _option("Say what would run and how long it would take.", "", "--dry-run", panel=_RUN)
    ] = False,
    out: Annotated[Path, _option("Folder of the runs' folders.", str(_RUNS), panel=_RUN)] = _RUNS,
    results: Annotated[
        Path | None, _option("Write a file of each measured cell into this folder.", "", panel=_RUN)
    ] = None,
    engine: Annotated[str, _option("As for run.", "auto", panel=_RUN)] = "auto",
    workers: Annotated[int | None, _option("Worker processes.", "one per core", panel=_RUN)] = None,
    track: Track = None,
    compare: Annotated[
        str | None,
        _option("Compare two methods client by client, in each setting.", metavar="A,B", panel=_RUN),
    ] = None,
    export: Annotated[
        Form | None,
        _option("Write the table (latex, csv), or all figures (png), into a folder of --out.", "", panel=_RUN),
    ] = None,
    quiet: Annotated[bool, _option("Show no progress.", "", "--quiet", panel=_RUN)] = False,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of a paper, or part of it, and set the numbers beside the paper's.

    Example: idiolect reproduce fedpac/table1 --only dataset=fashion_mnist,clients=20 --budget 30m
    """
    from idiolect import engines, report
    from idiolect.reproduction import forecast, outcome_files, pages, recipes, reproduce, verdicts
    from idiolect.studies import Study, trackers, watcher

    made = recipes.get(recipe)
    cells = recipes.chosen(made, _conditions(only), methods.split(",") if methods else None)
    some, seconds = _seeds(seeds), _seconds(budget)
    Study(seeds=some, **({} if rounds is None else {"rounds": rounds}))  # says what is wrong with them
    engines.engine(engine, workers)  # so do these: within a run it would count as a cell without data
    for one in track or ():
        trackers.tracker(one)
    pair = _two(compare, pages.labels(cells)) if compare else None
    if dry_run:
        rows = forecast.forecast(cells, out, rounds=rounds, seeds=some, workers=workers)
        if as_json:
            _print_json([r._asdict() for r in rows])
        else:
            out_console.print(forecast.render(made, rows))
        return
    if said := forecast.sentence(forecast.forecast(cells, out, rounds=rounds, seeds=some, workers=workers, patience=3)):
        _say(err_console, said)
    found = list(
        reproduce.reproduce(
            cells, out, rounds=rounds, seeds=some, engine=engine, workers=workers, budget=seconds,
            watcher=None if quiet else lambda: watcher(err_console), track=track or (),
            told=lambda text: _say(err_console, text),
        )
    )  # fmt: skip
    if results is not None and rounds is not None:
        _say(err_console, f"nothing is kept in {results}: --rounds is for a trial")
    elif results is not None:
        stay = [one for one in found if outcome_files.keep(made, one, results) is None and one.value is not None]
        if stay:
            _say(err_console, f"{len(stay)} of the numbers in {results} are of more seeds than these, and stay")
    drawn, head = [one.cell for one in found if one.status != "no data"], verdicts.head(made, found)
    runs = pages.together(drawn, out, rounds=rounds, seeds=some)
    page = pages.page(made, runs, out, head)
    whole = pages.together(drawn, out, rounds=rounds, seeds=some, whole=True) if pair else []
    compared = [(run, both) for run in whole if pair and (both := report.compared(run, *pair))]
    if as_json:
        _print_json(
            {
                "recipe": recipe,
                "page": None if page is None else str(page),
                "cells": [verdicts.as_json(one) for one in found],
                "compared": [{"setting": run.name} | both._asdict() for run, both in compared],
            }
        )
    else:
        out_console.print(verdicts.table(made, found))
        for run, both in compared:
            _say(out_console, f"\n{run.name}")
            out_console.print(report.render_comparison(run, both))
        if page is not None:
            _say(out_console, f"\nPage: {page}")
    if pair and not compared:
        _say(err_console, f"--compare {compare}: no setting has whole runs of both yet")
    if export:
        written = pages.export(made, export.value, runs, head, out)
        for path in written:
            _say(err_console if as_json else out_console, f"Written: {path}")
        if not written:
            _say(err_console, f"--export {export.value}: there is nothing to write yet")
    if any(one.to_retry for one in found):
        raise typer.Exit(1)


def _two(text: str, labels: Sequence[str]) -> tuple[str, str]:
    """The two of ``A,B`` among labels, in which commas may stand."""
    pieces = text.split(",")
    for k in range(1, len(pieces)):
        one, other = ",".join(pieces[:k]), ",".join(pieces[k:])
        if one in labels and other in labels and one != other:
            return one, other
    raise InputError(f"--compare {text}: write two of {', '.join(map(repr, labels))}, separated by a comma")


def _conditions(text: str | None) -> dict[str, str]:
    pairs = [piece.partition("=") for piece in (text or "").split(",") if piece.strip()]
    if wrong := next((k for k, equals, _ in pairs if not equals), None):
        raise InputError(f"--only {text}: cannot read {wrong!r}; write KEY=VALUE,KEY=VALUE, as dataset=cifar10")
    found = {k.strip(): v.strip() for k, _, v in pairs}
    if len(found) < len(pairs):
        raise InputError(f"--only {text}: a key stands twice; join its values by +, as clients=20+100")
    return found


def _seeds(text: str) -> list[int]:
    try:
        return [int(piece) for piece in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text}: write whole numbers separated by commas, as 0,1,2") from None


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


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None, _option("The page; of --export the folder.", "report.html in the first run's folder")
    ] = None,
    compare: Annotated[
        str | None, _option("Compare two methods of a run client by client, with tests and intervals.", metavar="A,B")
    ] = None,
    export: Annotated[
        Form | None, _option("Write the table of a run (latex, csv), or its figures (png), as files.", "")
    ] = None,
) -> None:
    """Draw the page of one run, or of several side by side; or compare two methods of a run, or export it.

    Example: idiolect report runs/digits --compare pfedfda,fedavg
    """
    from idiolect import report

    if (compare or export) and len(runs) > 1:
        raise InputError(f"--{'compare' if compare else 'export'} is of one run: name one")
    if compare:
        run = report.read(runs[0])
        out_console.print(report.render_comparison(run, report.compare(run, *report.named(compare))))
    if export:
        for path in report.export(runs[0], export.value, out):
            _say(out_console, f"Written: {path}")
    if compare or export:
        return
    _say(out_console, f"Report: {report.write(runs, out or runs[0] / 'report.html')}")


@app.command("diff")
def diff_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="That of another, or a table such as fedpac/table1.")],
    only: Annotated[
        str | None, _option("Which of the table's cells, as for reproduce.", "the one most like the run")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say why two numbers differ: every setting, split, version or engine that does, the likeliest cause first.

    Example: idiolect diff runs/digits runs/digits-2
    """
    from idiolect.reproduction import diff, recipes

    mine = diff.of_run(run)
    if Path(other).is_dir() or other not in recipes.names():
        if only is not None:
            raise InputError(f"--only goes with a table, and {other} is none: leave it out")
        if not Path(other).is_dir():
            raise InputError(f"there is no run folder {other} and no table {other}: idiolect list recipes has them all")
        theirs = diff.of_run(Path(other))
    else:
        made = recipes.get(other)
        mine, theirs = diff.of_recipe(made, recipes.chosen(made, _conditions(only)), mine)
    found = diff.compare(mine, theirs)
    if as_json:
        _print_json(found.as_json())
    else:
        for part in diff.render(found):
            out_console.print(part)


@app.command("list")
def list_command(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    as_json: Annotated[
        bool, _option("Print it as JSON; for methods with what they send, keep and need.", "", "--json")
    ] = False,
    model: Annotated[str | None, _option("Count the bytes of methods for this network.", "auto")] = None,
    dataset: Annotated[str | None, _option("Count them for the shape and classes of this data set.", "digits")] = None,
) -> None:
    """List what there is, with options and defaults.

    Example: idiolect list methods --json --dataset cifar10
    """
    if (model or dataset) and not (kind is Kind.methods and as_json):
        raise InputError("--model and --dataset go with idiolect list methods --json: leave them out")
    entries = _LISTS[kind]()
    if as_json:
        if kind is Kind.methods:
            entries = _with_anatomy(entries, model or "auto", dataset or "digits")
        _print_json(entries)
        return
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, entry in entries.items():
        lines = [Text(entry["summary"])]
        if "cells" in entry:
            lines.append(
                Text(f"{entry['cells']} cells, {entry['runs']} runs" if entry["cells"] else entry["kind"], style="dim")
            )
        if options := entry.get("options"):
            lines.append(Text(", ".join(f"{k}={plain(v)}" for k, v in options.items()), style="dim"))
        lines += [
            Text(f"preset={preset}: " + ", ".join(f"{k}={plain(v)}" for k, v in values.items()), style="dim")
            for preset, values in entry.get("presets", {}).items()
        ]
        lines += [
            Text(
                f"{title} is {name}"
                + "".join(f"{',' if i else ':'}{k}={plain(v)}" for i, (k, v) in enumerate(values.items())),
                style="dim",
            )
            for title, values in entry.get("variants", {}).items()
        ]
        table.add_row(Text(name, style="bold"), Text("\n").join(lines))
    out_console.print(table)


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0].replace("``", "")


def _functions(known: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from idiolect.core.option_spec import options_of

    return {
        name: {
            "summary": _first_line(function),
            "options": {k: p.default for k, p in options_of(function).items()},
        }
        for name, function in known.items()
    }


def _methods() -> dict[str, dict[str, Any]]:
    from idiolect import methods

    entries, broken = methods.working()
    for sentence in broken:
        _say(err_console, f"idiolect: {sentence}")
    return {
        name: {
            "title": e.title,
            "summary": f"{e.title}: {e.summary}",
            "options": e.options,
            "presets": e.presets,
            "variants": e.variants,
        }
        for name, e in entries.items()
    }


def _with_anatomy(entries: dict[str, dict[str, Any]], model: str, dataset: str) -> dict[str, dict[str, Any]]:
    """What each method sends, keeps and needs: with its defaults, and where a variant differs."""
    from idiolect import data, models
    from idiolect.core import tree
    from idiolect.core.keys import key
    from idiolect.methods import profile

    about = data.describe(dataset)
    shape, classes, clients = tuple(about["shape"]), about["classes"], 20
    model = models.choose(model, shape)
    network = models.build(model, shape, classes)
    counted = {"dataset": dataset, "model": model, "weights": sum(w.numel() for w in tree.leaves(network.init(key(0))))}

    counted = counted | {"clients": clients}

    def of(name: str, options: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return profile.of(name, options, network, classes, clients).as_json()
        except RunError as error:
            _say(err_console, f"idiolect: {error}; mend it, or uninstall the package that brings it")
            return None

    def entry(name: str, known: dict[str, Any]) -> dict[str, Any]:
        mine = of(name, {})
        variants = {
            t: {"options": o, "anatomy": mine if known["options"] | o == known["options"] else of(name, o)}
            for t, o in known["variants"].items()
        }
        return known | {"variants": variants, "counted_for": counted, "anatomy": mine}

    return {name: entry(name, known) for name, known in entries.items()}


def _datasets() -> dict[str, dict[str, Any]]:
    from idiolect import data

    def entry(name: str) -> dict[str, Any]:
        about = data.describe(name)
        counts = f"{about['train_rows']:,} + {about['test_rows']:,}" if about["test_rows"] else f"{about['rows']:,}"
        summary = f"{about['title']}; {counts} rows, {about['classes']} classes; {about['source']}"
        return {"summary": summary} | about

    return {name: entry(name) for name in data.names()}


def _partitions() -> dict[str, dict[str, Any]]:
    from idiolect import data

    return _functions(data.PARTITIONS)


def _shifts() -> dict[str, dict[str, Any]]:
    from idiolect import data

    entries = _functions(data.SHIFTS)
    return {name: entry | {"options": entry["options"] | {"clients": "all"}} for name, entry in entries.items()}


def _models() -> dict[str, dict[str, Any]]:
    from idiolect import models

    auto = {"summary": "The papers' network for the shape of the data; else by size resnet18, small_cnn or mlp."}
    return {"auto": auto} | _functions(models.NETWORKS)


def _engines() -> dict[str, dict[str, Any]]:
    from idiolect import engines

    auto = {"summary": "Vectorised where there is a CUDA device, else processes, on one core sequential."}
    return {"auto": auto} | _functions(engines.ENGINES)


def _recipes() -> dict[str, dict[str, Any]]:
    from idiolect.reproduction import parts, recipes

    def entry(name: str) -> dict[str, Any]:
        recipe = recipes.get(name)
        to_run = {parts.digest(c.study) for c in recipe.cells if c.study}
        return {"summary": recipe.title, "kind": recipe.kind, "cells": len(recipe.cells), "runs": len(to_run)}

    return {name: entry(name) for name in recipes.names()}


_LISTS = {
    Kind.methods: _methods,
    Kind.datasets: _datasets,
    Kind.partitions: _partitions,
    Kind.shifts: _shifts,
    Kind.models: _models,
    Kind.engines: _engines,
    Kind.recipes: _recipes,
}


def _print_json(content: Any) -> None:
    narrow = not (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    print(terminal.as_json(content, narrow))


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: an error is one sentence on standard error and exit code 2, a signal 128 and its number."""
    if threading.current_thread() is not threading.main_thread():
        _main(arguments)
    before = signal.signal(signal.SIGINT, _stop)
    try:
        _main(arguments)
    finally:
        signal.signal(signal.SIGINT, before)


def _main(arguments: Sequence[str] | None) -> NoReturn:
    if logging.lastResort is not None:  # where warnings go
        logging.lastResort.setFormatter(terminal.Formatter())
    _spell_out()
    try:
        try:
            with as_options():
                code = app(arguments, prog_name="idiolect", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # rich and click end so
                raise end.__context__ from None
            raise
    except Interrupted as stop:
        _end(str(stop), 128 + stop.signal)
    except IdiolectError as error:
        _end(str(error), 2)
    except UsageError as error:
        _end(" ".join(error.format_message().replace("Value error, ", "").split()), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _STOPPED  # by Ctrl-C before a run began; some versions of typer return this
    except BrokenPipeError:  # of "| head": nobody reads on
        _end("", _UNREAD)
    except (OSError, MemoryError, UnicodeError, RecursionError) as error:
        _end(_last_words(error), 2)
    except RuntimeError as error:
        if not _MEMORY.search(str(error)):
            raise
        _end(_last_words(MemoryError(str(error).partition("] . ")[2] or error)), 2)
    if code == _STOPPED:
        _end("stopped", code)
    _end("", code if isinstance(code, int) else 0)


def _last_words(error: Exception) -> str:
    """A sentence for what nobody nearer could name."""
    said = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError):
        return f"there is not enough memory ({said or 'none is left'}): take fewer rows or workers, or smaller images"
    if isinstance(error, RecursionError):
        return f"something that was read is nested too deeply ({said}): look at the study and the data"
    if isinstance(error, UnicodeError):
        return f"a name or a text is not UTF-8 ({said}): rename it, or save it in UTF-8"
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {error.filename} ({error.strerror}): allow it, or give another path"
    what = error.strerror if isinstance(error, OSError) else None
    return f"cannot read or write ({what or said}): make room, or send the output elsewhere"


def _spell_out() -> None:
    """Letters that the terminal's encoding lacks, and bytes that are no letters, are written in another way."""
    codecs.register_error("idiolect", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors="idiolect")  # type: ignore[union-attr]


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in letters), error.end


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C outside a run, where nothing is to be saved; a KeyboardInterrupt can be lost in somebody's import."""
    os.write(2, b"idiolect: stopped\n")
    os._exit(_STOPPED)


def _end(sentence: str, code: int) -> NoReturn:
    with suppress(OSError):
        if sentence:
            _say(err_console, f"idiolect: {sentence}")
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:  # a full disk or a closed pipe, of which Python would complain once more at its end
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
