"""Representations of samples: how Gaussian they are over rounds, and where test samples are."""

from __future__ import annotations

from collections.abc import Iterator

from idiolect.report.figures.colours import PALETTE
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import Json, inline_data, side_by_side, tooltip
from idiolect.report.figures.view import View


def gaussianity(view: View) -> Iterator[Figure | str]:
    """Negative log-likelihood of representations under Gaussian classes, over rounds; as they are and standardised."""
    forms = (
        ("gaussianity", "the representations", "nats per sample", "which also depends on their scale"),
        (
            "gaussianity_standardised",
            "standardised representations",
            "nats per sample",
            "each dimension at standard deviation 1",
        ),
    )
    for metric, what, unit, words in forms:
        records = view.run.of_protocol(metric)
        if records.empty:
            continue
        frame = records.groupby(["method", "round"])["value"].mean().reset_index(name="nats")
        frame["method"] = frame["method"].map(view.run.titles)
        x = {"field": "round", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1, "format": "d"}}
        y = {"field": "nats", "type": "quantitative", "title": unit, "scale": {"zero": False}}
        yield Figure(
            metric.replace("_", "-"),
            f"How well Gaussian classes describe {what}",
            "Negative log-likelihood of representations of training samples under Gaussians fitted to them (a mean for "
            f"each class, one covariance), {words}; mean over clients and seeds. Less is more Gaussian; methods can be "
            "compared where their representations have as many dimensions.",
            {
                "data": inline_data(frame),
                "height": 260,
                "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 28}},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": view.method | {"legend": view.legend},
                    "tooltip": tooltip("method", "round", f"nats={unit}"),
                },
            },
        )


def representations(view: View) -> Iterator[Figure | str]:
    """Representations of a few clients' test samples in two dimensions, coloured by class."""
    run = view.run
    records = run.records[run.records["metric"].str.startswith("feature") & run.records["value"].notna()]
    if records.empty:
        return
    parts = records["metric"].str.extract(r"^(?P<what>feature|feature_class)\[(?P<row>\d+)(?P<axis>,\d)?\]$")
    records = records.assign(what=parts["what"] + parts["axis"].fillna(""), row=parts["row"])
    records = records[records["seed"] == records.groupby("method")["seed"].transform("min")]
    frame = records.pivot(index=["method", "client", "row"], columns="what", values="value").reset_index()
    frame = frame.rename(columns={"feature,0": "first", "feature,1": "second"})
    names, there = run.manifest["class_names"], set(frame["client"])
    client_names = view.clients | {c: f"new client {view.names.get(c, c)}" for c in run.new_clients}
    clients = [name for c, name in client_names.items() if c in there]
    methods = [title for label, title in run.titles.items() if label in set(frame["method"])]
    frame["class"] = frame["feature_class"].astype(int).map(dict(enumerate(names)))
    frame["client"], frame["method"] = frame["client"].map(client_names), frame["method"].map(run.titles)
    present = [n for n in names if n in set(frame["class"])]
    few = len(present) <= len(PALETTE)
    colour = {
        "field": "class",
        "type": "nominal",
        "scale": {"domain": present} | ({"range": PALETTE[: len(present)]} if few else {"scheme": "turbo"}),
        "legend": {"title": None, "orient": "bottom", "columns": 10},
    }
    plain: Json = {"type": "quantitative", "title": None, "scale": {"zero": False}, "axis": {"tickCount": 4}}
    plot = {
        "width": 210,
        "height": 210,
        "mark": {"type": "point", "filled": True, "size": 26, "opacity": 0.8},
        "encoding": {
            "x": plain | {"field": "first"},
            "y": plain | {"field": "second"},
            "color": colour,
            "tooltip": tooltip("method", "client", "class"),
        },
    }
    data = inline_data(frame[["method", "client", "first", "second", "class"]])
    apart = {"resolve": {"scale": {"x": "independent", "y": "independent"}}}
    spec = side_by_side("client", clients, data, plot, **apart)
    if len(clients) == 1:
        spec |= {"facet": spec["facet"]["column"] | {"field": "method", "sort": methods}, "columns": 4}
    else:
        column = spec["facet"]["column"]
        header = column["header"] | {"labelAnchor": "middle"}
        spec["facet"]["row"] = column | {"field": "method", "sort": methods, "header": header}
    who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients"
    yield Figure(
        "representations",
        f"Test samples of {who} in each method's representation",
        "Each dot is a test sample (at most 200 of a client, one seed, after the last round), coloured by its class. "
        "If a representation has more than two dimensions, the axes are its two directions of largest variance, for "
        "each client and method.",
        spec,
        wide=True,
    )
