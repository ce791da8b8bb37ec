"""The page about a site's models: how they compare, class by class, and how sure one can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.deploy.card import participants
from idiolect.deploy.global_model import NO_GLOBAL
from idiolect.deploy.harm import Choice, Ships, shares_of
from idiolect.deploy.schema import About
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import TICKS, amounts, inline_data, tooltip
from idiolect.report.page import render_page
from idiolect.simulation.measures import auroc
from idiolect.statistics.intervals import wilson

# N samples, C classes

BINS = 10
"""Of a figure of probabilities."""
COLOURS = {"global": "#7f7f7f", "personal": "#1f77b4", "local": "#ff7f0e", "blend": "#2ca02c"}
"""Of the models."""
_CLASSES = 100  # rows of the table


def text(about: About, choice: Choice, y_N: Tensor) -> str:
    """The page, as HTML."""
    assert about.site is not None
    logp = choice.outputs
    right = {name: p.argmax(1) == y_N for name, p in logp.items()}
    figure = _calibration(logp, y_N)
    return render_page(
        "site.html",
        {"site-calibration": figure.spec | {"description": figure.title}},
        title=f"{about.method.title} at this site",
        facts=facts(
            about,
            ("Samples", f"{len(y_N)}, of {len(set(y_N.tolist()))} of {len(about.classes)} classes"),
            ("Most frequent class", _most_frequent(about.classes, y_N)),
        ),
        **reasons(about, choice),
        score="Accuracy, %",
        points=", points",
        blend="their probabilities multiplied (a product of experts)",
        models=[_line(name, right, choice, about.site.ships) | _area(p, y_N) for name, p in logp.items()],
        settled=choice.settled,
        numbers=[],
        names=list(logp),
        classes=_classes(about.classes, right, y_N),
        disagree=_disagree(right, logp),
        figure=figure,
    )


def facts(about: About, *samples: tuple[str, str]) -> list[tuple[str, str]]:
    """The facts at the top: what the model is made of, what is said of the samples, and the federation."""
    assert about.site is not None
    count = participants(about)
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares_of(about.site.weights))
    clients = ("Clients in the federation", str(about.clients)) if count is None else ("Clients that trained", count)
    return [("Model", shares), *samples, clients]


def reasons(about: About, choice: Choice) -> dict[str, Any]:
    """Why this model, what it is compared with, and what the global model is, if there is one."""
    assert about.site is not None
    received = "global: the model that the server sends" if "global" in choice.outputs else NO_GLOBAL
    return {"why": about.site.why, "against": choice.against, "received": f"{received[0].upper()}{received[1:]}."}


def compared(name: Ships, choice: Choice, change: Callable[[float], str]) -> dict[str, Any]:
    """The cells of a model that compare it with ``Choice.against``; ``change`` writes a difference."""
    difference = choice.difference.get(name)
    return {
        "difference": None if difference is None else difference.mean,
        "change": "" if difference is None else change(difference.mean),
        "between": "" if difference is None else f"{change(difference.low)} to {change(difference.high)}",
    }


def _line(name: Ships, right: Mapping[Ships, Tensor], choice: Choice, ships: str) -> dict[str, Any]:
    accuracy = float(right[name].double().mean())
    low, high = (float(end) for end in wilson(np.array(accuracy), np.array(len(right[name]))))
    return {
        "name": name,
        "ships": name == ships,
        "score": accuracy,
        "text": f"{100 * accuracy:.1f}",
        "interval": f"{100 * low:.1f} to {100 * high:.1f}",
        **compared(name, choice, lambda value: f"{100 * value:+.1f}"),
    }


def _area(logp_NC: Tensor, y_N: Tensor) -> dict[str, Any]:
    """The cells of a model's area under the ROC curve; none where there is one class alone."""
    value = auroc(logp_NC.exp(), y_N)
    if "auroc" not in value:
        return {}
    ends = [f"{100 * value[end]:.1f}" for end in ("auroc_low", "auroc_high") if end in value]
    return {"area": value["auroc"], "area_text": f"{100 * value['auroc']:.1f}", "area_interval": " to ".join(ends)}


