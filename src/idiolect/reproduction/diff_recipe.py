"""A run beside a cell of a recipe, for ``diff``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from idiolect import methods
from idiolect.core.errors import InputError
from idiolect.reproduction import searches
from idiolect.reproduction.diff import Side, compare
from idiolect.reproduction.recipes import Cell, Recipe
from idiolect.studies.config import Study
from idiolect.studies.method_use import use, with_values


def of_recipe(recipe: Recipe, cells: Sequence[Cell], run: Side) -> tuple[Side, Side]:
    """A run, read like a cell of a recipe, and the cell of its methods that is most similar to the run.

    Of settings that a search chooses, any of the values that it compares is as good as another.

    Args:
        recipe: of the cells.
        cells: from which the cell is taken.
        run: the run.

    Raises:
        InputError: no cell has one of the run's methods.
    """
    names = {u.name for u in run.study.methods}
    forms = [(c, study) for cell in cells for c, study in _forms(cell)]
    sides = [(c, _side(recipe, c, study, run)) for c, study in forms if study.methods[0].name in names]
    if not sides:
        known = dict.fromkeys(study.methods[0].name for _, study in forms)
        fix = f"choose a run of {', '.join(known)}" if known else next((c.absent for c in cells if c.absent), "no run")
        raise InputError(f"{recipe.name} has no cell here that runs {' or '.join(sorted(names))}: {fix}")

    def unlike(pair: tuple[Cell, Side]) -> tuple[int, bool]:
        return len(compare(replace(run, run=None), pair[1]).differences), pair[0].stage is not None

    cell, side = min(sides, key=unlike)
    if run.run is not None and cell.stage is not None:
        protocol = run.study.protocol.model_copy(update={"stage": cell.stage})
        run = replace(run, run=replace(run.run, study=run.run.study | {"protocol": protocol.model_dump()}))
    return run, side


def _forms(cell: Cell) -> Iterator[tuple[Cell, Study]]:
    """A cell; and one that is read in another method's run, before that method goes on, also as a run of its own."""
    if cell.study is None:
        return
    yield cell, cell.study
    name = str(cell.where.get("method"))
    if cell.stage == "received" and name != cell.study.methods[0].name and name in methods.names():
        also = tuple(stage for stage in cell.study.protocol.also if stage != "received")
        protocol = cell.study.protocol.model_copy(update={"also": also})
        study = cell.study.model_copy(update={"protocol": protocol}).with_methods([use(name)])
        yield replace(cell, study=study, stage=None), study


def _side(recipe: Recipe, cell: Cell, study: Study, run: Side) -> Side:
    """The cell, with the run's values of what is chosen for it."""
    where = ", ".join(f"{k}={v}" for k, v in cell.where.items() if v is not None)
    usual = cell.reads == "accuracy" and cell.condition is None
    number = cell.published / 100 if usual and isinstance(cell.published, int | float) else None
    searched = searches.values_of(recipe.tuned, cell) if recipe.is_always_tuned else {}
    mine = next((u for u in run.study.methods if u.name == study.methods[0].name), None)
    taken = {} if mine is None else {k: searches.now(run.study.with_methods([mine]), k) for k in searched}
    taken = {k: value for k, value in taken.items() if value in searched[k]}
    if mine is not None and taken:
        of_method = {k: value for k, value in taken.items() if k in mine.options | mine.settings}
        rest = {k: value for k, value in taken.items() if k not in of_method}
        study = study.model_copy(update=rest).with_methods([with_values(study.methods[0], of_method)])
    remarks = tuple(
        f"{name} is chosen by a search among {', '.join(map(str, searched[name]))} in {recipe.name}, and not compared."
        for name in taken
    )
    return Side(f"{recipe.name} ({where})", study, published=number, remarks=remarks)
