"""The notebooks of the documentation run from beginning to end, and hold no outputs in git."""

from __future__ import annotations

import importlib.util
import json
import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


@pytest.fixture(scope="module")
def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(outputs: list[Any], kind: str) -> str:
    return "".join(str(o.get("data", {}).get(kind, o.get("text", "") if kind == "text/plain" else "")) for o in outputs)


SHORT = {"rounds=10": "rounds=2", "local_epochs=2": "local_epochs=1", "trials=4": "trials=3"}
"""What the tutorial's cells say, and what a run of a few seconds says."""


@pytest.mark.thorough(but=["short"])
@pytest.mark.parametrize("length", ["short", "whole"])
def test_the_tutorial_goes_from_data_to_a_table_and_a_figure(length: str, tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "docs/notebooks/tutorial.ipynb", as_version=4)
    if length == "short":
        text = "".join(cell.source for cell in notebook.cells)
        assert [said for said in SHORT if said not in text] == []
        for cell, (said, short) in product(notebook.cells, SHORT.items()):
            cell.source = cell.source.replace(said, short)
    NotebookClient(
        notebook, kernel_name="python3", timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert not [o for outputs in cells for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    html = "".join(texts(outputs, "text/html") for outputs in cells)
    for title in (
        "table, 3 clients", "Run wine", "Run digits", "pfedfda against fedavg", "vega", "What was chosen for digits",
        "No test sample was measured", "Validation accuracy over lr",
    ):  # fmt: skip
        assert title in html, title
    assert r"\begin{tabular}" in texts(cells[-1], "text/plain")
    assert (tmp_path / "rounds.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "runs/digits_notebook/report.html").stat().st_size > 100_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_has_no_outputs_and_is_valid(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    links = [link for cell in notebook.cells for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", cell.source)]
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_a_page(path: Path, hooks: Any) -> None:
    notebook = nbformat.read(path, as_version=4)
    page = hooks.notebook_page(json.loads(path.read_text(encoding="utf-8")), path.name)
    assert page.startswith(notebook.cells[0].source.partition("\n")[0] + "\n")
    assert f"[a notebook]({path.name})" in page
    for cell in notebook.cells[1:]:
        assert (cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```") in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[A notebook](notebooks/tutorial.ipynb) goes", "[A notebook](notebooks/tutorial.md) goes"),
        ("see [it](../notebooks/tutorial.ipynb).", "see [it](../notebooks/tutorial.md)."),
        ("[a notebook](tutorial.ipynb)", "[a notebook](tutorial.ipynb)"),
    ],
)
def test_other_pages_lead_to_the_page_and_it_to_the_file(text: str, shown: str, hooks: Any) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="tutorials/compare.md"), meta={})
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"), repo_url=None)
    assert hooks.on_page_markdown(text, page=page, config=config, files=None) == shown
