"""The page of the field's methods on 24 settings, docs/results/rivals.md, from the files in results/own.

python docs/rivals.py [--check]      # --check writes nothing, and fails where the page is out of date

What stands above the line "<!-- docs/rivals.py" is written by hand, before the first run. No accuracy of the 24
settings is shown before all runs are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import generated
import numpy as np
import pandas as pd

from idiolect import methods
from idiolect.report.compare import interval
from idiolect.reproduction import outcome_files, recipes
from idiolect.reproduction.outcomes import SeedResult
from idiolect.reproduction.recipes import Cell
from idiolect.tuning.space import said

# K clients, N cells

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PAGE = HERE / "results" / "rivals.md"
MARK = "<!-- docs/rivals.py makes what follows: do not edit it -->"
TRIALS, TABLE, JOINS = "own/development", "own/table6", "own/table7"
SEED = 0
NAMES = {"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST"}


def measured(recipe: str) -> list[tuple[Cell, SeedResult | None]]:
    """Each cell of a recipe, and its result."""
    whole = recipes.get(recipe)
    return [(c, outcome_files.kept_results(whole, c, RESULTS).get(SEED)) for c in whole.cells]


def trials() -> pd.DataFrame:
    """A row for each method and trial: validation accuracy on each setting, NaN where it diverged or was not run."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for c, one in measured(TRIALS):
        row = rows.setdefault((str(c.where["method"]), int(c.where["trial"])), {"missing": False, "diverged": False})
        row[str(c.where["dataset"])] = np.nan if one is None or one.value is None else one.value
        row["missing"] |= one is None
        row["diverged"] |= one is not None and one.value is None
        assert c.study is not None
        row["values"] = c.study.methods[0].options | c.study.methods[0].settings
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index = pd.MultiIndex.from_tuples(frame.index, names=["method", "trial"])
    frame["mean"] = frame[list(NAMES)].mean(axis=1, skipna=False)
    return frame


def choices(frame: pd.DataFrame) -> dict[str, int]:
    """The trial with the best mean of both settings, of each method whose trials are all there."""
    return {
        str(method): int(part.droplevel(0)["mean"].idxmax())
        for method, part in frame.groupby(level=0, sort=False)
        if not part["missing"].any() and part["mean"].notna().any()
    }


def of_trials(frame: pd.DataFrame) -> list[str]:
    """What was chosen."""
    chosen = choices(frame)
    lines = [
        f"| method | choice | {' | '.join(NAMES.values())} | lowest and highest mean of the six | diverged |",
        "| :-- | :-- | --: | --: | :-- | --: |",
    ]
    for method, part in frame.groupby(level=0, sort=False):
        name, rows = title(method), part.droplevel(0)
        if method not in chosen:
            left = int(part["missing"].sum())
            lines.append(f"| {name} | {left} of {len(part)} trials are missing | | | | |")
            continue
        best = rows.loc[chosen[str(method)]]
        usual = methods.get(str(method)).options
        values = {k: v for k, v in best["values"].items() if k not in usual or k in searched(rows)}
        both = " | ".join(f"{best[dataset]:.1f}" for dataset in NAMES)
        lost = int(rows["diverged"].sum()) or ""
        lines.append(
            f"| {name} | {said(values)} | {both} | {rows['mean'].min():.1f} to {rows['mean'].max():.1f} | {lost} |"
        )
    return lines


def searched(rows: pd.DataFrame) -> set[str]:
    """The options and settings in which trials differ."""
    names = {name for values in rows["values"] for name in values}
    return {name for name in names if len({str(values.get(name)) for values in rows["values"]}) > 1}


def accuracies(recipe: str = TABLE) -> tuple[pd.DataFrame, dict[tuple[str, str], SeedResult], int]:
    """Settings x methods in per cent, each result, and how many runs are missing."""
    values: dict[tuple[str, str], float] = {}
    results: dict[tuple[str, str], SeedResult] = {}
    missing = 0
    for c, one in measured(recipe):
        at = ", ".join(str(v) for k, v in c.where.items() if k != "method"), str(c.where["method"])
        missing += one is None
        values[at] = np.nan if one is None or one.value is None else one.value
        if one is not None:
            results[at] = one
    frame = pd.Series(values).unstack(sort=False)
    return frame, results, missing


def compared() -> tuple[pd.DataFrame, dict[tuple[str, str], SeedResult], pd.DataFrame, int]:
    """Settings x methods in per cent, each result, the same of clients that join, and how many runs are missing."""
    frame, results, missing = accuracies()
    joins, _, unread = accuracies(JOINS)
    return frame, results, joins, max(missing, unread)


