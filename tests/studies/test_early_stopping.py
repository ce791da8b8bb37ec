"""Early stopping: where a method stops, by a rule that is written here once more, and that nothing else changes."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import idiolect as idl
from idiolect import report
from idiolect.core.errors import InputError, Interrupted
from idiolect.data import from_arrays
from idiolect.runs import checkpoint
from idiolect.runs.early_stopping import stop_of
from idiolect.studies.progress import Bars, Lines, Watcher

ROUNDS, EVERY = 24, 2
rng = np.random.default_rng(3)
LABELS = rng.integers(0, 3, 150)
SAMPLES = rng.normal(LABELS[:, None] * [0.6, -0.4, 0.2, 0.9], 1.0).astype(np.float32)
OWNERS = np.repeat(["Bonn", "Lyon", "Oslo", "Pisa"], [25, 35, 50, 40])
METHODS = ("fedavg", "fedavg_ft:epochs=1", "fedper")  # the first two train once


def study(patience: int | None = 2, protocol: str = "validation=0.3", **settings: Any) -> idl.Study:
    how: dict[str, Any] = {
        "data": from_arrays(SAMPLES, LABELS, clients=OWNERS), "rounds": ROUNDS, "evaluate_every": EVERY, "lr": 0.4,
        "local_epochs": 1, "batch_size": 5, "seeds": [0, 1], "methods": METHODS, "model": "mlp:hidden=4",
        "participation": 0.6, "checkpoint_every": 5,
    }  # fmt: skip
    return idl.Study(patience=patience, protocol=protocol, **how | settings)


def end_by_hand(values: list[float], patience: int) -> tuple[int, int] | None:
    """The places of the evaluation that ends it and of the best one."""
    for end in range(len(values)):
        best = int(np.argmax(values[: end + 1]))
        if end - best == patience:
            return end, best
    return None


def ends_of(records: pd.DataFrame, patience: int, weights: dict[int, int] | None) -> dict[tuple[str, int], Any]:
    """Where each method and seed stops, by the records of a run that never stops."""
    r = records[(records["metric"] == "validation_accuracy") & (records["stage"] == "personalised")]
    ends: dict[tuple[str, int], Any] = {}
    for key, part in r.groupby(["method", "seed"]):
        wide = part.pivot(index="round", columns="client", values="value")
        weight = None if weights is None else [weights[c] for c in wide.columns]
        means = np.average(wide.to_numpy(), axis=1, weights=weight).round(10).tolist()
        places = end_by_hand(means, patience)
        ends[key] = places and tuple(wide.index[list(places)])  # type: ignore[index]
    return ends


@pytest.mark.parametrize("patience", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_the_rule(patience: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 8, 12) / 8
    means = {3 * (k + 1): float(value) for k, value in enumerate(values)}
    want = end_by_hand(list(means.values()), patience)
    got = stop_of(means, patience)
    assert got == (want and tuple(3 * (place + 1) for place in want))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    """A run that does not stop."""
    out = tmp_path_factory.mktemp("whole") / "r"
    return idl.run(study(None, "validation=0.3,round=best_validation"), out, engine="sequential")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    return idl.run(study(), tmp_path_factory.mktemp("stopped") / "r", engine="sequential")


def measured(records: pd.DataFrame) -> pd.DataFrame:
    return records[records["stage"].isin(["personalised", "local", "wire"])].reset_index(drop=True)


@pytest.mark.thorough(but=["2-*"])
@pytest.mark.parametrize(("patience", "weighting"), [(1, "client"), (2, "client"), (2, "sample"), (4, "client")])
def test_each_method_and_seed_stops_by_the_rule(
    patience: int, weighting: str, whole: idl.Result, tmp_path: Path
) -> None:
    result = idl.run(study(patience, f"validation=0.3,weighting={weighting}"), tmp_path / "r", engine="sequential")
    sizes = {c["id"]: sum(c["validation"]) for c in json.loads((tmp_path / "r/manifest.json").read_text())["clients"]}
    ends = ends_of(whole.records, patience, sizes if weighting == "sample" else None)
    assert len({end for end in ends.values() if end}) > 1, "they stop in different rounds"
    run = report.read(result.folder)
    early = {key: end for key, end in ends.items() if end and end[0] < ROUNDS}
    assert {key: tuple(stop) for key, stop in run.stopped.items()} == early
    for (method, seed), part in measured(whole.records).groupby(["method", "seed"]):
        last = early[method, seed][0] if (method, seed) in early else ROUNDS
        mine = measured(result.records)
        mine = mine[(mine["method"] == method) & (mine["seed"] == seed)].reset_index(drop=True)
        want = part[part["round"] <= last].reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, want, check_exact=True)
    final = run.final.groupby(["method", "seed"])["round"].first().to_dict()
    assert {key: final[key] for key in early} == {key: end[1] for key, end in early.items()}


def test_a_resumed_run_stops_where_a_run_without_a_break_does(stopped: idl.Result, tmp_path: Path) -> None:
    class Break(Watcher):
        def __init__(self, after: int) -> None:
            self.left = after

        def recorded(self, label: str, seed: int, round: int, records: Any) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    for after in (3, 7, 11):
        folder = tmp_path / str(after)
        with pytest.raises(Interrupted):
            idl.run(study(), folder, engine="sequential", watcher=Break(after))
        for more in (9, 10**6):
            try:
                idl.run(study(), folder, engine="sequential", resume=True, watcher=Break(more))
                break
            except Interrupted:
                pass
        assert (folder / "records.parquet").read_bytes() == (stopped.folder / "records.parquet").read_bytes()


def test_what_has_stopped_is_complete(stopped: idl.Result, tmp_path: Path) -> None:
    told: list[Any] = []

    class Told(Watcher):
        def start(self, label: str, seed: int, done: int) -> None:
            told.append(("start", label, seed, done))

        def stopped(self, label: str, seed: int, round: int, best: int) -> None:
            told.append((label, seed, round, best))

    before = {path: path.read_bytes() for path in sorted(stopped.folder.rglob("*")) if path.suffix == ".safetensors"}
    result = idl.run(study(), stopped.folder, engine="sequential", resume=True, watcher=Told())
    early = report.read(result.folder).stopped
    assert early
    assert {one for one in told if one[0] != "start"} == {(*key, *stop) for key, stop in early.items()}
    assert all(done == ROUNDS for kind, *_, done in told if kind == "start")
    assert {path: path.read_bytes() for path in before} == before
    assert {checkpoint.rounds(path) for path in before} <= {*(stop.round for stop in early.values()), ROUNDS}
    rows = result.rows()
    assert all(row.accuracy is not None for row in rows)
    assert len(result.clients().columns) >= 3 * len(METHODS), "methods that stopped in different rounds are compared"
    assert report.comparisons(report.read(result.folder))


def test_the_report_says_where_each_stopped_and_which_round_counts(stopped: idl.Result) -> None:
    run = report.read(stopped.folder)
    text = " ".join(stopped.notes())
    for (label, seed), stop in run.stopped.items():
        assert f"{run.titles[label]}, seed {seed}: stopped after round {stop.round}, round {stop.best} counts" in text
    page = stopped.page.read_text()
    assert "The validation accuracy no longer rose." in page
    assert "the last evaluation is in round" not in page
    console = Console(file=io.StringIO(), width=80)
    console.print(stopped.table())
    shown = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert f"Test accuracy after up to {max(row.rounds for row in stopped.rows())} rounds" in shown


def test_trackers_end_with_the_method_that_stops(tmp_path: Path) -> None:
    said: list[tuple[str, Any]] = []

    class Tracker:
        def start(self, study: idl.Study, label: str, seed: int, folder: Path, done: int) -> None:
            self.label = label

        def log(self, round: int, values: Any) -> None:
            said.append((self.label, round))

        def end(self, status: str) -> None:
            said.append((self.label, status))

    result = idl.run(study(seeds=[0]), tmp_path / "r", engine="sequential", track=[Tracker])
    for (label, _), stop in report.read(result.folder).stopped.items():
        mine = [what for name, what in said if name == label]
        assert mine == [*range(EVERY, stop.round + 1, EVERY), "finished"]


def test_progress_says_so() -> None:
    console = Console(file=io.StringIO(), width=100)
    for watcher in (Lines(console), bars := Bars(Console(file=io.StringIO(), width=100, height=20))):
        engine: Any = type("Engine", (), {"workers": 1, "lanes": 1, "seconds": 0.0})
        watcher.plan(100, {("fedavg", 0): 0, ("local", 0): 0}, engine)
        watcher.start("fedavg", 0, 0)
        watcher.advance("fedavg", 0, 40, 0.5)
        watcher.stopped("fedavg", 0, 40, 30)
    assert "fedavg: seed 0, stopped after round 40; round 30 counts" in console.file.getvalue()  # type: ignore[attr-defined]
    console = Console(file=io.StringIO(), width=100)
    console.print(bars.shown())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "stopped" in shown
    assert "40 of 140 rounds; 0 running, 1 queued" in shown


def test_new_clients_are_measured_where_a_method_stops(tmp_path: Path) -> None:
    result = idl.run(study(seeds=[0], new_clients=1), tmp_path / "r", engine="sequential")
    new = result.records[result.records["stage"] == "new"].groupby("method")["round"].agg(["min", "max"])
    early = report.read(result.folder).stopped
    assert early
    ends = {label: early[label, 0].round if (label, 0) in early else ROUNDS for label in METHODS}
    assert new["min"].to_dict() == new["max"].to_dict() == ends


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_bundle_says_of_which_round_it_is(
    method: str, stopped: idl.Result, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = report.read(stopped.folder).stopped[method, 0]
    with caplog.at_level(logging.WARNING):
        bundle = stopped.bundle(method, tmp_path / "b", seed=0)
    assert bundle.about.key.round == stop.round
    said = f"are from round {stop.round}, and its accuracy in the table is that of round {stop.best}"
    assert said in caplog.text
    assert "best on validation" not in bundle.about.evaluation.protocol


@pytest.mark.parametrize(
    ("protocol", "settings", "sentence"),
    [
        ("stage=received", {}, "patience=2 needs samples to validate on: add protocol validation=0.2"),
        ("validation=0.2,round=last", {}, "counts the round that is best on validation samples, not the last: leave"),
        ("validation=0.2,clients=new", {"new_clients": 1}, "patience=2 and protocol clients=new do not go together"),
        ("validation=0.2,full_last_round=true", {}, "protocol full_last_round needs a last round that is known"),
        ("validation=0.2,observe=features", {}, "protocol observe=features needs a last round that is known"),
        ("validation=0.2", {"save_predictions": True}, "save_predictions needs a last round that is known in advance"),
    ],
)
def test_what_does_not_go_together_is_refused(protocol: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        study(protocol=protocol, **settings)


def test_the_best_round_counts_without_being_asked_for() -> None:
    assert study().protocol.round == "best_validation"
    again = idl.Study(**study(data=None, dataset="digits").model_dump(mode="json"))
    assert (again.patience, again.protocol.round) == (2, "best_validation")
