"""The paper's numbers beside ours, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from idiolect.experiments.recipes import Recipe
from idiolect.experiments.reproduce import MARGIN, Outcome

_STYLES = {"matches": "green", "differs": "yellow", "diverged": "red", "measured": "", "under way": "dim"}


def number(value: float | str | None, decimals: int = 2, signed: bool = False) -> str:
    """A number as a table has it, ``-`` for none."""
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:+,.0f}" if signed else f"{value:,.0f}"
    return f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"


def ours(found: Outcome, decimals: int = 2) -> str:
    """Our number, with the 95 % interval of the mean over seeds where there are several."""
    text = number(found.value, decimals)
    return text if found.interval is None else f"{text} ± {found.interval:.{decimals}f}"


def status(found: Outcome) -> str:
    """How the cell stands, in a few words."""
    if found.status == "under way" and found.cell.study is not None:
        return f"round {found.rounds}"
    return found.status


def table(recipe: Recipe, outcomes: Sequence[Outcome]) -> Table:
    """A line for each cell: paper, ours, the difference and the status."""
    keys = [k for k in dict.fromkeys(k for o in outcomes for k in o.cell.where) if k != "method"]
    varying = [k for k in keys if len({str(o.cell.where.get(k)) for o in outcomes}) > 1]
    fixed = {k: outcomes[0].cell.where.get(k) for k in keys if k not in varying} if outcomes else {}
    protocols = dict.fromkeys(o.protocol for o in outcomes if o.protocol)
    said = dict.fromkeys(o.said for o in outcomes if o.said)
    caption = [
        f"{', '.join(f'{k} {v}' for k, v in fixed.items() if v is not None)}".strip(),
        *(f"Accuracy (%): {p}." for p in protocols),
        f"A number matches within {MARGIN} points or the 95 % interval over seeds, whichever is more.",
        *said,
    ]
    shown = Table(
        title=f"{recipe.name}: {recipe.title}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1),
        pad_edge=False, show_edge=False, caption="\n".join(filter(None, caption)), caption_justify="left",
    )  # fmt: skip
    for key in (*varying, "method"):
        shown.add_column(key, overflow="fold")
    for header in ("paper", "ours", "difference"):
        shown.add_column(header, justify="right", no_wrap=True)
    shown.add_column("status", no_wrap=True)
    for o in outcomes:
        where = [str(o.cell.where.get(k, "")) for k in (*varying, "method")]
        published, gap = number(o.cell.published, recipe.decimals), number(o.difference, recipe.decimals, signed=True)
        shown.add_row(
            *map(Text, [*where, published, ours(o, recipe.decimals), gap]),
            Text(status(o), _STYLES.get(o.status, "dim")),
        )
    return shown


def as_json(found: Outcome) -> dict[str, Any]:
    """An outcome, ready for JSON."""
    return {
        "where": dict(found.cell.where),
        "published": found.cell.published,
        "measured": found.value,
        "interval": found.interval,
        "difference": found.difference,
        "status": found.status,
        "seeds": {str(k): v for k, v in (found.seeds or {}).items()},
        "rounds": found.rounds,
        "facts": dict(found.facts or {}),
        "seconds": found.seconds,
        "protocol": found.protocol,
        "said": found.said,
    }
