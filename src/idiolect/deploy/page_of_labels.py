"""The page about a site's models of several labels: how they compare, label by label, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from scipy.stats import t
from torch import Tensor

from idiolect.core.objectives import number
from idiolect.deploy import harm_of_labels
from idiolect.deploy.harm import Choice, Ships
from idiolect.deploy.labels import probabilities
from idiolect.deploy.page import BINS, compared, facts, reasons, sureness
from idiolect.deploy.schema import About
from idiolect.report.figures.figure import Figure
from idiolect.report.page import render_page
from idiolect.simulation import label_measures

# N samples, L labels

_LABELS = 100  # rows of the table for each model
_MEASURES = {"f1": "F1, %", "auroc": "AUROC, %", "average_precision": "Average precision, %"}


def text(about: About, choice: Choice, y_NL: Tensor) -> str:
    """The page, as HTML; ``y_NL`` are 1 where a sample has a label, else 0."""
    assert about.site is not None
    p = {name: probabilities(output) for name, output in choice.outputs.items()}
    figure = _calibration(p, y_NL)
    return render_page(
        "site.html",
        {"site-calibration": figure.spec | {"description": figure.title}},
        title=f"{about.method.title} at this site",
        facts=facts(
            about, ("Samples", f"{len(y_NL)}"), ("Labels", f"{len(about.labels)}, {y_NL.sum(1).mean():.2f} in a sample")
        ),
        **reasons(about, choice),
        score="Log loss",
        points="",
        blend="their probabilities multiplied (a product of experts), label by label",
        models=[_line(name, output, y_NL, choice, about.site.ships) for name, output in choice.outputs.items()],
        settled=choice.settled,
        one="Label",
        measures=["Samples that have it", *_MEASURES.values()],
        numbers=_labels(about, p, y_NL),
        intervals=[],
        figure=figure,
    )


def _line(name: Ships, output: Tensor, y_NL: Tensor, choice: Choice, ships: Ships) -> dict[str, Any]:
    """A row of the first table."""
    loss_N = -harm_of_labels.merit(output, y_NL)
    mean, count = float(loss_N.mean()), len(loss_N)
    half = float(t.ppf(0.975, count - 1)) * math.sqrt(float(loss_N.var()) / count)
    return {
        "name": name,
        "ships": name == ships,
        "score": mean,
        "text": number(mean),
        "interval": f"{number(mean - half)} to {number(mean + half)}",
        **compared(name, choice, lambda value: f"{'+' * (value > 0)}{number(value)}"),
    }


def _labels(about: About, p: Mapping[Ships, Tensor], y_NL: Tensor) -> list[dict[str, Any]]:
    """Rows with each model's measures of each label."""
    rows = []
    each = {
        name: label_measures.of_predictions(p_NL, y_NL, about.labels)
        | label_measures.ranked(label_measures.RANKED, p_NL, y_NL, about.labels)
        for name, p_NL in p.items()
    }
    for label, count in list(zip(about.labels, y_NL.sum(0).long().tolist(), strict=True))[:_LABELS]:
        for name in p:
            values = [each[name].get(f"{measure}[{label}]") for measure in _MEASURES]
            cells = [{"value": count, "text": f"{count}"}, *map(_cell, values)]
            rows.append({"name": label, "model": name, "cells": cells})
    return rows


def _cell(value: float | None) -> dict[str, Any]:
    """A share of a table, and as it is sorted; a dash where no sample has the label and none is predicted."""
    return {"value": "", "text": "-"} if value is None else {"value": value, "text": f"{100 * value:.1f}"}


def _calibration(p: Mapping[Ships, Tensor], y_NL: Tensor) -> Figure:
    """How often samples have a label, by its probability."""
    lines = []
    for name, p_NL in p.items():
        p_K, y_K = p_NL.flatten(), y_NL.flatten().double()
        bin_K = (p_K * BINS).long().clamp(max=BINS - 1)
        for b in sorted(set(bin_K.tolist())):
            mine = bin_K == b
            lines.append({
                "model": name, "sure": float(p_K[mine].mean()), "samples": int(mine.sum()),
                "right": float(y_K[mine].mean()),
            })  # fmt: skip
    spec = sureness(pd.DataFrame(lines), list(p), "Mean probability of a label", "Share that has it")
    return Figure(
        "calibration", "How probable labels are, and how often samples have them",
        "All labels of all samples in ten bins by their probability. On the dashed line labels are as frequent as a "
        "model says. Each sample is predicted by models made without it.", spec,
    )  # fmt: skip
