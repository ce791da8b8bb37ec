"""A run's folder has its names in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import idiolect
from idiolect.runs import folder

SOURCES = Path(idiolect.__file__).parent
NAMES = {
    "study.yaml", "manifest.json", "engine.json", "diverged.json", "records.parquet", "timings.parquet",
    "checkpoint.safetensors",
}  # fmt: skip


def spelled(source: str) -> list[str]:
    """The texts of a module, other than docstrings, that are or begin with a name of what a run's folder has."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                text = child.value.strip("/")
                found += [text] if text in NAMES or (text.split("/")[0] in {"cells", *NAMES} and "/" in text) else []
    return found


def test_no_other_file_spells_them() -> None:
    at = {p.relative_to(SOURCES).as_posix(): spelled(p.read_text(encoding="utf-8")) for p in SOURCES.rglob("*.py")}
    assert {path for path, texts in at.items() if texts} == {"runs/folder.py"}
    assert set(at["runs/folder.py"]) == NAMES


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ('path = folder / "study.yaml"', ["study.yaml"]),
        ('folder.glob(f"cells/*/{name}")', ["cells/*"]),
        ('read(folder, "cells/01-local-seed0/records.parquet")', ["cells/01-local-seed0/records.parquet"]),
        ('"""Reads records.parquet."""', []),
        ('raise InputError(f"{path} is not in manifest.json")', []),
        ('{"cells": 3}', []),
    ],
)
def test_what_counts_as_spelled(line: str, texts: list[str]) -> None:
    assert spelled(line) == texts


def test_the_files_of_cells(tmp_path: Path) -> None:
    labels = ["local", "fedpac:alignment=0/1", "fedavg"]
    cells = [folder.cell_folder(tmp_path, labels, label, seed) for label in labels for seed in (0, 11)]
    assert [cell.name for cell in cells] == [
        "01-local-seed0", "01-local-seed11", "02-fedpac_alignment=0_1-seed0", "02-fedpac_alignment=0_1-seed11",
        "03-fedavg-seed0", "03-fedavg-seed11",
    ]  # fmt: skip
    assert folder.files_of_cells(tmp_path, folder.TIMINGS_FILE) == []
    for cell in cells[::2]:
        cell.mkdir(parents=True)
        (cell / folder.TIMINGS_FILE).touch()
    assert folder.files_of_cells(tmp_path, folder.TIMINGS_FILE) == [cell / folder.TIMINGS_FILE for cell in cells[::2]]
    assert not folder.has_run(tmp_path)
    (tmp_path / folder.STUDY_FILE).touch()
    assert folder.has_run(tmp_path)
