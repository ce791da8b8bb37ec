"""The paper's numbers beside ours, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table

from idiolect import report
from idiolect.core.terminal import Text
from idiolect.report.measures import OF_NUMBERS, words
from idiolect.reproduction.outcomes import MARGIN, SEEDS, Outcome
from idiolect.reproduction.recipes import Cell, Recipe
from idiolect.tuning.space import said
from idiolect.tuning.trials import USUAL_SHARE

_STYLES = {
    "matches": "green",
    "differs": "yellow",
    "diverged": "red",
    "failed": "red",
    "measured": "",
    "under way": "dim",
}
_INTERVAL = "Our ±, or mean ±, is the 95 % interval of the mean over seeds."


def number(value: float | str | None, decimals: int | None = 2, signed: bool = False) -> str:
    """A number as in a table, ``-`` for none; without ``decimals``, in its shortest form.

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


def theirs(recipe: Recipe, cell: Cell) -> str:
    """The paper's number, with the standard deviation that it prints."""
    text = number(cell.published, decimals(recipe))
    return text if cell.std is None else f"{text} ± {number(cell.std, None)}"


def ours(
    recipe: Recipe,
    cell: Cell,
    value: float | str | None,
    interval: float | None = None,
    facts: Mapping[str, float] | None = None,
) -> str:
    """Our number, with the 95 % interval of the mean over seeds or, if the paper has it, the deviation over clients."""
    text, more = number(value, decimals(recipe)), ""
    if interval is not None:
        more = f" ± {number(interval, decimals(recipe))}"
    if cell.std is not None and _over_clients(recipe) and facts:
        return f"{text} ± {facts['client_std']:.0f}" + (f", mean{more}" if more else "")
    return text + more


def deviation_note(recipe: Recipe, cells: Iterable[Cell]) -> list[str]:
    """A sentence about the paper's ±, if it has one."""
    if not recipe.deviation or all(c.std is None for c in cells):
        return []
    whose = "The ± of both" if _over_clients(recipe) else "The paper's ±"
    return [f"{whose} is the standard deviation {recipe.deviation}."]


def precision_note(cells: Iterable[Cell]) -> list[str]:
    """A sentence about the cells whose networks were computed in bfloat16, if there are any."""
    precisions = [(c, c.study.precision) for c in cells if c.study is not None]
    mine = [
        " ".join(str(v) for v in c.where.values() if v is not None)
        for c, precision in precisions
        if precision == "bf16"
    ]
    if not mine:
        return []
    return [f"Networks computed in bf16: {'all' if len(mine) == len(precisions) else '; '.join(mine)}."]


def choice(cell: Cell) -> str:
    """What was chosen for a cell, in words: ``alignment 0.5``; empty where nothing is tuned."""
    return "not chosen yet" if cell.is_open else "" if cell.choice is None else said(cell.choice.values)


def tuning_note(recipe: Recipe, cells: Iterable[Cell]) -> list[str]:
    """A sentence about how settings were chosen, if they were."""
    trials = sorted({c.search.trials for c in cells if c.search is not None})
    if not trials or isinstance(recipe.tuned, str):
        return []
    each = f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
    if recipe.is_always_tuned:
        return []  # the assumptions say it
    return [
        f"Tuned over the values of the paper ({recipe.tuned.place}): {each} trials for a cell, compared by the "
        f"accuracy on {USUAL_SHARE:.0%} of each client's training samples; then trained on all of them. Of methods "
        "without an entry the paper tuned nothing."
    ]


def unit(cell: Cell) -> str:
    """The unit of a cell's number, after the name of its metric."""
    return "" if cell.reads in OF_NUMBERS else " (%)"


def decimals(recipe: Recipe) -> int | None:
    """The decimals of its numbers; None for as few as each number needs."""
    return None if recipe.kind == "settings" else recipe.decimals


def _over_clients(recipe: Recipe) -> bool:
    return recipe.deviation == "over clients"


def status(result: Outcome) -> str:
    """The status of a cell, in a few words."""
    if result.status == "under way":
        return f"round {result.rounds}"
    if result.status == "trial":
        return f"{result.rounds} round{'' if result.rounds == 1 else 's'} only"
    return result.status


