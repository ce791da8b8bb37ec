"""A function for each table and figure of the four papers, and of our own methods' reports, in a file for each paper.

``fedpac.py`` holds ``table1()``, which is the recipe ``fedpac/table1``: its cells, each a number of the paper beside
the study of one method that measures it here. The papers' numbers are in ``reproduction/published``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any, Literal, NamedTuple

from idiolect.core.errors import InputError, nearest
from idiolect.core.evaluation_protocol import Stage
from idiolect.core.option_spec import Spec
from idiolect.studies.config import Study
from idiolect.studies.method_use import Use, label_of, use

Kind = Literal["results", "settings", "figure", "schematic"]


class Search(NamedTuple):
    """What is to be chosen for a cell on validation samples."""

    values: Mapping[str, Sequence[Any]]
    """Option or setting: the values that are tried."""
    trials: int


class Choice(NamedTuple):
    """What a search chose for a cell."""

    values: Mapping[str, Any]
    """Option or setting: value."""
    score: float
    """The mean score on validation samples, as it is recorded: an accuracy of 0..1, or a mean squared error."""
    before: str
    """The digest of the cell's study without the choice."""


@dataclass(frozen=True)
class Cell:
    """One number: its place in the table, what the paper prints, and how it is obtained here.

    Attributes:
        where: the conditions of the cell: ``method``, ``dataset`` and the table's others.
        study: the study of one method that measures it; None if ``value`` computes it or ``absent`` says why not.
        published: as the paper prints it, accuracies in per cent; None if the paper has no such cell.
        std: the paper's standard deviation, in the same unit.
        stage: the stage at which it is measured, if it is not the protocol's.
        condition: for the accuracy of new clients, their condition; "" is their samples as they are.
        reads: which number of the run it is: "accuracy", another metric of the records, or "minutes".
        value: computes it without training.
        absent: why there is nothing to run.
        search: what is chosen before it is measured; None for the settings that the paper prints.
        choice: what was chosen, which ``study`` has.
    """

    where: Mapping[str, Any]
    study: Study | None = None
    published: float | str | None = None
    std: float | None = None
    stage: Stage | None = None
    condition: str | None = None
    reads: str = "accuracy"
    value: Callable[[], float | str] | None = None
    absent: str = ""
    search: Search | None = None
    choice: Choice | None = None

    @property
    def is_open(self) -> bool:
        """Whether its settings are yet to be chosen."""
        return self.search is not None and self.choice is None

    @property
    def slug(self) -> str:
        """A file name for it."""
        parts = [
            v if k in ("dataset", "source", "method") else f"{k}={v}" for k, v in self.where.items() if v is not None
        ]
        return "-".join(str(p).replace("/", "_").replace(" ", "_") for p in parts)


@dataclass(frozen=True)
class Tuned:
    """What a paper says that it tuned.

    Attributes:
        values: method, or "all", -> option or setting of ours -> the values that the paper names.
        place: where the paper says it.
        assumptions: what it leaves open, and what is done here.
        always: whether there is no other table: every cell is tuned, without ``--tune``.
    """

    values: Mapping[str, Mapping[str, tuple[Any, ...]]]
    place: str
    assumptions: tuple[str, ...] = ()
    always: bool = False


@dataclass(frozen=True)
class Recipe:
    """A table or a figure.

    Attributes:
        name: such as ``fedpac/table1``.
        title: the first line of the recipe's docstring.
        kind: "results" of training, "settings" that are computed, a "figure", or a "schematic" without data.
        cells: its numbers; for a figure, the runs that it draws.
        assumed: what the paper does not state, and what is used here; or why it is not possible.
        deviation: what the paper's standard deviations are over, for example "over clients".
        doubts: what is doubtful in the paper's numbers themselves.
        tuned: what the paper says that it tuned, or a sentence that says why this cannot be repeated.
    """

    name: str
    title: str
    kind: Kind
    cells: tuple[Cell, ...]
    assumptions: tuple[str, ...] = ()
    decimals: int = 2
    deviation: str = ""
    doubts: tuple[str, ...] = ()
    tuned: Tuned | str = ""

    @property
    def is_always_tuned(self) -> bool:
        """Whether its cells have no settings but those that a search chooses."""
        return isinstance(self.tuned, Tuned) and self.tuned.always


Maker = Callable[[], Recipe]


