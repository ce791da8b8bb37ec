"""A value of each client that a method reports and wants drawn, such as the weight of its own estimate."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from idiolect.core.reports import ClientValue
from idiolect.report.figures.boxes import DOT, JITTER, boxed
from idiolect.report.figures.colours import PLAIN, SHIFTED
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.specs import parsed
from idiolect.report.figures.vega_lite import TICKS, Json, inline_data, tooltip
from idiolect.report.figures.view import DRAWN, View, height_for
from idiolect.report.formatting import capital
from idiolect.runs.reader import last

_CLEAN = "clean"  # the kind of clients without a shift


def _told(view: View) -> Iterator[tuple[str, str, ClientValue, pd.DataFrame]]:
    """The values that methods want drawn for each client: label, metric, description, records."""
    run = view.run
    records = run.records[run.records["stage"].isin(["local", "server"]) & run.records["other"].isna()]
    records = records[records["value"].notna()]
    for label, reports in run.reports.items():
        for metric, report in reports.items():
            if isinstance(report, ClientValue):
                yield label, metric, report, records[(records["method"] == label) & (records["metric"] == metric)]


def _axis(report: ClientValue, lowest: float, highest: float) -> Json:
    """The x channel of a value: over the report's limits, or over the data where these have none or go beyond."""
    title, scale = f"{report.symbol}, {report.meaning}", Json({"zero": False, "nice": True})
    if report.limits is not None:
        low, high = report.limits
        title += f" ({low:g} to {high:g})"
        if low <= lowest and highest <= high:
            scale = {"domain": [low, high]}
    return {"field": "value", "type": "quantitative", "title": title, "scale": scale, "axis": {"tickCount": TICKS}}


def client_value(view: View) -> Iterator[Figure | str]:
    """The value of each client in its last round, with the client's shift."""
    run = view.run
    for label, metric, report, mine in _told(view):
        title, symbol = run.titles[label], report.symbol
        if mine.empty:
            yield f"No {report.name} are recorded for {title}, so their figure is left out."
            continue
        frame = (
            last(mine, "seed", "client").groupby("client")["value"].agg(["mean", "min", "max", "count"]).reset_index()
        )
        frame = frame.rename(columns={"mean": "value", "min": "low", "max": "high", "count": "seeds"})
        has_shift = frame["client"].map(lambda c: bool(run.shifts[c]))
        with_shift, without = frame.loc[has_shift, "value"].mean(), frame.loc[~has_shift, "value"].mean()
        frame["id"], frame["jitter"] = frame["client"], frame["client"].map(view.jitter)
        frame["kind"] = frame["client"].map(view.kind_of)
        frame["client"] = frame["client"].map(view.clients)
        x = _axis(report, frame["low"].min(), frame["high"].max())
        by_kind = bool(has_shift.any()) and not bool(has_shift.all())
        name = view.name_of(metric, label)
        heading = (
            f"{title}: {symbol} is {with_shift:.2f} on average for shifted clients, {without:.2f} for the others"
            if by_kind
            else f"{title}: {report.shows}"
        )
        caption = f"{capital(report.name)}. {report.ends} (its last round"
        if len(view.clients) > DRAWN:
            kinds = [kind for kind in ("not shifted", "shifted") if kind in set(frame["kind"])]
            dots = {
                "mark": DOT,
                "encoding": {
                    "x": x,
                    "y": {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": kinds}},
                    "yOffset": JITTER,
                    "color": view.kind() | {"legend": None},
                    "tooltip": tooltip("client", f"value={symbol}"),
                },
            }
            spec, note = boxed(view, frame, dots, 22, ["client", "kind", "jitter", "value"])
            words = f"{caption}, mean over seeds). The box has the middle half of the clients, its line is the median."
            yield Figure(name, heading, words + note, spec | {"height": 60 * len(kinds)})
            continue
        y = view.client_axis(list(view.clients))
        y["axis"]["grid"] = True
        tip = tooltip("client", f"value={symbol}", "low=lowest seed", "high=highest seed", "seeds")
        dots = {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": view.kind(), "tooltip": tip},
        }
        layers = [dots]
        several = bool((frame["seeds"] > 1).any())
        if several:
            ends = {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "color": view.kind()}
            layers.insert(0, {"mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.45}, "encoding": ends})
        yield Figure(
            name,
            heading,
            caption + (", mean over seeds; the bar spans the seeds)." if several else ")."),
            {
                "data": inline_data(frame.drop(columns=["id", "jitter"])),
                "height": height_for(len(view.clients)),
                "layer": layers,
            },
        )


def by_shift(view: View) -> Iterator[Figure | str]:
    """The distribution of the value over the clients of each kind of shift; clients without a shift come first."""
    run = view.run
    kind_of = {shift: _kind_of_shift(shift) for shift in set(run.shifts.values())}
    kinds = {c: kind_of[run.shifts[c]] for c in view.clients}
    order = sorted(set(kinds.values()), key=lambda kind: (kind != _CLEAN, kind))
    if len(order) < 2 or len(order) == len(kinds):
        return
    for label, metric, report, records in _told(view):
        mine = records[records["client"].isin(list(kinds))]
        if mine.empty:
            continue
        frame = last(mine, "seed", "client").groupby("client")["value"].mean().reset_index()
        frame["id"], frame["kind"] = frame["client"], frame["client"].map(kinds)
        frame["client"] = frame["client"].map(view.clients)
        middle = frame.groupby("kind")["value"].median()
        title, symbol, most = run.titles[label], report.symbol, str(middle.idxmax())
        y = {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": order}, "axis": {"labelLimit": 150}}
        colour = {
            "condition": {"test": f"datum.kind === '{_CLEAN}'", "value": PLAIN},
            "value": SHIFTED,
        }
        tip = tooltip("client", "kind", f"value={symbol}")
        x = _axis(report, frame["value"].min(), frame["value"].max())
        dots = {"mark": DOT, "encoding": {"x": x, "y": y, "color": colour, "tooltip": tip}}
        spec, note = boxed(view, frame, dots, 16, ["client", "value", "kind"])
        yield Figure(
            view.name_of(f"{metric}-shift", label),
            f"{title}: half of the clients with {most.replace('_', ' ')} have {symbol} above {middle.max():.2f}"
            if most != _CLEAN
            else f"{title}: {symbol} is largest for clients without a shift, at a median of {middle.max():.2f}",
            f"{capital(report.name)}. Each dot is one client in its last round (mean over seeds), by the kind of its "
            f"shift; the box has the middle half of the clients, its line is the median.{note}",
            spec | {"height": 36 * len(order)},
        )


def _kind_of_shift(shift: str) -> str:
    """What was done to a client's samples, without the strength."""
    if not shift:
        return _CLEAN
    spec = parsed(shift)
    return str(spec.options.get("kind", spec.name))
