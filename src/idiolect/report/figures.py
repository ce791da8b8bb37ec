"""Figures as Vega-Lite specifications: plain dicts, with aggregated values inside.

Each maker yields what to show: a ``Figure``, or a sentence that says why there is none. Colours for text, grids and
scales come from the page (light or dark); a method's colour is fixed across all figures of a page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data.heterogeneity import Description
from idiolect.report.compare import p_value, smallest_p
from idiolect.report.formatting import short
from idiolect.report.tables import Row, finished, size, summary, worst
from idiolect.runs.reader import Run, last

Json = dict[str, Any]

# Okabe & Ito (2008) with grey for black, which a dark page would hide, and the palest last; then four of Tol's "muted"
# colours (2021) for more than eight methods.
_OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#F0E442")
PALETTE = (*_OKABE_ITO, "#AA4499", "#44AA99", "#999933", "#CC6677")
_DASHES = ([1, 0], [7, 3], [2, 3])
_PLAIN, _SHIFTED = PALETTE[0], PALETTE[1]

DRAWN = 200
"""The most clients with a line or a dot each; of more, figures show how they are distributed, and a sample."""
SAMPLE = 100
"""Clients of a sample."""
PAIRS = 60
"""The most clients that are shown in pairs."""


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        name: unique within a run, for the page's anchors.
        title: what to see.
        caption: one sentence.
        spec: the Vega-Lite specification.
        facts: short sentences to stand beside it.
        min_width: the narrowest it may be drawn, in px; its box scrolls below that.
        wide: whether it takes the whole width of the page.
    """

    name: str
    title: str
    caption: str
    spec: Json
    facts: list[str] = field(default_factory=list)
    min_width: int = 300
    wide: bool = False


