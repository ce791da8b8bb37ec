"""A run as a notebook shows it: the tables of its page."""

from __future__ import annotations

from idiolect.report.notebook import Block, html
from idiolect.report.notes import said
from idiolect.report.page import protocol_of, stopped
from idiolect.report.rows import is_best, new_clients, summary
from idiolect.report.tables import columns_of, legend, new_clients_caption
from idiolect.runs.reader import Run


def run_html(run: Run) -> str:
    """The table of methods, that of new clients if there are some, and what must be said about them."""
    rows, columns = summary(run), columns_of(run)
    blocks = [
        Block(
            f"Run {run.name}",
            {"Method": False} | {column.header: True for column in columns},
            [[row.title, *(column.text(row) for column in columns)] for row in rows],
            [k for k, row in enumerate(rows) if is_best(row, rows)],
        )
    ]
    if newcomers := new_clients(run):
        blocks.append(
            Block(
                new_clients_caption(run),
                {"Who": False} | dict.fromkeys(run.titles.values(), True),
                [[row.who, *(run.score.text(value) for value in row.score.values())] for row in newcomers],
            )
        )
    return html(*blocks, notes=[*said(run), *stopped(run)], below=[protocol_of(run), legend(run)])
