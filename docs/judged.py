"""How FedShrink did in the report of its second version: sections of its page, from the files in results.

docs/methods/fedshrink-protocol.md says what is measured and what counts as success. docs/own.py writes the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from idiolect import methods
from idiolect.report.compare import interval
from idiolect.reproduction import outcome_files, recipes, searches
from idiolect.reproduction.outcomes import SeedResult

# N cells

RESULTS = Path(__file__).parent.parent / "results"
OURS = "fedshrink"
FOUR = ("fedlda", "fedpac", "pfedfda", "fedcr")
CELLS = ("own/table6", "own/long", "natural/table1")
ONE_ROUND, PRIVATE, RATES = "own/one_round", "own/private", "own/private_rates"
FILES = ("natural/table1", ONE_ROUND)
"""Their data are files."""
SEEDS = {
    "own/table6": (0,), "own/long": (0,), "natural/table1": (0, 1, 2, 3, 4), ONE_ROUND: (0, 1, 2), PRIVATE: (0, 1, 2),
}  # fmt: skip
UNJUDGED = ("schools",)  # measured in squared error, not in points
Where = tuple[str, ...]
Found = Mapping[Where, Mapping[str, Mapping[int, SeedResult]]]
"""By the conditions of a cell, by method, by seed."""


class Judged(NamedTuple):
    """FedShrink in a cell, and the best of the others of which no seed diverged.

    Where a seed of FedShrink diverged, its number is -inf.
    """

    where: str
    ours: float
    best: str
    beyond: float
    """FedShrink less the best of the others, in points."""
    beyond_four: float
    """The same for the best of the four papers' methods."""
    tenth: float
    """The worst tenth of the clients, less Local's; NaN where there is none."""
    calibration: float


def read(names: Sequence[str]) -> tuple[Found, int]:
    """What the files of recipes have, and how many numbers are missing."""
    found: dict[Where, dict[str, Mapping[int, SeedResult]]] = {}
    missing = 0
    for name in names:
        recipe = recipes.get(name)
        if not isinstance(recipe.tuned, str):
            recipe = searches.tuned_recipe(recipe)
            recipe = replace(recipe, cells=tuple(searches.with_searches(recipe, recipe.cells)))
        for cell in recipe.cells:
            known = outcome_files.kept_results(recipe, cell, RESULTS)
            asked = {seed: known[seed] for seed in SEEDS[name] if seed in known}
            found.setdefault(conditions(cell), {})[str(cell.where["method"])] = asked
            missing += sum(seed not in known for seed in SEEDS[name])
    return found, missing


def conditions(cell: recipes.Cell) -> Where:
    """What a cell has in common with those of the other methods."""
    return tuple(str(v) for k, v in cell.where.items() if k != "method")


def section(names: Sequence[str], text: Callable[[Found], list[str]]) -> list[str]:
    """What recipes show, or how many of their numbers are missing."""
    found, missing = read(names)
    if missing:
        return [f"{missing} numbers are missing. No result of FedShrink is looked at before all are there."]
    return text(found)


def judged(found: Found) -> list[Judged]:
    """Every cell in points."""
    cells = []
    for where, by_method in found.items():
        if where[0] in UNJUDGED:
            continue
        others = {m: mean(each) for m, each in by_method.items() if m != OURS and diverged(each) == 0}
        best = max(others, key=lambda m: others[m])
        ours = -np.inf if diverged(by_method[OURS]) else mean(by_method[OURS])
        tenths = [fact(by_method[m], "worst_decile") if m in by_method else np.nan for m in (OURS, "local")]
        cells.append(
            Judged(
                ", ".join(where), ours, best, ours - others[best],
                ours - max((others[m] for m in FOUR if m in others), default=np.nan),
                tenths[0] - tenths[1], fact(by_method[OURS], "calibration_error"),
            )
        )  # fmt: skip
    return cells