@dataclass(frozen=True)
class _View:
    """A run with what several figures need of it."""

    run: Run
    rows: list[Row]
    colours: Mapping[str, str]

    @property
    def method(self) -> Json:
        """The colour channel of methods: the fixed colour of each, in the study's order."""
        titles = self.run.titles
        scale = {"domain": list(titles.values()), "range": [self.colours[label] for label in titles]}
        return {"field": "method", "type": "nominal", "scale": scale, "title": None}

    @property
    def dash(self) -> Json:
        """The stroke of methods: dashed where a colour comes round again."""
        titles = list(self.run.titles.values())
        dashes = [_DASHES[i // len(PALETTE) % len(_DASHES)] for i in range(len(titles))]
        return {"field": "method", "type": "nominal", "scale": {"domain": titles, "range": dashes}, "title": None}

    @cached_property
    def names(self) -> dict[int, str]:
        """What each client is called, by its number where it has no name."""
        return {c["id"]: c.get("name") or str(c["id"]) for c in self.run.manifest["clients"]}

    @cached_property
    def clients(self) -> dict[int, str]:
        """What to call each client: its name or number and its shift; those without a shift first."""
        order = sorted(self.names, key=lambda c: (self.run.shifts[c], c))
        return {c: " · ".join(filter(None, [self.names[c], short(self.run.shifts[c])])) for c in order}

    @property
    def shifted(self) -> bool:
        return any(self.run.shifts.values())

    @cached_property
    def _turn(self) -> dict[int, int]:
        """The order in which clients come into a sample: always the same one."""
        order = np.random.default_rng(0).permutation(sorted(self.clients))
        return {int(c): turn for turn, c in enumerate(order)}

    def sample(self, clients: Collection[int], most: int = DRAWN, count: int = SAMPLE) -> list[int]:
        """Those of some clients that are drawn one by one, in the order of ``clients``: all, or a few where many."""
        found = set(clients)
        if len(found) > most:
            found = set(sorted(found, key=self._turn.__getitem__)[:count])
        return [c for c in self.clients if c in found]

    def rows_of_clients(self, shown: Sequence[int]) -> Json:
        """The y channel of clients that have a line each."""
        return {
            "field": "client",
            "type": "nominal",
            "title": "client · shift" if self.shifted else "client",
            "scale": {"domain": [self.clients[c] for c in shown]},
            "axis": {"labelOverlap": True, "labelLimit": 130},
        }

    def kind(self) -> Json:
        """The colour channel of clients: shifted or not."""
        return {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": ["not shifted", "shifted"], "range": [_PLAIN, _SHIFTED]},
            "legend": {"title": None, "orient": "top", "symbolOpacity": 1} if self.shifted else None,
        }

    def kind_of(self, client: int) -> str:
        return "shifted" if self.run.shifts[client] else "not shifted"

    def shape(self) -> Json:
        """The shape channel of clients: shifted or not."""
        return {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": ["not shifted", "shifted"], "range": ["circle", "triangle-up"]},
            "legend": {"title": None, "orient": "top", **_GREY_SYMBOL} if self.shifted else None,
        }

    @cached_property
    def jitter(self) -> dict[int, float]:
        """How far a client's dot stands beside its line, so that dots do not hide each other."""
        return {c: place * 0.618034 % 1 - 0.5 for place, c in enumerate(self.clients)}


def _height(count: int) -> int:
    """The height of a plot with a line for each of so many clients, in px."""
    return count * (20 if count <= 40 else max(3, 800 // count))


def _of(shown: Collection[int], clients: int) -> str:
    """A sentence for a caption, where not all clients are drawn."""
    return f" A sample of {len(shown):,} of {clients:,} clients." if len(shown) < clients else ""


def palette(runs: list[Run]) -> dict[str, str]:
    """One colour per method label over all runs of a page."""
    labels = dict.fromkeys(label for run in runs for label in run.titles)
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(labels)}


def figures(run: Run, colours: Mapping[str, str]) -> tuple[list[Figure], list[str]]:
    """All figures that a run has data for, and a sentence for each that a reader would miss."""
    view = _View(run, summary(run), colours)
    found = [thing for make in FIGURES for thing in make(view)]
    return [f for f in found if isinstance(f, Figure)], [f for f in found if isinstance(f, str)]


def _data(frame: pd.DataFrame) -> Json:
    return {"values": frame.round(4).to_dict("records")}


_TICKS = {"expr": "ceil(width / 70)"}
_NAMED = 10  # methods that all can be named, or have a band, beside each other
_JITTER = {"field": "jitter", "type": "quantitative", "scale": {"domain": [-0.9, 0.9]}}
_SIGNED = "(datum.value > 0 ? '+' : '') + datum.label"
_GREY_SYMBOL = {"symbolFillColor": "currentColor", "symbolStrokeWidth": 0}


def _per_cent(name: str, title: str, **more: Any) -> Json:
    return {"field": name, "type": "quantitative", "title": title, "scale": {"zero": False, "nice": True}, **more}


def _tip(*fields: str) -> list[Json]:
    """Tooltips, each ``field`` or ``field=what to call it``."""
    pairs = (f.partition("=") for f in fields)
    return [{"field": name, "title": title or name} for name, _, title in pairs]


def over_rounds(view: _View) -> Iterator[Figure | str]:
    """Accuracy over rounds: mean over clients and seeds, and the range over seeds."""
    accuracy = view.run.accuracy
    if accuracy.empty:
        yield "No accuracy is on record yet, so there is nothing to draw about it."
        return
    seeds = 100 * accuracy.groupby(["method", "seed", "round"])["value"].mean()
    frame = seeds.groupby(["method", "round"]).agg(["mean", "min", "max", "count"]).round(2).reset_index()
    frame = frame.rename(columns={"mean": "accuracy", "min": "low", "max": "high", "count": "seeds"})
    frame["method"] = frame["method"].map(view.run.titles)
    ticks: Json = {"tickMinStep": 1, "format": "d", "tickCount": _TICKS}
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
    y = _per_cent("accuracy", "accuracy (%)")
    column = 30 + 7 * min(22, max(map(len, view.run.titles.values())))
    legend = {
        "orient": "top",
        "columns": {"expr": f"max(1, floor(width / {column}))"},
        "symbolType": "circle",
        "symbolOpacity": 1,
    }
    colour = view.method | {"legend": legend}
    tip = _tip("method", "round", "accuracy=accuracy (%)", "low=lowest seed (%)", "high=highest seed (%)", "seeds")

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
    several = bool((frame["seeds"] > 1).any()) and len(view.run.titles) <= _NAMED
    if several:
        low = _per_cent("low", "accuracy (%)")
        band = {"x": x, "y": low, "y2": {"field": "high"}, "color": colour, "opacity": shown(0.16, 0.02)}
        layers.insert(0, {"mark": "area", "encoding": band})
    done = finished(view.rows)
    title = "No method came to the end"
    if done:
        top = max(done, key=lambda r: r.accuracy or 0)
        title = f"{top.title} ends {'highest, ' if len(done) > 1 else ''}at {100 * (top.accuracy or 0):.1f} %"
    yield Figure(
        "rounds",
        title,
        "Test accuracy over the rounds, mean over clients"
        + (" and seeds" if (frame["seeds"] > 1).any() else "")
        + ("; the band spans the lowest to the highest seed" if several else "")
        + ". Click a name in the legend to single it out; shift-click adds another.",
        {"data": _data(frame), "height": 340, "layer": layers},
        wide=True,
    )


def _by_client(run: Run) -> pd.DataFrame:
    """Final accuracy in per cent, mean over seeds: columns method (label), client, value."""
    return (100 * run.final.groupby(["method", "client"])["value"].mean()).reset_index()


_BOX: Json = {"fill": "currentColor", "fillOpacity": 0.07, "stroke": "currentColor", "strokeOpacity": 0.35}
_MEDIAN: Json = {"color": "currentColor", "opacity": 0.8}
_RULE: Json = {"color": "currentColor", "opacity": 0.45}
_QUARTILES = ("lowest", "lower quartile", "median", "upper quartile", "highest")


def _box(x: Json, y: Json, size: int) -> Json:
    """Quartiles and range, in the colour of text."""
    return {
        "mark": {
            "type": "boxplot",
            "extent": "min-max",
            "size": size,
            "box": _BOX,
            "median": _MEDIAN | {"strokeWidth": 2},
            "rule": _RULE,
            "ticks": False,
        },
        "encoding": {"x": x, "y": y},
    }


def _boxes(frame: pd.DataFrame, x: Json, y: Json, size: int) -> list[Json]:
    """The same, computed here, so that the page need not hold every client: ``frame`` has a row for each."""
    by, value = y["field"], x["field"]
    parts = [
        {by: str(group), "clients": len(part)}
        | dict(zip(_QUARTILES, np.percentile(part, [0, 25, 50, 75, 100]).round(4).tolist(), strict=True))
        for group, part in frame.groupby(by, sort=False)[value]
    ]

    def span(low: str, high: str) -> Json:
        return {"x": x | {"field": low}, "x2": {"field": high}, "y": y, "tooltip": _tip(by, "clients", *_QUARTILES)}

    layers: list[Json] = [
        {"mark": {"type": "rule", **_RULE}, "encoding": span("lowest", "highest")},
        {"mark": {"type": "bar", "size": size, **_BOX}, "encoding": span("lower quartile", "upper quartile")},
        {
            "mark": {"type": "tick", "thickness": 2, "size": size, **_MEDIAN},
            "encoding": {"x": x | {"field": "median"}, "y": y},
        },
    ]
    return [{"data": {"values": parts}} | layer for layer in layers]


def _boxed(view: _View, frame: pd.DataFrame, dots: Json, size: int, keep: Sequence[str]) -> tuple[Json, str]:
    """Boxes of clients with a dot for each over them, and what the box and the dots are, in words.

    Args:
        view: of the run.
        frame: a row for each client and group, with columns as the channels of ``dots`` name them, and ``id``.
        dots: the layer of the dots.
        size: the height of a box, in px.
        keep: columns that the page is to hold.
    """
    x, y = dots["encoding"]["x"], dots["encoding"]["y"]
    there = set(frame["id"])
    shown = view.sample(there)
    few = len(shown) == len(there)
    data = _data((frame if few else frame[frame["id"].isin(shown)])[list(keep)])
    layers = [_box(x, y, size), dots] if few else [*_boxes(frame, x, y, size), dots]
    words = "" if few else f" The dots are a sample of {len(shown):,} of {len(there):,} clients; the box is of all."
    return {"data": data, "layer": layers}, words


def spread(view: _View) -> Iterator[Figure | str]:
    """The distribution of accuracy over clients, per method."""
    frame = _by_client(view.run)
    if frame.empty:
        return
    frame["id"] = frame["client"]
    frame["kind"] = frame["client"].map(view.kind_of)
    frame["jitter"] = frame["client"].map(view.jitter)
    frame["client"] = frame["client"].map(view.clients)
    frame["accuracy"] = frame["value"].round(2)
    frame["method"] = frame["method"].map(view.run.titles)
    titles = [t for t in view.run.titles.values() if t in set(frame["method"])]
    y = {"field": "method", "type": "nominal", "title": None, "scale": {"domain": titles}, "axis": {"labelLimit": 110}}
    x = _per_cent("accuracy", "accuracy of one client (%)")
    dots = {
        "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.75},
        "encoding": {
            "x": x,
            "y": y,
            "yOffset": _JITTER,
            "color": view.method | {"legend": None},
            "shape": view.shape(),
            "tooltip": _tip("method", "client", "accuracy=accuracy (%)"),
        },
    }
    spec, sampled = _boxed(view, frame, dots, 22, ["method", "client", "kind", "jitter", "accuracy"])
    top = max(finished(view.rows), key=lambda r: r.worst_decile or 0)
    who = worst(frame["id"].nunique())
    who += " of clients" if who == "worst tenth" else ""
    fares = "fares best with" if len(titles) > 1 else "with"
    yield Figure(
        "spread",
        f"The {who} {fares} {top.title}, at {100 * (top.worst_decile or 0):.1f} %",
        "Each dot is one client's final accuracy (mean over seeds); the box holds the middle half of the clients, "
        f"its line is the median.{sampled}",
        spec | {"height": 40 * len(titles)},
    )


def versus(view: _View) -> Iterator[Figure | str]:
    """Who gains and who loses against FedAvg and against training alone."""
    frame = _by_client(view.run)
    if frame.empty:
        return
    for name, words, absent in (("fedavg", "FedAvg", "FedAvg"), ("local", "training alone", "training alone (local)")):
        label = view.run.find(name)
        base = frame[frame["method"] == label].set_index("client")["value"]
        others = frame[(frame["method"] != label) & frame["client"].isin(base.index)].copy()
        if others.empty:
            yield f"Nothing is compared with {absent}: this run has no results of it beside another method."
            continue
        others["points"] = (others["value"] - others["client"].map(base)).round(2)
        facts, share = [], {}
        for other, mine in others.groupby("method", sort=False)["points"]:
            better, equal = int((mine > 0).sum()), int((mine == 0).sum())
            share[str(other)] = better, len(mine)
            tie = f", equal for {equal}" if equal else ""
            facts.append(
                (str(other), f"{view.run.titles[str(other)]}: better for {better} of {len(mine)} clients{tie}")
            )
        order = list(view.run.titles)
        facts.sort(key=lambda f: order.index(f[0]))
        most = max(order, key=lambda o: share.get(o, (-1, 0)))
        others["id"], others["client"] = others["client"], others["client"].map(view.clients)
        others["method"] = others["method"].map(view.run.titles)
        draw = _points if len(view.clients) > DRAWN else _heat
        yield Figure(
            f"versus-{name}",
            _verdict(view.run, most, str(label), words, *share[most]),
            facts=[text for _, text in facts],
            **draw(view, others, words),
        )


def _verdict(run: Run, method: str, base: str, words: str, better: int, clients: int) -> str:
    """A title that claims a victory only where a test over clients shows a difference."""
    title, p = run.titles[method], p_value(run, method, base)
    if p is not None and p < 0.05 and 2 * better > clients:
        return f"{title} beats {words} for {better} of {clients} clients"
    seeds = run.final.loc[run.final["method"] == method, "seed"].nunique()
    why = "too few clients to show a difference" if smallest_p(clients, seeds) >= 0.05 else "no clear difference"
    return f"{title} is better than {words} for {better} of {clients} clients: {why}"


def _heat(view: _View, others: pd.DataFrame, base: str) -> dict[str, Any]:
    """Clients x methods: how many points each gains; caption, specification, width."""
    bound = max(1.0, float(others["points"].abs().max()))
    titles = [t for t in view.run.titles.values() if t in set(others["method"])]
    colour = {
        "field": "points",
        "type": "quantitative",
        "scale": {"domain": [-bound, bound], "range": "diverging", "interpolate": "lab"},
        "legend": {
            "title": "points",
            "orient": "bottom",
            "direction": "horizontal",
            "gradientLength": 180,
            "labelExpr": _SIGNED,
        },
    }
    axis = {
        "orient": "top",
        "labelAngle": -35,
        "labelLimit": 90,
        "labelAlign": "left",
        "domain": False,
        "ticks": False,
    }
    x = {
        "field": "method",
        "type": "nominal",
        "title": None,
        "scale": {"domain": titles, "padding": 0.05},
        "axis": axis,
    }
    y = view.rows_of_clients(list(view.clients))
    y["scale"]["padding"] = 0.08
    y["axis"]["domain"] = False
    return {
        "caption": f"Final accuracy of each client minus its accuracy with {base}, in points (mean over seeds): "
        "blue gains, orange loses.",
        "spec": {
            "padding": {"left": 5, "top": 5, "bottom": 5, "right": min(75, 6 * len(titles[-1]))},
            "data": _data(others[["method", "client", "points"]]),
            "height": _height(len(view.clients)),
            "mark": {"type": "rect"},
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "tooltip": _tip("client", "method", "points"),
            },
        },
        "min_width": max(300, 140 + 24 * len(titles)),
    }


def _points(view: _View, others: pd.DataFrame, base: str) -> dict[str, Any]:
    """The same where clients are too many for a line each: how the points are distributed."""
    titles = [t for t in view.run.titles.values() if t in set(others["method"])]
    others = others.assign(kind=others["id"].map(view.kind_of), jitter=others["id"].map(view.jitter))
    y = {"field": "method", "type": "nominal", "title": None, "scale": {"domain": titles}, "axis": {"labelLimit": 110}}
    axis = {"labelExpr": _SIGNED, "tickCount": _TICKS}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.75},
        "encoding": {
            "x": {"field": "points", "type": "quantitative", "title": "points", "axis": axis},
            "y": y,
            "yOffset": _JITTER,
            "color": view.method | {"legend": None},
            "shape": view.shape(),
            "tooltip": _tip("method", "client", "points"),
        },
    }
    spec, sampled = _boxed(view, others, dots, 22, ["method", "client", "kind", "jitter", "points"])
    zero = {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeDash": [4, 3], **_RULE}}
    spec["layer"].insert(0, zero | {"encoding": {"x": {"datum": 0, "type": "quantitative"}}})
    return {
        "caption": f"Final accuracy of a client minus its accuracy with {base}, in points (mean over seeds): right of "
        f"0 it gains, left it loses. The box holds the middle half of the clients, its line is the median.{sampled}",
        "spec": spec | {"height": 40 * len(titles)},
    }


def label_map(view: _View) -> Iterator[Figure | str]:
    """Clients x classes, bubbles sized by training rows."""
    manifest = view.run.manifest
    names, shown = manifest["class_names"], view.sample(view.clients)
    drawn = set(shown)
    values = [
        {
            "client": view.clients[c["id"]],
            "class": names[k],
            "rows": rows,
            "test rows": c["test"][k],
            "kind": view.kind_of(c["id"]),
        }
        for c in manifest["clients"]
        if c["id"] in drawn
        for k, rows in enumerate(c["train"])
        if rows
    ]
    if not values:
        return
    step = _height(len(shown)) / len(shown)
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
        "legend": {"title": "training rows", "orient": "bottom", **_GREY_SYMBOL, "tickCount": 4},
    }
    y = view.rows_of_clients(shown)
    y["axis"]["grid"] = True
    encoding = {
        "x": x,
        "y": y,
        "size": bubble,
        "color": view.kind(),
        "tooltip": _tip("client", "class", "rows=training rows", "test rows"),
    }
    yield Figure(
        "labels",
        "Who holds what: each client has its own mixture of classes",
        "The larger the disc, the more training rows of that class a client holds"
        + ("; shifted clients are orange." if view.shifted else ".")
        + _of(shown, len(view.clients)),
        {
            "data": {"values": values},
            "height": _height(len(shown)),
            "mark": {"type": "circle", "opacity": 0.9},
            "encoding": encoding,
        },
        min_width=max(300, 130 + 7 * len(names)),
        wide=len(names) > 30,
    )


