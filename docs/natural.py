"""The page of clients as they are in nature, from the files in results/natural.

python docs/natural.py [--check]      # --check writes nothing, and fails where the page is out of date
python docs/natural.py --pooled       # first measures models of all schools' samples together, which needs the data
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import generated
import numpy as np
import pandas as pd
from scipy import stats

from idiolect import methods
from idiolect.report.compare import interval
from idiolect.report.measures import LESS_IS_BETTER, OF_NUMBERS, header
from idiolect.reproduction import outcome_files, recipes, searches
from idiolect.reproduction.outcomes import SeedResult
from idiolect.reproduction.recipes import Cell, Choice, Recipe
from idiolect.tuning.space import Choice as Values

# S seeds, K clients

HERE = Path(__file__).parent
RESULTS, PAGE = HERE.parent / "results", HERE / "results" / "natural.md"
RECIPE = "natural/table1"
POOLED = HERE / "results" / "pooled.json"
SEEDS = (0, 1, 2, 3, 4)
FEW = 7  # clients that are shown one by one


class About(NamedTuple):
    """A source, for readers."""

    what: str
    task: str
    source: str
    file: str
    said: str = ""
    """What a reader should know of the numbers."""


SOURCES = {
    "heart": About(
        "920 patients of 4 hospitals: Cleveland, Budapest (hungarian), Zurich and Basel (switzerland), Long Beach (va)",
        "whether they have a heart disease; 13 numbers, many of them missing",
        "[UCI heart disease](https://archive.ics.uci.edu/dataset/45/heart+disease) (Janosi, Steinbrunn, Pfisterer & "
        "Detrano 1988), CC BY 4.0",
        "`heart/{cleveland,hungarian,switzerland,va}.data`, the `processed` files of the archive",
    ),
    "heart_new": About(
        "the same; Long Beach takes no part in the training, and gets its model afterwards", "the same", "the same", ""
    ),
    "phones": About(
        "5,418 windows of the acceleration of the phones of 36 people",
        "which of six activities; 43 features of a window. The last windows of each activity are test samples",
        "[WISDM Lab](https://www.cis.fordham.edu/wisdm/dataset.php) (Kwapisz, Weiss & Moore 2010), no licence stated",
        "`wisdm.arff`, the rows of the transformed data",
    ),
    "regions": About(
        "501 patients of TCGA-BRCA in 5 regions (two more have 4 and 2 patients, and are left out)",
        "whether they lived three years; 39 clinical features",
        "[GDC](https://portal.gdc.cancer.gov/projects/TCGA-BRCA), open access; features as "
        "[FLamby](https://github.com/owkin/FLamby) prepares them",
        "`brca_regions.csv`",
    ),
    "schools": About(
        "15,362 pupils of 139 schools in London",
        "the score of an examination (regression); 28 features of the pupil and the school",
        "Inner London Education Authority, as used for learning of many tasks (Bakker & Heskes 2003), no licence "
        "stated",
        "`school.parquet`, with a column `school` and a column `score`",
    ),
    "shops": About(
        "8,000 reviews of books, DVDs, electronics and kitchenware",
        "positive or negative; features of MiniLM, frozen, and a layer of 64",
        "[multi-domain sentiment](https://www.cs.jhu.edu/~mdredze/datasets/sentiment/) (Blitzer, Dredze & Pereira "
        "2007), for research",
        "`reviews.parquet` (columns `shop`, `text`, `label`), and the folder `all-MiniLM-L6-v2` of the network",
    ),
    "roles": About(
        "30 roles of Shakespeare's plays, with 300 training windows at most",
        "the next character after 80; an LSTM of 64 units",
        "Karpathy's excerpt; the text is in the public domain",
        "`tinyshakespeare.txt`",
    ),
    "drawers": About(
        "20 people who drew 136 characters of small alphabets, each once",
        "which character; nobody has drawn a character twice, so that a test sample's class is never among a client's "
        "own training samples",
        "[Omniglot](https://github.com/brendenlake/omniglot) (Lake, Salakhutdinov & Tenenbaum 2015), MIT",
        "`omniglot_small1.zip`, `images_background_small1` of the archive",
        "A first result of FedShrink here, 5.6, showed a fault: "
        "[a part of it](../methods/fedshrink-protocol.md#what-changed) was changed, and then this one was measured.",
    ),
    "domains": About(
        "digits of 3 domains (MNIST, USPS, MNIST-M), 1,000 training samples of each",
        "which digit",
        "see [data sets by name](../data.md#data-sets-by-name)",
        "`digits3`, beside the folder `natural`",
    ),
}  # fmt: skip


class Found(NamedTuple):
    """What the file of a cell has."""

    cell: Cell
    choice: Choice
    each: Mapping[int, SeedResult]
    """The seeds with a number: not those that diverged."""

    @property
    def title(self) -> str:
        """The method, and on how many seeds it has a number where some diverged."""
        title = methods.get(str(self.cell.where["method"])).title
        return title if self.whole else f"{title} ({len(self.each)} of {len(SEEDS)} seeds)"

    @property
    def whole(self) -> bool:
        """Whether no seed diverged."""
        return len(self.each) == len(SEEDS)

    @property
    def value_SK(self) -> pd.DataFrame:
        """Each client's number with each seed."""
        return pd.DataFrame.from_dict({s: dict(one.clients) for s, one in self.each.items()}, orient="index")

    @property
    def sign(self) -> int:
        """-1 where less is better."""
        return -1 if self.cell.reads in LESS_IS_BETTER else 1

    @property
    def mean(self) -> float:
        """Over clients and seeds."""
        return float(np.mean([one.value for one in self.each.values() if one.value is not None]))

    def fact(self, name: str) -> float | None:
        """The mean of a number over seeds."""
        values = [one.facts[name] for one in self.each.values() if name in one.facts]
        return float(np.mean(values)) if values else None


