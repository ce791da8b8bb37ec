"""The figures of a search: for each setting, validation accuracy over its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from idiolect.report.figures import Figure
from idiolect.report.figures.vega_lite import inline_data, per_cent, tooltip
from idiolect.tuning.space import Interval, Range, said, spaces

if TYPE_CHECKING:
    from idiolect.tuning.outcome import Tuning

STATES = {
    "complete": "trained to the end", "stopped": "stopped at a rung", "diverged": "diverged", "refused": "refused",
    "running": "not finished",
}  # fmt: skip
"""How a trial ended, in words."""


def figures(tuning: Tuning) -> Iterator[Figure]:
    """For each setting that was searched, validation accuracy over its values, a plot for each method."""
    ranges, trials = spaces(tuning.study, tuning.plan.search), tuning.each_trial
    names = dict.fromkeys(name for space in ranges.values() for name in space)
    for name in names:
        methods = [c for c in tuning.chosen() if name in ranges[c.method]]
        rows = [
            {
                "method": c.title, "value": t.values[name], "accuracy": 100 * t.value.accuracy, "rounds": t.rounds,
                "end": STATES[t.state], "settings": said(t.values), "chosen": t.number == c.trial,
            }
            for c in methods
            for t in trials
            if t.method == c.method and t.rungs
        ]  # fmt: skip
        if rows:
            yield _figure(name, ranges[methods[0].method][name], [c.title for c in methods], rows)


def _figure(name: str, range: Range, titles: Sequence[str], rows: list[dict[str, Any]]) -> Figure:
    is_numeric = isinstance(range, Interval)
    scale: dict[str, Any] = {}
    if isinstance(range, Interval):
        scale = {"type": "log" if range.log else "linear", "domain": [range.low, range.high], "nice": False}
    x = {
        "field": "value", "type": "quantitative" if is_numeric else "nominal", "title": name,
        **({"scale": scale, "axis": {"tickCount": 4, "grid": False}} if is_numeric else {"sort": None}),
    }  # fmt: skip
    ends = {"field": "end", "type": "nominal", "title": None, "legend": {"orient": "top"}}
    tips = tooltip("settings", "accuracy=validation accuracy (%)", "rounds", "end=ended")
    dots = {
        "mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.9},
        "encoding": {
            "x": x, "y": per_cent("accuracy", "validation accuracy (%)"), "tooltip": tips,
            "color": ends | {"scale": {"domain": ["trained to the end", "stopped at a rung"]}},
        },
    }  # fmt: skip
    ring = {
        "transform": [{"filter": "datum.chosen"}],
        "mark": {"type": "point", "filled": False, "size": 190, "strokeWidth": 1.5, "color": "currentColor"},
        "encoding": {"x": x, "y": per_cent("accuracy", "validation accuracy (%)")},
    }
    header = {"title": None, "labelColor": "currentColor", "labelFontSize": 12, "labelAnchor": "start"}
    spec = {
        "data": inline_data(pd.DataFrame(rows)),
        "facet": {"field": "method", "type": "nominal", "sort": list(titles), "header": header},
        "columns": 4,
        "spec": {"width": 190, "height": 150, "layer": [dots, ring]},
        "resolve": {"scale": {"x": "shared", "y": "shared"}},
    }
    return Figure(
        f"over-{name}", f"Validation accuracy over {name}",
        "Each dot is a trial, at its last rung; those that were stopped had trained less. The ring is the choice.",
        spec, min_width=300, wide=True,
    )  # fmt: skip
