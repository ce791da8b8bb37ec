"""Outcomes as small files, which the documentation shows, and which later runs need not measure again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from idiolect.core import files
from idiolect.core.documents import read_json
from idiolect.core.errors import InputError
from idiolect.core.network import Precision
from idiolect.reproduction.outcomes import Outcome, SeedResult, outcome_of
from idiolect.reproduction.recipes import Cell, Choice, Recipe
from idiolect.reproduction.seed_runs import digest
from idiolect.studies.config import Study


def keep(recipe: Recipe, result: Outcome, folder: Path) -> Path | None:
    """Write a measured cell as ``folder/RECIPE/CELL.json``.

    What the file has of other seeds stays, and its reason, if it is of the same study.

    Returns:
        The path, or None if there is no number.

    Raises:
        InputError: the file that is there is broken, or of a search, and the cell is of none.
        RunError: it cannot be written.
    """
    if result.cell.is_open or result.status not in ("matches", "differs", "measured", "diverged"):
        return None
    path = folder / recipe.name / f"{result.cell.slug}.json"
    before = current(recipe, result.cell, folder) or {}
    if result.cell.search is None and "tuned" in _read(path):
        raise InputError(f"{path} has what a search chose, and this result is of none: write into another folder")
    others = {k: one for k, one in (_each(before, path) if before else {}).items() if k not in result.each}
    if others:
        result = outcome_of(result.cell, dict(sorted((others | dict(result.each)).items())))
    content = {
        "recipe": recipe.name,
        "where": dict(result.cell.where),
        "published": result.cell.published,
        "published_std": result.cell.std,
        "measured": result.value,
        "interval": result.interval,
        "seeds": {str(k): v for k, v in (result.seeds or {}).items()},
        "difference": result.difference,
        "facts": dict(result.facts or {}),
        "protocol": result.protocol,
        "rounds": result.rounds,
        "seconds": round(result.seconds, 1),
        "machine": result.machine,
        "versions": dict(result.versions or {}),
        "study": None if result.cell.study is None else _settings(result.cell.study),
        "hash": None if result.cell.study is None else digest(result.cell.study),
        "verdict": result.status,
        "because": before.get("because", ""),
        "said": result.said,
        "each": {str(seed): one._asdict() for seed, one in result.each.items()},
        **_tuned(result.cell),
    }
    files.write(path, _text(content))
    return path


def _tuned(c: Cell) -> dict[str, Any]:
    """What was chosen, and among which values; nothing for the settings that the paper prints."""
    if c.search is None or c.choice is None:
        return {}
    return {"tuned": {"over": _over(c), "trials": c.search.trials, **c.choice._asdict()}}


def _over(c: Cell) -> dict[str, list[Any]]:
    return {} if c.search is None else {name: list(each) for name, each in c.search.values.items()}


def with_search(cell: Cell, content: Mapping[str, Any]) -> tuple[Cell, Choice]:
    """An open cell with the search that was made, and what it chose, from its file (see ``current``)."""
    tuned = content["tuned"]
    search = None if cell.search is None else cell.search._replace(trials=tuned["trials"])
    return replace(cell, search=search), Choice(**{name: tuned[name] for name in Choice._fields})


def in_precision(recipe: Recipe, cell: Cell, folder: Path | None, precision: Precision = "float32") -> Cell:
    """The cell in the precision of the numbers that its file has, so that no cell mixes two.

    Args:
        recipe: of the cell.
        cell: the cell.
        folder: of the files.
        precision: for a cell without numbers.

    Raises:
        InputError: the file is broken.
    """
    if cell.study is None:
        return cell
    each = [
        replace(cell, study=cell.study.model_copy(update={"precision": one}))
        for one in dict.fromkeys((precision, *get_args(Precision)))
    ]
    return next((one for one in each if folder and current(recipe, one, folder)), each[0])


def kept_results(recipe: Recipe, cell: Cell, folder: Path) -> dict[int, SeedResult]:
    """What the file of a cell has of each seed; empty if there is none, or if the cell has another study now.

    Raises:
        InputError: the file is broken.
    """
    content = current(recipe, cell, folder)
    return {} if content is None else _each(content, folder / recipe.name / f"{cell.slug}.json")


def current(recipe: Recipe, cell: Cell, folder: Path) -> dict[str, Any] | None:
    """The file of a cell, if there is one, and of the study that the cell has now, with the defaults of now.

    For a cell whose settings are yet to be chosen it is that of any choice among the same values, in
    at least as many trials.

    Raises:
        InputError: the file is broken.
    """
    path = folder / recipe.name / f"{cell.slug}.json"
    if not (content := _read(path)) or cell.study is None:
        return content or None
    try:
        # A digest leaves out what is at its default, so that it does not see a default that has moved.
        uses = zip(content["study"]["methods"], cell.study.methods, strict=True)
        over = _over(cell) if cell.is_open else {}
        same = all(
            use.options.get(name, value) == value
            for was, use in uses
            for name, value in was["options"].items()
            if name not in over
        )
        if cell.search is not None and cell.is_open:
            tuned = content.get("tuned", {})
            same &= (tuned.get("over"), tuned.get("before")) == (over, digest(cell.study))
            return content if same and tuned["trials"] >= cell.search.trials else None
        return content if same and content["hash"] == digest(cell.study) else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _error(path, error) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path) if path.exists() else {}
        if not isinstance(content, dict):
            raise ValueError("it is not a mapping")
        return content
    except (OSError, ValueError) as error:
        raise _error(path, error) from None


def _each(before: Mapping[str, Any], path: Path) -> dict[int, SeedResult]:
    try:
        each = {int(seed): SeedResult(**one) for seed, one in before["each"].items()}
        return {
            k: one._replace(clients=_numbers(one.clients), low=_numbers(one.low), high=_numbers(one.high))
            for k, one in each.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _error(path, error) from None


def _numbers(value_K: Mapping[Any, Any]) -> dict[int, float]:
    return {int(i): float(v) for i, v in value_K.items()}


def _error(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} cannot be read ({error}): fix it, or delete it")


def _text(content: Mapping[str, Any]) -> str:
    """JSON, in which a mapping of numbers is one line."""
    exact = {name: content[name] for name in ("tuned", "study") if name in content}  # what was chosen is not rounded
    text = json.dumps(_round(content) | exact, indent=1, ensure_ascii=False)
    numbers = r'\{(?:\n *"\w+": [-\w.+]+,?)+\n *\}'
    return re.sub(numbers, lambda match: "{" + " ".join(match[0][1:-1].split()) + "}", text) + "\n"


def _settings(study: Study) -> dict[str, Any]:
    """A study as in a file, without defaults."""
    settings: dict[str, Any] = study.model_dump(mode="json", exclude_defaults=True)
    return settings | {"methods": [u.model_dump(mode="json") for u in study.methods]}


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {k: _round(v) for k, v in value.items()}
    return [_round(v) for v in value] if isinstance(value, list | tuple) else value