def tuned() -> Recipe:
    """The recipe whose cells are all tuned."""
    return searches.tuned_recipe(recipes.get(RECIPE))


def found(recipe: Recipe, source: str) -> dict[str, Found]:
    """By method, the cells of a source whose seeds have all run to the end or diverged."""
    there = {}
    cells = [c for c in recipe.cells if c.where["source"] == source]
    for cell in searches.with_searches(recipe, cells):
        if content := outcome_files.current(recipe, cell, RESULTS):
            _, choice = outcome_files.with_search(cell, content)
            each = outcome_files.kept_results(recipe, cell, RESULTS)
            if all(s in each for s in SEEDS):
                kept = {s: each[s] for s in SEEDS if each[s].value is not None}
                there[str(cell.where["method"])] = Found(cell, choice, kept)
    return there


def gains(one: Found, local: Found) -> pd.DataFrame:
    """How much better than Local, in points or units: seeds x clients, of the seeds that both have."""
    return (one.sign * (one.value_SK - local.value_SK)).dropna(how="all")


def sure(gain_SK: pd.DataFrame) -> tuple[int, int]:
    """How many clients gain, and how many lose, by more than chance: Student's t over seeds at 95 %."""
    mean_K, error_K = gain_SK.mean(), gain_SK.sem()
    width_K = error_K * stats.t.ppf(0.975, len(gain_SK) - 1)
    return int((mean_K > width_K).sum()), int((-mean_K > width_K).sum())


def paired(gain_SK: pd.DataFrame) -> tuple[float, float, float]:
    """The mean, and its 95 % interval over seeds and clients."""
    return float(gain_SK.to_numpy().mean()), *interval(gain_SK.to_numpy(), np.ones(gain_SK.shape[1]))


def at_end(one: Found) -> bool:
    """Whether the lowest or the highest of the learning rates was chosen."""
    assert one.cell.search is not None
    return Values(tuple(one.cell.search.values["lr"])).edge(one.choice.values["lr"])


def best_of(several: Iterable[Found]) -> Found | None:
    """The best mean, among methods of which no seed diverged."""
    return max((one for one in several if one.whole), key=lambda one: one.sign * one.mean, default=None)


