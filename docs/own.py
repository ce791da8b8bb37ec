"""The page of FedPool's report, from the files in results/own.

python docs/own.py [--check]      # --check writes nothing, and fails where the page is out of date

No number is shown before all runs are done: the report is looked at once (docs/methods/fedpool-protocol.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from idiolect.report.compare import combined, interval, p_text, signed_rank
from idiolect.reproduction import outcome_files, recipes
from idiolect.reproduction.outcomes import Measured
from idiolect.reproduction.parts import digest
from idiolect.reproduction.recipes import Cell, Recipe

# S seeds, K clients, N cells

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "results" / "fedpool.md", HERE.parent / "results"
SEEDS = (0, 1, 2)
OURS, FOUR = "fedpool", ("fedlda", "fedpac", "pfedfda", "pfedfda_0.1", "fedcr")
TITLES = {
    "fedpool": "FedPool", "fedlda": "FedLDA", "fedpac": "FedPAC", "pfedfda": "pFedFDA", "pfedfda_0.1": "pFedFDA, 0.1",
    "fedcr": "FedCR", "fedavg_ft": "FedAvg-FT", "ditto": "Ditto", "fedrep": "FedRep", "local": "Local",
    "fedavg": "FedAvg",
}  # fmt: skip
Where = tuple[str, ...]
Found = dict[Where, dict[str, dict[int, Measured]]]
"""By the conditions of a cell, by method, by seed."""
HEAD = """# FedPool beside the papers' methods

The report of [FedPool](../methods/fedpool.md), by a [protocol](../methods/fedpool-protocol.md) that was written
before the first run:

```
idiolect reproduce own/table1 --seeds 0,1,2 --results results
idiolect reproduce own/table2 --seeds 0,1,2 --results results
idiolect reproduce own/table3 --seeds 0,1,2 --results results
```

