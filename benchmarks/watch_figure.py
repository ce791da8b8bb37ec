"""Draws what ``watch.py`` printed: the share of alarms over the strength of a change, a line for each data set.

python benchmarks/watch_figure.py digits.txt fashion_mnist.txt docs/assets/watch.svg
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import vl_convert

TITLES = {
    "rotate:degrees": "rotated, degrees",
    "noise:std": "noise, standard deviation",
    "invert": "inverted, share of samples",
    "classes": "classes moved towards another site's",
}
ROW = re.compile(r"\| (\S+) \| ([\d.]+) \| (\w+) \| (\d+) \| ([\d.]+)% \|")


def points(path: Path) -> list[dict[str, Any]]:
    """One for each change and strength; where nothing moved, the first of every change."""
    rows = [m.groups() for m in map(ROW.match, path.read_text().splitlines()) if m and m[3] == "all"]
    still = next(float(alarm) for change, _, _, _, alarm in rows if change == "nothing")
    found = [
        {"change": TITLES[change], "strength": float(s), "alarm": float(alarm), "data": path.stem}
        for change, s, _, _, alarm in rows if change in TITLES
    ]  # fmt: skip
    return found + [{"change": t, "strength": 0.0, "alarm": still, "data": path.stem} for t in TITLES.values()]


def main() -> None:
    *tables, out = map(Path, sys.argv[1:])
    line = {
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "strength", "type": "quantitative", "title": None},
            "y": {"field": "alarm", "type": "quantitative", "title": "alarms, %", "scale": {"domain": [0, 100]}},
            "color": {"field": "data", "type": "nominal", "title": None},
        },
    }
    level = {"mark": {"type": "rule", "strokeDash": [4, 4], "color": "grey"}, "encoding": {"y": {"datum": 5}}}
    spec = {
        "data": {"values": [point for path in tables for point in points(path)]},
        "facet": {"field": "change", "type": "nominal", "title": None, "sort": list(TITLES.values())},
        "columns": 2,
        "spec": {"width": 300, "height": 160, "layer": [line, level]},
        "resolve": {"scale": {"x": "independent"}},
        "background": "white",
    }
    out.write_text(vl_convert.vegalite_to_svg(json.dumps(spec)))


if __name__ == "__main__":
    main()