def table(there: Mapping[str, Found]) -> list[str]:
    """A row for each method."""
    first = next(iter(there.values()))
    metric, local = first.cell.reads, there.get("local")
    numbers = metric in OF_NUMBERS
    more = ["MAE", "R2"] if numbers else (["Accuracy %"] if metric != "accuracy" else []) + ["ECE"]
    lines = [
        f"| Method | {header(metric)} | worst tenth | {' | '.join(more)} | better than Local by | gain | lose | rate |",
        "| :-- | --: | --: |" + " --: |" * len(more) + " --: | --: | --: | --: |",
    ]
    best = best_of(there.values())
    for name, one in there.items():
        rate = f"{one.choice.values['lr']:g}" + (" (end)" if at_end(one) else "")
        if not one.each:
            lines.append(f"| {one.title} | diverged |{' |' * (len(more) + 4)} {rate} |")
            continue
        value = f"{one.mean:.1f}"
        facts = [
            one.fact(key)
            for key in (("mae", "r2") if numbers else ("accuracy", "calibration_error")[metric == "accuracy" :])
        ]
        cells = ["" if f is None else f"{f:.1f}" if f > 1 else f"{f:.3f}" for f in facts]
        if local is None or not local.each or name == "local":
            than = ["", "", ""]
        else:
            gain_SK = gains(one, local)
            mean, low, high = paired(gain_SK)
            than = [f"{mean:+.1f} ({low:+.1f} to {high:+.1f})", *map(str, sure(gain_SK))]
        worst = one.fact("worst_decile")
        row = [
            one.title, f"**{value}**" if one is best else value, f"{worst:.1f}", *cells, *than, rate,
        ]  # fmt: skip
        lines.append("| " + " | ".join(row) + " |")
    return lines


def by_client(there: Mapping[str, Found], names: Mapping[int, str]) -> list[str]:
    """Each client under every method, where there are few."""
    shown = [one for one in there.values() if one.each]
    clients = list(shown[0].value_SK.columns) if shown else []
    if len(clients) > FEW or len(clients) < 2:
        return []
    lines = [f"| Method | {' | '.join(names.get(k, str(k)) for k in clients)} |", "| :-- |" + " --: |" * len(clients)]
    for one in shown:
        cells = []
        for k in clients:
            low, high = (
                np.mean([e[k] for r in one.each.values() if k in (e := getattr(r, end))] or [np.nan])
                for end in ("low", "high")
            )
            ends = "" if np.isnan(low) else f" ({low:.0f} to {high:.0f})"
            cells.append(f"{one.value_SK[k].mean():.1f}{ends}")
        lines.append(f"| {one.title} | {' | '.join(cells)} |")
    return ["", "Each client, with the 95 % interval that its number of test samples leaves:", "", *lines]


