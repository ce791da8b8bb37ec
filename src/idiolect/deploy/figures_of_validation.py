"""Figures of a validation: sensitivity by specificity, calibration, and the decision curve."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from idiolect.deploy.validation import Curves, Performance
from idiolect.deploy.validation_result import Validation
from idiolect.report.figures.boxes import RULE
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import TICKS, Json, inline_data, tooltip

_MODEL, _ALL, _NONE, _LINE = "model", "treat all", "treat none", "logistic recalibration"
_COLOURS = {_MODEL: "#1f77b4", _ALL: "#d95f02", _NONE: "#7f7f7f", _LINE: "#d95f02"}
_SHARES = {"format": ".0%", "values": [0, 0.2, 0.4, 0.6, 0.8, 1]}
_BAND, _HEIGHT = 0.18, 300


def figures(result: Validation) -> list[Figure]:
    """The figures of one class."""
    one, curves = result.one, result.curves
    assert one is not None
    assert curves is not None
    return [_rates(one, curves), _calibration(one, curves), _decisions(one, curves)]


def _channel(field: str, title: str, **more: Any) -> Json:
    scale = {"domain": [0, 1], "nice": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": _SHARES, **more}


def _diagonal(x: str, y: str, encoding: Json) -> Json:
    corners = {"values": [{x: end, y: end} for end in (0, 1)]}
    return {"data": corners, "mark": {"type": "line", "strokeDash": [4, 3], **RULE}, "encoding": encoding}


def _colour(*names: str) -> Json:
    scale = {"domain": list(names), "range": [_COLOURS[name] for name in names]}
    return {"field": "of", "type": "nominal", "title": None, "scale": scale, "legend": {"orient": "top"}}


def _rates(one: Performance, curves: Curves) -> Figure:
    rows = [
        {"false": 1 - at, "specificity": at, "sensitivity": e.value, "low": e.low, "high": e.high}
        for at, e in curves.sensitivity.items()
    ]
    both = {"x": _channel("false", "1 - specificity"), "y": _channel("sensitivity", "sensitivity")}
    spec = {
        "height": _HEIGHT,
        "data": inline_data(pd.DataFrame(rows)),
        "layer": [
            _diagonal("false", "sensitivity", both),
            {
                "mark": {"type": "area", "opacity": _BAND, "color": _COLOURS[_MODEL]},
                "encoding": {"x": both["x"], "y": _channel("low", "sensitivity"), "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "line", "point": True, "color": _COLOURS[_MODEL]},
                "encoding": both | {"tooltip": tooltip("specificity", "sensitivity", "low", "high")},
            },
        ],
    }
    return Figure(
        "rates", "Which sensitivity there is at each specificity",
        f"The share of {one.title} that is recognised, over the share of others that is called so by mistake. The band "
        "has the 95 % interval of each point, which allows for the choice of the threshold. On the dashed line a model "
        "guesses.", spec,
    )  # fmt: skip


def _calibration(one: Performance, curves: Curves) -> Figure:
    rows = [
        {"of": _MODEL, "predicted": b.predicted, "observed": b.observed.value, "low": b.observed.low,
         "high": b.observed.high, "samples": b.samples}
        for b in curves.bins
    ]  # fmt: skip
    parts = one.recalibration
    both = {
        "x": _channel("predicted", f"probability of {one.title}"),
        "y": _channel("observed", f"share of {one.title}"),
    }
    tip = tooltip("predicted=mean probability", "observed=share", "low", "high", "samples")
    layers: list[Json] = [_diagonal("predicted", "observed", both)]
    names = [_MODEL]
    if not math.isnan(parts.slope.value):
        first, last = (min(max(b.predicted, 0.001), 0.999) for b in (curves.bins[0], curves.bins[-1]))
        p = np.linspace(first, last, 41)
        line = pd.DataFrame({"of": _LINE, "predicted": p})
        line["observed"] = expit(parts.intercept.value + parts.slope.value * logit(p))
        names.append(_LINE)
        layers.append({
            "data": inline_data(line), "mark": {"type": "line", "strokeWidth": 1.5},
            "encoding": both | {"color": _colour(_MODEL, _LINE)},
        })  # fmt: skip
    colour = _colour(*names)
    layers += [
        {
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {
                "x": both["x"], "y": both["y"] | {"field": "low"}, "y2": {"field": "high"}, "color": colour,
            },
        },
        {"mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
         "encoding": both | {"color": colour, "tooltip": tip}},
    ]  # fmt: skip
    return Figure(
        "calibration", f"How often samples are {one.title}, by the probability that the model gives",
        f"{one.samples:,} samples in {len(curves.bins)} bins of about equal size, with 95 % intervals. On the dashed "
        "line probabilities can be believed; below it they are too high, above it too low.",
        {"height": _HEIGHT, "data": inline_data(pd.DataFrame(rows)), "layer": layers},
    )  # fmt: skip


def _decisions(one: Performance, curves: Curves) -> Figure:
    rows: list[Json] = []
    for point in curves.decision:
        for name, of in ((_MODEL, point.model), (_ALL, point.everyone)):
            rows.append({"of": name, "threshold": point.threshold, "benefit": of.value, "low": of.low, "high": of.high})
        rows.append({"of": _NONE, "threshold": point.threshold, "benefit": 0.0, "low": 0.0, "high": 0.0})
    top = max(max(point.model.high, point.everyone.high) for point in curves.decision)
    floor = -0.25 * top
    for row in rows:  # what lies below the figure is drawn at its lower end
        row["low_drawn"], row["high_drawn"] = max(row["low"], floor), max(row["high"], floor)
    x = {
        "field": "threshold", "type": "quantitative", "title": "threshold probability",
        "scale": {"nice": False, "zero": False}, "axis": {"format": ".0%", "tickCount": TICKS},
    }  # fmt: skip
    y = {"type": "quantitative", "title": "net benefit", "scale": {"domain": [floor, top], "nice": False}}
    colour = _colour(_MODEL, _ALL, _NONE)
    tip = tooltip("of", "threshold", "benefit=net benefit", "low", "high")
    spec = {
        "height": _HEIGHT,
        "data": inline_data(pd.DataFrame(rows)),
        "layer": [
            {
                "transform": [{"filter": f"datum.of == '{_MODEL}'"}],
                "mark": {"type": "area", "opacity": _BAND, "color": _COLOURS[_MODEL]},
                "encoding": {"x": x, "y": {"field": "low_drawn", **y}, "y2": {"field": "high_drawn"}},
            },
            {
                "mark": {"type": "line", "clip": True, "point": False},
                "encoding": {"x": x, "y": {"field": "benefit", **y}, "color": colour, "tooltip": tip},
            },
        ],
    }
    return Figure(
        "decisions", "Decision curve: what acting on the model is worth",
        f"Net benefit: the share of samples that are {one.title} and are treated, less the share that is treated "
        "without being so, which counts the odds of the threshold. The highest line is the best thing to do. The band "
        "has the model's pointwise 95 % interval.", spec,
    )  # fmt: skip