The cells with corrupted clients need the extra `corruptions`.
"""


def found(recipe: Recipe) -> Found:
    """What the files of a recipe have."""
    made: Found = {}
    for cell in cells(recipe):
        made.setdefault(conditions(cell), {})[str(cell.where["method"])] = outcome_files.known(recipe, cell, RESULTS)
    return made


def cells(recipe: Recipe) -> list[Cell]:
    """Those of the report; FedShrink came later."""
    return [cell for cell in recipe.cells if cell.where["method"] != "fedshrink"]


def conditions(cell: Cell) -> Where:
    """What a cell has in common with those of the other methods."""
    return tuple(str(v) for k, v in cell.where.items() if k != "method")


def page(tables: Sequence[Found], runs: int, done: int, said: Mapping[str, Sequence[str]]) -> str:
    """The whole page; ``said`` has what people write of each table."""
    if done < runs:
        left = f"{done} of {runs} runs are done, and none has been looked at. The numbers come when all are there."
        return f"{HEAD}\n{left}\n"
    main, parts, new = tables
    blocks = [
        HEAD,
        "## Did it reach its goal?\n",
        goals(main),
        listed(said["own/table1"]),
        "\n## Accuracy\n",
        "The mean over clients and seeds, in per cent. Bold is the best.\n",
        accuracies(main),
        "\nFedPool less the best of the four papers' methods in that cell: the mean of the differences by client and\n"
        "seed, its 95 % interval (bootstrap over seeds and clients), and the p-value of Wilcoxon's signed-rank test,\n"
        "combined over seeds.\n",
        differences(main),
        "\n## Calibration and the worst tenth\n",
        "Means over all cells: accuracy, the expected calibration error (0 is best), the accuracy of the worst tenth\n"
        "of the clients, and in how many cells it is at least Local's.\n",
        overall(main),
        "\n## What each part is worth\n",
        "Six of the cells. FedPool without a part, or with another choice for it: the change in points, paired by\n"
        "client and seed, with its 95 % interval.\n",
        ablations(parts),
        listed(said["own/table2"]),
        "\n## Clients that come later\n",
        "Three clients that joined after the last round, as they are and with noise in their images: means over the\n"
        "24 cells and three seeds; FedPool less each method over cells, with its 95 % interval.\n",
        newcomers(new),
        listed(said["own/table3"]),
    ]  # fmt: skip
    return "\n".join(block for block in blocks if block) + "\n"


def listed(lines: Sequence[str]) -> str:
    """A list, apart from the table before it."""
    return "".join(f"\n- {line}" for line in lines)


def mean(each: Mapping[int, Measured]) -> float:
    """The mean over the seeds that did not diverge; NaN if all did."""
    return float(np.mean([one.value for one in each.values() if one.value is not None] or [np.nan]))


def apart(ours: Mapping[int, Measured], theirs: Mapping[int, Measured]) -> pd.DataFrame:
    """Differences in points: seeds x clients."""
    mine, other = (
        pd.DataFrame.from_dict(
            {s: dict(one.clients) for s, one in each.items() if one.value is not None}, orient="index"
        )
        for each in (ours, theirs)
    )
    a, b = mine.align(other, join="inner")
    return (a - b).round(9)


def best(methods: Mapping[str, Mapping[int, Measured]], among: Sequence[str]) -> str:
    """The method with the highest mean."""
    return max((m for m in among if not np.isnan(mean(methods[m]))), key=lambda m: mean(methods[m]))


def paired(point_SK: pd.DataFrame) -> str:
    """A difference with its interval."""
    low, high = interval(point_SK.to_numpy(), np.ones(point_SK.shape[1]))
    return f"{point_SK.to_numpy().mean():+.2f} ({low:+.2f} to {high:+.2f})"


def over_cells(found: Found, other: str, ours: str = OURS) -> pd.DataFrame:
    """Differences of means in points: seeds x cells in which neither diverged."""
    rows = {
        where: {s: methods[ours][s].value - methods[other][s].value for s in methods[ours]}  # type: ignore[operator]
        for where, methods in found.items()
        if all(one.value is not None for m in (ours, other) for one in methods[m].values())
    }
    return pd.DataFrame(rows)


def accuracies(main: Found) -> str:
    """A row for each cell."""
    lines = [f"| data, partition, shift, samples | {' | '.join(TITLES.values())} |", "| :-- |" + " --: |" * len(TITLES)]
    for where, methods in main.items():
        top, cells = best(methods, list(TITLES)), []
        for method in TITLES:
            value, lost = mean(methods[method]), sum(one.value is None for one in methods[method].values())
            text = "diverged" if np.isnan(value) else f"{value:.1f}" + f" ({lost} diverged)" * bool(lost)
            cells.append(f"**{text}**" if method == top else text)
        lines.append(f"| {', '.join(where)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(main: Found) -> str:
    """A row for each cell: FedPool less the best of the four."""
    lines = [
        "| data, partition, shift, samples | best of the four | FedPool less it | p |",
        "| :-- | :-- | :-- | :-- |",
    ]
    for where, methods in main.items():
        rival = best(methods, FOUR)
        point_SK = apart(methods[OURS], methods[rival])
        p = p_text(combined([signed_rank(row) for row in point_SK.to_numpy()]))
        lines.append(f"| {', '.join(where)} | {TITLES[rival]} | {paired(point_SK)} | {p} |")
    return "\n".join(lines)


def goals(main: Found) -> str:
    """The protocol's four conditions and what became of them."""
    tops = [best(methods, list(TITLES)) == OURS for methods in main.values()]
    gap_N = np.array([mean(m[OURS]) - mean(m[best(m, FOUR)]) for m in main.values()])
    tenth_N = np.array([worst(m[OURS]) - worst(m["local"]) for m in main.values()])
    low, high = interval(gap_N[None], np.ones(len(gap_N)))
    rows = [
        ("best mean of all methods in at least 20 of 24 cells", f"{sum(tops)} of {len(tops)}", sum(tops) >= 20),
        (
            "on average at least 1 point above the best of the four in that cell",
            f"{gap_N.mean():+.2f} ({low:+.2f} to {high:+.2f} over cells)", gap_N.mean() >= 1,
        ),
        ("in no cell more than 0.5 points below it", f"lowest {gap_N.min():+.2f}", gap_N.min() >= -0.5),
        (
            "the worst tenth of the clients at least Local's in every cell",
            f"{(tenth_N >= 0).sum()} of {len(tenth_N)}, lowest {tenth_N.min():+.1f}", bool((tenth_N >= 0).all()),
        ),
    ]  # fmt: skip
    lines = ["| condition | found | reached |", "| :-- | :-- | :-- |"]
    return "\n".join([*lines, *(f"| {what} | {how} | {'yes' if ok else 'no'} |" for what, how, ok in rows)])


