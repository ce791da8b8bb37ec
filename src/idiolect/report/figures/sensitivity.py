"""Accuracy against a number that differs between runs: a setting, or an option of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from idiolect.core.objectives import ACCURACY, Score
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.specs import parsed
from idiolect.report.figures.vega_lite import Json, amounts, tooltip
from idiolect.report.rows import Row, summary
from idiolect.runs.reader import Run

_SPEAKING = ("dataset", "model", "partition")  # settings whose value is clear without the name
_NOT_VARIED = ("name", "data_dir", "checkpoint_every", "evaluate_every", "methods")


@dataclass(frozen=True)
class _Point:
    """A use of a method with its accuracy, and the settings in which it may differ from the method's other uses."""

    values: Mapping[str, Any]
    row: Row

    def key(self, names: Sequence[str]) -> str:
        """Equal for uses with the same values of these settings."""
        return repr([self.values.get(name) for name in names])


def sensitivity(runs: Sequence[Run], colours: Mapping[str, str]) -> list[Figure]:
    """Accuracy against a number, if nothing else differs between the uses of a method.

    The number is a setting or an option. Uses that belong to cells of a published table differ in the conditions of
    their cells (``where``). They need at least three numbers, because two can be read from the table. For another
    value of another condition, such as the data set, there is another figure.
    """
    uses: dict[str, list[_Point]] = {}
    in_cells = False
    for run in runs:
        settings = _flat({k: v for k, v in run.study.items() if k not in _NOT_VARIED})
        rows = {row.label: row for row in summary(run)}
        for use in run.study.get("methods", []):
            mine = parsed(use).model_dump() if isinstance(use, str) else use
            row = rows.get(use if isinstance(use, str) else mine["label"])
            if row is not None and row.score is not None:
                options = {f"{mine['name']}.{k}": v for k, v in mine["options"].items()}
                in_cells |= "where" in mine
                uses.setdefault(mine["name"], []).append(_Point(mine.get("where", settings | options), row))
    lines: dict[tuple[str, str], list[Json]] = {}
    parts: dict[tuple[str, str], dict[str, None]] = {}  # test or validation samples, each once
    shades: dict[str, str] = {}
    for points in uses.values():
        all_ = [one for each in uses.values() for one in each] if in_cells else points
        names = dict.fromkeys(name for one in all_ for name in one.values)
        variables = [name for name in names if _varies(name, all_, in_cells)]
        along = {name: groups for name in variables if (groups := _along(name, variables, points, all_, in_cells))}
        if len(along) != 1:
            continue
        [(name, groups)] = along.items()
        title = points[0].row.title.partition(" (")[0]
        shades[title] = colours[points[0].row.label]
        for group, ones in groups.items():
            parts.setdefault((name, group), {}).update(dict.fromkeys(one.row.measured for one in ones))
            lines.setdefault((name, group), []).extend(
                {"method": title, "x": one.values[name], "score": one.row.by.shown(one.row.score or 0)} for one in ones
            )
    by = runs[0].score if runs else ACCURACY
    return [_curve(*of, values, shades, i, by, " and ".join(parts[of])) for i, (of, values) in enumerate(lines.items())]


def _varies(name: str, all_: Sequence[_Point], in_cells: bool) -> bool:
    """Whether a setting has several values; in cells of a table, among those that have it as a condition."""
    return len({one.key([name]) for one in all_ if name in one.values or not in_cells}) > 1


def _along(
    name: str, variables: Sequence[str], points: Sequence[_Point], all_: Sequence[_Point], in_cells: bool
) -> dict[str, list[_Point]]:
    """Groups of uses that differ in this number only, by the other settings that differ; none with too few numbers."""
    here = [one for one in points if _is_number(one.values.get(name))]
    if len(here) < len(points) and not in_cells:
        return {}
    apart: list[str] = []
    for other in variables:
        if other != name and len({one.key([*apart, other]) for one in all_}) > len({one.key(apart) for one in all_}):
            apart.append(other)
    groups: dict[str, list[_Point]] = {}
    for one in here:
        conditions = {other: one.values[other] for other in apart if one.values.get(other) is not None}
        text = ", ".join(str(v) if k in _SPEAKING else f"{_words(k)} {v}" for k, v in conditions.items())
        groups.setdefault(text, []).append(one)
    least = 3 if in_cells else 2
    return {text: ones for text, ones in groups.items() if len({one.values[name] for one in ones}) >= least}


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Nested settings by their path, options of a spec under the path of the spec; seeds become text, not numbers."""
    if key == "partition" and isinstance(value, str):
        value = parsed(value).model_dump()
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
    """The path of a setting in words."""
    return name.replace("_", " ").replace(".", ": ", 1)


def _curve(
    key: str, group: str, values: list[Json], shades: Mapping[str, str], number: int, by: Score, part: str
) -> Figure:
    """The figure of one number, with a line for each method; ``part`` names the samples that are measured."""
    at, words = sorted({v["x"] for v in values}), _words(key)
    above = [x for x in at if x > 0]
    wide = at[0] >= 0 and above[-1] / above[0] >= 50
    titles = list(dict.fromkeys(v["method"] for v in values))
    best = max(values, key=lambda v: by.sign * v["score"])
    scale: Json = {"zero": False, "padding": 10}
    if wide:
        scale = {"type": "log"} if at[0] else {"type": "symlog", "constant": above[0]}
    of = f" ({group})" if group else ""
    x = {"field": "x", "type": "quantitative", "title": words, "scale": scale, "axis": {"values": at}}
    colour = {
        "field": "method",
        "type": "nominal",
        "scale": {"domain": titles, "range": [shades[t] for t in titles]},
        "legend": {"title": None, "orient": "top"} if len(titles) > 1 else None,
    }
    return Figure(
        f"curve-{number}",
        f"{best['method']} reaches {by.text(best['score'] / by.factor, 1)}{by.unit} at {words} {best['x']:g}{of}",
        f"{part.capitalize()} {by.name} against {words}{of}; nothing else differs between a method's results"
        + (" (logarithmic scale)." if wide else "."),
        {
            "data": {"values": values},
            "height": 260,
            "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 50, "filled": True}},
            "encoding": {
                "x": x,
                "y": amounts("score", by.axis),
                "color": colour,
                "tooltip": tooltip("method", f"x={words}", f"score={by.axis}"),
            },
        },
    )