def names() -> list[str]:
    """The names of all recipes, in the order of each paper."""
    return list(_all())


def get(name: str) -> Recipe:
    """A recipe, built.

    Raises:
        InputError: there is none of this name.
    """
    recipes = _all()
    if name not in recipes:
        near = nearest(name, recipes).partition(" Known:")[0]
        hint = near if near.startswith("did") else "names look like fedpac/table1:"
        raise InputError(f"unknown recipe {name!r}; {hint} see idiolect list recipes")
    make = recipes[name]
    contents = _contents(name)
    return replace(
        make(),
        name=name,
        title=(make.__doc__ or "").strip().partition("\n")[0].rstrip("."),
        deviation=contents.get("deviation", ""),
        doubts=tuple(contents.get("doubts", ())),
        tuned=importlib.import_module(f"{__name__}.{name.partition('/')[0]}").TUNED,
    )


@lru_cache(maxsize=1)
def _all() -> dict[str, Maker]:
    makers: dict[str, Maker] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
        functions = inspect.getmembers(importlib.import_module(f"{__name__}.{module}"), inspect.isfunction)
        own = [(n, f) for n, f in functions if f.__module__.endswith(f".{module}") and not n.startswith("_")]
        own.sort(key=lambda pair: pair[1].__code__.co_firstlineno)
        makers |= {f"{module}/{n}": f for n, f in own}
    return makers


def published(name: str) -> list[dict[str, Any]]:
    """The numbers that a paper prints in a table, a row per cell; accuracies in per cent."""
    rows: list[dict[str, Any]] = _contents(name)["rows"]
    return rows


def _contents(name: str) -> dict[str, Any]:
    """The file of a table; empty for a figure."""
    path = resources.files("idiolect.reproduction.published").joinpath(f"{name}.json")
    contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return contents


def tuned(paper: str, options: Mapping[tuple[str, str], str], place: str, *assumptions: str) -> Tuned:
    """What a paper says that it tuned, from its published settings.

    Args:
        paper: as ``fedpac``.
        options: of our methods, by the method and the setting of the paper; others have the same name.
        place: where the paper says it.
        *assumptions: what it leaves open.
    """
    values: dict[str, dict[str, tuple[Any, ...]]] = {}
    for row in published(f"{paper}/hyperparameters"):
        if over := row.get("tuned_over"):
            method, setting = row["method"], row["hyperparameter"]
            values.setdefault(method, {})[options.get((method, setting), setting)] = tuple(over)
    return Tuned(values, place, assumptions)


def table(
    name: str,
    settings: Callable[[Mapping[str, Any]], Mapping[str, Any] | str],
    methods: Mapping[str, str] | Callable[[Mapping[str, Any]], str],
    *,
    beside: Iterable[str] = (),
    **more: Any,
) -> Recipe:
    """A table of accuracies: a cell for each published number, and for methods that the paper does not have.

    Args:
        name: of the table.
        settings: the settings of a cell's study without its method, or a sentence that says why there is no study.
        methods: what the paper's method is here, in the form of ``run --methods``: by its name, or from the whole cell.
        beside: our methods to add under every condition of the table.
        more: fields of the recipe.
    """
    rows = published(name)
    rows_of_paper = [_split(row) for row in rows]
    conditions = list(
        {json.dumps({k: v for k, v in w.items() if k != "method"}): w for w, _, _ in rows_of_paper}.values()
    )
    additions = [({**w, "method": m}, None, None) for w in conditions for m in beside]

    def ours(where: Mapping[str, Any]) -> str:
        return methods(where) if callable(methods) else methods.get(where["method"], where["method"])

    def make(where: dict[str, Any], value: Any, std: float | None) -> Cell:
        if where["method"] == "fedavg":  # FedAvg is FedAvg-FT before tuning: one run measures both
            method = ours({**where, "method": "fedavg_ft"})
            return cell(where, settings(where), method, value, std, stage="received")
        return cell(where, settings(where), ours(where), value, std)

    return Recipe(name, "", "results", tuple(make(*c) for c in [*rows_of_paper, *additions]), **more)


def _split(row: Mapping[str, Any]) -> tuple[dict[str, Any], Any, float | None]:
    return {k: v for k, v in row.items() if k not in ("value", "std")}, row["value"], row.get("std")


