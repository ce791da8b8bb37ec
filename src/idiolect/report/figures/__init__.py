"""Figures of a run, as Vega-Lite specifications.

Functions take a ``View`` of a run and yield a ``Figure``, or a sentence that says why there is none.
"""

from idiolect.report.figures.colours import PALETTE, palette
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.of_run import figures
from idiolect.report.figures.partition import partition_figures
from idiolect.report.figures.sensitivity import sensitivity
from idiolect.report.figures.view import DRAWN, PAIRS, SAMPLE

__all__ = [
    "DRAWN",
    "PAIRS",
    "PALETTE",
    "SAMPLE",
    "Figure",
    "figures",
    "palette",
    "partition_figures",
    "sensitivity",
]