def _beside(field: str, values: Sequence[str], data: Json, spec: Json, **more: Any) -> Json:
    """Plots of one size side by side, one for each value of a field, under its name."""
    header = {"title": None, "labelColor": "currentColor", "labelFontSize": 12, "labelAnchor": "start"}
    column = {"field": field, "type": "nominal", "sort": list(values), "header": header}
    return {"data": data, "facet": {"column": column}, "spec": spec, "spacing": 16, **more}


_EARLY = (1, 20, 50)


def _near(rounds: pd.Series[int], wanted: Sequence[int]) -> list[int]:
    """The rounds on record that are nearest to those wanted, each once."""
    there = np.unique(rounds)
    return sorted({int(there[np.abs(there - r).argmin()]) for r in wanted})


def _alike(run: Run, clients: Sequence[int]) -> list[int]:
    """Clients in an order that puts those of alike classes and shifts side by side: each next the nearest one left."""
    from scipy.spatial.distance import cdist  # slow to import

    about = {c["id"]: c for c in run.manifest["clients"]}
    rows_KC = np.array([about[i]["train"] for i in clients], float)
    share_KC = rows_KC / rows_KC.sum(1, keepdims=True).clip(min=1)
    shifted_KS = pd.get_dummies(pd.Series([about[i]["shift"] for i in clients])).to_numpy(float)
    points = np.hstack([share_KC, shifted_KS])
    apart_KK = cdist(points, points)
    order, left = [0], list(range(1, len(clients)))
    while left:
        order.append(left.pop(int(apart_KK[order[-1], left].argmin())))
    return [clients[i] for i in order]