def cell(
    where: Mapping[str, Any],
    settings: Mapping[str, Any] | str,
    method: str,
    published: float | None = None,
    std: float | None = None,
    **more: Any,
) -> Cell:
    """A cell that a run of one method measures, or one with a sentence that says why not; ``more`` are its fields.

    FedAvg-FT is also measured before it tunes, which gives FedAvg; but new clients are measured after that alone.

    Raises:
        ValueError: both a stage and new clients are asked for.
    """
    if more.get("stage") is not None and more.get("condition") is not None:
        raise ValueError(f"{where}: new clients are measured at one stage: leave out stage={more['stage']}")
    if isinstance(settings, str):
        return Cell(where, None, published, std, absent=settings, **more)
    if method.partition(":")[0] == "fedavg_ft":
        settings = {**settings, "protocol": {**settings.get("protocol", {}), "also": ["received"]}}
    changes = {"name": study_name(where), "methods": (_use(method),)}
    study = _study(json.dumps(settings, sort_keys=True)).model_copy(update=changes)
    return Cell(where, study, published, std, **more)


# Checked once: the cells of a table differ in little.
@lru_cache(maxsize=1024)
def _study(settings: str) -> Study:
    return Study(**json.loads(settings))


@lru_cache(maxsize=1024)
def _use(method: str) -> Use:
    spec = Spec.parse(method)
    return use(spec.name, label=label_of(spec.name, spec.options), **spec.options)


def settings_table(
    name: str,
    cells: Iterable[Cell],
    value_of: Callable[[Mapping[str, Any], Study], float | str],
    *,
    beside: Iterable[Mapping[str, Any]] = (),
    **more: Any,
) -> Recipe:
    """The settings that a paper states, each beside the value in the studies of some cells.

    "all" data sets are those without a row of their own for the setting; different values are joined by "or".

    Args:
        name: of the table of settings.
        cells: of the paper's tables of results.
        value_of: the value in a study of the setting ``where["hyperparameter"]``.
        beside: further settings, of which the paper has none.
        **more: fields of the recipe.
    """
    keys = ("dataset", "hyperparameter", "method")
    rows = [*published(name), *({**where, "value": None} for where in beside)]
    studies = [(c.where, c.study) for c in cells if c.study]

    def make(row: Mapping[str, Any]) -> Cell:
        where = {k: v for k, v in row.items() if k not in ("value", "std", "tuned_over")}
        own = [r["dataset"] for r in rows if all(r[k] == row[k] for k in keys[1:])]

        def value() -> float | str:
            values = {
                value_of(where, study): None
                for of, study in studies
                if row["method"] in ("all", of["method"])
                and (study.dataset not in own if row["dataset"] == "all" else study.dataset == row["dataset"])
                and all(of.get(k) == v for k, v in where.items() if k not in keys)
            }
            return next(iter(values)) if len(values) == 1 else " or ".join(map(str, values))

        return Cell(where, published=row["value"], value=value)

    return Recipe(name, "", "settings", tuple(map(make, rows)), **more)


def study_name(where: Mapping[str, Any]) -> str:
    """The name of a study, from the conditions of its cell."""
    return " ".join(str(v) for k, v in where.items() if k != "method").replace("/", "_") or "cell"


def select(recipe: Recipe, only: Mapping[str, str], methods: Sequence[str] | None = None) -> list[Cell]:
    """The cells of a recipe for which all of ``only`` holds, of these methods.

    Raises:
        InputError: a condition or a value that no cell has.
    """
    cells = list(recipe.cells)
    conditions: dict[str, Sequence[str]] = {k: v.split("+") for k, v in only.items()}
    if methods is not None:
        conditions["method"] = methods
    for key, values in conditions.items():
        choices = list(dict.fromkeys(str(c.where[key]) for c in recipe.cells if key in c.where))
        if not choices:
            if not recipe.cells:
                raise InputError(f"{recipe.name} has no cells to choose from: leave out {key}")
            keys = list(dict.fromkeys(k for c in recipe.cells for k in c.where))
            raise InputError(f"{recipe.name} has no condition {key!r}; {nearest(key, keys)}")
        for value in values:
            if value not in choices:
                raise InputError(f"{recipe.name} has no cell with {key}={value}; choose from {', '.join(choices)}")
        cells = [c for c in cells if str(c.where.get(key)) in values]
    if not cells and recipe.cells:
        raise InputError(f"{recipe.name} has no cell with all of {', '.join(f'{k}={v}' for k, v in only.items())}")
    return cells
