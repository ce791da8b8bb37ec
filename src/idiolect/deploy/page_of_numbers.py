"""The page about a site's models of numbers: how they compare, number by number, and how wide intervals are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from idiolect.core.objectives import OBJECTIVES, number
from idiolect.deploy import numbers
from idiolect.deploy.harm import Choice, Ships
from idiolect.deploy.page import COLOURS, compared, facts, reasons
from idiolect.deploy.schema import About
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import TICKS, amounts, inline_data, tooltip
from idiolect.report.page import render_page
from idiolect.simulation import errors_of_numbers
from idiolect.statistics import conformal

# N samples, D numbers of a target

_SCORE = OBJECTIVES["regression"].score
_MEASURES = {"mse": _SCORE.header, "mae": "MAE", "r2": "R2"}
_LEVELS = (0.5, 0.8, 0.9, 0.95)
_NUMBERS = 30  # rows of the tables for each model or level
_POINTS = 2000  # of the figure


def text(about: About, choice: Choice, y_ND: Tensor) -> str:
    """The page, as HTML; ``y_ND`` are scaled numbers."""
    assert about.site is not None
    y_ND = numbers.unscaled(y_ND, about.targets)
    values = {name: numbers.unscaled(output, about.targets) for name, output in choice.outputs.items()}
    figure = _predicted(about, choice, values, y_ND)
    return render_page(
        "site.html",
        {"site-predicted": figure.spec | {"description": figure.title}},
        title=f"{about.method.title} at this site",
        facts=facts(
            about,
            ("Samples", f"{len(y_ND)}"),
            ("Predicts", ", ".join(target.name for target in about.targets[:_NUMBERS])),
        ),
        **reasons(about, choice),
        score=_SCORE.header,
        points="",
        blend="the weighted mean of their predictions",
        models=[_line(name, value_ND, y_ND, choice, about.site.ships) for name, value_ND in values.items()],
        settled=choice.settled,
        measures=list(_MEASURES.values()),
        numbers=_numbers(about, values, y_ND),
        intervals=_intervals(about),
        figure=figure,
    )


def _line(name: Ships, value_ND: Tensor, y_ND: Tensor, choice: Choice, ships: Ships) -> dict[str, Any]:
    """A row of the first table."""
    measured = errors_of_numbers.of_predictions(value_ND, y_ND)
    return {
        "name": name,
        "ships": name == ships,
        "score": measured["mse"],
        "text": number(measured["mse"]),
        "interval": f"{number(measured['mse_low'])} to {number(measured['mse_high'])}",
        **compared(name, choice, _SCORE.change),
    }


def _numbers(about: About, values: dict[Ships, Tensor], y_ND: Tensor) -> list[dict[str, Any]]:
    """Rows with each model's errors of each number."""
    rows = []
    for d, target in enumerate(about.targets[:_NUMBERS]):
        for name, value_ND in values.items():
            measured = errors_of_numbers.of_predictions(value_ND[:, d : d + 1], y_ND[:, d : d + 1])
            cells = [_cell(measured.get(measure, math.nan)) for measure in _MEASURES]
            rows.append({"name": target.name, "model": name, "cells": cells})
    return rows


def _cell(value: float) -> dict[str, Any]:
    """A number of a table, and as it is sorted."""
    is_known = math.isfinite(value)
    return {"value": value if is_known else "", "text": number(value) if is_known else "-"}


def _intervals(about: About) -> list[dict[str, Any]]:
    """Rows with the width and the score of intervals at some levels."""
    assert about.site is not None
    rows = []
    for target, part in zip(about.targets[:_NUMBERS], about.site.errors, strict=False):
        error_N = np.array(part.sizes)
        for level in _LEVELS:
            half = conformal.quantile(part.sizes, level, part.weights)
            score = conformal.quality(error_N, half, np.zeros(len(error_N)), level).score
            few = f"- ({conformal.least(level)} {'groups' if part.weights else 'samples'} are needed)"
            rows.append({
                "name": target.name, "level": level, "half": half if math.isfinite(half) else "",
                "half_text": number(half) if math.isfinite(half) else few, "score": _cell(score)["value"],
                "score_text": _cell(score)["text"],
            })  # fmt: skip
    return rows


def _predicted(about: About, choice: Choice, values: dict[Ships, Tensor], y_ND: Tensor) -> Figure:
    """What the site's model and the one it is compared with predict, over the targets, of the first number."""
    assert about.site is not None
    names: list[Ships] = list(dict.fromkeys((about.site.ships, choice.against or about.site.ships)))
    step = math.ceil(len(y_ND) / _POINTS)
    data = pd.concat([
        pd.DataFrame({
            "model": name, "target": y_ND[::step, 0].numpy(), "predicted": values[name][::step, 0].numpy()
        })
        for name in names
    ])  # fmt: skip
    first, ends = about.targets[0].name, [float(y_ND[:, 0].min()), float(y_ND[:, 0].max())]
    scale = {"domain": names, "range": [COLOURS[name] for name in names]}
    both = {
        "x": amounts("target", first, axis={"tickCount": TICKS}),
        "y": amounts("predicted", f"Predicted {first}"),
    }
    spec = {
        "height": 260,
        "layer": [
            {
                "data": {"values": [{"target": end, "predicted": end} for end in ends]},
                "mark": {"type": "line", "strokeDash": [4, 4], "color": "currentColor", "opacity": 0.5},
                "encoding": both,
            },
            {
                "data": inline_data(data),
                "mark": {"type": "point", "size": 16, "opacity": 0.6},
                "encoding": both
                | {
                    "color": {"field": "model", "type": "nominal", "scale": scale, "title": None},
                    "tooltip": tooltip("model", "target", "predicted"),
                },
            },
        ],
    }
    return Figure(
        "predicted", "What the models predict",
        f"Predictions of {first} over its true values. On the dashed line a prediction is right. Each sample is "
        "predicted by models made without it.", spec,
    )  # fmt: skip
