"""The pages of our own methods' reports, from the files in results/own.

python docs/own.py [--check]      # --check writes nothing, and fails where a page is out of date

No number of a table is shown before all its runs are done: a report is looked at once (docs/methods/*-protocol.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import generated
import judged
import numpy as np
import pandas as pd
from judged import Where, conditions, mean

from idiolect.report.compare import combined, interval, p_text, signed_rank
from idiolect.reproduction import outcome_files, recipes
from idiolect.reproduction.outcomes import SeedResult
from idiolect.reproduction.recipes import Recipe
from idiolect.reproduction.seed_runs import digest

# S seeds, K clients, N cells

HERE = Path(__file__).parent
PROTOCOL = "../methods/fedshrink-protocol.md"
RESULTS = HERE.parent / "results"
FOUR = ("fedlda", "fedpac", "pfedfda", "pfedfda_0.1", "fedcr")
TITLES = {
    "fedshrink": "FedShrink", "fedpool": "FedPool", "fedlda": "FedLDA", "fedpac": "FedPAC", "pfedfda": "pFedFDA",
    "pfedfda_0.1": "pFedFDA, 0.1", "fedcr": "FedCR", "fedavg_ft": "FedAvg-FT", "ditto": "Ditto", "fedrep": "FedRep",
    "local": "Local", "fedavg": "FedAvg",
}  # fmt: skip
GONE = ("fedpool",)  # no longer a method; its numbers stay
SEEDS = {"own/table5": (0,)}  # of the other tables 0, 1 and 2
Found = dict[Where, dict[str, dict[int, SeedResult]]]
"""By the conditions of a cell, by method, by seed."""


class Report(NamedTuple):
    """A method and the recipes of its report."""

    ours: str
    parts: str
    """What each part is worth."""
    other: str
    """On other clients."""

    @property
    def title(self) -> str:
        """As on the page."""
        return TITLES[self.ours]

    @property
    def page(self) -> Path:
        """Where it is written."""
        return HERE / "results" / f"{self.ours}.md"

    @property
    def tables(self) -> tuple[str, ...]:
        """Recipes."""
        return tuple(sorted(("own/table1", self.parts, "own/table3", self.other)))


class Table(NamedTuple):
    """What the files of a recipe have."""

    found: Found
    runs: int
    done: int
    said: Sequence[str] = ()
    """Conditions that cannot be run, and what people write of the others."""


REPORTS = (Report("fedshrink", "own/table4", "own/table5"),)


def table(report: Report, recipe: Recipe) -> Table:
    """Read the files of a recipe."""
    made: Found = {}
    seeds = seeds_of(recipe.name)
    has: dict[tuple[str, int], bool] = {}  # a run serves several cells
    absent: dict[str, str] = {}
    for cell in recipe.cells:
        method = str(cell.where["method"])
        if cell.study is None and method not in GONE:
            absent[", ".join(conditions(cell))] = cell.absent
            continue
        known = outcome_files.kept_results(recipe, cell, RESULTS)
        made.setdefault(conditions(cell), {})[method] = {seed: one for seed, one in known.items() if seed in seeds}
        for seed in seeds if cell.study else ():
            run = digest(cell.study), seed
            has[run] = has.get(run, True) and seed in known
    said = [*(f"Not run: {where}; {why}." for where, why in absent.items()), *said_of(recipe.name, report.ours)]
    return Table(made, len(has), sum(has.values()), said)


def said_of(recipe: str, ours: str) -> list[str]:
    """What people write of a recipe's results, a line for each point; none where there is no such file."""
    path = RESULTS / recipe / f"found-{ours}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def seeds_of(recipe: str) -> tuple[int, ...]:
    """The seeds that the protocol asks for."""
    return SEEDS.get(recipe, (0, 1, 2))