def diverged(each: Mapping[int, SeedResult]) -> int:
    """Of how many seeds training diverged."""
    return sum(one.value is None for one in each.values())


def mean(each: Mapping[int, SeedResult]) -> float:
    """The mean over the seeds that did not diverge; NaN if all did."""
    return float(np.mean([one.value for one in each.values() if one.value is not None] or [np.nan]))


def fact(each: Mapping[int, SeedResult], name: str) -> float:
    """The mean of a number over the seeds that have it."""
    return float(np.mean([one.facts[name] for one in each.values() if name in one.facts] or [np.nan]))


def report(found: Found) -> list[str]:
    """The goals, and every cell."""
    cells = judged(found)
    return [
        *goals(cells),
        "\n## Each cell\n",
        "In points: accuracy, of heart and regions the area under the ROC curve. A method of which a seed diverged is",
        "not counted as the best.\n",
        *each(cells),
    ]


def goals(cells: Sequence[Judged]) -> list[str]:
    """The protocol's five conditions and what became of them."""
    count = len(cells)
    beyond_N = np.array([c.beyond for c in cells])
    four_N, tenth_N, calibration_N = (
        np.array([x for c in cells if not np.isnan(x := getattr(c, name))])
        for name in ("beyond_four", "tenth", "calibration")
    )
    lost = np.isinf(beyond_N).sum()
    low, high = interval(four_N[None], np.ones(len(four_N))) if np.isfinite(four_N).all() else (np.nan, np.nan)
    near, lowest = int((beyond_N >= -0.3).sum()), cells[int(beyond_N.argmin())]
    rows = [
        (
            "the best mean, or within 0.3 points of the best, in 90 % of the cells",
            f"{near} of {count}; the best in {int((beyond_N > 0).sum())}", near >= 0.9 * count,
        ),
        (
            "never more than 0.5 points below the best",
            f"{int((beyond_N < -0.5).sum())} of {count} are; lowest {lowest.beyond:+.2f} ({lowest.where})",
            bool((beyond_N >= -0.5).all()),
        ),
        (
            "on average 1 point above the best of the four in the cell",
            f"{four_N.mean():+.2f} ({low:+.2f} to {high:+.2f} over cells)" if not lost else f"it diverged in {lost}",
            not lost and four_N.mean() >= 1,
        ),
        (
            "the worst tenth of the clients at least Local's in every cell",
            f"{int((tenth_N >= 0).sum())} of the {len(tenth_N)} that have Local, lowest {tenth_N.min():+.1f}",
            bool(not lost and (tenth_N >= 0).all()),
        ),
        (
            "a calibration error of at most 0.05",
            f"{int((calibration_N <= 0.05).sum())} of {len(calibration_N)}, mean {calibration_N.mean():.3f}",
            bool(not lost and (calibration_N <= 0.05).all()),
        ),
    ]  # fmt: skip
    lines = ["| condition | found | reached |", "| :-- | :-- | :-- |"]
    return [*lines, *(f"| {what} | {how} | {'yes' if ok else 'no'} |" for what, how, ok in rows)]


def each(cells: Sequence[Judged]) -> list[str]:
    """A row for each cell."""
    lines = [
        "| cell | FedShrink | best of the others | FedShrink less it | less the best of the four |",
        "| :-- | --: | :-- | --: | --: |",
    ]
    for c in cells:
        if np.isinf(c.ours):
            lines.append(f"| {c.where} | diverged | {methods.get(c.best).title} | | |")
        else:
            lines.append(
                f"| {c.where} | {c.ours:.1f} | {methods.get(c.best).title}, {c.ours - c.beyond:.1f} | {c.beyond:+.1f} "
                f"| {c.beyond_four:+.1f} |"
            )
    return lines


