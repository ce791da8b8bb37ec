"""Tables and figures as files for a paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import vl_convert

from idiolect.core import files
from idiolect.core.errors import InputError, option
from idiolect.report.by_client import asked, by_client, frame
from idiolect.report.figures import figures, palette, sensitivity
from idiolect.report.formatting import file_name
from idiolect.report.notes import notes
from idiolect.report.rows import summary
from idiolect.report.tables import as_csv, as_latex, columns_of
from idiolect.runs.reader import Run, read

Form = Literal["latex", "csv", "clients", "png"]
TABLES = {"latex": "table.tex", "csv": "table.csv"}
_INK = "#1c2024"
_TEXT = {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 500}
_CONFIG: dict[str, Any] = {  # as on the page, on white
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "range": {
        "diverging": ["#a94400", "#e59a66", "#f1f1ef", "#6fb1d8", "#005a8e"],
        "ramp": ["#f1f3f5", "#9ccbe6", "#2f86b8", "#003f66"],
    },
    "axis": _TEXT | {"gridColor": _INK, "gridOpacity": 0.1, "domainOpacity": 0.35, "tickOpacity": 0.35},
    "axisBand": {"grid": False, "ticks": False},
    "legend": _TEXT | {"labelLimit": 150, "gradientStrokeWidth": 0},
}


def export(run: Path, form: Form, out: Path | None = None) -> list[Path]:
    """Write ``table.tex``, ``table.csv``, the clients' tables, or a PNG of every figure, into a folder.

    The clients' tables are ``clients.csv`` (accuracy) and one for each other metric that the study asks for, as
    ``clients-auroc.csv``; see ``idiolect.report.by_client``. The folder is by default the run's.

    Raises:
        InputError: the run cannot be read, or ``out`` is a file.
        RunError: a file cannot be written.
    """
    out = out or run
    if out.is_file():
        raise InputError(f"{out} is a file, but an export needs a folder: give one with {option('out')}")
    found = read(run)
    if form == "png":
        return pictures([found], out)
    if form == "clients":
        tables = {metric: frame(by_client(found, metric)).to_csv() for metric in asked(found)}
        names = {metric: "clients" if metric == "accuracy" else f"clients-{file_name(metric)}" for metric in tables}
        for metric, text in tables.items():
            files.write(out / f"{names[metric]}.csv", text)
        return [out / f"{name}.csv" for name in names.values()]
    rows = summary(found)
    path = out / TABLES[form]
    files.write(path, as_latex(rows, columns_of(found), notes(found)) if form == "latex" else as_csv(rows))
    return [path]


def pictures(runs: Sequence[Run], out: Path) -> list[Path]:
    """Write a PNG of every figure into a folder; with several runs, names of files start with the run's name.

    Raises:
        RunError: a file cannot be written.
    """
    colours = palette(list(runs))
    drawn = [(f"{file_name(run.name)}-" if len(runs) > 1 else "", f) for run in runs for f in figures(run, colours)[0]]
    drawn += [("", figure) for figure in sensitivity(runs, colours)]
    written = []
    for prefix, figure in drawn:
        written.append(out / f"{prefix}{figure.name}.png")
        files.write(written[-1], _png(figure.spec, 800 if figure.wide else max(480, figure.min_width)))
    return written


def _png(spec: dict[str, Any], width: int) -> bytes:
    """The figure at twice its size in pixels."""
    sized = spec if "facet" in spec else spec | {"width": width}
    text = json.dumps(sized | {"config": _CONFIG}).replace("currentColor", _INK)
    return bytes(vl_convert.vegalite_to_png(text, scale=2))