def of_table(frame: pd.DataFrame, results: Mapping[tuple[str, str], SeedResult], joins: pd.DataFrame) -> list[str]:
    """Who is best where, means by data set, partition and number of samples, and all accuracies."""
    lines = [
        "## Who is best where\n",
        "The best and the second, and their difference in points: the mean over the 15 clients, with its 95 % interval",
        "(bootstrap over clients).\n",
        "| data, partition, shift, samples | best | | second | | difference |",
        "| :-- | :-- | --: | :-- | --: | :-- |",
    ]
    for where, row in frame.iterrows():
        first, second = row.sort_values(ascending=False, kind="stable").index[:2]
        gap_K = clients(results[where, first]) - clients(results[where, second])  # type: ignore[index]
        low, high = interval(gap_K.to_numpy()[None], np.ones(len(gap_K)))
        lines.append(
            f"| {where} | {title(first)} | {row[first]:.1f} | {title(second)} | {row[second]:.1f} "
            f"| {gap_K.mean():+.1f} ({low:+.1f} to {high:+.1f}) |"
        )
    parts = frame.index.str.split(", ", expand=True).to_frame(index=False)
    parts.columns = ["data", "partition", "shift", "samples"]
    lines += [
        "\n## Means\n",
        "Over the settings of a data set, a partition, a shift and a number of samples, without those where training",
        "diverged; in how many of the 24 a method is the best; its mean place among the methods (1 is the best, and",
        "whoever diverged is last); and in how many it diverged. The rows are in the order of the mean place, because",
        "means over different settings cannot be compared.\n",
    ]
    groups = [(name, value) for name in parts for value in dict.fromkeys(parts[name])]
    columns = [f"{value} samples" if name == "samples" else NAMES.get(value, value) for name, value in groups]
    lines += [
        f"| method | all | {' | '.join(columns)} | best in | mean place | diverged |",
        "| :-- |" + " --: |" * (len(groups) + 4),
    ]
    places = places_of(frame)
    means = [frame[parts[name].eq(value).to_numpy()].mean() for name, value in groups]
    for method in in_order(frame):
        cells = " | ".join("" if np.isnan(mean[method]) else f"{mean[method]:.1f}" for mean in means)
        lines.append(
            f"| {title(method)} | {frame[method].mean():.1f} | {cells} | {int((places[method] == 1).sum())} "
            f"| {places[method].mean():.1f} | {int(frame[method].isna().sum()) or ''} |"
        )
    lines += ["", *beside(frame, results, joins), "\n## All accuracies\n"]
    for key, name in NAMES.items():
        some = frame[parts["data"].eq(key).to_numpy()]
        lines += [f"{name}:\n", f"| method | {' | '.join(w.partition(', ')[2] for w in some.index)} |",
                  "| :-- |" + " --: |" * len(some)]  # fmt: skip
        for method in frame:
            lines.append(f"| {title(method)} | {' | '.join(map(text, some[method]))} |")
        lines.append("")
    return lines[:-1]


def places_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Settings x methods: 1 is the best, and whoever diverged is last."""
    return frame.rank(axis=1, ascending=False, na_option="bottom")


def in_order(frame: pd.DataFrame) -> list[str]:
    """The methods by their mean place."""
    return [str(method) for method in places_of(frame).mean().sort_values(kind="stable").index]


def means_of_facts(results: Mapping[tuple[str, str], SeedResult]) -> pd.DataFrame:
    """Methods x numbers beside accuracy: means over the settings where training did not diverge."""
    return pd.DataFrame({key: dict(one.facts) for key, one in results.items()}).T.groupby(level=1).mean()


def beside(frame: pd.DataFrame, results: Mapping[tuple[str, str], SeedResult], joins: pd.DataFrame) -> list[str]:
    """The worst tenth, calibration, and clients that join: means over the settings where training did not diverge."""
    facts = means_of_facts(results)
    lines = [
        "## Beside the mean\n",
        "Means over the settings where training did not diverge: of the tenth of the clients with the lowest accuracy,",
        "at least one; of the expected calibration error (0 is best); and of three clients that join after training,",
        "each with as many samples as the others.\n",
        "| method | worst tenth | calibration error | clients that join |",
        "| :-- | --: | --: | --: |",
    ]
    for method in in_order(frame):
        worst, error = facts.loc[method, ["worst_decile", "calibration_error"]]
        lines.append(f"| {title(method)} | {worst:.1f} | {error:.3f} | {joins[method].mean():.1f} |")
    return lines


def title(method: object) -> str:
    """As on other pages."""
    return methods.get(str(method)).title


def text(value: float) -> str:
    """An accuracy."""
    return "diverged" if np.isnan(value) else f"{value:.1f}"


def clients(one: SeedResult) -> pd.Series[float]:
    """Of each client."""
    return pd.Series(dict(one.clients)).sort_index()


def page() -> str:
    """The whole page."""
    above = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    frame = trials()
    lines: Sequence[str] = [MARK, "\n## What was chosen\n", *of_trials(frame)]
    table, results, joins, missing = compared()
    left = [
        f"\n{missing} of {table.size} runs on the 24 settings are missing. No result is looked at before all are there."
    ]
    lines = [*lines, *(left if missing else ["", *of_table(table, results, joins)])]
    return above + "\n".join(lines) + "\n"


def main() -> None:
    """Write or compare."""
    generated.settle({PAGE: page()}, check=generated.parser(__doc__).parse_args().check)


if __name__ == "__main__":
    main()
