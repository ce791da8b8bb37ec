"""Tables and one self-contained HTML page, made from the records of a run and from nothing else."""

from idiolect.report.page import write
from idiolect.report.reader import Run, read
from idiolect.report.tables import Row, as_markdown, render, summary

__all__ = ["Row", "Run", "as_markdown", "read", "render", "summary", "write"]
