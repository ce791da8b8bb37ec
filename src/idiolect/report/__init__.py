"""Tables, comparisons and one self-contained HTML page, made only from the folder of a run."""

from idiolect.report import description
from idiolect.report.by_client import OfClient, by_client
from idiolect.report.common_clients import sentences as left_out_notes
from idiolect.report.common_clients import whose
from idiolect.report.compare import Comparison, compare, compared, comparisons, named, render_comparison
from idiolect.report.export import TABLES, export, pictures
from idiolect.report.formatting import official_words
from idiolect.report.merge import merged
from idiolect.report.notes import notes, said
from idiolect.report.page import Head, draw, write
from idiolect.report.rows import NewClients, Row, client_scores, new_clients, scores, summary, unlike_trained
from idiolect.report.tables import as_csv, as_latex, columns_of, latex
from idiolect.report.terminal_tables import render, render_new_clients
from idiolect.runs.reader import Divergence, Run, divergences, read

__all__ = [
    "TABLES",
    "Comparison",
    "Divergence",
    "Head",
    "NewClients",
    "OfClient",
    "Row",
    "Run",
    "as_csv",
    "as_latex",
    "by_client",
    "client_scores",
    "columns_of",
    "compare",
    "compared",
    "comparisons",
    "description",
    "divergences",
    "draw",
    "export",
    "latex",
    "left_out_notes",
    "merged",
    "named",
    "new_clients",
    "notes",
    "official_words",
    "pictures",
    "read",
    "render",
    "render_comparison",
    "render_new_clients",
    "said",
    "scores",
    "summary",
    "unlike_trained",
    "whose",
    "write",
]
