"""The score against the bytes that a method sends and receives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import amounts, tooltip
from idiolect.report.figures.view import NAMED, View
from idiolect.report.rows import Row
from idiolect.report.tables import size


def cost(view: View) -> Iterator[Figure | str]:
    """Bytes per client and round against the final score."""
    by = view.run.score
    rows = [r for r in view.rows if r.score is not None and r.bytes_per_round is not None]
    if not rows:
        if any(r.score is not None for r in view.rows):
            yield f"No bytes are recorded, so {by.name} and cost cannot be shown together."
        return
    largest = max(r.bytes_per_round or 0 for r in rows)
    scale, unit = next(((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= s), (1.0, "B"))
    height = {r.label: by.shown(r.score or 0) for r in rows}
    low, high = min(height.values()), max(height.values())
    apart = max(high - low, 1.0 if by.unit else 0.01 * high) / 14
    rows_with_names = rows if len(rows) <= NAMED else _front(rows)
    place: dict[str, float] = {}
    for r in sorted(rows_with_names, key=lambda r: r.score or 0):
        place[r.label] = max([height[r.label], *(y + apart for y in place.values())])
    values = [
        {
            "method": r.title,
            "amount": round((r.bytes_per_round or 0) / scale, 4),
            "bytes": size(r.bytes_per_round or 0),
            by.metric: height[r.label],
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
    y = amounts(by.metric, by.axis, scale={"zero": False, "padding": 12})
    colour = view.method | {"legend": None}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "tooltip": tooltip("method", "bytes=bytes per client and round", f"{by.metric}={by.axis}"),
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
        f"What {by.name if by.is_share else 'a small error'} costs: {amount} per client and round",
        f"Bytes down and up, mean per participating client and round, against final {by.name}: cheap and good methods "
        f"are at the {'upper' if by.more_is_better else 'lower'} left."
        + (
            ""
            if len(rows_with_names) == len(rows)
            else " Names are shown where no method with as many bytes or fewer is better; point at a dot for others."
        ),
        {"data": {"values": values}, "height": 300, "layer": [dots, names]},
    )


def _front(rows: Sequence[Row]) -> list[Row]:
    """The methods for which no other reaches a better score with as many bytes or fewer."""

    def beaten(r: Row) -> bool:
        return any((q.bytes_per_round or 0) <= (r.bytes_per_round or 0) and q.rank > r.rank for q in rows)

    return [r for r in rows if not beaten(r)]
