"""Outcomes as small files, which the documentation shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.core.documents import read_json
from idiolect.core.errors import InputError
from idiolect.reproduction.outcomes import Outcome
from idiolect.reproduction.parts import digest
from idiolect.reproduction.recipes import Recipe
from idiolect.studies.config import Study


def keep(recipe: Recipe, found: Outcome, folder: Path) -> Path | None:
    """Write a measured cell as ``folder/RECIPE/CELL.json``; the file's reason is kept if the study is the same.

    Returns:
        The path, or None if nothing is written: there is no number, or the file has one from more seeds.

    Raises:
        InputError: the file that is there is broken.
        RunError: it cannot be written.
    """
    if found.status not in ("matches", "differs", "measured", "diverged"):
        return None
    path = folder / recipe.name / f"{found.cell.slug}.json"
    try:
        before = read_json(path) if path.exists() else {}
        if not isinstance(before, dict):
            raise ValueError("it is not a mapping")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): fix it, or delete it") from None
    seeds = {str(k): v for k, v in (found.seeds or {}).items()}
    hashed = None if found.cell.study is None else digest(found.cell.study)
    same = before.get("hash") == hashed
    if same and len(before.get("seeds", {})) > len(seeds):
        return None
    content = {
        "recipe": recipe.name,
        "where": dict(found.cell.where),
        "published": found.cell.published,
        "published_std": found.cell.std,
        "measured": found.value,
        "interval": found.interval,
        "seeds": seeds,
        "difference": found.difference,
        "facts": dict(found.facts or {}),
        "protocol": found.protocol,
        "rounds": found.rounds,
        "seconds": round(found.seconds, 1),
        "machine": found.machine,
        "versions": dict(found.versions or {}),
        "study": None if found.cell.study is None else _settings(found.cell.study),
        "hash": hashed,
        "verdict": found.status,
        "because": before.get("because", "") if same else "",
        "said": found.said,
    }
    files.write(path, json.dumps(_rounded(content), indent=1, ensure_ascii=False) + "\n")
    return path


def _settings(study: Study) -> dict[str, Any]:
    """A study as in a file, without defaults."""
    written: dict[str, Any] = study.model_dump(mode="json", exclude_defaults=True)
    return written | {"methods": [u.model_dump(mode="json") for u in study.methods]}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value
