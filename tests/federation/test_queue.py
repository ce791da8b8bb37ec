"""Several studies in the folder of one server: each runs in turn, and one that cannot is no end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import httpx
import pandas as pd
import pytest
from machines import Machines, port
from prometheus_client.parser import text_string_to_metric_families
from sites import NAMES, study

from idiolect import report
from idiolect.core.errors import InputError, Interrupted
from idiolect.federation import programs
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.queue import SETTLED, Queue
from idiolect.federation.server.conduct import Terms
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.authority import provision
from rehearsal import rehearsed

_SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]


def _put(folder: Path, name: str, text: str, age: float = 2 * SETTLED) -> Path:
    """A file that changed so many seconds ago."""
    path = folder / name
    path.write_text(text)
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def _states(queue: Queue) -> dict[str, str]:
    return {entry.study: entry.state for entry in queue.entries()}


def test_studies_are_taken_by_the_names_of_their_files(tmp_path: Path) -> None:
    queue = Queue(tmp_path, tmp_path / "runs")
    assert queue.take() is None
    second = _put(tmp_path, "2.yaml", "b")
    for name in (".3.yaml", "notes.txt", "4.yaml~"):
        _put(tmp_path, name, "c")
    assert _states(queue) == {"2": "waiting"}
    assert queue.take() == second
    first = _put(tmp_path, "1.yml", "a")
    assert _states(queue) == {"1": "waiting", "2": "running"}
    queue.end("done")
    assert queue.take() == first
    queue.end("failed", "no")
    assert queue.take() is None
    assert _states(queue) == {"1": "failed", "2": "done"}
    assert [entry.why for entry in queue.entries()] == ["no", ""]
    assert queue.out(first) == tmp_path / "runs" / "1"


def test_a_file_that_has_just_changed_waits_and_one_that_changes_is_taken_again(tmp_path: Path) -> None:
    queue = Queue(tmp_path, tmp_path / "runs")
    path = _put(tmp_path, "a.yaml", "half of it", age=0)
    assert queue.take() is None
    assert _states(queue) == {"a": "waiting"}
    _put(tmp_path, "a.yaml", "all of it")
    assert queue.take() == path
    queue.end("failed", "why")
    _put(tmp_path, "a.yaml", "mended", age=3 * SETTLED)
    assert queue.take() == path
    path.unlink()
    assert _states(queue) == {}
    queue.end("done")
    assert queue.take() is None


def test_a_signal_between_two_studies_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("north", "south")
    provision(kits.Description(name="trial", server="127.0.0.1:9092", sites=names), tmp_path / "kits")
    (tmp_path / "studies").mkdir()
    for name in ("1.yaml", "2.yaml"):
        _put(tmp_path / "studies", name, study(tmp_path).read_text())
    received: list[int] = []
    program = programs._Server(cast("Any", None), None, Terms(), None, Events(quiet=True), "the command", received)
    monkeypatch.setattr(programs, "_open", lambda *_: nullcontext(program))
    looks = []

    def is_complete(study: object, folder: Path) -> bool:
        looks.append(folder.name)
        received.append(signal.SIGTERM)
        return True

    monkeypatch.setattr(programs, "is_complete", is_complete)
    with pytest.raises(Interrupted, match="stopped while no study ran; continue with: the command") as end:
        programs.serve_queue(tmp_path / "kits" / "server", tmp_path / "studies", tmp_path / "runs")
    assert (looks, end.value.signal) == (["1"], signal.SIGTERM)


def test_a_folder_that_is_not_there_is_an_empty_queue(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "nowhere", tmp_path / "runs")
    assert queue.take() is None
    assert queue.entries() == []


def test_the_folder_of_a_run_is_not_that_of_several(tmp_path: Path) -> None:
    (tmp_path / ".federation.json").write_text("{}")
    with pytest.raises(InputError, match="holds the run of one study"):
        Queue(tmp_path, tmp_path)


def _serve(machines: Machines, *options: object) -> None:
    kit, studies, out = (machines.folder / name for name in ("kits/server", "studies", "runs"))
    machines.start("server", "federation", "serve", kit, studies, "--out", out, "--lost-after", 4, *options)


def _text(machines: Machines, methods: str, **more: object) -> str:
    return study(machines.folder, methods, **more).read_text()  # type: ignore[arg-type]


def _equal(machines: Machines, name: str) -> None:
    """A study's run has the numbers of a simulation."""
    samples = {site: SiteFiles(machines.files[site], target="label") for site in NAMES}
    whole = study_for(machines.folder / "studies" / f"{name}.yaml", "trial")
    expected = rehearsed(whole, samples, machines.folder / f"{name} simulated").records
    both = report.read(machines.folder / "runs" / name).records.merge(expected, on=_SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_server_with_several_studies(machines: Machines) -> None:
    studies, runs = machines.folder / "studies", machines.folder / "runs"
    studies.mkdir()
    _put(studies, "1-average.yaml", _text(machines, "fedavg", rounds=2))
    _put(studies, "2-strange.yaml", "methods: [fedavgg]\n")
    _put(studies, "3-heads.yaml", _text(machines, "fedper, pfedfda", rounds=2))
    _serve(machines, "--page", port())
    machines.until("server", "3-heads")
    _put(studies, "4-later.yaml", _text(machines, "scaffold", rounds=3))
    machines.until("server", f"Report: {runs / '4-later' / 'report.html'}")
    said = machines.said("server")
    assert f"{studies / '2-strange.yaml'} does not run" in said
    assert "did you mean 'fedavg'" in said
    assert said.index("runs/1-average") < said.index("2-strange.yaml does") < said.index("runs/3-heads")
    assert not (runs / "2-strange").exists()
    for name in ("1-average", "3-heads", "4-later"):
        _equal(machines, name)
        assert (runs / name / "report.html").exists()
        events = (runs / name / "events.jsonl").read_text()
        assert "round 2 closed with 5 of 5 sites" in events
        assert events.count("closed with") == len(pd.unique(report.read(runs / name).records["round"])) * (
            2 if name == "3-heads" else 1
        )
    assert "2-strange.yaml does not run" in (runs / "events.jsonl").read_text()

    url = httpx.URL((machines.folder / "kits" / "server" / "page.url").read_text().strip())
    end = time.monotonic() + 30
    while (status := httpx.get(str(url).replace("/?", "/status.json?")).json())["study"]:
        assert time.monotonic() < end
    states = {entry["study"]: entry["state"] for entry in status["queue"]}
    assert states == {"1-average": "done", "2-strange": "failed", "3-heads": "done", "4-later": "done"}
    page = httpx.get(url).text
    assert "The server waits for a study." in page
    assert "did you mean" in page
    metrics = httpx.get(str(url).replace("/?", "/metrics?")).text
    [family] = [f for f in text_string_to_metric_families(metrics) if f.name == "idiolect_studies"]
    assert {s.labels["state"]: s.value for s in family.samples} == {"waiting": 0, "running": 0, "done": 3, "failed": 1}

    machines.kill("server", signal.SIGTERM)
    assert machines.ended("server") == 128 + signal.SIGTERM
    assert "stopped while no study ran; continue with: idiolect federation serve" in machines.said("server")

    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/report.html")}
    _put(studies, "2-strange.yaml", _text(machines, "fedavg", rounds=1))
    _put(studies, "3-heads.yaml", _text(machines, "fedper", rounds=1))
    _serve(machines)
    machines.until("server", f"Report: {runs / '2-strange' / 'report.html'}")
    machines.until("server", "give a changed study another name")
    _equal(machines, "2-strange")
    assert before == {path: path.stat().st_mtime_ns for path in before}  # what is done stays as it is
    machines.kill("server", signal.SIGTERM)
    assert machines.ended("server") == 128 + signal.SIGTERM


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_study_goes_on_where_the_server_was_killed(machines: Machines) -> None:
    studies = machines.folder / "studies"
    studies.mkdir(exist_ok=True)
    _put(studies, "9-killed.yaml", _text(machines, "fedlda", rounds=4))
    _serve(machines)
    machines.until("coast", "fedlda, seed 0: round 2 trained")
    machines.kill("server", signal.SIGKILL)
    machines.ended("server")
    _serve(machines)
    machines.until("server", f"Report: {machines.folder / 'runs' / '9-killed' / 'report.html'}")
    _equal(machines, "9-killed")
    machines.kill("server", signal.SIGTERM)
    machines.ended("server")
