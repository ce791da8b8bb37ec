"""``idiolect report``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.options import option
from idiolect.cli.output import out_console, say
from idiolect.core.errors import InputError


class Form(StrEnum):
    """What ``--export`` writes of a run."""

    latex = "latex"
    csv = "csv"
    clients = "clients"
    labels = "labels"
    png = "png"


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None,
        option(
            "The page; with --export the folder.",
            "report.html in the run's folder; of several, comparison.html in the first's",
        ),
    ] = None,
    compare: Annotated[
        str | None, option("Compare two methods client by client, with tests and intervals.", metavar="A,B")
    ] = None,
    measure: Annotated[
        str | None,
        option(
            "What --compare compares, as auroc or macro_f1, if the run recorded it.", "the run's score", metavar="NAME"
        ),
    ] = None,
    export: Annotated[
        Form | None,
        option(
            "Write the table of the runs (latex, csv), that of their clients (clients) or labels (labels), or figures "
            "(png), as files."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        option("Columns of the exported table, as accuracy,worst.", "all", metavar="NAMES"),
    ] = None,
) -> None:
    """Write the page of one run, or of several side by side; or compare two of their methods, or export them.

    Several runs of the same clients and protocol are exported and compared as one: a method that is in several of them
    is labelled by its run.

    Example: idiolect report runs/digits --compare pfedfda,fedavg --measure macro_f1
    """
    from idiolect import report
    from idiolect.core.option_spec import split_list
    from idiolect.runs.folder import COMPARISON_FILE, PAGE_FILE

    if columns is not None and not export:
        raise InputError("--columns chooses columns of an exported table: add --export latex, csv, clients or labels")
    if measure is not None and not compare:
        raise InputError("--measure says what two methods are compared by: add --compare A,B")
    if compare:
        run = report.merged(runs)
        out_console.print(report.render_comparison(run, report.compare(run, *report.named(compare), measure)))
    if export:
        for path in report.export(runs, export.value, out, split_list(columns or "")):
            say(out_console, f"Written: {path}")
    if compare or export:
        return
    page = PAGE_FILE if len(runs) == 1 else COMPARISON_FILE  # a run's own page stays
    say(out_console, f"Report: {report.write(runs, out or runs[0] / page)}")
