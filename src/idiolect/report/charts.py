"""A run's figures as Altair charts, which a notebook shows, and which one can change and save."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect.core.errors import InputError
from idiolect.report.export import INK, on_white
from idiolect.report.figures import Figure, figures, palette, sensitivity
from idiolect.report.notebook import facts, html
from idiolect.runs.reader import read

if TYPE_CHECKING:
    import altair

_LETTERS = 8  # px of a letter of a title


class Charts(dict[str, "altair.TopLevelMixin"]):
    """Altair charts by name.

    ``charts["rounds"]`` shows one, ``charts["rounds"].save("rounds.pdf")`` writes it (or .svg, .png, .html, .json), and
    ``charts["rounds"].properties(width=400, title="")`` changes it.
    """

    def __init__(self, charts: Mapping[str, Any], titles: Mapping[str, str], notes: Sequence[str] = ()) -> None:
        super().__init__(charts)
        self.titles, self.notes = dict(titles), list(notes)

    def __repr__(self) -> str:
        return f"Charts({', '.join(self)})"

    def _repr_html_(self) -> str:
        lines = [(name, self.titles[name]) for name in self]
        return html(facts("Charts by name", lines), notes=self.notes)


def charts_of_run(folder: Path) -> Charts:
    """The figures of the page of a run.

    Raises:
        InputError: Altair is not installed, or the run cannot be read.
    """
    run = read(folder)
    colours = palette([run])
    every, missing = figures(run, colours)
    return charts([*every, *sensitivity([run], colours)], missing)


def charts(every: Sequence[Figure], notes: Sequence[str] = ()) -> Charts:
    """Figures as charts on white, as the PNG export draws them.

    Raises:
        InputError: Altair is not installed.
    """
    try:
        import altair
    except ImportError:
        raise InputError("charts need Altair: pip install 'idiolect[notebook]'") from None
    made = {f.name: altair.Chart.from_dict(_with_title(f)) for f in every}
    return Charts(made, {f.name: f.title for f in every}, notes)


def _with_title(figure: Figure) -> dict[str, Any]:
    width = 640 if figure.wide else max(440, figure.min_width)
    lines = textwrap.wrap(figure.title, width // _LETTERS)
    title = {"text": lines, "anchor": "start", "color": INK, "fontSize": 13, "fontWeight": 600}
    whole: dict[str, Any] = json.loads(on_white(figure.spec, width))
    return whole | {"title": title} | _selections(whole.get("layer", []))


def _selections(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """The selections of layers, taken out of them, for the whole figure: Altair would lose where they belong."""
    selections = []
    for number, layer in enumerate(layers):
        for selection in layer.pop("params", []):
            layer["name"] = f"layer{number}"
            selections.append(selection | {"views": [layer["name"]]})
    return {"params": selections} if selections else {}
