"""A study in a notebook: one line that is written anew, and a stopped cell; in a real kernel."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import idiolect as idl
from idiolect.studies.notebook_progress import Line, usual_watcher
from idiolect.studies.progress import Watcher

STUDY = "study = idl.Study(methods='local,fedavg', clients=3, rounds={}, local_epochs=1, model='mlp', evaluate_every=1)"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def told(lanes: int = 2) -> tuple[Line, Clock, list[str]]:
    texts: list[str] = []
    clock = Clock()
    return Line(texts.append, clock), clock, texts


def engine(lanes: int) -> Any:
    return SimpleNamespace(workers=lanes, lanes=lanes, seconds=0.0)


def test_the_line_says_who_runs_and_ends_with_the_accuracies() -> None:
    line, clock, texts = told()
    with line:
        line.plan(2, {("local", 0): 0, ("fedavg", 0): 0}, engine(1))
        assert texts == ["0 of 4 rounds; 0 running, 2 queued; 0.0 of 1 worker busy"]
        clock.now = 1
        line.start("local", 0, 0)
        assert texts[-1] == "local, seed 0: round 0 of 2; 0 of 4 rounds; 1 running, 1 queued; 0.0 of 1 worker busy"
        clock.now = 3
        line.advance("local", 0, 1, 0.5)
        assert texts[-1].startswith("local, seed 0: round 1 of 2, accuracy 50.0%; 1 of 4 rounds; ")
        assert texts[-1].endswith("; 6.0 s left")
        line.advance("local", 0, 2, 0.75)
        line.start("fedavg", 0, 0)
        line.advance("fedavg", 0, 1, None)
        assert len(texts) == 3, "not more than three lines a second"
        clock.now = 8
        line.advance("fedavg", 0, 2, 0.25)
    assert texts[-1] == "local 75.0%; fedavg 25.0%; finished after 8.0 s"


@pytest.mark.parametrize(("seeds", "more"), [(3, None), (4, "1 more"), (9, "6 more")])
def test_many_that_run_side_by_side_are_counted(seeds: int, more: str | None) -> None:
    line, clock, texts = told()
    line.plan(5, {("local", k): 0 for k in range(seeds)}, engine(seeds))
    for k in range(seeds):
        clock.now += 1
        line.start("local", k, 0)
    parts = texts[-1].split("; ")
    assert [part for part in parts if part.endswith("round 0 of 5")] == [
        f"local, seed {k}: round 0 of 5" for k in range(min(3, seeds))
    ]
    assert ([part for part in parts if part.endswith("more")] or [None]) == [more]


def test_what_diverged_is_named_and_nothing_of_a_label_is_obeyed() -> None:
    line, clock, texts = told()
    line.plan(5, {("a\x1b[31m", 0): 0, ("fedavg", 1): 5}, engine(1))
    clock.now = 1
    line.start("a\x1b[31m", 0, 0)
    clock.now = 2
    line.diverged("a\x1b[31m", 0, 3)
    assert texts[-1] == "diverged: a\\x1b[31m, seed 0; finished after 2.0 s"


@pytest.mark.parametrize("shell", ["absent", "none", "terminal"])
def test_only_a_notebook_shows_it(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shells = {"none": None, "terminal": SimpleNamespace()}
    if shell == "absent":
        monkeypatch.delitem(sys.modules, "IPython", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shells[shell]))  # type: ignore[arg-type]
    assert type(usual_watcher()) is Watcher


def notebook(*cells: str, stop_at: int | None = None, when: Path | None = None) -> list[Any]:
    """The cells' outputs; with ``stop_at``, that cell is interrupted as soon as a file is there."""
    sources = [
        nbformat.v4.new_code_cell(f"import idiolect as idl\n{cells[0]}"),
        *map(nbformat.v4.new_code_cell, cells[1:]),
    ]
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=sources), kernel_name="python3", timeout=120, allow_errors=True
    )

    def stop(cell: Any, cell_index: int) -> None:
        if cell_index == stop_at:
            threading.Thread(target=interrupt, daemon=True).start()

    def interrupt() -> None:
        assert when is not None
        pause = threading.Event()
        while not list(when.glob("cells/*/checkpoint*")):
            pause.wait(0.05)
        asyncio.run(client.km.interrupt_kernel())

    client.on_cell_execute = stop
    client.execute()
    return [cell.outputs for cell in client.nb.cells]


@pytest.mark.thorough(but=["processes"])
@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_a_run_in_a_kernel_shows_one_line_and_its_table(engine: str, tmp_path: Path) -> None:
    _, outputs, shown = notebook(
        STUDY.format(2), f"result = idl.run(study, {str(tmp_path / 'run')!r}, engine={engine!r})", "result"
    )
    [line] = outputs
    assert line["output_type"] == "display_data"
    assert line["data"]["text/plain"].startswith("local ")
    assert "finished after" in line["data"]["text/plain"]
    assert "<table" in shown[0]["data"]["text/html"]


def test_a_stopped_cell_stops_the_run_at_a_whole_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    study = STUDY.format(4000)[:-1] + ", checkpoint_every=1)"
    _, outputs, again = notebook(
        study, f"idl.run(study, {str(folder)!r}, engine='sequential')", "1 + 1", stop_at=1, when=folder
    )
    error = outputs[-1]
    assert (error["output_type"], error["ename"]) == ("error", "Interrupted")
    assert error["evalue"].startswith("stopped after round ")
    assert error["evalue"].endswith(f"continue with: idl.run(study, out='{folder}', resume=True, engine='sequential')")
    assert again[0]["data"]["text/plain"] == "2", "the kernel goes on"
    assert idl.Study.read(folder / "study.yaml").rounds == 4000
