"""Pages of the papers' tables beside what was measured here, from the files in results/.

python docs/reproduced.py [--check]      # --check writes nothing, and fails where a page is out of date
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

import generated

from idiolect import methods
from idiolect.core.network import Precision
from idiolect.reproduction import outcome_files, outcomes, recipes, searches, seed_runs
from idiolect.reproduction.recipes import Cell, Recipe
from idiolect.reproduction.seed_runs import digest
from idiolect.reproduction.verdicts import (
    choice,
    decimals,
    deviation_note,
    number,
    ours,
    precision_note,
    theirs,
    tuning_note,
)

HERE = Path(__file__).parent
PAGES, RESULTS = HERE / "results" / "papers", HERE.parent / "results"
PAPERS = {
    "fedpac": "FedPAC (Xu, Tong & Huang, ICLR 2023)",
    "pfedfda": "pFedFDA (McLaughlin & Su, NeurIPS 2024)",
    "fedlda": "FedLDA (McLaughlin & Su, FL@FM-NeurIPS 2023)",
    "fedcr": "FedCR (Zhang et al., ICML 2023)",
}
BADGES = {"matches": "✅", "differs": "🔶", "diverged": "❌", "measured": "▫️"}
LEGEND = (
    "Each cell is *the paper's number* / **ours**. ✅ ours is within 1.5 points of the paper's, or within the 95 % "
    "interval over three seeds or more where that is wider (a computed number: within a thousandth of it); 🔶 it "
    "is not, and what is known of why stands below the table; ❌ training diverged; ▫️ the paper has no such "
    "number, or minutes of another machine; · not yet run. ± is the 95 % interval of the mean over seeds, where "
    "the table does not say otherwise. Numbers in sentences that no table has are of the kept runs, or of "
    "further runs with the changes that are named, seed 0, which are not kept as files."
)
STARTS = (
    "**Starts.** Most of these numbers, and those of FedPool and Fashion-MNIST, are as they were measured, and "
    "take too long to be measured again. At that time the server's first state and the clients' were drawn with "
    "two keys: under one seed, weights that stay at a client (of Local, FedPer, FedRep, LG-FedAvg, FedProto and "
    "FedFomo, and the heads of FedCR) started otherwise than the model of FedAvg, and so did the models of FedEM "
    "and HypCluster. Now all methods start from one model under one seed, so that a run of these methods has "
    "another start today, as another seed would give. Methods whose model starts at the server (FedAvg and its "
    "variants, FedPAC, pFedFDA, FedLDA, Ditto) start as before, to the bit. The results on digits are measured "
    "again."
)
SETTINGS = {  # unless a table says otherwise
    "fedpac": (
        "20 clients who all take part, or 100 of whom 30 do in a round; 600 training samples for each (EMNIST: 1,000), "
        "a fifth of them from all classes alike and the rest from the dominant classes of the client's group."
    ),
    "pfedfda": (
        "all samples divided by Dir(0.5) among 100 clients, those of the released code, of whom 30 take part in a "
        "round, or EMNIST by writer among 1,000, of whom 30 do; a fifth of each client's samples to test on. In "
        "CIFAR10-S and CIFAR100-S the images of the first 50 clients are corrupted, to train and to test on."
    ),
    "fedlda": (
        "20 clients, of whom 6 take part in a round and all in the last, each with classes from a Dirichlet prior of "
        "0.1 of its own and a fifth of its samples to test on."
    ),
    "fedcr": (
        "100 clients of equal size, of whom 10 take part in a round; in non-iid_1 each has five classes (CIFAR-100: "
        "fifteen), in non-iid_2 Dirichlet labels of 0.5 (CIFAR-100: 0.3). After the last round all clients tune their "
        "heads for ten epochs, where the method has it so."
    ),
}
UNKNOWN = "the cause is not found"  # so begins what is known of a difference without a cause
SHARED = 3  # recipes of a paper that take the same: from then on it is said once


def pages() -> dict[Path, str]:
    """Every page by its place."""
    made = {PAGES / f"{paper}.md": _page(paper) for paper in PAPERS}
    return {PAGES / "index.md": _index(), **made}


def kept(recipe: Recipe, cell: Cell) -> dict[str, Any] | None:
    """What was measured of a cell, if it was of the study that the recipe has now, with the defaults of now."""
    return outcome_files.current(recipe, _here(recipe, cell), RESULTS)


def _here(recipe: Recipe, cell: Cell) -> Cell:
    """The cell in the precision of what was measured of it."""
    return outcome_files.in_precision(recipe, cell, RESULTS)


def _all(paper: str) -> list[Recipe]:
    return [recipes.get(name) for name in recipes.names() if name.startswith(f"{paper}/")]


def _index() -> str:
    every = [r for paper in PAPERS for r in _all(paper)]
    trained = [r for r in every if _measured(r)]
    to_train = sum(c.study is not None for r in every for c in r.cells)
    to_run = {digest(c.study) for r in every for c in r.cells if c.study}
    done = sum(len(_measured(r)) for r in trained)
    runs = {digest(c.study) for r in trained for c in _measured(r) if c.study}
    lines = [
        "# The papers' tables and figures, reproduced",
        "",
        "Every table and figure of the four papers is one command, `idiolect reproduce RECIPE`; with `--dry-run` it "
        "says what it would run and how long that takes. Here is what came of those that have been run: first the "
        "tables, with all numbers that were measured by training, then every recipe, with a page for each paper.",
        "",
        LEGEND,
        "",
        "## Measured so far",
        "",
        f"{len(runs)} of {len(to_run):,} runs are done. A run serves every table and figure that asks for it, so that "
        f"they fill {done:,} of {to_train:,} cells that need training. The others wait for machine time.",
        "",
        STARTS,
        "",
        *_own(),
        "",
    ]
    for recipe in (r for r in trained if r.kind == "results"):
        lines += [f"**[{recipe.name}]({_link(recipe)})**: {recipe.title}.", "", *_table(recipe, _measured(recipe)), ""]
        notes = [*_protocols(_measured(recipe)), *deviation_note(recipe, _measured(recipe)), *_about(recipe)]
        notes += [*_found(recipe), *_reasons(recipe)]
        lines += [f"- {note}" for note in notes] + [""] * bool(notes)
    tuned = [(recipe, lines_of_tuned) for recipe in every if (lines_of_tuned := _tuned(recipe))]
    if tuned:
        lines += ["## Tuned", "", "What `--tune` gives: settings chosen again, as the papers say that they did.", ""]
    for recipe, lines_of_tuned in tuned:
        lines += [f"**[{recipe.name}]({_link(recipe)}), tuned**: {recipe.title}.", "", *lines_of_tuned, ""]
    lines += [
        "## Every recipe",
        "",
        "| Recipe | What it is | Cells | ✅ | 🔶 | ❌ | ▫️ |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
    ]
    for recipe in every:
        stands = Counter(_verdict(recipe, c) for c in recipe.cells)
        counts = [str(stands[v] or "") for v in ("matches", "differs", "diverged", "measured")]
        name = f"[{recipe.name}]({_link(recipe)})"
        lines.append(f"| {name} | {recipe.title} | {len(recipe.cells) or ''} | " + " | ".join(counts) + " |")
    return "\n".join(lines) + "\n"


def tuned_cells(recipe: Recipe) -> tuple[Recipe, list[tuple[Cell, Cell]]]:
    """The tuned table of a recipe, and its cells that were measured: each as it was, and as it was chosen."""
    folder = RESULTS / (recipe.name if recipe.is_always_tuned else f"{recipe.name}-tuned")
    if not folder.is_dir():
        return recipe, []
    table, measured = searches.tuned_recipe(recipe), []
    for cell in recipe.cells:
        path = folder / f"{cell.slug}.json"
        if path.exists():
            trials = json.loads(path.read_text(encoding="utf-8")).get("tuned", {}).get("trials")
            opened = outcome_files.in_precision(table, searches.with_search(table, cell, trials), RESULTS)
            chosen = searches.settled(table, opened, folder, RESULTS)
            if not chosen.is_open and outcome_files.current(table, chosen, RESULTS):
                measured.append((cell, chosen))
    return table, measured


def _tuned(recipe: Recipe) -> list[str]:
    """What tuning gives beside the settings that the paper prints; empty if it was not measured."""
    table, pairs = tuned_cells(recipe)
    mine = [(cell, chosen) for cell, chosen in pairs if chosen.choice]
    if not mine:
        return []
    lines = ["| | chosen | paper | as printed | tuned |", "| :-- | :-- | --: | --: | --: |"]
    for cell, chosen in mine:
        before, after = kept(recipe, cell), outcome_files.current(table, chosen, RESULTS)
        row = (f"{_method(cell)}, {_condition(cell)}", choice(chosen), theirs(recipe, cell))
        numbers = [_number(recipe, cell, found) if found else "·" for found in (before, after)]
        lines.append(f"| {' | '.join((*row, *numbers))} |")
    return [*lines, "", *(f"- {note}" for note in tuning_note(table, [chosen for _, chosen in mine]))]


def _number(recipe: Recipe, cell: Cell, found: dict[str, Any]) -> str:
    """What was measured of a cell, with its badge."""
    value, interval, facts = (found[k] for k in ("measured", "interval", "facts"))
    mine = "diverged" if value is None else ours(recipe, cell, value, interval, facts)
    return f"**{mine}** {BADGES[found['verdict']]}"


def _own() -> list[str]:
    """How the four methods stand in the tables of their own papers."""
    lines = [
        "The four methods, each in the tables of its own paper, by cells: *explained* is a number outside of the "
        "margin whose cause is known, *open* one whose cause is not.",
        "",
        "| | cells | measured | ✅ matched | 🔶 explained | 🔶 open |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for paper in PAPERS:
        tables = [r for r in _all(paper) if r.kind == "results"]
        mine = [(r, c) for r in tables for c in r.cells if c.published is not None and _is_of(c, paper)]
        found = [f for r, c in mine if (f := kept(r, c))]
        matched = sum(f["verdict"] == "matches" for f in found)
        explained = sum(f["verdict"] != "matches" and _explained(f) for f in found)
        counts = (len(mine), len(found), matched, explained, len(found) - matched - explained)
        lines.append(f"| {methods.get(paper).title} | " + " | ".join(map(str, counts)) + " |")
    return lines


def _is_of(cell: Cell, method: str) -> bool:
    return cell.study is not None and cell.reads == "accuracy" and cell.study.methods[0].name == method


def _explained(found: dict[str, Any]) -> bool:
    return bool(found["because"]) and not found["because"].startswith(UNKNOWN)


def _measured(recipe: Recipe) -> list[Cell]:
    """The cells that were trained and measured."""
    return [c for c in recipe.cells if c.value is None and kept(recipe, c)]


def _verdict(recipe: Recipe, cell: Cell) -> str | None:
    if cell.value is not None:
        return outcomes.outcome(cell, []).status
    found = kept(recipe, cell)
    return found["verdict"] if found else None


def _link(recipe: Recipe) -> str:
    return f"{recipe.name.partition('/')[0]}.md#{recipe.name.replace('/', '')}"


def _page(paper: str) -> str:
    every = _all(paper)
    often = Counter(note for recipe in every for note in recipe.assumptions)
    shared = [note for note, count in often.items() if count >= SHARED]
    parts = [f"# {PAPERS[paper]}", "", f"Unless a table says otherwise: {SETTINGS[paper]}", "", LEGEND, ""]
    for recipe in every:
        parts += [f"## {recipe.name}", "", f"{recipe.title}.", ""]
        if recipe.cells:
            parts += [*_table(recipe, recipe.cells), ""]
        if lines_of_tuned := _tuned(recipe):
            parts += ["Tuned, beside the settings that the paper prints:", "", *lines_of_tuned, ""]
        assumptions = [note for note in recipe.assumptions if note not in shared]
        if len(assumptions) < len(recipe.assumptions):
            assumptions.append("What is said [of several tables](#of-several-tables).")
        for title, notes in (
            ("", [*_protocols(recipe.cells), *_about(recipe), *_found(recipe), *_reasons(recipe), *_cannot(recipe)]),
            ("Of the paper's own numbers:", [*deviation_note(recipe, recipe.cells), *recipe.doubts]),
            ("What the paper leaves open, and what is taken here:", assumptions),
        ):
            parts += [title, ""] * bool(title and notes) + [f"- {note}" for note in notes] + [""] * bool(notes)
    if shared:
        parts += ["## Of several tables", "", "What the paper leaves open, and what is taken in these:", ""]
    for note in shared:
        of = ", ".join(r.name.partition("/")[2] for r in every if note in r.assumptions)
        parts.append(f"- {note} ({of})")
    return "\n".join(parts).rstrip() + "\n"


def _table(recipe: Recipe, cells: Sequence[Cell]) -> list[str]:
    """Methods down, conditions across; where there is one condition, what was measured beside the number."""
    across = list(dict.fromkeys(_condition(c) for c in cells))
    down = list(dict.fromkeys(_method(c) for c in cells))
    at = {(_method(c), _condition(c)): c for c in cells}
    if len(across) > len(down) and (len(across) > 8 or len(down) == 1):
        return _grid(recipe, across, down, lambda row, column: at.get((column, row)))
    return _grid(recipe, down, across, lambda row, column: at.get((row, column)))


def _grid(recipe: Recipe, down: Sequence[str], across: Sequence[str], at: Any) -> list[str]:
    lines = ["| | " + " | ".join(across) + " |", "| :-- |" + " --: |" * len(across)]
    for row in down:
        texts = [_text(recipe, c) if (c := at(row, column)) is not None else "" for column in across]
        lines.append(f"| {row} | " + " | ".join(texts) + " |")
    return lines


def _condition(cell: Cell) -> str:
    return (
        ", ".join(str(v) if k == "dataset" else f"{k} {v}" for k, v in cell.where.items() if k != "method") or "value"
    )


def _method(cell: Cell) -> str:
    """As it is written: by its name, or by that of the method that it is a form of (fedem_ft, fedproto_g)."""
    name = str(cell.where.get("method", ""))
    if known := max((m for m in methods.names() if f"{name}_".startswith(f"{m}_")), key=len, default=""):
        form = name.removeprefix(known).removeprefix("_").replace("_", " ")
        short = len(form) <= 2  # FedEM-FT, FedProto-G
        return methods.get(known).title + (f"-{form.upper()}" if short else f", {form}") * bool(form)
    return name


def _text(recipe: Recipe, cell: Cell) -> str:
    paper = theirs(recipe, cell)
    found = kept(recipe, cell)
    if cell.value is not None:
        computed = outcomes.outcome(cell, [])
        return f"{paper} / **{ours(recipe, cell, computed.value)}** {BADGES[computed.status]}"
    if found is None:
        stands = ("otherwise" if recipe.kind == "settings" else "cannot be had") if cell.absent else "·"
        return stands if recipe.kind == "figure" else f"{paper} / {stands}"
    return f"{paper} / {_number(recipe, cell, found)}"


def _protocols(cells: Sequence[Cell]) -> list[str]:
    """What the numbers are, those of few methods last; FedAvg as FedAvg-FT receives it is FedAvg's personal model."""
    said: dict[str, list[Cell]] = {}
    for c in cells:
        if c.study is not None and c.reads == "accuracy":
            shared = c.stage and c.where.get("method") != c.study.methods[0].name
            said.setdefault(str(c.study.protocol if shared else outcomes.protocol_of(c)), []).append(c)
    names = {p: list(dict.fromkeys(map(_method, mine))) for p, mine in said.items()}
    everyone = {name for mine in names.values() for name in mine}
    few = {p for p, mine in names.items() if 2 * len(mine) < len(everyone)}
    lines = []
    for p in sorted(said, key=lambda p: p in few):
        others = [c for q, cells in said.items() if q != p for c in cells if _method(c) in names[p]]
        keys = dict.fromkeys(k for c in said[p] for k in c.where if k != "method") if others else {}
        values = {k: list(dict.fromkeys(str(c.where.get(k)) for c in said[p])) for k in keys}
        apart = [k for k in keys if not {str(c.where.get(k)) for c in others} & {*values[k]}]
        whose = [*(names[p] if p in few else ["Accuracy (%)"]), *(f"{k} {' or '.join(values[k])}" for k in apart[:1])]
        lines.append(f"{', '.join(whose)}: {p}.")
    return lines


