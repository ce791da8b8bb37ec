"""A run's table and figures as files for a paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import vl_convert

from idiolect import files
from idiolect.errors import InputError
from idiolect.report.figures import figures, palette, sensitivity
from idiolect.report.reader import read
from idiolect.report.tables import as_csv, as_latex, summary

Form = Literal["latex", "csv", "png"]
_INK = "#1c2024"
_TEXT = {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 500}
_CONFIG: dict[str, Any] = {  # as the page's, on white
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
    """Write ``table.tex``, ``table.csv``, or a PNG of every figure, into a folder: the run's own unless told.

    Raises:
        InputError: the run cannot be read, or ``out`` is a file.
        RunError: a file cannot be written.
    """
    out = out or run
    if out.is_file():
        raise InputError(f"--out {out} is a file: name a folder, for --export writes into one")
    found = read(run)
    if form != "png":
        table = {"latex": ("table.tex", as_latex), "csv": ("table.csv", as_csv)}[form]
        files.write(out / table[0], table[1](summary(found)))
        return [out / table[0]]
    colours = palette([found])
    drawn = figures(found, colours)[0] + sensitivity([found], colours)
    for figure in drawn:
        files.write(out / f"{figure.name}.png", _png(figure.spec, 800 if figure.wide else max(480, figure.min_width)))
    return [out / f"{figure.name}.png" for figure in drawn]


def _png(spec: dict[str, Any], width: int) -> bytes:
    """The figure at twice its size in pixels."""
    sized = spec if "facet" in spec else spec | {"width": width}
    text = json.dumps(sized | {"config": _CONFIG}).replace("currentColor", _INK)
    return bytes(vl_convert.vegalite_to_png(text, scale=2))
