"""A figure with its title, its caption and its Vega-Lite specification."""

from __future__ import annotations

from dataclasses import dataclass, field

from idiolect.report.figures.vega_lite import Json


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        name: unique within a run; the page links to it.
        title: what the figure shows, in one line.
        caption: how to read it.
        spec: the Vega-Lite specification, a plain dict with aggregated values inside.
        facts: short sentences shown beside it.
        min_width: the smallest width at which it is drawn, in px; on a narrower screen its box scrolls.
        wide: whether it takes the whole width of the page.
    """

    name: str
    title: str
    caption: str
    spec: Json
    facts: list[str] = field(default_factory=list)
    min_width: int = 300
    wide: bool = False