def combination(view: _View) -> Iterator[Figure | str]:
    """Whose heads each client combines (FedPAC), at a few rounds up to the last on record."""
    run = view.run
    records = run.records[(run.records["moment"] == "server") & run.records["metric"].str.match(r"combination\[\d+\]$")]
    records = records[records["value"].notna()]
    if records.empty and run.find("fedpac"):
        yield "No combination weights are on record for FedPAC, so their figure is left out."
    for label in run.titles:
        mine = records[records["method"] == label]
        if mine.empty:
            continue
        final = last(mine, "seed")["round"].min()
        chosen = _near(mine["round"], (*_EARLY, final))
        mine = mine[mine["round"].isin(chosen)].assign(
            giver=lambda f: f["metric"].str.extract(r"(\d+)", expand=False).astype("int64")
        )
        frame = mine.groupby(["round", "client", "giver"])["value"].mean().reset_index(name="weight")
        frame = frame[frame["giver"].isin(list(view.clients))]
        ends = frame[frame["round"] == chosen[-1]]
        own = ends.loc[ends["client"] == ends["giver"], "weight"].mean()
        shown, met = list(view.clients), len(view.clients)
        if met > PAIRS:  # of few participants, those of another round or seed would leave most pairs empty
            there = mine[mine["round"] == chosen[-1]]
            ids = set(there.loc[there["seed"] == there["seed"].min(), "client"])
            shown, met = view.sample(ids, PAIRS, PAIRS), len(ids)
            frame = frame[frame["client"].isin(shown) & frame["giver"].isin(shown)]
            seen = frame.groupby("round")["client"].nunique()
            chosen = [r for r in chosen if 2 * seen.get(r, 0) >= len(shown)]
            frame = frame[frame["round"].isin(chosen)]
        frame["weight"] = frame["weight"].round(4)
        frame["client"] = frame["client"].map(view.clients)
        alike = _alike(run, shown)
        order = [view.names[c] for c in alike]
        frame["giver"] = frame["giver"].map(view.names)
        frame["round"] = frame["round"].map("round {}".format)
        axis = {"orient": "bottom", "labelOverlap": True, "labelLimit": 90, "domain": False, "ticks": False}
        axis["labelAngle"] = 0 if all(name.isdecimal() for name in order) else -40
        x = {
            "field": "giver",
            "type": "nominal",
            "title": "gives its head",
            "scale": {"domain": order, "padding": 0.05},
            "axis": axis,
        }
        y = view.rows_of_clients(alike) | {"title": "receives a combined head"}
        y["scale"]["padding"] = 0.05
        y["axis"]["domain"] = False
        colour = {
            "field": "weight",
            "type": "quantitative",
            "scale": {"type": "sqrt", "domainMin": 0, "range": "ramp", "interpolate": "lab"},
            "legend": {"title": "weight", "orient": "bottom", "direction": "horizontal", "gradientLength": 180},
        }
        title = run.titles[label]
        yield Figure(
            f"combination-{list(run.titles).index(label)}",
            f"{title}: a client's own head carries {100 * own:.0f} % of its combined head on average"
            if own == own
            else f"{title}: whose heads each client combines",
            "Each row is a receiving client, its colours the weights of the heads given to it, on a square-root scale "
            "(mean over seeds; the last evaluation round and those on record nearest to rounds 1, 20 and 50). Clients "
            "with alike classes and shifts stand side by side." + _of(shown, met),
            _beside(
                "round",
                [f"round {r}" for r in chosen],
                _data(frame),
                {
                    "width": 200,
                    "height": 200,
                    "mark": {"type": "rect"},
                    "encoding": {
                        "x": x,
                        "y": y,
                        "color": colour,
                        "tooltip": _tip("round", "client=receives", "giver=gives", "weight"),
                    },
                },
            ),
            wide=len(chosen) > 2,
        )


