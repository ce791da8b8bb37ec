"""The paper's numbers beside ours, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from idiolect.experiments.recipes import Recipe
from idiolect.experiments.reproduce import MARGIN, Outcome

_STYLES = {"matches": "green", "differs": "yellow", "diverged": "red", "measured": "", "under way": "dim"}


def number(value: float | str | None, decimals: int | None = 2, signed: bool = False) -> str:
    """A number as a table has it, ``-`` for none; without ``decimals`` as short as it can be written.

    >>> [number(v, d) for v, d in ((91.834, 2), (115776, 2), (5e-05, None), (200.0, None), (None, 2))]
    ['91.83', '115,776', '5e-05', '200', '-']
    """
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    sign = "+" if signed else ""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}g}" if decimals is None else f"{value:{sign}.{decimals}f}"


def ours(found: Outcome, decimals: int | None = 2) -> str:
    """Our number, with the 95 % interval of the mean over seeds where there are several."""
    text = number(found.value, decimals)
    return text if found.interval is None else f"{text} ± {number(found.interval, decimals)}"


def status(found: Outcome) -> str:
    """How the cell stands, in a few words."""
    if found.status == "under way" and found.cell.study is not None:
        return f"round {found.rounds}"
    return found.status


def table(recipe: Recipe, outcomes: Sequence[Outcome]) -> Group:
    """A line for each cell: paper, ours, the difference and the status."""
    if not outcomes:
        return Group(
            Text(f"{recipe.name}: {recipe.title}\n\nThere is nothing to run: the {recipe.kind} has no numbers.")
        )
    keys = [k for k in dict.fromkeys(k for o in outcomes for k in o.cell.where) if k != "method"]
    varying = [k for k in keys if len({str(o.cell.where.get(k)) for o in outcomes}) > 1]
    fixed = {k: outcomes[0].cell.where.get(k) for k in keys if k not in varying}
    protocols = dict.fromkeys(o.protocol for o in outcomes if o.protocol)
    said = dict.fromkeys(o.said for o in outcomes if o.said)
    caption = [
        f"{', '.join(f'{k} {v}' for k, v in fixed.items() if v is not None)}".strip(),
        *(f"Accuracy (%): {p}." for p in protocols),
        f"A number matches within {MARGIN} points or the 95 % interval over seeds, whichever is more."
        if protocols
        else "",
        *said,
    ]
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    named = [key for key in ("cell", "method") if varying or key == "method"]
    for key in named:
        shown.add_column(key, overflow="fold")
    for header in ("paper", "ours", "difference"):
        shown.add_column(header, justify="right", no_wrap=True)
    shown.add_column("status", no_wrap=True)
    decimals = None if recipe.kind == "settings" else recipe.decimals
    for o in outcomes:
        cell = ", ".join(str(o.cell.where[k]) for k in varying if o.cell.where.get(k) is not None)
        method = str(o.cell.where.get("method", ""))
        published, gap = number(o.cell.published, decimals), number(o.difference, decimals, signed=True)
        shown.add_row(
            *map(Text, [*([cell] if varying else []), method, published, ours(o, decimals), gap]),
            Text(status(o), _STYLES.get(o.status, "dim")),
        )
    return Group(Text(f"{recipe.name}: {recipe.title}\n"), shown, Text("\n".join(["", *filter(None, caption)])))


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
