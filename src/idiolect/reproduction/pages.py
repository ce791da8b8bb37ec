"""Runs of several cells together, as one page and as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Literal

import pandas as pd

from idiolect import methods, report
from idiolect.core import files
from idiolect.reproduction.outcomes import protocol_of
from idiolect.reproduction.recipes import Cell, Recipe, study_name
from idiolect.reproduction.seed_runs import seed_runs
from idiolect.runs.folder import RECORDS_FILE


def runs_of(
    cells: Sequence[Cell], out: Path, *, rounds: int | None = None, seeds: Sequence[int] = (0,), whole: bool = False
) -> list[report.Run]:
    """The runs of some cells so far, in the form for a report (see ``beside``).

    Args:
        cells: of a recipe.
        out, rounds, seeds: as for ``reproduce``.
        whole: leave out unfinished runs.
    """
    there = [(c, one) for c in cells if c.condition is None for one in seed_runs(c, out, rounds=rounds, seeds=seeds)]
    return beside(
        (c, report.read(one.folder))
        for c, one in there
        if (one.folder / RECORDS_FILE).exists() and (one.complete or not whole)
    )


def beside(those: Iterable[tuple[Cell, report.Run]]) -> list[report.Run]:
    """The methods of one setting in one run; the conditions that its cells share are its name. See also ``labels``."""
    runs: dict[str, list[tuple[Cell, report.Run]]] = {}
    for c, its in those:
        runs.setdefault(_setting(c), []).append((c, its))
    runs_of_settings = []
    for all_ in runs.values():
        cells = [c for c, _ in all_]
        whole = reduce(_union, (_as_cell(c, its, _label(c, cells)) for c, its in all_))
        common = {k: v for k, v in cells[0].where.items() if all(c.where.get(k) == v for c in cells)}
        runs_of_settings.append(replace(whole, name=study_name(common)))
    return runs_of_settings


def labels(cells: Iterable[Cell]) -> list[str]:
    """The names of cells in a report: their method, and if one setting has it several times, also the conditions that
    differ.
    """
    settings: dict[str, list[Cell]] = {}
    for c in cells:
        if c.study is not None and c.condition is None:
            settings.setdefault(_setting(c), []).append(c)
    return list(dict.fromkeys(_label(c, some) for some in settings.values() for c in some))


def _setting(c: Cell) -> str:
    """A cell's setting without its method; the learning rate belongs to the method."""
    assert c.study is not None
    own = {"name", "seeds", "methods", "protocol", "lr"}
    return json.dumps(c.study.model_dump(exclude=own), default=str)


def _label(c: Cell, others: Sequence[Cell]) -> str:
    """A cell's method, and if cells of the setting have it with other options, the conditions that differ."""
    assert c.study is not None
    method = c.where.get("method", c.study.methods[0].label)
    same = [o.where for o in others if o.where.get("method") == method]
    more = [f"{k}={v}" for k, v in c.where.items() if any(w.get(k) != v for w in same)]
    return " ".join(map(str, [method, *more]))


def page(recipe: Recipe, runs: list[report.Run], out: Path, head: report.Head | None = None) -> Path | None:
    """Write the page of a recipe's runs (see ``runs_of``) into their folder; None if there are no runs."""
    return report.draw(runs, out / f"{recipe.name.replace('/', '-')}.html", head) if runs else None


def export(
    recipe: Recipe, form: Literal["latex", "csv", "png"], runs: Sequence[report.Run], head: report.Head, out: Path
) -> list[Path]:
    """Write the table of a recipe, or every figure, into its folder in ``out``, if there are any.

    Args:
        recipe: the recipe.
        form: the format of the file.
        runs: the runs to draw (see ``runs_of``).
        head: the table.
        out: folder of the runs' folders.

    Raises:
        RunError: a file cannot be written.
    """
    folder = out / recipe.name.replace("/", "-")
    if form == "png":
        return report.pictures(runs, folder)
    if not head.rows:
        return []
    path = folder / report.TABLES[form]
    files.write(path, {name.lower(): text for name, text in head.copied}[form])
    return [path]


def _as_cell(c: Cell, run: report.Run, label: str) -> report.Run:
    """A run with the cell's name for its method; the model that the cell measures counts as the personal model."""
    (use,) = run.study["methods"]
    name = str(c.where.get("method", use["name"]))
    where = {k: v for k, v in c.where.items() if k != "method"}
    protocol = protocol_of(c)
    records = run.records[run.records["stage"].isin([protocol.stage, "new", "local", "server", "wire"])]
    about = dict(run.manifest["methods"][use["label"]])
    if name in methods.names():  # only by its name, because the options are the table's
        entry = methods.get(name)
        about |= {"name": name, "title": entry.title, "summary": entry.summary}
    return replace(
        run,
        study=run.study
        | {
            "protocol": protocol.model_copy(update={"stage": "personalised", "also": ()}).model_dump(),
            "methods": [use | {"label": label, "name": name, "where": where}],
        },
        manifest=run.manifest | {"methods": {label: about}},
        records=records.assign(method=label, stage=records["stage"].replace(protocol.stage, "personalised")),
        timings=run.timings.assign(method=label),
        diverged=tuple(d._replace(method=label) for d in run.diverged),
    )


def _union(a: report.Run, b: report.Run) -> report.Run:
    """Two runs of one setting as one."""
    return replace(
        a,
        study=a.study
        | {
            "seeds": sorted({*a.study["seeds"], *b.study["seeds"]}),
            "methods": [*a.study["methods"], *(u for u in b.study["methods"] if u not in a.study["methods"])],
        },
        manifest=a.manifest | {"methods": a.manifest["methods"] | b.manifest["methods"]},
        records=pd.concat([a.records, b.records], ignore_index=True).drop_duplicates(),
        timings=pd.concat([a.timings, b.timings], ignore_index=True).drop_duplicates(),
        diverged=tuple(dict.fromkeys([*a.diverged, *b.diverged])),
    )