def local_weight(view: _View) -> Iterator[Figure | str]:
    """pFedFDA's beta per client, beside its shift, at the client's last round."""
    run = view.run
    records = run.select("local", "beta")
    if records.empty and run.find("pfedfda"):
        yield "No local weights (beta) are on record for pFedFDA, so their figure is left out."
    for label in run.titles:
        mine = records[records["method"] == label]
        if mine.empty:
            continue
        frame = (
            last(mine, "seed", "client")
            .groupby("client")["value"]
            .agg(["mean", "min", "max", "count"])
            .round(3)
            .reset_index()
        )
        frame = frame.rename(columns={"mean": "beta", "min": "low", "max": "high", "count": "seeds"})
        shifted = frame["client"].map(lambda c: bool(run.shifts[c]))
        with_shift, without = frame.loc[shifted, "beta"].mean(), frame.loc[~shifted, "beta"].mean()
        frame["id"], frame["jitter"] = frame["client"], frame["client"].map(view.jitter)
        frame["kind"] = frame["client"].map(view.kind_of)
        frame["client"] = frame["client"].map(view.clients)
        unit = {
            "type": "quantitative",
            "title": "β, weight of the local estimate (0 to 1)",
            "scale": {"domain": [0, 1]},
            "axis": {"tickCount": _TICKS},
        }
        x = unit | {"field": "beta"}
        title = run.titles[label]
        known = bool(shifted.any()) and not bool(shifted.all())
        name = f"beta-{list(run.titles).index(label)}"
        heading = (
            f"{title}: β is {with_shift:.2f} on average for shifted clients, {without:.2f} for the others"
            if known
            else f"{title}: how far each client trusts its own statistics"
        )
        caption = "At 1 a client uses its own estimate alone, at 0 the global one (its last round"
        if len(view.clients) > DRAWN:
            kinds = [kind for kind in ("not shifted", "shifted") if kind in set(frame["kind"])]
            dots = {
                "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.75},
                "encoding": {
                    "x": x,
                    "y": {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": kinds}},
                    "yOffset": _JITTER,
                    "color": view.kind() | {"legend": None},
                    "tooltip": _tip("client", "beta=β"),
                },
            }
            spec, sampled = _boxed(view, frame, dots, 22, ["client", "kind", "jitter", "beta"])
            words = (
                f"{caption}, mean over seeds). The box holds the middle half of the clients, its line is the median."
            )
            yield Figure(name, heading, words + sampled, spec | {"height": 60 * len(kinds)})
            continue
        y = view.rows_of_clients(list(view.clients))
        y["axis"]["grid"] = True
        tip = _tip("client", "beta=β", "low=lowest seed", "high=highest seed", "seeds")
        dots = {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": view.kind(), "tooltip": tip},
        }
        layers = [dots]
        several = bool((frame["seeds"] > 1).any())
        if several:
            ends = {"x": unit | {"field": "low"}, "x2": {"field": "high"}, "y": y, "color": view.kind()}
            layers.insert(0, {"mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.45}, "encoding": ends})
        yield Figure(
            name,
            heading,
            caption + (", mean over seeds; the bar spans the seeds)." if several else ")."),
            {
                "data": _data(frame.drop(columns=["id", "jitter"])),
                "height": _height(len(view.clients)),
                "layer": layers,
            },
        )


_CLEAN = "clean"


def by_shift(view: _View) -> Iterator[Figure | str]:
    """The spread of pFedFDA's beta over the clients of each kind of shift, those without one first."""
    run = view.run
    called = {shift: _kind_of_shift(shift) for shift in set(run.shifts.values())}
    kinds = {c: called[run.shifts[c]] for c in view.clients}
    order = sorted(set(kinds.values()), key=lambda kind: (kind != _CLEAN, kind))
    if len(order) < 2 or len(order) == len(kinds):
        return
    for label in run.titles:
        mine = run.select("local", "beta")
        mine = mine[(mine["method"] == label) & mine["client"].isin(list(kinds))]
        if mine.empty:
            continue
        frame = last(mine, "seed", "client").groupby("client")["value"].mean().reset_index(name="beta")
        frame["id"], frame["kind"] = frame["client"], frame["client"].map(kinds)
        frame["client"] = frame["client"].map(view.clients)
        middle = frame.groupby("kind")["beta"].median()
        title, most = run.titles[label], str(middle.idxmax())
        y = {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": order}, "axis": {"labelLimit": 150}}
        x = {
            "field": "beta",
            "type": "quantitative",
            "title": "β, weight of the local estimate (0 to 1)",
            "scale": {"domain": [0, 1]},
            "axis": {"tickCount": _TICKS},
        }
        colour = {
            "condition": {"test": f"datum.kind === '{_CLEAN}'", "value": _PLAIN},
            "value": _SHIFTED,
        }
        dots = {
            "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.75},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": _tip("client", "kind", "beta=β")},
        }
        spec, sampled = _boxed(view, frame, dots, 16, ["client", "beta", "kind"])
        yield Figure(
            f"beta-shift-{list(run.titles).index(label)}",
            f"{title}: half of the clients with {most.replace('_', ' ')} have a β above {middle.max():.2f}"
            if most != _CLEAN
            else f"{title}: β is largest for clients without a shift, at a median of {middle.max():.2f}",
            "Each dot is one client in its last round (mean over seeds), under the kind of its shift; the box holds "
            f"the middle half of the clients, its line is the median.{sampled}",
            spec | {"height": 36 * len(order)},
        )


def _kind_of_shift(shift: str) -> str:
    """What was done to a client's rows, however strongly."""
    if not shift:
        return _CLEAN
    spec = _spec(shift)
    return str(spec.options.get("kind", spec.name))


def _spec(text: str) -> Spec:
    try:
        return Spec.parse(text)
    except InputError:  # what a folder says is shown, whatever it is
        return Spec(name=text)


def gaussianity(view: _View) -> Iterator[Figure | str]:
    """How unlikely representations are under Gaussian classes, over rounds; as they are and standardised."""
    forms = (
        ("gaussianity", "the representations", "nats per row", "which moves with their scale, too"),
        (
            "gaussianity_standardised",
            "standardised representations",
            "nats per row",
            "each dimension at standard deviation 1",
        ),
    )
    for metric, what, unit, words in forms:
        found = view.run.of_protocol(metric)
        if found.empty:
            continue
        frame = found.groupby(["method", "round"])["value"].mean().reset_index(name="nats")
        frame["method"] = frame["method"].map(view.run.titles)
        x = {"field": "round", "type": "quantitative", "title": "round", "axis": {"tickMinStep": 1, "format": "d"}}
        y = {"field": "nats", "type": "quantitative", "title": unit, "scale": {"zero": False}}
        column = 30 + 7 * min(22, max(map(len, view.run.titles.values())))
        legend = {"orient": "top", "columns": {"expr": f"max(1, floor(width / {column}))"}, "symbolType": "circle"}
        yield Figure(
            metric.replace("_", "-"),
            f"How well Gaussian classes describe {what}",
            "Negative log-likelihood of representations of training rows under Gaussians fitted to them (a mean for "
            f"each class, one covariance), {words}; mean over clients and seeds. Less is more Gaussian; methods can be "
            "compared where their representations have as many dimensions.",
            {
                "data": _data(frame),
                "height": 260,
                "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 28}},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": view.method | {"legend": legend},
                    "tooltip": _tip("method", "round", f"nats={unit}"),
                },
            },
        )


def representations(view: _View) -> Iterator[Figure | str]:
    """Test rows of a few clients in the plane of their representations, coloured by class."""
    run = view.run
    found = run.records[run.records["metric"].str.startswith("feature") & run.records["value"].notna()]
    if found.empty:
        return
    parts = found["metric"].str.extract(r"^(?P<what>feature|feature_class)\[(?P<row>\d+)(?P<axis>,\d)?\]$")
    found = found.assign(what=parts["what"] + parts["axis"].fillna(""), row=parts["row"])
    found = found[found["seed"] == found.groupby("method")["seed"].transform("min")]
    frame = found.pivot(index=["method", "client", "row"], columns="what", values="value").reset_index()
    frame = frame.rename(columns={"feature,0": "first", "feature,1": "second"})
    names, there = run.manifest["class_names"], set(frame["client"])
    called = view.clients | {c: f"new client {view.names.get(c, c)}" for c in run.joins}
    clients = [name for c, name in called.items() if c in there]
    methods = [title for label, title in run.titles.items() if label in set(frame["method"])]
    frame["class"] = frame["feature_class"].astype(int).map(dict(enumerate(names)))
    frame["client"], frame["method"] = frame["client"].map(called), frame["method"].map(run.titles)
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
            "tooltip": _tip("method", "client", "class"),
        },
    }
    data = _data(frame[["method", "client", "first", "second", "class"]])
    apart = {"resolve": {"scale": {"x": "independent", "y": "independent"}}}
    spec = _beside("client", clients, data, plot, **apart)
    if len(clients) == 1:
        spec |= {"facet": spec["facet"]["column"] | {"field": "method", "sort": methods}, "columns": 4}
    else:
        column = spec["facet"]["column"]
        header = column["header"] | {"labelAnchor": "middle"}
        spec["facet"]["row"] = column | {"field": "method", "sort": methods, "header": header}
    who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients"
    yield Figure(
        "representations",
        f"Where the test rows of {who} lie in each method's representation",
        "Each dot is a test row (200 of a client at most, of one seed, after the last round), coloured by its class. "
        "Of a representation of more than two dimensions these are the two directions of largest variance, found for "
        "each client and method.",
        spec,
        wide=True,
    )


