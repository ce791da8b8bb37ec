"""A run prepared for figures: names of methods and clients, their channels, and which clients are drawn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from idiolect.report.figures.colours import DASHES, PALETTE, PLAIN, SHIFTED
from idiolect.report.figures.vega_lite import GREY_SYMBOL, Json
from idiolect.report.formatting import file_name, short
from idiolect.report.rows import Row
from idiolect.runs.reader import Run

DRAWN = 200
"""Up to so many clients have a line or a dot each; for more, figures show the distribution and a sample."""
SAMPLE = 100
"""The number of clients in a sample."""
PAIRS = 60
"""Up to so many clients, all pairs are shown."""
NAMED = 10
"""Up to so many methods, all have a name or a band in the plot."""


@dataclass(frozen=True)
class View:
    """A run with what several figures need from it."""

    run: Run
    rows: list[Row]
    colours: Mapping[str, str]

    @property
    def method(self) -> Json:
        """The colour channel of methods: the fixed colour of each, in the order of the study."""
        titles = self.run.titles
        scale = {"domain": list(titles.values()), "range": [self.colours[label] for label in titles]}
        return {"field": "method", "type": "nominal", "scale": scale, "title": None}

    @property
    def dash(self) -> Json:
        """The dash channel of methods: dashed if a colour is used a second time."""
        titles = list(self.run.titles.values())
        dashes = [DASHES[i // len(PALETTE) % len(DASHES)] for i in range(len(titles))]
        return {"field": "method", "type": "nominal", "scale": {"domain": titles, "range": dashes}, "title": None}

    @property
    def legend(self) -> Json:
        """The legend of methods above a plot, in as many columns as fit."""
        column = 30 + 7 * min(22, max(map(len, self.run.titles.values())))
        return {"orient": "top", "columns": {"expr": f"max(1, floor(width / {column}))"}, "symbolType": "circle"}

    @cached_property
    def names(self) -> dict[int, str]:
        """The name of each client, or its number if it has no name."""
        return {c["id"]: c.get("name") or str(c["id"]) for c in self.run.manifest["clients"]}

    @cached_property
    def clients(self) -> dict[int, str]:
        """The label of each client: its name or number and its shift; clients without a shift come first."""
        order = sorted(self.names, key=lambda c: (self.run.shifts[c], c))
        return {c: " · ".join(filter(None, [self.names[c], short(self.run.shifts[c])])) for c in order}

    def name_of(self, figure: str, label: str) -> str:
        """The name of a figure for one method, different from those for other methods."""
        return f"{file_name(figure)}-{list(self.run.titles).index(label)}"

    @property
    def shifted(self) -> bool:
        """Whether any client has a shift."""
        return any(self.run.shifts.values())

    @cached_property
    def _turn(self) -> dict[int, int]:
        """The order in which clients are taken into a sample, the same in every figure."""
        order = np.random.default_rng(0).permutation(sorted(self.clients))
        return {int(c): turn for turn, c in enumerate(order)}

    def sample(self, clients: Collection[int], most: int = DRAWN, count: int = SAMPLE) -> list[int]:
        """The clients of these that are drawn one by one: all, or ``count`` if there are more than ``most``."""
        sample = set(clients)
        if len(sample) > most:
            sample = set(sorted(sample, key=self._turn.__getitem__)[:count])
        return [c for c in self.clients if c in sample]

    def client_axis(self, clients: Sequence[int]) -> Json:
        """The y channel of clients, one line each."""
        return {
            "field": "client",
            "type": "nominal",
            "title": "client · shift" if self.shifted else "client",
            "scale": {"domain": [self.clients[c] for c in clients]},
            "axis": {"labelOverlap": True, "labelLimit": 130},
        }

    def kind(self) -> Json:
        """The colour channel of clients: shifted or not."""
        return {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": ["not shifted", "shifted"], "range": [PLAIN, SHIFTED]},
            "legend": {"title": None, "orient": "top", "symbolOpacity": 1} if self.shifted else None,
        }

    def kind_of(self, client: int) -> str:
        """The value of a client in the channels ``kind`` and ``shape``."""
        return "shifted" if self.run.shifts[client] else "not shifted"

    def shape(self) -> Json:
        """The shape channel of clients: shifted or not."""
        return {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": ["not shifted", "shifted"], "range": ["circle", "triangle-up"]},
            "legend": {"title": None, "orient": "top", **GREY_SYMBOL} if self.shifted else None,
        }

    @cached_property
    def jitter(self) -> dict[int, float]:
        """The vertical offset of each client's dot, so that dots do not hide each other."""
        return {c: place * 0.618034 % 1 - 0.5 for place, c in enumerate(self.clients)}


def height_for(count: int) -> int:
    """The height of a plot with a line for each of ``count`` clients, in px."""
    return count * (20 if count <= 40 else max(3, 800 // count))


def sample_note(sample: Collection[int], clients: int) -> str:
    """A sentence for the caption if not all clients are drawn."""
    return f" A sample of {len(sample):,} of {clients:,} clients." if len(sample) < clients else ""
