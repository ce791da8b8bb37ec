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
    png = "png"


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None, option("The page; with --export the folder.", "report.html in the first run's folder")
    ] = None,
    compare: Annotated[
        str | None, option("Compare two methods of a run client by client, with tests and intervals.", metavar="A,B")
    ] = None,
    export: Annotated[
        Form | None,
        option("Write the table of a run (latex, csv), that of its clients (clients), or its figures (png), as files."),
    ] = None,
) -> None:
    """Write the page of one run, or of several side by side; or compare two methods of a run, or export it.

    Example: idiolect report runs/digits --compare pfedfda,fedavg
    """
    from idiolect import report

    if (compare or export) and len(runs) > 1:
        raise InputError(f"--{'compare' if compare else 'export'} is for one run: give one")
    if compare:
        run = report.read(runs[0])
        out_console.print(report.render_comparison(run, report.compare(run, *report.named(compare))))
    if export:
        for path in report.export(runs[0], export.value, out):
            say(out_console, f"Written: {path}")
    if compare or export:
        return
    say(out_console, f"Report: {report.write(runs, out or runs[0] / 'report.html')}")