def head(recipe: Recipe, outcomes: Sequence[Outcome]) -> report.Head:
    """A line for each cell: paper, ours, difference and status; and notes that explain them.

    A recipe without a number of a paper has neither the paper's column nor the difference.
    """
    keys = [k for k in dict.fromkeys(k for o in outcomes for k in o.cell.where) if k != "method"]
    varying = [k for k in keys if len({str(o.cell.where.get(k)) for o in outcomes}) > 1]
    common = {k: outcomes[0].cell.where.get(k) for k in keys if k not in varying}

    tuned = any(o.cell.search for o in outcomes)
    compares = any(c.published is not None for c in recipe.cells)

    def line(o: Outcome) -> tuple[str, ...]:
        cell = ", ".join(str(o.cell.where[k]) for k in varying if o.cell.where.get(k) is not None)
        gap = number(o.difference, decimals(recipe), signed=True)
        return (
            *([cell] if varying else []),
            str(o.cell.where.get("method", "")),
            *([choice(o.cell)] if tuned else []),
            *([theirs(recipe, o.cell)] if compares else []),
            ours(recipe, o.cell, o.value, o.interval, o.facts),
            *([gap] if compares else []),
            status(o),
        )

    protocols = dict.fromkeys(f"{words(o.cell.reads)}{unit(o.cell)}: {o.protocol}." for o in outcomes if o.protocol)
    margin = (
        f"A number matches within {MARGIN} points, or the 95 % interval over {SEEDS} seeds or more if that is wider."
    )
    notes = [
        ", ".join(f"{k} {v}" for k, v in common.items() if v is not None),
        *protocols,
        margin if compares and protocols else "",
        "Minutes depend on the machine, so they have no verdict."
        if any(o.cell.reads == "minutes" for o in outcomes)
        else "",
        *deviation_note(recipe, [o.cell for o in outcomes]),
        *precision_note(o.cell for o in outcomes if o.value is not None),
        *tuning_note(recipe, [o.cell for o in outcomes]),
        *([_INTERVAL] if any(o.interval is not None for o in outcomes) else []),
        *recipe.doubts,
        *dict.fromkeys(o.said for o in outcomes),
    ]
    columns = {"cell": False} if varying else {}
    columns |= {"method": False} | ({"tuned": False} if tuned else {})
    numbers = {"paper": True, "ours": True, "difference": True} if compares else {"value": True}
    columns |= numbers | {"status": False}
    title, rows = f"{recipe.name}: {recipe.title}", [line(o) for o in outcomes]
    copied = ("LaTeX", report.latex(columns, rows)), ("CSV", as_csv(outcomes))
    return report.Head(title, columns, rows, [n for n in notes if n], copied)


def table(recipe: Recipe, outcomes: Sequence[Outcome]) -> Group:
    """The same for a terminal."""
    above = head(recipe, outcomes)
    if not outcomes:
        return Group(Text(f"{above.title}\n\nThere is nothing to run: the {recipe.kind} has no numbers."))
    lines = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for header, numbers in above.columns.items():
        folds = header in ("cell", "method", "tuned")
        lines.add_column(
            header, justify="right" if numbers else "left", no_wrap=not folds, overflow="fold" if folds else "ellipsis"
        )
    for o, row in zip(outcomes, above.rows, strict=True):
        lines.add_row(*map(Text, row[:-1]), Text(row[-1], _STYLES.get(o.status, "dim")))
    return Group(Text(f"{above.title}\n"), lines, Text("\n".join(["", *above.notes])))


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """A line for each cell with all digits: its conditions, the paper's number, ours, and further numbers."""
    numbers = ("measured", "interval", "difference", "status", "rounds", "precision", "seconds")
    plain = ("published", "published_std", *numbers)
    rows = []
    for o, entry in zip(outcomes, map(as_json, outcomes), strict=True):
        tuned = {} if o.cell.search is None else {"tuned": choice(o.cell)}
        numbers_of_cell = {k: entry[k] for k in plain} | entry["facts"]
        rows.append(entry["where"] | tuned | numbers_of_cell | {"protocol": entry["protocol"]})
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def as_json(result: Outcome) -> dict[str, Any]:
    """An outcome, ready for JSON."""
    chosen = result.cell.choice and {"values": dict(result.cell.choice.values), "score": result.cell.choice.score}
    return {
        "where": dict(result.cell.where),
        "published": result.cell.published,
        "published_std": result.cell.std,
        "measured": result.value,
        "interval": result.interval,
        "difference": result.difference,
        "status": result.status,
        "seeds": {str(k): v for k, v in (result.seeds or {}).items()},
        "rounds": result.rounds,
        "precision": None if result.cell.study is None else result.cell.study.precision,
        "facts": dict(result.facts or {}),
        "seconds": result.seconds,
        "protocol": result.protocol,
        "to_retry": result.to_retry,
        "said": result.said,
        **({} if result.cell.search is None else {"tuned": chosen}),
    }
