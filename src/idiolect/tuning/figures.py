"""The figures of a search: for each setting, the score on validation samples over its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from idiolect.core.objectives import Score
from idiolect.report.figures import Figure
from idiolect.report.figures.vega_lite import amounts, tooltip
from idiolect.tuning.space import Choice, Interval, Range, said

if TYPE_CHECKING:
    from idiolect.tuning.outcome import Tuning

STATES = {
    "complete": "trained to the end", "stopped": "stopped at a rung", "diverged": "diverged", "refused": "refused",
    "running": "not finished",
}  # fmt: skip
"""How a trial ended, in words."""
_HEIGHT = 150  # px of a plot


def figures(tuning: Tuning) -> Iterator[Figure]:
    """For each setting that was searched, the score on validation samples over its values, a plot for each method."""
    ranges, trials, chosen = tuning.ranges, tuning.each_trial, tuning.chosen()
    names = dict.fromkeys(name for space in ranges.values() for name in space)
    for name in names:
        methods = [c for c in chosen if name in ranges[c.method]]
        rows = [
            {
                "method": c.title, "value": t.values[name], "rounds": t.rounds,
                "score": t.value.by.shown(t.value.score) if t.rungs else None,
                "end": STATES[t.state], "settings": said(t.values), "chosen": t.number == c.trial,
            }
            for c in methods
            for t in trials
            if t.method == c.method
        ]  # fmt: skip
        if rows:
            range = together([ranges[c.method][name] for c in methods])
            yield _figure(name, range, [c.title for c in methods], rows, tuning.by)


def together(ranges: Sequence[Range]) -> Interval | None:
    """An interval that has every value of the ranges; None where they are lists, or have a value that is no number."""
    intervals = [one for one in ranges if isinstance(one, Interval)]
    values = [value for one in ranges if isinstance(one, Choice) for value in one.values]
    if not intervals or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        return None
    low, high = min(*values, *(i.low for i in intervals), inf), max(*values, *(i.high for i in intervals), -inf)
    log = low > 0 and all(i.log for i in intervals)
    return Interval(low, high, log, all(i.whole for i in intervals) and all(isinstance(v, int) for v in values))


def _figure(name: str, range: Interval | None, titles: Sequence[str], rows: list[dict[str, Any]], by: Score) -> Figure:
    is_numeric = range is not None
    scale: dict[str, Any] = {}
    axis: dict[str, Any] = {"tickCount": 4, "grid": False, "labelOverlap": True}
    if range is not None:
        axis |= {"format": "d", "tickMinStep": 1} if range.whole else {}
        scale = {"type": "log" if range.log else "linear", "domain": [range.low, range.high], "nice": False}
    x = {
        "field": "value", "type": "quantitative" if is_numeric else "nominal", "title": name,
        **({"scale": scale, "axis": axis} if is_numeric else {"sort": None}),
    }  # fmt: skip
    ends: dict[str, Any] = {"field": "end", "type": "nominal", "title": None, "legend": {"orient": "top"}}
    tips = tooltip("settings", f"score=validation {by.axis}", "rounds", "end=ended")
    y = amounts("score", f"validation {by.axis}")
    ends["scale"] = {"domain": [STATES["complete"], STATES["stopped"], STATES["diverged"], STATES["refused"]]}
    dots = {
        "transform": [{"filter": "isValid(datum.score)"}],
        "mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.9},
        "encoding": {"x": x, "y": y, "tooltip": tips, "color": ends},
    }
    failures = {
        "transform": [{"filter": "!isValid(datum.score)"}],
        "mark": {"type": "point", "shape": "cross", "filled": True, "size": 70},
        "encoding": {"x": x, "y": {"value": _HEIGHT}, "tooltip": tips, "color": ends},
    }
    ring = {
        "transform": [{"filter": "datum.chosen"}],
        "mark": {"type": "point", "filled": False, "size": 190, "strokeWidth": 1.5, "color": "currentColor"},
        "encoding": {"x": x, "y": y},
    }
    header = {"title": None, "labelColor": "currentColor", "labelFontSize": 12, "labelAnchor": "start"}
    spec = {
        "data": {"values": rows},
        "facet": {"field": "method", "type": "nominal", "sort": list(titles), "header": header},
        "columns": 4,
        "spec": {"width": 190, "height": _HEIGHT, "layer": [dots, failures, ring]},
        "resolve": {"scale": {"x": "shared", "y": "shared"}},
    }
    return Figure(
        f"over-{name}", f"Validation {by.name} over {name}",
        "Each dot is a trial, at its last rung; those that were stopped had trained less. A cross is one that diverged "
        "or was refused. The ring is the choice.",
        spec, min_width=300, wide=True,
    )  # fmt: skip