def _about(recipe: Recipe) -> list[str]:
    """How much was measured, and on what."""
    measured = [f for c in _measured(recipe) if (f := kept(recipe, c))]
    if not measured:
        return []
    whole = [f for f in measured if f["seeds"]] or measured
    seeds = {len(f["seeds"]) for f in whole}
    rounds = _either({f["rounds"] for f in whole})
    drawn = " The numbers are accuracies of the runs that it is drawn from." if recipe.kind == "figure" else ""
    machines = outcomes.listed_once(f["machine"] for f in measured)
    return [
        f"Measured: {len(measured)} of {len(recipe.cells)} cells, {rounds} rounds, {_either(seeds)} "
        f"seed{'s' if seeds != {1} else ''} each, on {machines}.{drawn}",
        *precision_note(_here(recipe, c) for c in _measured(recipe)),
    ]


def _either(numbers: set[int]) -> str:
    *others, last = map(str, sorted(numbers))
    return f"{', '.join(others)} or {last}" if others else last


def _found(recipe: Recipe) -> list[str]:
    """What its numbers say, in the words that stand beside them."""
    path = RESULTS / recipe.name / "found.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _reasons(recipe: Recipe) -> list[str]:
    """Why cells differ or diverged, a line for each reason of a method, and for seeds without a number."""
    lines: list[str] = []
    by_reason: dict[tuple[str, str, str], list[tuple[list[str], str]]] = {}
    for cell in _measured(recipe):
        found = kept(recipe, cell)
        assert found is not None
        verdict, said, why = found["verdict"], found["said"], found["because"]
        method, where = _method(cell), _condition(cell)
        if verdict == "diverged":
            by_reason.setdefault((BADGES[verdict], method, why or said), []).append((where.split(", "), ""))
            continue
        if said:  # some seeds have no number
            lines.append(f"{method}, {where}: {said}")
        if verdict == "differs":
            gap = f" ({number(found['difference'], decimals(recipe), signed=True)})"
            reason = why or "the reason is not yet known"
            by_reason.setdefault((BADGES[verdict], method, reason), []).append((where.split(", "), gap))
    for (badge, method, why), cells in by_reason.items():
        parts = zip(*(where[:-1] for where, _ in cells), strict=False)
        shared = [part[0] for part in takewhile(lambda part: len({*part}) == 1, parts)]
        each = [", ".join(where[len(shared) :]) + gap for where, gap in cells]
        lines.append(f"{badge} {', '.join([method, *shared, *each])}: {why}")
    return lines


