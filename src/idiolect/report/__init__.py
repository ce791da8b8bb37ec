"""Tables and one self-contained HTML page, made from the records of a run and from nothing else."""

from idiolect.report import description
from idiolect.report.page import write
from idiolect.report.reader import Run, read
from idiolect.report.tables import Joined, Row, as_markdown, joined, render, render_joined, summary

__all__ = [
    "Joined",
    "Row",
    "Run",
    "as_markdown",
    "description",
    "joined",
    "read",
    "render",
    "render_joined",
    "summary",
    "write",
]
