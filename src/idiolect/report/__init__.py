"""Tables, comparisons and one self-contained HTML page, made only from the folder of a run."""

from idiolect.report import description
from idiolect.report.by_client import OfClient, by_client
from idiolect.report.compare import Comparison, compare, compared, comparisons, named, render_comparison
from idiolect.report.export import TABLES, export, pictures
from idiolect.report.page import Head, draw, write
from idiolect.report.tables import (
    NewClients,
    Row,
    accuracies,
    as_csv,
    as_latex,
    as_markdown,
    client_accuracies,
    columns_of,
    latex,
    new_clients,
    render,
    render_new_clients,
    summary,
)
from idiolect.runs.reader import DIVERGED, Divergence, Run, divergences, edited, read, settings

__all__ = [
    "DIVERGED",
    "TABLES",
    "Comparison",
    "Divergence",
    "Head",
    "NewClients",
    "OfClient",
    "Row",
    "Run",
    "accuracies",
    "as_csv",
    "as_latex",
    "as_markdown",
    "by_client",
    "client_accuracies",
    "columns_of",
    "compare",
    "compared",
    "comparisons",
    "description",
    "divergences",
    "draw",
    "edited",
    "export",
    "latex",
    "named",
    "new_clients",
    "pictures",
    "read",
    "render",
    "render_comparison",
    "render_new_clients",
    "settings",
    "summary",
    "write",
]
