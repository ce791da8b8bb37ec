"""What a person sees while a search runs, and what a notebook shows of it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import idiolect as idl
from idiolect.tuning.progress import Bars, Line, Lines, SearchWatcher, leader, usual_watcher
from idiolect.tuning.trials import Trial

TRIALS = [
    Trial("fedavg", 1, {"lr": 0.1}, {2: (0.5, 1.0)}, "stopped"),
    Trial("fedavg", 2, {"lr": 0.2}, {2: (0.4, 1.0), 9: (0.45, 1.0)}, "complete"),
    Trial("fedavg", 3, {"lr": 1e9}, {}, "diverged", "in round 1"),
    Trial("fedpac", 1, {"lr": 0.3, "alignment": 2.0}, {2: (0.6, 1.0)}, "running"),
]


class _Engine:
    seconds, workers, lanes = 0.0, 1, 1


def told(show: SearchWatcher) -> None:
    """A rung of four trials, two rounds each, of which one was done before."""
    show.search({"fedavg": 3, "fedpac": 1}, (2, 9))
    each = [("fedavg", k, f"fedavg #{k}") for k in (1, 2, 3)] + [("fedpac", 1, "fedpac #1")]
    show.rung(1, 1, 2, each)
    show.plan(9, {(label, 0): int(label == "fedavg #1") for _, _, label in each}, _Engine())  # type: ignore[arg-type]
    show.advance("fedavg #2", 0, 1, None)
    show.advance("fedavg #2", 0, 2, 0.4)
    show.diverged("fedavg #3", 0, 1)
    show.stopped("fedpac #1", 0, 1, 1)
    show.ranked(TRIALS)


def test_lines_name_the_best_of_each_rung() -> None:
    out = io.StringIO()
    told(Lines(Console(file=out, width=200)))
    lines = out.getvalue().splitlines()
    assert lines[0] == "batch 1, rung 1: 4 trials until round 2"
    assert lines[1] == "  fedavg: best 50.0% on validation samples (lr 0.1)"
    assert lines[2] == "  fedpac: best 60.0% on validation samples (lr 0.3, alignment 2)"


def test_the_best_is_one_of_those_that_came_furthest() -> None:
    best = leader(TRIALS, "fedavg")
    assert best is not None
    assert best.number == 2
    assert leader(TRIALS, "local") is None


@pytest.mark.parametrize("height", [4, 6, 30])
def test_the_live_table_fits_into_the_terminal(height: int) -> None:
    console = Console(file=io.StringIO(), width=90, height=height, force_terminal=True)
    bars = Bars(console)
    told(bars)
    with console.capture() as capture:
        console.print(bars.shown())
    lines = capture.get().splitlines()
    assert len(lines) < height + 1
    assert any("fedavg" in line and "3/3" in line and "45.0%" in line for line in lines)
    assert any("rung 1: 4 trials until round 2" in line for line in lines)


def test_one_line_of_a_notebook() -> None:
    texts: list[str] = []
    told(Line(texts.append, clock=lambda: 0.0))
    assert "4 trials until round 2, 0 of 8 rounds" in texts[0]
    assert "3 of 8 rounds" in texts[-1]
    assert "fedavg 45.0% (lr 0.2); fedpac 60.0% (lr 0.3, alignment 2)" in texts[-1]
    assert type(usual_watcher()) is SearchWatcher  # this is no notebook


def test_a_search_is_a_table_and_charts_in_a_notebook(tmp_path: Path) -> None:
    study = idl.Study(
        methods=["local", "fedavg"], model="mlp:hidden=4", clients=3, keep=8, rounds=2, local_epochs=1, name="<b>"
    )
    tuning = idl.tune(study, {"lr": "0.01,0.1", "fedavg.batch_size": "4..8"}, tmp_path / "s", trials=2)
    html = tuning._repr_html_()
    assert "What was chosen for &lt;b&gt;" in html
    assert all(text in html for row in tuning.rows() for text in row)
    assert "<script" not in html
    charts = tuning.figures()
    assert set(charts) == {"over-lr", "over-batch_size"}
    charts["over-lr"].save(tmp_path / "lr.svg")
    assert "validation accuracy" in (tmp_path / "lr.svg").read_text()