def _cannot(recipe: Recipe) -> list[str]:
    said = "Otherwise here" if recipe.kind == "settings" else "Not by this command"
    return [f"{said}: {a}." for a in dict.fromkeys(c.absent for c in recipe.cells if c.absent)]


def collect(runs: Path, seeds: Sequence[int]) -> None:
    """Keep every cell whose runs are done: runs are shared, so those of one table may be another's too.

    Not of tables whose cells are all tuned: only the command that searches knows what was chosen.
    """
    for recipe in (one for name in recipes.names() if not (one := recipes.get(name)).is_always_tuned):
        for cell in recipe.cells:
            if cell.study is not None:
                for precision in get_args(Precision):
                    one = outcome_files.in_precision(recipe, cell, RESULTS, precision)
                    found = outcomes.outcome(one, seed_runs.seed_runs(one, runs, seeds=seeds))
                    if path := outcome_files.keep(recipe, found, RESULTS):
                        print(path.relative_to(RESULTS), found.status)
                        break


def main() -> None:
    """Write or compare."""
    parser = generated.parser(__doc__)
    parser.add_argument("--collect", type=Path, metavar="RUNS", help="the folder of idiolect reproduce --out")
    parser.add_argument("--seeds", default="0", help="of the runs to collect, separated by commas")
    arguments = parser.parse_args()
    if arguments.collect:
        collect(arguments.collect, [int(seed) for seed in arguments.seeds.split(",")])
    generated.settle(pages(), check=arguments.check)


if __name__ == "__main__":
    main()
