"""The score of single clients: its distribution, and what each client gains or loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from idiolect.report.common_clients import counted
from idiolect.report.compare import p_value, smallest_p
from idiolect.report.figures.boxes import DOT, JITTER, RULE, boxed
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import TICKS, Json, amounts, inline_data, tooltip
from idiolect.report.figures.view import DRAWN, View, height_for
from idiolect.report.rows import finished
from idiolect.report.tables import worst
from idiolect.runs.reader import Run

_SIGNED = "(datum.value > 0 ? '+' : '') + datum.label"


def _by_client(run: Run) -> pd.DataFrame:
    """The final score, as it is shown, of the clients that count: columns method, client, value (over seeds)."""
    return (run.score.factor * counted(run).groupby(["method", "client"])["value"].mean()).reset_index()


def _titles(view: View, frame: pd.DataFrame) -> list[str]:
    """The titles of the methods in a table, in the order of the study."""
    return [t for t in view.run.titles.values() if t in set(frame["method"])]


def _dots(view: View, titles: list[str], x: Json, value: str) -> Json:
    """A dot for each client, a line for each method; a dot's tooltip shows method, client and ``value``."""
    return {
        "mark": DOT,
        "encoding": {
            "x": x,
            "y": _method_axis(titles),
            "yOffset": JITTER,
            "color": view.method | {"legend": None},
            "shape": view.shape(),
            "tooltip": tooltip("method", "client", value),
        },
    }


def _method_axis(titles: list[str]) -> Json:
    return {
        "field": "method",
        "type": "nominal",
        "title": None,
        "scale": {"domain": titles},
        "axis": {"labelLimit": 110},
    }


def spread(view: View) -> Iterator[Figure | str]:
    """The distribution of the score over clients, per method."""
    by = view.run.score
    frame = _by_client(view.run)
    if frame.empty:
        return
    frame["id"] = frame["client"]
    frame["kind"] = frame["client"].map(view.kind_of)
    frame["jitter"] = frame["client"].map(view.jitter)
    frame["client"] = frame["client"].map(view.clients)
    frame[by.metric] = (frame["value"] / by.factor).map(by.shown)
    frame["method"] = frame["method"].map(view.run.titles)
    titles = _titles(view, frame)
    x = amounts(by.metric, f"{by.name} of one client{by.in_brackets}")
    dots = _dots(view, titles, x, f"{by.metric}={by.axis}")
    spec, note = boxed(view, frame, dots, 22, ["method", "client", "kind", "jitter", by.metric])
    top = max(finished(view.rows), key=lambda r: by.sign * (r.worst_decile or 0))
    who = worst(frame["id"].nunique())
    who += " of clients" if who == "worst tenth" else ""
    fares = "fares best with" if len(titles) > 1 else "with"
    yield Figure(
        "spread",
        f"The {who} {fares} {top.title}, at {by.text(top.worst_decile, 1)}{by.unit}",
        f"Each dot is one client's final {by.name} (mean over seeds); the box has the middle half of the clients, "
        f"its line is the median.{note}",
        spec | {"height": 40 * len(titles)},
    )


def versus(view: View) -> Iterator[Figure | str]:
    """What each client gains or loses compared with FedAvg and with training alone."""
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
        gain = view.run.score.sign * (others["value"] - others["client"].map(base))
        others["points"] = gain.round(2) if view.run.score.points else gain.map(lambda v: float(f"{v:.6g}"))
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


def _gain(run: Run) -> str:
    """What a figure calls the difference, of which more is better."""
    return "points" if run.score.points else f"less {run.score.name}"


def _difference(run: Run, which: str, base: str) -> str:
    name = run.score.name
    if run.score.more_is_better:
        return f"Final {name} of {which} client minus its {name} with {base}, in points"
    return f"Final {name} of {which} client with {base} minus that with the method"


def _verdict(run: Run, method: str, base: str, words: str, better: int, clients: int) -> str:
    """A title that says "beats" only if a test over clients shows a difference."""
    title, p = run.titles[method], p_value(run, method, base)
    if p is not None and p < 0.05 and 2 * better > clients:
        return f"{title} beats {words} for {better} of {clients} clients"
    seeds = counted(run).loc[counted(run)["method"] == method, "seed"].nunique()
    why = "too few clients to show a difference" if smallest_p(clients, seeds) >= 0.05 else "no clear difference"
    return f"{title} is better than {words} for {better} of {clients} clients: {why}"


def _heat(view: View, others: pd.DataFrame, base: str) -> dict[str, Any]:
    """A heat map of clients x methods with the points that each client gains: caption, specification, width."""
    largest = float(others["points"].abs().max())
    largest = max(1.0, largest) if view.run.score.points else largest or 1.0
    titles = _titles(view, others)
    colour = {
        "field": "points",
        "type": "quantitative",
        "scale": {"domain": [-largest, largest], "range": "diverging", "interpolate": "lab"},
        "legend": {
            "title": _gain(view.run),
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
    y = view.client_axis(list(view.clients))
    y["scale"]["padding"] = 0.08
    y["axis"]["domain"] = False
    return {
        "caption": f"{_difference(view.run, 'each', base)} (mean over seeds): blue gains, orange loses.",
        "spec": {
            "padding": {"left": 5, "top": 5, "bottom": 5, "right": min(75, 6 * len(titles[-1]))},
            "data": inline_data(others[["method", "client", "points"]]),
            "height": height_for(len(view.clients)),
            "mark": {"type": "rect"},
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "tooltip": tooltip("client", "method", f"points={_gain(view.run)}"),
            },
        },
        "min_width": max(300, 140 + 24 * len(titles)),
    }


def _points(view: View, others: pd.DataFrame, base: str) -> dict[str, Any]:
    """The distribution of these points, if there are too many clients for a line each: caption, specification."""
    titles = _titles(view, others)
    others = others.assign(kind=others["id"].map(view.kind_of), jitter=others["id"].map(view.jitter))
    axis = {"labelExpr": _SIGNED, "tickCount": TICKS}
    x = {"field": "points", "type": "quantitative", "title": _gain(view.run), "axis": axis}
    dots = _dots(view, titles, x, f"points={_gain(view.run)}")
    spec, note = boxed(view, others, dots, 22, ["method", "client", "kind", "jitter", "points"])
    zero = {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeDash": [4, 3], **RULE}}
    spec["layer"].insert(0, zero | {"encoding": {"x": {"datum": 0, "type": "quantitative"}}})
    return {
        "caption": f"{_difference(view.run, 'a', base)} (mean over seeds): right of "
        f"0 it gains, left of 0 it loses. The box has the middle half of the clients, its line is the median.{note}",
        "spec": spec | {"height": 40 * len(titles)},
    }
