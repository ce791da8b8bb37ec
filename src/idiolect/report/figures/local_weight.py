"""The weight β with which pFedFDA mixes a client's own estimate with the global one."""

from __future__ import annotations

from collections.abc import Iterator

from idiolect.report.figures.boxes import DOT, JITTER, boxed
from idiolect.report.figures.colours import PLAIN, SHIFTED
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.specs import parsed
from idiolect.report.figures.vega_lite import TICKS, Json, inline_data, tooltip
from idiolect.report.figures.view import DRAWN, View, height_for
from idiolect.runs.reader import last

_CLEAN = "clean"  # the kind of clients without a shift
_BETA: Json = {
    "type": "quantitative",
    "title": "β, weight of the local estimate (0 to 1)",
    "scale": {"domain": [0, 1]},
    "axis": {"tickCount": TICKS},
}


def local_weight(view: View) -> Iterator[Figure | str]:
    """β of each client at its last round, with the client's shift."""
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
        x = _BETA | {"field": "beta"}
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
                "mark": DOT,
                "encoding": {
                    "x": x,
                    "y": {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": kinds}},
                    "yOffset": JITTER,
                    "color": view.kind() | {"legend": None},
                    "tooltip": tooltip("client", "beta=β"),
                },
            }
            spec, sampled = boxed(view, frame, dots, 22, ["client", "kind", "jitter", "beta"])
            words = (
                f"{caption}, mean over seeds). The box holds the middle half of the clients, its line is the median."
            )
            yield Figure(name, heading, words + sampled, spec | {"height": 60 * len(kinds)})
            continue
        y = view.client_axis(list(view.clients))
        y["axis"]["grid"] = True
        tip = tooltip("client", "beta=β", "low=lowest seed", "high=highest seed", "seeds")
        dots = {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": view.kind(), "tooltip": tip},
        }
        layers = [dots]
        several = bool((frame["seeds"] > 1).any())
        if several:
            ends = {"x": _BETA | {"field": "low"}, "x2": {"field": "high"}, "y": y, "color": view.kind()}
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
    """The distribution of β over the clients of each kind of shift; clients without a shift come first."""
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
        x = {"field": "beta"} | _BETA
        colour = {
            "condition": {"test": f"datum.kind === '{_CLEAN}'", "value": PLAIN},
            "value": SHIFTED,
        }
        dots = {
            "mark": DOT,
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip("client", "kind", "beta=β")},
        }
        spec, sampled = boxed(view, frame, dots, 16, ["client", "beta", "kind"])
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
    """What was done to a client's samples, without how strongly."""
    if not shift:
        return _CLEAN
    spec = parsed(shift)
    return str(spec.options.get("kind", spec.name))
