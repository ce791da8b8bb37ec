"""Tables, comparisons and one self-contained HTML page, made from the records of a run and from nothing else."""

from idiolect.report import description
from idiolect.report.compare import Comparison, compare, comparisons, named, render_comparison
from idiolect.report.export import export
from idiolect.report.page import Head, draw, write
from idiolect.report.reader import Run, read
from idiolect.report.tables import (
    Joined,
    Row,
    as_csv,
    as_latex,
    as_markdown,
    joined,
    render,
    render_joined,
    summary,
)

__all__ = [
    "Comparison",
    "Head",
    "Joined",
    "Row",
    "Run",
    "as_csv",
    "as_latex",
    "as_markdown",
    "compare",
    "comparisons",
    "description",
    "draw",
    "export",
    "joined",
    "named",
    "read",
    "render",
    "render_comparison",
    "render_joined",
    "summary",
    "write",
]