def fact(name: str) -> Callable[[Mapping[int, Measured]], float]:
    """The mean of a number over the seeds that did not diverge."""
    return lambda each: float(np.mean([one.facts[name] for one in each.values() if one.value is not None] or [np.nan]))


worst, calibration = fact("worst_decile"), fact("calibration_error")


def overall(main: Found) -> str:
    """A row for each method."""
    lines = ["| method | accuracy | calibration error | worst tenth | at least Local's |", "| :-- |" + " --: |" * 4]
    for method, title in TITLES.items():
        numbers = [np.nanmean([f(m[method]) for m in main.values()]) for f in (mean, calibration, worst)]
        held = sum(worst(m[method]) >= worst(m["local"]) for m in main.values())
        lines.append(f"| {title} | {numbers[0]:.1f} | {numbers[1]:.3f} | {numbers[2]:.1f} | {held} of {len(main)} |")
    return "\n".join(lines)


def ablations(parts: Found) -> str:
    """A row for each variant, a column for each cell."""
    variants = [m for m in next(iter(parts.values())) if m != OURS]
    lines = [
        f"| variant | {' | '.join(', '.join(where) for where in parts)} | mean |",
        "| :-- |" + " :-- |" * (len(parts) + 1),
    ]
    for variant in variants:
        cells = [paired(apart(methods[variant], methods[OURS])) for methods in parts.values()]
        lines.append(f"| {variant} | {' | '.join(cells)} | {paired(over_cells(parts, OURS, variant))} |")
    return "\n".join(lines)


def newcomers(new: Found) -> str:
    """A row for each method."""
    kinds = {kind: {w: m for w, m in new.items() if w[-1] == kind} for kind in dict.fromkeys(w[-1] for w in new)}
    lines = [
        f"| method | {' | '.join(f'{kind} | FedPool less it' for kind in kinds)} |",
        "| :-- |" + " --: | :-- |" * len(kinds),
    ]
    for method, title in TITLES.items():
        cells = []
        for mine in kinds.values():
            cells.append(f"{np.nanmean([mean(m[method]) for m in mine.values()]):.1f}")
            cells.append("" if method == OURS else paired(over_cells(mine, method)))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def made() -> str:
    """The page of now."""
    names = ("own/table1", "own/table2", "own/table3")
    tables = {name: found(recipes.get(name)) for name in names}
    has: dict[tuple[str, int], bool] = {}  # a run serves several cells
    for name, table in tables.items():
        for cell in cells(recipes.get(name)):
            known = table[conditions(cell)][str(cell.where["method"])]
            for seed in SEEDS if cell.study else ():
                run = digest(cell.study), seed
                has[run] = has.get(run, True) and seed in known
    said = {
        name: path.read_text(encoding="utf-8").splitlines() if (path := RESULTS / name / "found.txt").exists() else []
        for name in names
    }
    return page(list(tables.values()), len(has), sum(has.values()), said)


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the page is out of date")
    check, text = parser.parse_args().check, made()
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
    if check and stale:
        sys.exit(f"out of date: {PAGE.name}; run python docs/own.py")
    if stale:
        PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.name}: {'written' if stale else 'as it was'}")


if __name__ == "__main__":
    main()
