"""The clients' samples: their classes, their number, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from idiolect.data.heterogeneity import Description
from idiolect.report.figures.colours import PLAIN, SHIFTED
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import GREY_SYMBOL, Json, tooltip
from idiolect.report.figures.view import DRAWN, SAMPLE, View, height_for, sample_note
from idiolect.runs.reader import Run


def partition_figures(run: Run, about: Description) -> list[Figure]:
    """The figures of a partition before anything is trained: classes and sizes of clients, and how they differ."""
    view = View(run, [], {})
    maps = [f for f in label_map(view) if isinstance(f, Figure)]
    return [*maps, _sizes(about), *_divergence(view, about)]


def label_map(view: View) -> Iterator[Figure | str]:
    """Clients x classes, with a circle whose size shows the number of training samples."""
    manifest = view.run.manifest
    if view.run.task != "classification":
        return
    names, clients = manifest["class_names"], view.sample(view.clients)
    sample = set(clients)
    values = [
        {
            "client": view.clients[c["id"]],
            "class": names[k],
            "rows": rows,
            "test samples": c["test"][k],
            "kind": view.kind_of(c["id"]),
        }
        for c in manifest["clients"]
        if c["id"] in sample
        for k, rows in enumerate(c["train"])
        if rows
    ]
    if not values:
        return
    step = height_for(len(clients)) / len(clients)
    largest = max(10.0, min(260.0, 0.9 * step * step))
    x = {
        "field": "class",
        "type": "nominal",
        "title": "class",
        "scale": {"domain": names},
        "axis": {"labelAngle": -40, "labelOverlap": True, "labelLimit": 80, "grid": True},
    }
    bubble = {
        "field": "rows",
        "type": "quantitative",
        "scale": {"range": [2, largest], "domainMin": 0},
        "legend": {"title": "training samples", "orient": "bottom", **GREY_SYMBOL, "tickCount": 4},
    }
    y = view.client_axis(clients)
    y["axis"]["grid"] = True
    encoding = {
        "x": x,
        "y": y,
        "size": bubble,
        "color": view.kind(),
        "tooltip": tooltip("client", "class", "rows=training samples", "test samples"),
    }
    yield Figure(
        "labels",
        "Which client has which classes",
        "The larger the circle, the more training samples of that class a client has"
        + ("; shifted clients are orange." if view.shifted else ".")
        + sample_note(clients, len(view.clients)),
        {
            "data": {"values": values},
            "height": height_for(len(clients)),
            "mark": {"type": "circle", "opacity": 0.9},
            "encoding": encoding,
        },
        min_width=max(300, 130 + 7 * len(names)),
        wide=len(names) > 30,
    )


def _sizes(about: Description) -> Figure:
    """Training and test samples of each client, the largest client first."""
    train_K, test_K = about.train_KC.sum(1), about.test_KC.sum(1)
    order = np.argsort(-train_K, kind="stable")
    if len(order) > DRAWN:
        order = order[np.linspace(0, len(order) - 1, SAMPLE).round().astype(int)]
    values = [
        {"place": i, "rows": int(part[k]), "of": of}
        for i, k in enumerate(order)
        for of, part in (("training", train_K), ("test", test_K))
    ]
    ratio = train_K.max() / train_K.min()
    even = "All clients have the same number of training samples"
    x = {"field": "place", "type": "ordinal", "title": "client, by size", "axis": {"labels": False, "ticks": False}}
    kinds = {"domain": ["training", "test"], "range": [PLAIN, SHIFTED]}
    return Figure(
        "sizes",
        even if ratio == 1 else f"The largest client has {ratio:.1f} times the training samples of the smallest",
        "Samples per client, the largest client first."
        + (
            f" Only {len(order)} of {len(train_K):,} clients are shown, at equal distances."
            if len(order) < len(train_K)
            else ""
        ),
        {
            "data": {"values": values},
            "height": 200,
            "mark": {"type": "bar", "binSpacing": 0},
            "encoding": {
                "x": x,
                "y": {"field": "rows", "type": "quantitative", "title": "samples"},
                "color": {"field": "of", "type": "nominal", "scale": kinds, "legend": {"title": None, "orient": "top"}},
                "tooltip": tooltip("rows=samples", "of"),
            },
        },
    )


def _divergence(view: View, about: Description) -> Iterator[Figure]:
    """Clients x clients: the divergence of labels or distance of targets, if it was computed for all pairs."""
    names = list(view.clients.values())
    if about.label_KK is None or not 1 < len(names) == len(about.label_KK):
        return
    values = [
        {"client": view.clients[i], "other": view.clients[j], "bits": round(float(about.label_KK[i, j]), 3)}
        for i in view.clients
        for j in view.clients
    ]
    title = f"Two clients' labels differ by {about.label_mean:.2f} bits, {about.label_chance:.2f} at random"
    caption = (
        "Jensen-Shannon divergence of the training labels of each pair of clients: 0 for the same mixture of classes, "
        "1 for no class in common; the title has the mean."
    )
    unit = "bits"
    ends: Json = {"domain": [0, 1]}
    if about.target_KD is not None:
        title = f"Two clients' mean targets are {about.label_mean:.2f} apart, {about.label_chance:.2f} at random"
        caption = (
            "Distance between the mean training targets of each pair of clients, in standard deviations of all; "
            "the title has the mean."
        )
        unit, ends = "standard deviations", {"domainMin": 0}
        if view.run.task == "multilabel":
            title = f"Two clients' labels are {about.label_mean:.2f} apart, {about.label_chance:.2f} at random"
            caption = (
                "Root mean square difference, over labels, of the shares of each pair of clients' training samples "
                "that have a label; the title has the mean."
            )
            unit = "shares"
    channel = {"type": "nominal", "scale": {"domain": names}}
    axis = {"labelOverlap": True, "labelLimit": 80}
    yield Figure(
        "divergence",
        title,
        caption,
        {
            "data": {"values": values},
            "height": height_for(len(names)),
            "mark": "rect",
            "encoding": {
                "x": channel | {"field": "other", "title": "client", "axis": axis | {"labelAngle": -40}},
                "y": channel | {"field": "client", "title": None, "axis": axis | {"labelLimit": 130}},
                "color": {
                    "field": "bits",
                    "type": "quantitative",
                    "scale": ends | {"range": "ramp"},
                    "legend": {"title": unit, "orient": "bottom"},
                },
                "tooltip": tooltip("client", "other", f"bits={unit}"),
            },
        },
    )