def measure_pooled(recipe: Recipe) -> None:
    """Write the squared errors of models that are trained on the samples of all schools together."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    cell = next(c for c in recipe.cells if c.where["source"] == "schools")
    assert cell.study is not None
    federation = cell.study.federation()
    assert federation.targets is not None
    x_RF, y_R = np.asarray(federation.x_R, np.float64), federation.targets.value_RD[:, 0].numpy()
    train_R = np.concatenate([np.asarray(rows) for rows in federation.train])
    models = {
        "ridge": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 25))),
        "trees": HistGradientBoostingRegressor(random_state=0),
    }
    found = {}
    for name, model in models.items():
        model.fit(x_RF[train_R], y_R[train_R])
        each = [float(((model.predict(x_RF[r]) - y_R[r]) ** 2).mean()) for r in map(np.asarray, federation.test)]
        found[name] = {str(k): round(value, 4) for k, value in enumerate(each)}
    POOLED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def pooled(there: Mapping[str, Found]) -> list[str]:
    """FedShrink for numbers beside one model of all samples, paired by school."""
    if not POOLED.exists() or "fedshrink" not in there:
        return []
    titles = {"ridge": "ridge regression", "trees": "boosted trees"}
    lines = [
        "",
        "One model of all schools' samples together (scikit-learn; ridge by cross-validation, trees with defaults),",
        "which no federation could train (`python docs/natural.py --pooled`), and how much better FedShrink is:",
        "",
        "| Pooled model | MSE | FedShrink is better by |",
        "| :-- | --: | --: |",
    ]
    own_SK = there["fedshrink"].value_SK
    for name, each in json.loads(POOLED.read_text(encoding="utf-8")).items():
        value_K = pd.Series({int(k): v for k, v in each.items()})
        mean, low, high = paired(value_K[own_SK.columns] - own_SK)
        lines.append(f"| {titles[name]} | {value_K.mean():.1f} | {mean:+.1f} ({low:+.1f} to {high:+.1f}) |")
    return lines


def verdict(there: Mapping[str, Found]) -> str:
    """Whether federating helps, in a sentence."""
    local, best = there.get("local"), best_of(one for name, one in there.items() if name != "local")
    if local is None or not local.each or best is None:
        return ""
    mean, low, high = paired(gains(best, local))
    title, amount = best.title, f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
    if low > 0:
        return f"**Federating helps**: {title} is better than Local by {amount}."
    if high < 0:
        return f"**Federating does not help**: the best of the others, {title}, is worse than Local by {amount}."
    return (
        f"**It is not clear that federating helps**: the best of the others, {title}, differs from Local by {amount}."
    )


NAMES = {
    "heart": {0: "cleveland", 1: "hungarian", 2: "switzerland", 3: "va"},
    "regions": {0: "Europe", 1: "Midwest", 2: "Northeast", 3: "South", 4: "West"},
    "shops": {0: "books", 1: "dvd", 2: "electronics", 3: "kitchen"},
    "domains": {0: "mnist", 1: "mnist_m", 2: "usps"},
}


def section(recipe: Recipe, source: str) -> list[str]:
    """A source with its tables."""
    cells = [c for c in recipe.cells if c.where["source"] == source]
    there, about = found(recipe, source), SOURCES[source]
    lines = [
        f"## {source.replace('_', ' ').capitalize()}",
        "",
        f"{about.what[0].upper()}{about.what[1:]}. The task: {about.task}.",
        "",
    ]
    if not there:
        return [*lines, "Not measured yet.", ""]
    lines += [*table(there), *by_client(there, NAMES.get(source, {})), "", verdict(there)]
    lines += ["", about.said] if about.said else []
    lines += pooled(there) if source == "schools" else []
    missing = [methods.get(str(c.where["method"])).title for c in cells if str(c.where["method"]) not in there]
    return [*lines, *([f"\nNot measured yet: {', '.join(missing)}."] if missing else []), ""]


def page(recipe: Recipe) -> str:
    """The whole page."""
    rates = next(iter(recipe.tuned.values.values()))["lr"] if not isinstance(recipe.tuned, str) else ()
    lines = [
        "# Clients as they are in nature",
        "",
        "Hospitals, phones, regions, schools, shops, roles of plays, people who draw, domains of digits: no client",
        "here is made by a draw. Does it help them to learn together, and whom?",
        "",
        "```",
        f"IDIOLECT_DATA=... idiolect reproduce {RECIPE} --seeds {','.join(map(str, SEEDS))} --results results",
        "```",
        "",
        "**How it is measured.** Each method's learning rate is chosen for each source, with seed 0, among",
        f"{', '.join(f'{r:g}' for r in rates)}: by the accuracy (of schools, the mean squared error) on a fifth",
        "of each client's training samples. Then it trains on all training samples with five seeds; the division in",
        "training and test samples is one and the same. Numbers are means over clients and seeds, in the last round.",
        "",
        "- *worst tenth*: the mean of the tenth of the clients with the worst numbers, at least of one.",
        "- *better than Local by*: the difference paired by client and seed, above 0 if the method is better, with its",
        "  95 % interval (bootstrap over seeds and clients).",
        "- *gain*, *lose*: clients whose number is better, or worse, than with Local by more than the seeds differ",
        "  (Student's t, 95 %, each client by itself: of 100 clients without a difference, about five are counted).",
        "- *ECE*: expected calibration error, 0 is best. *rate*: the learning rate that was chosen; *(end)*: it is",
        "  the lowest or the highest of those that were tried, and one beyond may be better.",
        "- The sentence under a table is about the best of the other methods, chosen by these very numbers, which",
        "  flatters it.",
        "- *(4 of 5 seeds)*: training with the chosen rate diverged on the others. The numbers are those of the seeds",
        "  that ran to the end, which flatters a method; it is not counted as the best.",
        "- *AUROC*: the area under the ROC curve, of clients whose test samples have both classes.",
        "",
    ]
    for source in SOURCES:
        lines += section(recipe, source)
    lines += [
        "## Where the data are from",
        "",
        "None of them is part of idiolect. Put the files into a folder `natural`, and set `IDIOLECT_DATA` to the",
        "folder that has it.",
        "",
        "| source | published | file |",
        "| :-- | :-- | :-- |",
        *(f"| {name} | {a.source} | {a.file} |" for name, a in SOURCES.items() if a.file),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write or compare."""
    parser = generated.parser(__doc__)
    parser.add_argument("--pooled", action="store_true", help="measure models of all samples together first")
    options, recipe = parser.parse_args(), tuned()
    if options.pooled:
        measure_pooled(recipe)
    generated.settle({PAGE: page(recipe)}, check=options.check)


if __name__ == "__main__":
    main()
