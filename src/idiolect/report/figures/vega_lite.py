"""Parts of a Vega-Lite specification that several figures have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

Json = dict[str, Any]

TICKS = {"expr": "ceil(width / 70)"}
"""The number of ticks of a horizontal axis, by its width."""
GREY_SYMBOL = {"symbolFillColor": "currentColor", "symbolStrokeWidth": 0}
"""Symbols of a legend in the colour of the text, where colour means something else."""


def inline_data(frame: pd.DataFrame) -> Json:
    """The rows of a table as the data of a figure, to four decimals, or four digits of a column of small numbers."""
    largest = frame.select_dtypes("number").abs().max()
    small = largest[(largest > 0) & (largest < 0.01)]
    decimals = {column: 3 - math.floor(math.log10(value)) for column, value in small.items()}
    return {"values": frame.round({column: 4 for column in largest.index} | decimals).to_dict("records")}


def amounts(name: str, title: str, **more: Any) -> Json:
    """A channel of scores, with an axis that need not begin at 0."""
    return {"field": name, "type": "quantitative", "title": title, "scale": {"zero": False, "nice": True}, **more}


def tooltip(*fields: str) -> list[Json]:
    """The fields that a tooltip lists, each ``field`` or ``field=its title``."""
    pairs = (f.partition("=") for f in fields)
    return [{"field": name, "title": title or name} for name, _, title in pairs]


def side_by_side(field: str, values: Sequence[str], data: Json, spec: Json, **more: Any) -> Json:
    """Plots of the same size side by side, one for each value of a field, which is its heading."""
    header = {"title": None, "labelColor": "currentColor", "labelFontSize": 12, "labelAnchor": "start"}
    column = {"field": field, "type": "nominal", "sort": list(values), "header": header}
    return {"data": data, "facet": {"column": column}, "spec": spec, "spacing": 16, **more}
