"""Box plots of clients with a dot for each client, or for a sample of them if there are many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from idiolect.report.figures.vega_lite import Json, inline_data, tooltip
from idiolect.report.figures.view import View

_BOX: Json = {"fill": "currentColor", "fillOpacity": 0.07, "stroke": "currentColor", "strokeOpacity": 0.35}
_MEDIAN: Json = {"color": "currentColor", "opacity": 0.8}
RULE: Json = {"color": "currentColor", "opacity": 0.45}
_QUARTILES = ("lowest", "lower quartile", "median", "upper quartile", "highest")

DOT: Json = {"type": "point", "filled": True, "size": 34, "opacity": 0.75}
"""The mark of a client."""
JITTER: Json = {"field": "jitter", "type": "quantitative", "scale": {"domain": [-0.9, 0.9]}}
"""The channel that moves a client's dot up or down by its ``jitter``."""


def boxed(view: View, frame: pd.DataFrame, dots: Json, size: int, keep: Sequence[str]) -> tuple[Json, str]:
    """Data and layers of box plots with a dot for each client on top, and a sentence if the dots are a sample.

    Args:
        view: the run.
        frame: a row for each client and group, with the columns that the channels of ``dots`` name, and ``id``.
        dots: the layer of the dots.
        size: the height of a box, in px.
        keep: the columns that are written into the page.
    """
    x, y = dots["encoding"]["x"], dots["encoding"]["y"]
    there = set(frame["id"])
    sample = view.sample(there)
    few = len(sample) == len(there)
    data = inline_data((frame if few else frame[frame["id"].isin(sample)])[list(keep)])
    layers = [_box(x, y, size), dots] if few else [*_boxes(frame, x, y, size), dots]
    words = "" if few else f" The dots are a sample of {len(sample):,} of {len(there):,} clients; the box is for all."
    return {"data": data, "layer": layers}, words


def _box(x: Json, y: Json, size: int) -> Json:
    """A layer of quartiles and range, computed by the browser from the dots."""
    return {
        "mark": {
            "type": "boxplot",
            "extent": "min-max",
            "size": size,
            "box": _BOX,
            "median": _MEDIAN | {"strokeWidth": 2},
            "rule": RULE,
            "ticks": False,
        },
        "encoding": {"x": x, "y": y},
    }


def _boxes(frame: pd.DataFrame, x: Json, y: Json, size: int) -> list[Json]:
    """The same, computed here from all clients, so that the page does not need each of them."""
    by, value = y["field"], x["field"]
    parts = [
        {by: str(group), "clients": len(part)}
        | dict(zip(_QUARTILES, np.percentile(part, [0, 25, 50, 75, 100]).round(4).tolist(), strict=True))
        for group, part in frame.groupby(by, sort=False)[value]
    ]

    def span(low: str, high: str) -> Json:
        return {"x": x | {"field": low}, "x2": {"field": high}, "y": y, "tooltip": tooltip(by, "clients", *_QUARTILES)}

    layers: list[Json] = [
        {"mark": {"type": "rule", **RULE}, "encoding": span("lowest", "highest")},
        {"mark": {"type": "bar", "size": size, **_BOX}, "encoding": span("lower quartile", "upper quartile")},
        {
            "mark": {"type": "tick", "thickness": 2, "size": size, **_MEDIAN},
            "encoding": {"x": x | {"field": "median"}, "y": y},
        },
    ]
    return [{"data": {"values": parts}} | layer for layer in layers]