def page(report: Report, tables: Mapping[str, Table]) -> str:
    """The whole page."""
    ours, title = report.ours, report.title
    main, parts, new = (tables[name] for name in ("own/table1", report.parts, "own/table3"))
    lines = [
        f"# {title} beside other methods\n",
        f"The report of [{title}](../methods/{ours}.md), by the",
        f"[protocol of its second version](../methods/{ours}-protocol.md#the-second-version), which was written before",
        "its first run. After that the method was changed twice, for drawers and for privacy; both are said below.\n",
        "```",
        *(command(name, seeds) for name, seeds in judged.SEEDS.items()),
        "```\n",
        "## Did it reach its goals?\n",
        "The cells are those of three reports: [24 settings](rivals.md), all methods tuned alike; all of",
        "Fashion-MNIST, 150 rounds; and [clients as they are in nature](natural.md), without schools, whose error is",
        "not in points.\n",
        *judged.section(judged.CELLS, judged.report),
        "\n## What was learned",
        listed(said_of("own/table6", ours)),
        "\n## One round on frozen features\n",
        "The features are MiniLM's of texts and EfficientNet-Lite0's of images, and stay as they are. FedShrink and",
        "[FedCGS](../methods/fedcgs.md), a published method, get one round. FedCGS has one head for all; own priors,",
        "which are not of its paper, are each client's shares of the classes. FedCGS was added when the numbers of the",
        "others were known, and its shrinkage of 0.3 was chosen among 0.01, 0.1 and 0.3 by these very numbers. The",
        "others train heads for fifty rounds; the best of them is bold. The learning rate is 0.01 and was not tuned.",
        "`IDIOLECT_DATA` has the folders `cifar10` and `fashion_mnist`, and in `natural`, beside",
        "[natural clients](natural.md#where-the-data-are-from), `ag_news_test.csv` (7,600 news of Zhang, Zhao & LeCun",
        "2015: class, title, text) and the folder `all-MiniLM-L6-v2`; `examples/lite0.py` says what the images need.\n",
        *judged.section([judged.ONE_ROUND], judged.one_round),
        "\n## Under differential privacy\n",
        "2,000 clients with 24 training samples each, a network of 4,820 weights, client-level privacy. It is the",
        f"second run: the first, on other clients, [missed its goal]({PROTOCOL}#privacy-once-more) by 1.2, 1.7 and 2.0",
        "points; three faults were mended, rates were chosen anew, and these clients are others.\n",
        *judged.section([judged.PRIVATE], judged.private),
        *judged.section([judged.PRIVATE], judged.by_seed),
        "",
        *judged.rates(),
        "\n## What each part is worth\n",
        f"Six of the cells of the next section. {title} without a part, or with another choice for it: the change in",
        "points, paired by client and seed, with its 95 % interval.\n",
        *shown(parts, title, lambda found: [ablations(found, ours)]),
        "\n## The tables of the first version, made again\n",
        "24 settings with defaults, three seeds, and on other clients (data seed 2). They are no test of the second",
        "version: the first version's results there were known when it was made. The cells with corrupted clients need",
        "the extra `corruptions`. FedShrink is as it is now; the others were measured before Local, FedRep and",
        "the heads of FedCR [started like the others](papers/index.md), so that a run of these starts otherwise now.\n",
        "```",
        *(command(name, seeds_of(name)) for name in report.tables),
        "```\n",
        "The mean over clients and seeds, in per cent. Bold is the best.\n",
        *shown(main, title, lambda found: [
            accuracies(found),
            f"\n{title} less the best of the four papers' methods in that cell: the mean of the differences by client\n"
            "and seed, its 95 % interval (bootstrap over seeds and clients), and the p-value of Wilcoxon's\n"
            "signed-rank test, combined over seeds.\n",
            differences(found, ours),
            "\n### Calibration and the worst tenth\n",
            "Means over all cells: accuracy, the expected calibration error (0 is best), the accuracy of the worst\n"
            "tenth of the clients, and in how many cells it is at least Local's.\n",
            overall(found),
        ]),
        "\n### On other clients\n",
        *shown(tables[report.other], title, lambda found: [accuracies(found)]),
        "\n### Clients that come later\n",
        "Three clients that joined after the last round, as they are and with noise in their images: means over the\n"
        f"24 cells and three seeds; {title} less each method over cells, with its 95 % interval.\n",
        *shown(new, title, lambda found: [newcomers(found, ours)]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def command(name: str, seeds: Sequence[int]) -> str:
    """What measures a recipe."""
    asked = "" if tuple(seeds) == (0,) else f" --seeds {','.join(map(str, seeds))}"
    data = "IDIOLECT_DATA=... " if name in judged.FILES else ""
    path = "PYTHONPATH=examples " if name == judged.ONE_ROUND else ""
    return f"{data}{path}idiolect reproduce {name}{asked} --results results"


def shown(of: Table, title: str, texts: Callable[[Found], list[str]]) -> list[str]:
    """What a table shows and what is said of it, or how many of its runs are missing."""
    if of.done < of.runs:
        left = f"{of.runs - of.done} of {of.runs} runs are missing."
        return [f"{left} No result of {title} is looked at before all are there."]
    return [*texts(of.found), *([listed(of.said)] if of.said else [])]


def listed(lines: Sequence[str]) -> str:
    """A list, apart from the table before it."""
    return "".join(f"\n- {line}" for line in lines)


def apart(ours: Mapping[int, SeedResult], theirs: Mapping[int, SeedResult]) -> pd.DataFrame:
    """Differences in points: seeds x clients."""
    mine, other = (
        pd.DataFrame.from_dict(
            {s: dict(one.clients) for s, one in each.items() if one.value is not None}, orient="index"
        )
        for each in (ours, theirs)
    )
    a, b = mine.align(other, join="inner")
    return (a - b).round(9)


def best(methods: Mapping[str, Mapping[int, SeedResult]], among: Sequence[str]) -> str:
    """The method with the highest mean."""
    return max((m for m in among if not np.isnan(mean(methods[m]))), key=lambda m: mean(methods[m]))


def paired(point_SK: pd.DataFrame) -> str:
    """A difference with its interval."""
    low, high = interval(point_SK.to_numpy(), np.ones(point_SK.shape[1]))
    return f"{point_SK.to_numpy().mean():+.2f} ({low:+.2f} to {high:+.2f})"


def over_cells(found: Found, other: str, ours: str) -> pd.DataFrame:
    """Differences of means in points: seeds x cells in which neither diverged."""
    rows = {
        where: {s: methods[ours][s].value - methods[other][s].value for s in methods[ours]}  # type: ignore[operator]
        for where, methods in found.items()
        if all(one.value is not None for m in (ours, other) for one in methods[m].values())
    }
    return pd.DataFrame(rows)


def accuracies(main: Found) -> str:
    """A row for each cell."""
    names = titles(main)
    lines = [f"| data, partition, shift, samples | {' | '.join(names.values())} |", "| :-- |" + " --: |" * len(names)]
    for where, methods in main.items():
        top, cells = best(methods, list(names)), []
        for method in names:
            value, lost = mean(methods[method]), sum(one.value is None for one in methods[method].values())
            text = "diverged" if np.isnan(value) else f"{value:.1f}" + f" ({lost} diverged)" * bool(lost)
            cells.append(f"**{text}**" if method == top else text)
        lines.append(f"| {', '.join(where)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(main: Found, ours: str) -> str:
    """A row for each cell: ours less the best of the four."""
    lines = [
        f"| data, partition, shift, samples | best of the four | {TITLES[ours]} less it | p |",
        "| :-- | :-- | :-- | :-- |",
    ]
    for where, methods in main.items():
        rival = best(methods, FOUR)
        point_SK = apart(methods[ours], methods[rival])
        p = p_text(combined([signed_rank(row) for row in point_SK.to_numpy()]))
        lines.append(f"| {', '.join(where)} | {TITLES[rival]} | {paired(point_SK)} | {p} |")
    return "\n".join(lines)


def fact(name: str) -> Callable[[Mapping[int, SeedResult]], float]:
    """The mean of a number over the seeds that did not diverge."""
    return lambda each: float(np.mean([one.facts[name] for one in each.values() if one.value is not None] or [np.nan]))


worst, calibration = fact("worst_decile"), fact("calibration_error")


def lost(each: Sequence[Mapping[int, SeedResult]]) -> str:
    """In how many cells a method has no number; its mean is then of the others, and compares with no other mean."""
    count = sum(np.isnan(mean(one)) for one in each)
    return f" ({count} of {len(each)} diverged)" if count else ""


def overall(main: Found) -> str:
    """A row for each method."""
    lines = ["| method | accuracy | calibration error | worst tenth | at least Local's |", "| :-- |" + " --: |" * 4]
    for method, title in titles(main).items():
        each = [m[method] for m in main.values()]
        numbers = [np.nanmean([f(one) for one in each]) for f in (mean, calibration, worst)]
        held = sum(worst(m[method]) >= worst(m["local"]) for m in main.values())
        value = f"{numbers[0]:.1f}{lost(each)}"
        lines.append(f"| {title} | {value} | {numbers[1]:.3f} | {numbers[2]:.1f} | {held} of {len(main)} |")
    return "\n".join(lines)


def ablations(parts: Found, ours: str) -> str:
    """A row for each variant, a column for each cell."""
    variants = [m for m in next(iter(parts.values())) if m != ours]
    lines = [
        f"| variant | {' | '.join(', '.join(where) for where in parts)} | mean |",
        "| :-- |" + " :-- |" * (len(parts) + 1),
    ]
    for variant in variants:
        cells = [paired(apart(methods[variant], methods[ours])) for methods in parts.values()]
        lines.append(f"| {variant} | {' | '.join(cells)} | {paired(over_cells(parts, ours, variant))} |")
    return "\n".join(lines)


def newcomers(new: Found, ours: str) -> str:
    """A row for each method."""
    kinds = {kind: {w: m for w, m in new.items() if w[-1] == kind} for kind in dict.fromkeys(w[-1] for w in new)}
    lines = [
        f"| method | {' | '.join(f'{kind} | {TITLES[ours]} less it' for kind in kinds)} |",
        "| :-- |" + " --: | :-- |" * len(kinds),
    ]
    for method, title in titles(new).items():
        cells = []
        for mine in kinds.values():
            each = [m[method] for m in mine.values()]
            cells.append(f"{np.nanmean([mean(one) for one in each]):.1f}{lost(each)}")
            cells.append("" if method == ours else paired(over_cells(mine, method, ours)))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def titles(found: Found) -> dict[str, str]:
    """Of the methods of a table, in the order of the pages."""
    here = next(iter(found.values()))
    return {method: title for method, title in TITLES.items() if method in here}


def made() -> dict[Path, str]:
    """The pages of now."""
    return {
        report.page: page(report, {name: table(report, recipes.get(name)) for name in report.tables})
        for report in REPORTS
    }


def main() -> None:
    """Write or compare."""
    generated.settle(made(), check=generated.parser(__doc__).parse_args().check)


if __name__ == "__main__":
    main()