def one_round(found: Found) -> list[str]:
    """A row for each data set: one round of FedShrink and of FedCGS, fifty of FedShrink, and fifty of the others."""
    names = [m for m in found[next(where for where in found if where[1] != "1")] if m != OURS]
    lines = [
        "| data | FedShrink, one round | FedCGS, one round | own priors | own priors, shrinkage 0.3 | FedShrink, fifty "
        f"| {' | '.join(methods.get(m).title for m in names)} | one round less the best of the others |",
        "| :-- |" + " --: |" * (len(names) + 6),
    ]
    behind = list[float]()
    for data in dict.fromkeys(where[0] for where in found):
        once, many = found[data, "1"], found[data, "50"]
        values = [mean(many[m]) for m in names]
        best = max(values)
        cells = " | ".join(f"**{v:.1f}**" if v == best else f"{v:.1f}" for v in values)
        first, *others = (mean(once[name]) for name in (OURS, "fedcgs", "fedcgs_own", "fedcgs_shrunk"))
        ours = " | ".join(f"{v:.1f}" for v in (first, *others, mean(many[OURS])))
        lines.append(f"| {data} | {ours} | {cells} | {first - best:+.1f} |")
        behind.append(best - first)
    within = sum(one <= 1 for one in behind)
    goal = "is reached" if within >= 3 else "is missed"
    return [*lines, "", f"The goal, at most 1 point behind the best of them on three of four, {goal}: on {within}."]


def private(found: Found) -> list[str]:
    """A row for each epsilon."""
    names = list(next(iter(found.values())))
    lines = [f"| epsilon | {' | '.join(methods.get(m).title for m in names)} |", "| :-- |" + " --: |" * len(names)]
    ahead = list[float]()
    for where, by_method in found.items():
        said = []
        for each in (by_method[m] for m in names):
            lost = diverged(each)
            value = "diverged" if lost == len(each) else f"{mean(each):.1f}"
            said.append(f"{value} ({lost} diverged)" if 0 < lost < len(each) else value)
        lines.append(f"| {where[0]} | {' | '.join(said)} |")
        ahead.append(-np.inf if diverged(by_method[OURS]) else mean(by_method[OURS]) - mean(by_method["fedavg_ft"]))
    none = "None diverges" if "diverged" not in "".join(lines) else "Some diverge"
    goal = (
        "is reached" if min(ahead) >= 0 else f"is missed: the differences are {', '.join(map(_points, ahead))} points"
    )
    return [*lines, "", f"{none}. The goal, not below FedAvg-FT, {goal}."]


def by_seed(found: Found) -> list[str]:
    """FedShrink less FedAvg-FT with each seed that both have, for each epsilon."""
    said = []
    for where, by_method in found.items():
        ours, tuned = ({s: one.value for s, one in by_method[m].items()} for m in (OURS, "fedavg_ft"))
        both = [(a, b) for s, a in ours.items() if a is not None and (b := tuned.get(s)) is not None]
        said.append(f"{where[0]}: {', '.join(_points(a - b) for a, b in both)}")
    return [f"FedShrink less FedAvg-FT by seed, at epsilon {'; '.join(said)}."]


def _points(ahead: float) -> str:
    return f"{ahead:+.1f}" if np.isfinite(ahead) else "(diverged)"


def rates() -> list[str]:
    """What was chosen for privacy before, and among what."""
    best = {str(c.where["method"]): c.study.lr for c in recipes.get(PRIVATE).cells if c.study}
    every = sorted({float(c.where["lr"]) for c in recipes.get(RATES).cells})
    chosen = ", ".join(f"{methods.get(m).title} {rate:g}" for m, rate in best.items())
    ends = [methods.get(m).title for m, rate in best.items() if rate in (every[0], every[-1])]
    beyond = f"For {' and '.join(ends)} the best is at an end of what was tried, so that another rate may be better."
    return [
        f"Each has the best of the learning rates {', '.join(f'{r:g}' for r in every)} on other clients, at epsilon 3,",
        f"one seed (`idiolect reproduce {RATES} --results results`): {chosen}.",
        *([beyond] if ends else []),
        "All options have their defaults.",
    ]
