"""The score over the rounds of a run."""

from __future__ import annotations

from collections.abc import Iterator

from idiolect.report.common_clients import shared
from idiolect.report.figures.colours import PALETTE
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import TICKS, Json, amounts, inline_data, tooltip
from idiolect.report.figures.view import NAMED, View
from idiolect.report.rows import finished


def over_rounds(view: View) -> Iterator[Figure | str]:
    """The score over rounds: the mean over clients and seeds, and the range over seeds.

    In each round, the clients count that all methods have that are measured in it.
    """
    by = view.run.score
    scores = shared(view.run.scores, "seed", "round")
    if scores.empty:
        yield f"No {by.name} is recorded yet, so its figure is left out."
        return
    seeds = scores.groupby(["method", "seed", "round"])["value"].mean()
    frame = seeds.groupby(["method", "round"]).agg(["mean", "min", "max", "count"]).reset_index()
    frame = frame.rename(columns={"mean": by.metric, "min": "low", "max": "high", "count": "seeds"})
    for name in (by.metric, "low", "high"):
        frame[name] = frame[name].map(by.shown)
    frame["method"] = frame["method"].map(view.run.titles)
    ticks: Json = {"tickMinStep": 1, "format": "d", "tickCount": TICKS}
    first, final = int(frame["round"].min()), int(frame["round"].max())
    if final - first < 10:
        ticks["values"] = list(range(first, final + 1))
    x = {
        "field": "round",
        "type": "quantitative",
        "title": "round",
        "scale": {"zero": False, "nice": False},
        "axis": ticks,
    }
    y = amounts(by.metric, by.axis)
    legend = view.legend | {"symbolOpacity": 1}
    colour = view.method | {"legend": legend}
    ends = (f"low=lowest seed{by.in_brackets}", f"high=highest seed{by.in_brackets}")
    tip = tooltip("method", "round", f"{by.metric}={by.axis}", *ends, "seeds")

    def shown(yes: float, no: float) -> Json:
        return {"condition": {"param": "picked", "value": yes}, "value": no}

    line: Json = {
        "params": [{"name": "picked", "select": {"type": "point", "fields": ["method"]}, "bind": "legend"}],
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {"x": x, "y": y, "color": colour, "opacity": shown(1, 0.12)},
    }
    if len(view.run.titles) > len(PALETTE):
        line["encoding"]["strokeDash"] = view.dash | {"legend": legend}
    points = {
        "mark": {"type": "point", "filled": True, "size": 28},
        "encoding": {"x": x, "y": y, "color": colour, "opacity": shown(1, 0.12), "tooltip": tip},
    }
    layers = [line, points]
    several = bool((frame["seeds"] > 1).any()) and len(view.run.titles) <= NAMED
    if several:
        low = amounts("low", by.axis)
        band = {"x": x, "y": low, "y2": {"field": "high"}, "color": colour, "opacity": shown(0.16, 0.02)}
        layers.insert(0, {"mark": "area", "encoding": band})
    rows = finished(view.rows)
    title = "No method has finished"
    if rows:
        top, most = max(rows, key=lambda r: r.rank), "highest, " if by.more_is_better else "lowest, "
        title = f"{top.title} ends {most if len(rows) > 1 else ''}at {by.text(top.score, 1)}{by.unit}"
    yield Figure(
        "rounds",
        title,
        f"{view.run.part.capitalize()} {by.name} over the rounds, mean over clients"
        + (" and seeds" if (frame["seeds"] > 1).any() else "")
        + ("; the band spans the lowest to the highest seed" if several else "")
        + ". Click a name in the legend to single it out; shift-click adds another.",
        {"data": inline_data(frame), "height": 340, "layer": layers},
        wide=True,
    )
