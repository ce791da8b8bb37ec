"""Tables and figures as files for a paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import vl_convert

from idiolect.core import files
from idiolect.core.errors import InputError, argument, nearest, option
from idiolect.report import by_label
from idiolect.report.by_client import asked, by_client, frame
from idiolect.report.figures import figures, palette, sensitivity
from idiolect.report.formatting import file_name
from idiolect.report.merge import AGAINST, distinct, merged
from idiolect.report.notes import notes
from idiolect.report.rows import summary
from idiolect.report.tables import as_csv, as_latex, chosen, columns_of, fields_of
from idiolect.runs.reader import Run

Form = Literal["latex", "csv", "clients", "labels", "png"]
TABLES = {"latex": "table.tex", "csv": "table.csv"}
INK = "#1c2024"
"""The colour of text on white."""
_TEXT = {"labelColor": INK, "titleColor": INK, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 500}
_CONFIG: dict[str, Any] = {  # as on the page, on white
    "background": "white",
    "font": "sans-serif",
    "view": {"stroke": None},
    "range": {
        "diverging": ["#a94400", "#e59a66", "#f1f1ef", "#6fb1d8", "#005a8e"],
        "ramp": ["#f1f3f5", "#9ccbe6", "#2f86b8", "#003f66"],
    },
    "axis": _TEXT | {"gridColor": INK, "gridOpacity": 0.1, "domainOpacity": 0.35, "tickOpacity": 0.35},
    "axisBand": {"grid": False, "ticks": False},
    "legend": _TEXT | {"labelLimit": 150, "gradientStrokeWidth": 0},
}


def export(runs: Path | Sequence[Path], form: Form, out: Path | None = None, columns: Sequence[str] = ()) -> list[Path]:
    """Write ``table.tex``, ``table.csv``, tables of clients or labels, or a PNG of every figure, into a folder.

    Several runs of the same clients and protocol stand in one table (see ``merge.merged``). ``columns`` chooses those
    of a table, by name; see ``tables.chosen``. The clients' tables are ``clients.csv`` (accuracy) and one for each
    other metric that the study asks for, as ``clients-auroc.csv``; see ``idiolect.report.by_client``. ``labels.csv``
    has the measures of each label; see ``idiolect.report.by_label``. The folder is by default that of the first run.

    Raises:
        InputError: a run cannot be read, the runs cannot stand in one table, a column is not known, or ``out`` is a
            file.
        RunError: a file cannot be written.
    """
    paths = [runs] if isinstance(runs, Path) else list(runs)
    out = out or paths[0]
    if out.is_file():
        raise InputError(f"{out} is a file, but an export needs a folder: give one with {option('out')}")
    if form == "png":
        if columns:
            raise InputError(f"{argument('columns')} chooses columns of a table, and png has none: leave it out")
        return pictures(distinct(paths), out)
    run = merged(paths)
    if form == "clients":
        tables = {metric: _clients(run, metric, columns) for metric in asked(run)}
        names = {metric: "clients" if metric == run.metric else f"clients-{file_name(metric)}" for metric in tables}
        for metric, text in tables.items():
            files.write(out / f"{names[metric]}.csv", text)
        return [out / f"{name}.csv" for name in names.values()]
    if form == "labels":
        return [_labels(run, columns, out / "labels.csv")]
    rows, path = summary(run), out / TABLES[form]
    if form == "latex":
        some = chosen(columns_of(run), columns)
        lines_below = [
            note for note in notes(run) if not note.startswith(AGAINST) or "versus_fedavg" in [c.field for c in some]
        ]
        text = as_latex(rows, some, lines_below)
    else:
        text = as_csv(rows, [column.field for column in chosen(fields_of(run), columns)])
    files.write(path, text)
    return [path]


def _labels(run: Run, columns: Sequence[str], path: Path) -> Path:
    """Write the table of labels.

    Raises:
        InputError: the run has none, or a column is not known.
    """
    if run.task != "multilabel":
        raise InputError(f"{run.name} has no samples with several labels: take another form than labels")
    table = by_label.frame(run)
    if unknown := [name for name in columns if name not in table]:
        raise InputError(f"there is no column {unknown[0]!r} of labels; {nearest(unknown[0], list(table.columns))}")
    files.write(path, str((table[list(columns)] if columns else table).to_csv(index=False)))
    return path


def _clients(run: Run, metric: str, columns: Sequence[str]) -> str:
    """The table of clients as text."""
    table = frame(by_client(run, metric))
    if unknown := [name for name in columns if name not in table]:
        raise InputError(f"there is no column {unknown[0]!r} of clients; {nearest(unknown[0], list(table.columns))}")
    return str((table[list(columns)] if columns else table).to_csv())


def pictures(runs: Sequence[Run], out: Path) -> list[Path]:
    """Write a PNG of every figure into a folder; with several runs, names of files start with the run's name.

    Raises:
        RunError: a file cannot be written.
    """
    colours = palette(list(runs))
    named_figures = [
        (prefix, f) for prefix, run in zip(_prefixes(runs), runs, strict=True) for f in figures(run, colours)[0]
    ]
    named_figures += [("", figure) for figure in sensitivity(runs, colours)]
    paths = []
    for prefix, figure in named_figures:
        paths.append(out / f"{prefix}{figure.name}.png")
        files.write(paths[-1], _png(figure.spec, 800 if figure.wide else max(480, figure.min_width)))
    return paths


def _prefixes(runs: Sequence[Run]) -> list[str]:
    """The start of the names of each run's files, which two runs never share."""
    names = [file_name(run.name) for run in runs]
    if len({name.lower() for name in names}) < len(names):  # "a b" and "a-b"; some systems do not tell A from a
        names = [f"{name}-{i}" for i, name in enumerate(names, 1)]
    return [f"{name}-" for name in names] if len(names) > 1 else [""] * len(names)


def _png(spec: dict[str, Any], width: int) -> bytes:
    """The figure at twice its size in pixels."""
    return bytes(vl_convert.vegalite_to_png(on_white(spec, width), scale=2))


def on_white(spec: dict[str, Any], width: int) -> str:
    """A figure of a page as a specification of its own, in JSON: dark text on white, of this width in px."""
    whole = spec if "facet" in spec else spec | {"width": width}
    return json.dumps(whole | {"config": _CONFIG}).replace("currentColor", INK)
