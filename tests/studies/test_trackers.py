"""What trackers are told is what the run records, method by method; what they do wrong costs the run nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect import cli
from idiolect.core.errors import InputError, Interrupted
from idiolect.core.evaluation_protocol import Protocol
from idiolect.reproduction import recipes, reproduce
from idiolect.simulation import Record
from idiolect.studies import Study
from idiolect.studies.progress import Watcher
from idiolect.studies.trackers import MLflow, TensorBoard, Tracker, measures

STUDY = Study(
    name="tracked", clients=6, rounds=4, participation=0.5, local_epochs=1, model="mlp", methods="local,fedavg",
    evaluate_every=2, checkpoint_every=1,
)  # fmt: skip
NAMES = {"accuracy", "loss", "calibration_error", "brier", "worst_decile", "bytes", "seconds"}


class Noted:
    """Notes what it is told, and in which thread."""

    def __init__(self, into: list[Noted]) -> None:
        self.told: list[Any] = []
        into.append(self)

    def start(self, study: Study, label: str, seed: int, folder: Path, done: int) -> None:
        self.about, self.folder, self.thread = (label, seed, done), folder, threading.get_ident()

    def log(self, round: int, values: Mapping[str, float]) -> None:
        assert threading.get_ident() == self.thread
        self.told.append((round, dict(values)))

    def end(self, status: str) -> None:
        self.told.append(status)


def stops_at(round: int) -> Watcher:
    class Stops(Watcher):
        def advance(self, label: str, seed: int, at: int, accuracy: float | None) -> None:
            if at == round:
                signal.raise_signal(signal.SIGTERM)

    return Stops()


def expected(folder: Path, label: str) -> pd.DataFrame:
    """The curves of a method, from the records: a row per evaluated round."""
    records = pd.read_parquet(folder / "records.parquet").query("method == @label")
    personalised = records[records.stage == "personalised"]
    frame = personalised.groupby(["round", "metric"]).value.mean().unstack()
    worst = (
        personalised[personalised.metric == "accuracy"].groupby("round").value.min()
    )  # of six, the worst tenth is one
    sent = records[records.stage == "wire"].groupby(["round", "client"]).value.sum().groupby("round").mean()
    return frame.assign(worst_decile=worst, bytes=sent)[sorted(NAMES - {"seconds"})]


# --- what is told


@pytest.mark.parametrize("weighting", ["client", "sample"])
def test_measures(weighting: Any) -> None:
    rng = np.random.default_rng(0)
    rows = [int(n) for n in rng.integers(1, 50, 23)] + [0]
    accuracy, loss, brier, error = rng.random((4, 23))
    records = [Record(2, 23, "personalised", "accuracy", float("nan"))]
    for i in range(23):
        measured = {"accuracy": accuracy, "loss": loss, "brier": brier, "calibration_error": error}
        records += [Record(2, i, "personalised", name, float(values[i])) for name, values in measured.items()]
        records += [Record(2, i, "received", "accuracy", 0.0), Record(2, i, "personalised", "gaussianity", 9.0)]
    for i in (3, 5):
        records += [Record(2, i, "wire", "bytes_down", 100.0), Record(2, i, "wire", "bytes_up", 10.0 * i)]
        records += [Record(2, i, "local", "loss", 7.0)]
    found = measures(records, 1.5, Protocol(weighting=weighting), rows)
    weights = np.ones(23) if weighting == "client" else np.array(rows[:23])
    assert found.keys() == NAMES
    for name, values in (("accuracy", accuracy), ("loss", loss), ("brier", brier), ("calibration_error", error)):
        assert found[name] == pytest.approx((weights * values).sum() / weights.sum(), rel=1e-12), name
    assert found["worst_decile"] == pytest.approx(np.sort(accuracy)[:2].mean(), rel=1e-12)
    assert (found["bytes"], found["seconds"]) == (140.0, 1.5)
    assert measures([r for r in records if r.stage != "personalised"], 1.5, Protocol(), rows) == {}, "not evaluated"


def test_measures_of_new_clients() -> None:
    who = ((0, "personalised", 0.5), (1, "new", 0.2), (2, "new", 1.0), (3, "new", 0.0))
    records = [Record(1, i, stage, "accuracy", value) for i, stage, value in who]
    records += [Record(1, i, stage, "loss", 10 * value) for i, stage, value in who]
    records += [Record(1, 0, "wire", "bytes_up", 4.0)]
    told = [10, 10, 10, 10], ["", "", "turned"]
    found = measures(records, 0.0, Protocol(), *told)
    assert (found["accuracy"], found["new_client_accuracy"], found["loss"]) == (0.5, pytest.approx(0.4), 5.0)
    assert "trained_accuracy" not in found
    found = measures(records, 0.0, Protocol(clients="new"), *told)
    assert (found["accuracy"], found["new_client_accuracy"]) == (pytest.approx(0.6), pytest.approx(0.4))
    assert (found["trained_accuracy"], found["loss"], found["worst_decile"]) == (0.5, pytest.approx(6.0), 0.2)
    before = measures([r for r in records if r.stage != "new"], 0.0, Protocol(clients="new"), *told)
    assert before == {"trained_accuracy": 0.5, "bytes": 4.0, "seconds": 0.0}, "they have not joined yet"


@pytest.mark.parametrize("how", [{"engine": "sequential"}, {"engine": "processes", "workers": 2}])
def test_each_method_has_trackers_of_its_own(tmp_path: Path, how: dict[str, Any]) -> None:
    found: list[Noted] = []
    idl.run(STUDY, tmp_path / "r", track=[lambda: Noted(found)], **how)
    assert sorted(n.about for n in found) == [("fedavg", 0, 0), ("local", 0, 0)]
    for noted in found:
        label = noted.about[0]
        assert noted.folder.parent == tmp_path / "r" / "cells"
        *curve, status = noted.told
        assert status == "finished"
        frame = pd.DataFrame([values for _, values in curve], index=[round for round, _ in curve])
        assert list(frame.index) == [2, 4]
        assert (frame.seconds > 0).all()
        wanted = expected(tmp_path / "r", label)
        assert np.allclose(frame[wanted.columns], wanted, rtol=1e-12), label


def test_stopped_and_taken_up_again(tmp_path: Path) -> None:
    found: list[Noted] = []
    track: list[Callable[[], Tracker]] = [lambda: Noted(found)]
    with pytest.raises(Interrupted):
        idl.run(STUDY, tmp_path / "r", engine="sequential", watcher=stops_at(3), track=track)
    assert [n.about for n in found] == [("local", 0, 0)]
    assert (found[0].told[0][0], found[0].told[1]) == (2, "stopped")
    idl.run(STUDY, tmp_path / "r", engine="sequential", resume=True, track=track)
    assert [n.about for n in found[1:]] == [("local", 0, 3), ("fedavg", 0, 0)]
    assert (found[1].told[0][0], found[1].told[1]) == (4, "finished")
    idl.run(STUDY, tmp_path / "r", engine="sequential", resume=True, track=track)
    assert len(found) == 3, "nothing was left to run"


def test_failed(tmp_path: Path) -> None:
    found: list[Noted] = []
    study = STUDY.model_copy(update={"lr": 1e30})
    result = idl.run(study, tmp_path / "r", engine="sequential", track=[lambda: Noted(found)])
    assert [(d.method, d.round) for d in result.diverged] == [("local", 1), ("fedavg", 1)]
    assert [n.told for n in found] == [["failed"], ["failed"]]


def test_a_recipe_tells_them_too(tmp_path: Path) -> None:
    found: list[Noted] = []
    cell = recipes.Cell({"method": "local"}, STUDY.model_copy(update={"methods": STUDY.methods[:1]}))
    list(reproduce.reproduce([cell], tmp_path, engine="sequential", track=[lambda: Noted(found)]))
    assert [n.about for n in found] == [("local", 0, 0)]


# --- what goes wrong


@pytest.mark.parametrize("fails", ["start", "log", "end", "log beside"])
def test_a_tracker_that_fails_costs_nothing(tmp_path: Path, fails: str) -> None:
    fails, _, beside = fails.partition(" ")
    how: dict[str, Any] = {"engine": "processes", "workers": 2} if beside else {"engine": "sequential"}

    def fail(*arguments: Any) -> None:
        raise OSError("the server\nis gone")

    found: list[Noted] = []
    broken = type("Broken", (Noted,), {fails: fail})
    sound: list[Noted] = []
    with pytest.warns(RuntimeWarning) as warned:
        idl.run(STUDY, tmp_path / "r", track=[lambda: broken(found), lambda: Noted(sound)], **how)
    (one,) = warned
    assert str(one.message).endswith(" failed, and the run goes on without it: OSError: the server is gone")
    assert len(pd.read_parquet(tmp_path / "r" / "timings.parquet")) == 8
    assert len(sound) == 2
    assert all(n.told[-1] == "finished" and len(n.told) == 3 for n in sound)
    if fails == "log":
        assert {len(n.told) for n in found} <= {0, 1}, "told no more, but ended where it had begun"


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError) as caught:
        idl.run(STUDY, tmp_path / "r", track=[f"{name}:x"])
    assert str(caught.value) == f"track={name!r} needs a package: pip install 'idiolect[{name}]'"
    assert not (tmp_path / "r").exists()


def test_an_unknown_tracker(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^unknown tracker 'tensorbord'; did you mean 'tensorboard'\? Known: "):
        idl.run(STUDY, tmp_path / "r", track=["tensorbord"])


# --- TensorBoard


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    assert "study/text_summary" in read.Tags()["tensors"]
    return {name: [(e.step, e.value) for e in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(STUDY.to_yaml())
    monkeypatch.chdir(tmp_path)
    line = "run s.yaml --engine processes --workers 2 --out r --quiet --track tensorboard --track tensorboard:all"
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    assert ended.value.code == 0, capsys.readouterr().err
    for cell in ("01-local-seed0", "02-fedavg-seed0"):
        wanted = expected(Path("r"), cell[3:].partition("-")[0])
        for folder in (Path("r/cells") / cell / "tensorboard", Path("all/r") / cell):
            found = curves(folder)
            assert found.keys() == NAMES
            for name in wanted:
                steps, values = zip(*found[name], strict=True)
                assert steps == (2, 4)
                assert np.allclose(values, wanted[name], rtol=1e-6), "float32"


def test_tensorboard_forgets_what_was_ahead_of_the_checkpoint(tmp_path: Path) -> None:
    killed = TensorBoard(str(tmp_path))
    killed.start(STUDY, "local", 0, Path("r/cells/one"), 0)
    for round in (1, 2, 3):
        killed.log(round, {"accuracy": round / 10})
    killed.end("stopped")
    again = TensorBoard(str(tmp_path))
    again.start(STUDY, "local", 0, Path("r/cells/one"), 1)
    again.log(2, {"accuracy": 0.7})
    again.end("finished")
    assert [s for s, _ in curves(tmp_path / "r" / "one")["accuracy"]] == [1, 2]
    assert [v for _, v in curves(tmp_path / "r" / "one")["accuracy"]] == pytest.approx([0.1, 0.7])


# --- MLflow


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/runs.db"
    client = MlflowClient(tracking_uri=uri)
    study = Study(**STUDY.model_dump() | {"methods": ["local", "pfedhn:lr=0.125,server_lr=0.5"]})
    with pytest.raises(Interrupted):
        idl.run(study, "r", engine="sequential", watcher=stops_at(3), track=[f"mlflow:{uri}"])
    experiment = client.get_experiment_by_name("tracked")
    assert experiment is not None
    (first,) = client.search_runs([experiment.experiment_id])
    assert first.info.status == "KILLED"
    idl.run(study, "r", engine="processes", workers=2, resume=True, track=[f"mlflow:{uri}"])
    found = {r.data.tags["method"]: r for r in client.search_runs([experiment.experiment_id])}
    assert found.keys() == {"local", "pfedhn:lr=0.125,server_lr=0.5"}
    assert found["local"].info.run_id == first.info.run_id, "the same run goes on"
    for label, run in found.items():
        assert run.info.status == "FINISHED"
        wanted = expected(Path("r"), label)
        assert run.data.metrics.keys() == NAMES
        for name in wanted:
            history = client.get_metric_history(run.info.run_id, name)
            assert [m.step for m in history] == [2, 4]
            assert np.allclose([m.value for m in history], wanted[name], rtol=1e-12)
    params = found["pfedhn:lr=0.125,server_lr=0.5"].data.params
    assert (params["lr"], params["method.lr"], params["method.name"]) == ("0.01", "0.125", "pfedhn")
    assert (params["rounds"], params["protocol.stage"]) == ("4", "personalised")
    assert not Path("mlruns").exists()


def test_a_dead_server_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and never answers: it is asked twice, for seconds, and then no more."""
    from idiolect.studies import trackers

    for variable in trackers._ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    seen: dict[str, str | None] = {}
    real = trackers.importlib.import_module

    def look(name: str) -> Any:
        seen.update({variable: os.environ.get(variable) for variable in trackers._ENVIRONMENT})
        return real(name)

    monkeypatch.setattr(trackers.importlib, "import_module", look)
    with socket.create_server(("127.0.0.1", 0)) as dead:
        where = f"mlflow:http://127.0.0.1:{dead.getsockname()[1]}"
        with pytest.warns(RuntimeWarning, match="mlflow.* failed, and the run goes on without it: ") as warned:
            idl.run(STUDY, tmp_path / "r", engine="sequential", track=[where])
        dead.setblocking(False)
        asked = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                dead.accept()[0].close()
                asked += 1
    assert len(warned) == 1
    assert asked <= 2, "once and once more; by itself MLflow asks eight times"
    assert seen["MLFLOW_DISABLE_TELEMETRY"] == seen["DO_NOT_TRACK"] == "true"
    assert seen["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "1", "what the user has set stays"
    assert len(pd.read_parquet(tmp_path / "r" / "timings.parquet")) == 8


def test_mlflow_of_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell keeps a run for each place, and writes it before anything is logged."""
    made: list[str] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            self.tracking_uri = tracking_uri

        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="7")

        def create_run(self, experiment: str, run_name: str, tags: Any) -> Any:
            made.append(f"{self.tracking_uri}-{len(made)}")
            return SimpleNamespace(info=SimpleNamespace(run_id=made[-1]))

        def __getattr__(self, name: str) -> Any:
            return lambda *a, **k: None

    import mlflow

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    for where in ("a", "b", "a"):
        MLflow(where).start(STUDY, "local", 0, tmp_path, 0)
    assert made == ["a-0", "b-1"]


# --- Weights & Biases


def test_wandb_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    class Run:
        def __init__(self, **how: Any) -> None:
            self.how, self.told = how, []
            begun.append(self)

        def log(self, values: dict[str, float], step: int) -> None:
            self.told.append((step, values))

        def finish(self, exit_code: int) -> None:
            self.told.append(exit_code)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Run, Settings=dict))
    with pytest.raises(Interrupted):
        idl.run(STUDY, tmp_path / "r", engine="sequential", watcher=stops_at(3), track=["wandb:mine"])
    idl.run(STUDY, tmp_path / "r", engine="sequential", resume=True, track=["wandb:mine"])
    assert [[t if isinstance(t, int) else t[0] for t in r.told] for r in begun] == [[2, 1], [4, 0], [2, 4, 0]]
    assert begun[0].how["id"] == begun[1].how["id"] != begun[2].how["id"]
    assert {r.how["resume"] for r in begun} == {"allow"}
    assert {r.how["reinit"] for r in begun} == {"create_new"}, "two runs side by side in one process"
    assert [r.how["name"] for r in begun] == ["local, seed 0", "local, seed 0", "fedavg, seed 0"]
    assert begun[2].how["config"]["method"] == "fedavg"
    wanted = expected(tmp_path / "r", "fedavg")
    for step, values in begun[2].told[:2]:
        assert {k: values[k] for k in wanted} == pytest.approx(wanted.loc[step].to_dict())


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs pip install 'idiolect[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    idl.run(STUDY, tmp_path / "r", engine="processes", workers=2, track=["wandb:mine"])
    for cell in ("01-local-seed0", "02-fedavg-seed0"):
        (kept,) = (tmp_path / "r" / "cells" / cell).glob("wandb/offline-run-*/*.wandb")
        assert kept.stat().st_size > 1000