@dataclass(frozen=True)
class _Measured:
    """A use of a method with its accuracy, and what may tell it from the method's other uses."""

    values: Mapping[str, Any]
    row: Row

    def key(self, names: Sequence[str]) -> str:
        return repr([self.values.get(name) for name in names])


def sensitivity(runs: Sequence[Run], colours: Mapping[str, str]) -> list[Figure]:
    """Accuracy against what alone differs between uses of a method: a number, in a setting or an option.

    A use of a table's cell differs from others by the cell's conditions (``where``), and there are three numbers or
    more: two are seen in the table. What else differs, as the data set, makes another figure.
    """
    uses: dict[str, list[_Measured]] = {}
    in_cells = False
    for run in runs:
        settings = _flat({k: v for k, v in run.study.items() if k not in _NOT_VARIED})
        rows = {row.label: row for row in summary(run)}
        for use in run.study.get("methods", []):
            mine = _spec(use).model_dump() if isinstance(use, str) else use
            row = rows.get(use if isinstance(use, str) else mine["label"])
            if row is not None and row.accuracy is not None:
                options = {f"{mine['name']}.{k}": v for k, v in mine["options"].items()}
                in_cells |= "where" in mine
                uses.setdefault(mine["name"], []).append(_Measured(mine.get("where", settings | options), row))
    lines: dict[tuple[str, str], list[Json]] = {}
    shades: dict[str, str] = {}
    for found in uses.values():
        all_ = [one for each in uses.values() for one in each] if in_cells else found
        names = dict.fromkeys(name for one in all_ for name in one.values)
        varied = [name for name in names if _varies(name, all_, in_cells)]
        along = {name: groups for name in varied if (groups := _along(name, varied, found, all_, in_cells))}
        if len(along) != 1:
            continue
        [(name, groups)] = along.items()
        title = found[0].row.title.partition(" (")[0]
        shades[title] = colours[found[0].row.label]
        for group, ones in groups.items():
            lines.setdefault((name, group), []).extend(
                {"method": title, "x": one.values[name], "accuracy": round(100 * (one.row.accuracy or 0), 2)}
                for one in ones
            )
    return [_curve(*of, values, shades, i) for i, (of, values) in enumerate(lines.items())]


