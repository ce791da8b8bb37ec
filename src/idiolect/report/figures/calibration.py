"""Whether probabilities can be believed: a reliability diagram, and how many samples are behind each of its points."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from idiolect.report.common_clients import counted
from idiolect.report.figures.boxes import RULE
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import Json, inline_data, tooltip
from idiolect.report.figures.view import View
from idiolect.runs.reader import Run

_BIN = r"^calibration_count\[(\d+)\]$"
_AXIS = {"format": ".0%", "values": [0, 0.2, 0.4, 0.6, 0.8, 1]}


def pooled(run: Run) -> pd.DataFrame:
    """The bins of the measure ``calibration`` over all samples of the clients that count, and over seeds.

    Columns: method (label), bin, count (mean over seeds), predicted, observed (0..1).
    """
    keys = ["method", "seed", "client"]
    bins = run.records["metric"].drop_duplicates().str.extract(_BIN)[0].dropna()
    seeds = {str(method): part.nunique() for method, part in run.final.groupby("method")["seed"]}
    lines = []
    for b in sorted(int(text) for text in bins):
        parts = [_of_bin(run, f"calibration_{what}[{b}]", keys) for what in ("count", "predicted", "observed")]
        table = pd.concat(parts, axis=1, join="inner", keys=["count", "predicted", "observed"])
        for method, mine in table.groupby(level="method"):
            total = mine["count"].sum()
            share = {what: float((mine[what] * mine["count"]).sum() / total) for what in ("predicted", "observed")}
            lines.append({"method": method, "bin": b, "count": float(total / seeds[str(method)])} | share)
    return pd.DataFrame(lines, columns=["method", "bin", "count", "predicted", "observed"])


def _of_bin(run: Run, metric: str, keys: list[str]) -> pd.Series[float]:
    """One number of one bin in the protocol's round, of the clients whose accuracy counts."""
    frame = run.last_of(metric).set_index(keys)["value"]
    return frame[frame.index.isin(counted(run).set_index(keys).index)]


def calibration(view: View) -> Iterator[Figure | str]:
    """A reliability diagram and the counts of its bins, if the study asks for the measure ``calibration``."""
    frame = pooled(view.run)
    if frame.empty:
        return
    two = len(view.run.manifest["class_names"]) == 2
    name = view.run.manifest["class_names"][1] if two else ""
    name = f"class {name}" if name.isdecimal() else name
    frame["method"] = frame["method"].map(view.run.titles)
    frame["order"] = frame["method"].map({title: k for k, title in enumerate(view.run.titles.values())})
    frame = frame.sort_values(["order", "bin"]).drop(columns="order")
    frame["from"], frame["to"] = frame["bin"] / 10, (frame["bin"] + 1) / 10
    data = inline_data(frame)
    x_title = f"mean probability of {name}" if two else "mean probability of the predicted class"
    y_title = f"share of {name}" if two else "share of right predictions"
    tip = tooltip("method", f"predicted={x_title}", f"observed={y_title}", "count=samples in the bin")

    def channel(field: str, title: str) -> Json:
        scale = {"domain": [0, 1], "nice": False}
        return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": _AXIS}

    colour = view.method | {"legend": view.legend}
    x, y = channel("predicted", x_title), channel("observed", y_title)
    size = {"field": "count", "type": "quantitative", "scale": {"range": [15, 300]}, "legend": None}
    corners = {"values": [{"predicted": 0, "observed": 0}, {"predicted": 1, "observed": 1}]}
    layers: list[Json] = [
        {"data": corners, "mark": {"type": "line", "strokeDash": [4, 3], **RULE}, "encoding": {"x": x, "y": y}},
        {"mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.6}, "encoding": {"x": x, "y": y, "color": colour}},
        {
            "mark": {"type": "point", "filled": True, "opacity": 0.85},
            "encoding": {"x": x, "y": y, "color": colour, "size": size, "tooltip": tip},
        },
    ]
    yield Figure(
        "calibration",
        "Calibration: " + (f"how often it is {name} at a probability" if two else "how often a probability is right"),
        "The samples of all clients that count, in ten bins of probability. On the dashed line, probabilities can be "
        "believed; below it they are too high, above it too low. Large dots stand for many samples, small ones say "
        "little.",
        {"data": data, "height": 300, "layer": layers},
    )
    yield Figure(
        "calibration-counts",
        "How many test samples are in each bin of the calibration figure",
        "Test samples of all clients that count, by probability"
        + ("; with several seeds, the mean over seeds." if len(view.run.study["seeds"]) > 1 else "."),
        {
            "data": data,
            "height": 300,
            "mark": {"type": "bar"},
            "encoding": {
                "x": {
                    "field": "from",
                    "type": "ordinal",
                    "title": x_title.removeprefix("mean "),
                    "scale": {"domain": [b / 10 for b in range(10)]},
                    "axis": {"labelExpr": "format(datum.value, '.0%') + ' –'", "labelAngle": 0, "labelOverlap": True},
                },
                "xOffset": {"field": "method", "type": "nominal", "scale": {"domain": list(view.run.titles.values())}},
                "y": {"field": "count", "type": "quantitative", "title": "test samples"},
                "color": colour,
                "tooltip": tip,
            },
        },
    )
