"""All figures of a run, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping

from idiolect.report.figures.between_clients import between_clients
from idiolect.report.figures.calibration import calibration
from idiolect.report.figures.client_value import by_shift, client_value
from idiolect.report.figures.clients import spread, versus
from idiolect.report.figures.cost import cost
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.over_rounds import over_rounds
from idiolect.report.figures.partition import label_map
from idiolect.report.figures.representations import gaussianity, representations
from idiolect.report.figures.view import View
from idiolect.report.rows import summary
from idiolect.runs.reader import Run

_MAKERS = (
    over_rounds, spread, cost, versus, calibration, label_map, between_clients, client_value, by_shift, gaussianity,
    representations,
)  # fmt: skip


def figures(run: Run, colours: Mapping[str, str]) -> tuple[list[Figure], list[str]]:
    """All figures for which a run has data, and sentences that say which others are missing and why."""
    view = View(run, summary(run), colours)
    things = [thing for make in _MAKERS for thing in make(view)]
    return [f for f in things if isinstance(f, Figure)], [f for f in things if isinstance(f, str)]