def _varies(name: str, all_: Sequence[_Measured], in_cells: bool) -> bool:
    """Whether it has several values; a cell without a condition has no other value of it."""
    return len({one.key([name]) for one in all_ if name in one.values or not in_cells}) > 1


def _along(
    name: str, varied: Sequence[str], found: Sequence[_Measured], all_: Sequence[_Measured], in_cells: bool
) -> dict[str, list[_Measured]]:
    """Uses that differ in one number alone, by what tells them from other such uses; none where there are too few."""
    here = [one for one in found if _is_number(one.values.get(name))]
    if len(here) < len(found) and not in_cells:
        return {}
    apart: list[str] = []
    for other in varied:
        if other != name and len({one.key([*apart, other]) for one in all_}) > len({one.key(apart) for one in all_}):
            apart.append(other)
    groups: dict[str, list[_Measured]] = {}
    for one in here:
        told = {other: one.values[other] for other in apart if one.values.get(other) is not None}
        text = ", ".join(str(v) if k in _SPEAKING else f"{_words(k)} {v}" for k, v in told.items())
        groups.setdefault(text, []).append(one)
    least = 3 if in_cells else 2
    return {text: ones for text, ones in groups.items() if len({one.values[name] for one in ones}) >= least}


_SPEAKING = ("dataset", "model", "partition")  # settings whose values say what they are of
_NOT_VARIED = ("name", "data_dir", "checkpoint_every", "evaluate_every", "methods")


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Settings within settings by their path, those of a spec under where it stands; seeds are no numbers here."""
    if key == "partition" and isinstance(value, str):
        value = _spec(value).model_dump()
    if key in ("seeds", "data_seed"):
        return {key: repr(value)}
    if isinstance(value, Mapping):
        inside = {k: v for k, v in value.items() if k != "options"} | dict(value.get("options") or {})
        return {path: v for k, part in inside.items() for path, v in _flat(part, f"{key}.{k}".strip(".")).items()}
    if isinstance(value, list):
        parts = enumerate(value) if len(value) > 1 else [("", part) for part in value]
        return {path: v for k, part in parts for path, v in _flat(part, f"{key}.{k}".strip(".")).items()}
    return {key: value}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(name: str) -> str:
    """A setting's path in words."""
    return name.replace("_", " ").replace(".", ": ", 1)


def _curve(key: str, group: str, values: list[Json], shades: Mapping[str, str], number: int) -> Figure:
    at, named = sorted({v["x"] for v in values}), _words(key)
    above = [x for x in at if x > 0]
    wide = at[0] >= 0 and above[-1] / above[0] >= 50
    titles = list(dict.fromkeys(v["method"] for v in values))
    best = max(values, key=lambda v: v["accuracy"])
    scale: Json = {"zero": False, "padding": 10}
    if wide:
        scale = {"type": "log"} if at[0] else {"type": "symlog", "constant": above[0]}
    of = f" ({group})" if group else ""
    x = {"field": "x", "type": "quantitative", "title": named, "scale": scale, "axis": {"values": at}}
    colour = {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": titles, "range": [shades[t] for t in titles]},
        "legend": {"title": None, "orient": "top"} if len(titles) > 1 else None,
    }
    return Figure(
        f"curve-{number}",
        f"{best['method']} reaches {best['accuracy']:.1f} % at {named} {best['x']:g}{of}",
        f"Test accuracy against {named}{of}; in nothing else do a method's results differ"
        + (" (logarithmic scale)." if wide else "."),
        {
            "data": {"values": values},
            "height": 260,
            "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 50, "filled": True}},
            "encoding": {
                "x": x,
                "y": _per_cent("accuracy", "accuracy (%)"),
                "color": colour,
                "tooltip": _tip("method", f"x={named}", "accuracy=accuracy (%)"),
            },
        },
    )