def _most_frequent(classes: Sequence[str], y_N: Tensor) -> str:
    count_C = torch.bincount(y_N, minlength=len(classes))
    return f"{classes[int(count_C.argmax())]}, {100 * int(count_C.max()) / len(y_N):.1f} % of the samples"


def _classes(classes: Sequence[str], right: Mapping[Ships, Tensor], y_N: Tensor) -> list[dict[str, Any]]:
    count_C = torch.bincount(y_N, minlength=len(classes)).tolist()
    rows = [c for c in range(len(classes)) if count_C[c]][:_CLASSES]
    recall = {name: [float(r[y_N == c].double().mean()) for c in rows] for name, r in right.items()}
    return [
        {"name": classes[c], "count": count_C[c], "recall": [recall[name][k] for name in right]}
        for k, c in enumerate(rows)
    ]


def _disagree(right: Mapping[Ships, Tensor], logp: Mapping[Ships, Tensor]) -> list[dict[str, Any]]:
    """For each pair of models on how many samples they say different classes, and who is right there."""
    names, lines = list(right), []
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            apart_N = logp[one].argmax(1) != logp[other].argmax(1)
            a, b = int((right[one] & apart_N).sum()), int((right[other] & apart_N).sum())
            if count := int(apart_N.sum()):
                lines.append(
                    {"one": one, "other": other, "count": count, "first": a, "second": b, "none": count - a - b}
                )
    return lines


def _calibration(logp: Mapping[Ships, Tensor], y_N: Tensor) -> Figure:
    """How often each model is right, by how sure it is."""
    lines = []
    for name, logp_NC in logp.items():
        sure_N, said_N = logp_NC.exp().max(1)
        bin_N = (sure_N * BINS).long().clamp(max=BINS - 1)
        for b in sorted(set(bin_N.tolist())):
            mine = bin_N == b
            lines.append({
                "model": name, "sure": float(sure_N[mine].mean()), "samples": int(mine.sum()),
                "right": float((said_N == y_N)[mine].double().mean()),
            })  # fmt: skip
    spec = sureness(pd.DataFrame(lines), list(logp), "Mean confidence", "Share that is right")
    return Figure(
        "calibration", "How sure the models are, and how often they are right",
        "Samples in ten bins by the probability of the class that a model names. On the dashed line a model is as "
        "often right as it says. Each sample is predicted by models made without it.", spec,
    )  # fmt: skip


def sureness(lines: pd.DataFrame, names: Sequence[Ships], sure: str, right: str) -> dict[str, Any]:
    """The figure of shares over probabilities, a line for each model.

    Args:
        lines: ``model``, ``sure`` and ``right`` (0 to 1) and ``samples`` of each bin.
        names: of the models.
        sure: what the probabilities are.
        right: what the shares are.
    """
    scale = {"domain": names, "range": [COLOURS[name] for name in names]}
    both = {
        "x": amounts("sure", sure, axis={"format": "%", "tickCount": TICKS}),
        "y": amounts("right", right, axis={"format": "%"}),
    }
    return {
        "height": 260,
        "layer": [
            {
                "data": {"values": [{"sure": 0, "right": 0}, {"sure": 1, "right": 1}]},
                "mark": {"type": "line", "strokeDash": [4, 4], "color": "currentColor", "opacity": 0.5},
                "encoding": both,
            },
            {
                "data": inline_data(lines),
                "mark": {"type": "line", "point": True},
                "encoding": both
                | {
                    "color": {"field": "model", "type": "nominal", "scale": scale, "title": None},
                    "tooltip": tooltip("model", f"sure={sure.lower()}", f"right={right.lower()}", "samples"),
                },
            },
        ],
    }