def _front(rows: Sequence[Row]) -> list[Row]:
    """The methods that no other beats with as few bytes."""

    def beaten(r: Row) -> bool:
        return any(
            (q.bytes_per_round or 0) <= (r.bytes_per_round or 0) and (q.accuracy or 0) > (r.accuracy or 0) for q in rows
        )

    return [r for r in rows if not beaten(r)]


def cost(view: _View) -> Iterator[Figure | str]:
    """Bytes per round against accuracy."""
    rows = [r for r in view.rows if r.accuracy is not None and r.bytes_per_round is not None]
    if not rows:
        if any(r.accuracy is not None for r in view.rows):
            yield "No traffic is on record, so accuracy cannot be set against its cost."
        return
    largest = max(r.bytes_per_round or 0 for r in rows)
    scale, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= s), (1.0, "B"))
    percent = [100 * (r.accuracy or 0) for r in rows]
    low, high = min(percent), max(percent)
    apart = max(high - low, 1.0) / 14
    named = rows if len(rows) <= _NAMED else _front(rows)
    place: dict[str, float] = {}
    for r in sorted(named, key=lambda r: r.accuracy or 0):
        place[r.label] = max([100 * (r.accuracy or 0), *(y + apart for y in place.values())])
    values = [
        {
            "method": r.title,
            "amount": round((r.bytes_per_round or 0) / scale, 4),
            "bytes": size(r.bytes_per_round or 0),
            "accuracy": round(100 * (r.accuracy or 0), 2),
        }
        | ({"label": place[r.label]} if r.label in place else {})
        for r in rows
    ]
    end = largest / scale * 1.45 or 1.0
    x = {
        "field": "amount",
        "type": "quantitative",
        "title": f"sent and received per client and round ({unit})",
        "scale": {"domain": [0, end], "nice": False},
    }
    y = _per_cent("accuracy", "accuracy (%)", scale={"zero": False, "padding": 12})
    colour = view.method | {"legend": None}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "tooltip": _tip("method", "bytes=bytes per client and round", "accuracy=accuracy (%)"),
        },
    }
    names = {
        "transform": [{"filter": "isValid(datum.label)"}],
        "mark": {"type": "text", "align": "left", "dx": 9, "color": "currentColor", "limit": 130},
        "encoding": {"x": x, "y": {"field": "label", "type": "quantitative"}, "text": {"field": "method"}},
    }
    least, most = (size(f(r.bytes_per_round or 0 for r in rows)) for f in (min, max))
    amount = least if least == most else f"{least} to {most}"
    yield Figure(
        "cost",
        f"What accuracy costs: {amount} per client and round",
        "Bytes down and up, mean per participating client and round, against final accuracy: the upper left is cheap "
        "and good."
        + (
            ""
            if len(named) == len(rows)
            else " Named are those that none as cheap beats; point at a dot for the others."
        ),
        {"data": {"values": values}, "height": 300, "layer": [dots, names]},
    )


FIGURES = (
    over_rounds, spread, cost, versus, label_map, combination, local_weight, by_shift, gaussianity, representations,
)  # fmt: skip


def partition_figures(run: Run, about: Description) -> list[Figure]:
    """Who holds what, how much, and how unlike each other clients are, before anything is trained."""
    view = _View(run, [], {})
    found = [f for f in label_map(view) if isinstance(f, Figure)]
    return [*found, _sizes(about), *_divergence(view, about)]


def _sizes(about: Description) -> Figure:
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
    even = "All clients have as many training rows"
    x = {"field": "place", "type": "ordinal", "title": "client, by size", "axis": {"labels": False, "ticks": False}}
    kinds = {"domain": ["training", "test"], "range": [_PLAIN, _SHIFTED]}
    return Figure(
        "sizes",
        even if ratio == 1 else f"The largest client has {ratio:.1f} times the training rows of the smallest",
        "Rows per client, the largest client first."
        + (f" At equal distances {len(order)} of {len(train_K):,} clients." if len(order) < len(train_K) else ""),
        {
            "data": {"values": values},
            "height": 200,
            "mark": {"type": "bar", "binSpacing": 0},
            "encoding": {
                "x": x,
                "y": {"field": "rows", "type": "quantitative", "title": "rows"},
                "color": {"field": "of", "type": "nominal", "scale": kinds, "legend": {"title": None, "orient": "top"}},
                "tooltip": _tip("rows", "of"),
            },
        },
    )


def _divergence(view: _View, about: Description) -> Iterator[Figure]:
    """Clients x clients: the divergence of labels, where there is room to read it."""
    names = list(view.clients.values())
    if about.label_KK is None or not 1 < len(names) == len(about.label_KK):
        return
    values = [
        {"client": view.clients[i], "other": view.clients[j], "bits": round(float(about.label_KK[i, j]), 3)}
        for i in view.clients
        for j in view.clients
    ]
    channel = {"type": "nominal", "scale": {"domain": names}}
    axis = {"labelOverlap": True, "labelLimit": 80}
    yield Figure(
        "divergence",
        f"Two clients' labels differ by {about.label_mean:.2f} bits, {about.label_chance:.2f} if dealt at random",
        "Jensen-Shannon divergence of the training labels of each pair of clients: 0 for the same mixture of classes, "
        "1 for no class in common; the title has the mean.",
        {
            "data": {"values": values},
            "height": _height(len(names)),
            "mark": "rect",
            "encoding": {
                "x": channel | {"field": "other", "title": "client", "axis": axis | {"labelAngle": -40}},
                "y": channel | {"field": "client", "title": None, "axis": axis | {"labelLimit": 130}},
                "color": {
                    "field": "bits",
                    "type": "quantitative",
                    "scale": {"domain": [0, 1], "range": "ramp"},
                    "legend": {"title": "bits", "orient": "bottom"},
                },
                "tooltip": _tip("client", "other", "bits"),
            },
        },
    )
