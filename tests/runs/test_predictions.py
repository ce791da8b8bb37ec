"""Saved predictions are those that the records were computed from, with every engine and after an interruption."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import idiolect as idl
from idiolect.core.errors import InputError, Interrupted, RunError
from idiolect.runs import predictions
from idiolect.runs.folder import PREDICTIONS_FILE
from idiolect.simulation.measures import MEASURES

HOW: dict[str, Any] = {
    "clients": 4, "rounds": 2, "local_epochs": 1, "model": "mlp", "methods": "fedavg_ft,local", "evaluate_every": 1,
    "seeds": [0, 3], "measures": "auroc,average_precision,recall,calibration", "save_predictions": True,
    "new_clients": 1,
}  # fmt: skip


def study(**other: Any) -> idl.Study:
    return idl.Study(**HOW | other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    return idl.run(study(), tmp_path_factory.mktemp("predictions") / "r", engine="sequential")


def of_predictions(label: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Every measure by scikit-learn, from the predictions alone."""
    said, there = p.argmax(1), np.unique(label)
    found = {
        "accuracy": metrics.accuracy_score(label, said),
        "loss": -np.log(p[range(len(p)), label]).mean(),
        "brier": float(np.square(p - np.eye(p.shape[1])[label]).sum(1).mean()),
        "macro_f1": metrics.f1_score(label, said, average="macro"),
        "balanced_accuracy": np.mean([(said[label == c] == c).mean() for c in there]),
        "auroc": np.mean([metrics.roc_auc_score(label == c, p[:, c]) for c in there]),
        "average_precision": np.mean([metrics.average_precision_score(label == c, p[:, c]) for c in there]),
    }
    return found | {f"recall[{c}]": (said[label == c] == c).mean() for c in there}


def same_as_records(result: idl.Result, stage: str = "personalised") -> None:
    found = result.predictions()
    r = result.records
    r = r[(r["round"] == 2) & r["stage"].isin([stage, "new"])]
    columns = [predictions.probability(c) for c in range(10)]
    assert list(found.columns) == ["method", "seed", "client", "stage", "sample", "label", *columns]
    for (method, seed, client), mine in found.groupby(["method", "seed", "client"]):
        assert mine["sample"].tolist() == list(range(len(mine)))
        assert set(mine["stage"]) == {"new" if client == 3 else stage}
        there = r[(r["method"] == method) & (r["seed"] == seed) & (r["client"] == client)]
        want = there.set_index("metric")["value"]
        want = want[~want.index.str.contains(r"^calibration|_low$|_high$")].to_dict()
        assert of_predictions(mine["label"].to_numpy(), mine[columns].to_numpy()) == pytest.approx(want, abs=1e-9)
    groups = found[["method", "seed", "client"]].drop_duplicates()
    assert len(groups) == len(r[r["metric"] == "accuracy"])


def test_they_are_those_of_the_records(whole: idl.Result) -> None:
    same_as_records(whole)
    assert len(whole.predictions()[["method", "seed", "client"]].drop_duplicates()) == 2 * 2 * 4


def test_labels_are_the_clients(whole: idl.Result) -> None:
    data = study().federation()
    mine = whole.predictions().query("method == 'local' and seed == 3")
    for k in range(4):
        assert mine[mine["client"] == k]["label"].tolist() == data.y_R[data.test[k]].tolist()


def test_another_stage(tmp_path: Path) -> None:
    """And only the participants, for whom something is recorded."""
    how = "stage=received,also=personalised,clients=participants"
    same_as_records(idl.run(study(protocol=how, participation=0.7), tmp_path / "r", engine="sequential"), "received")


@pytest.mark.parametrize("engine", ["processes", "vectorised:device=cpu"])
def test_engines(whole: idl.Result, tmp_path: Path, engine: str) -> None:
    result = idl.run(study(), tmp_path / "r", engine=engine, workers=2 if engine == "processes" else None)
    same_as_records(result)
    if engine == "processes":
        pd.testing.assert_frame_equal(result.records, whole.records)
        assert (result.folder / PREDICTIONS_FILE).read_bytes() == (whole.folder / PREDICTIONS_FILE).read_bytes()
    else:
        pd.testing.assert_frame_equal(result.predictions(), whole.predictions(), atol=1e-3)


def test_a_resumed_run(whole: idl.Result, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        idl.run(study(), tmp_path / "r", engine="sequential", budget=0)
    assert not (tmp_path / "r" / PREDICTIONS_FILE).exists()
    for _ in range(2):  # the second time there is nothing left to do
        result = idl.run(study(), tmp_path / "r", engine="sequential", resume=True)
        assert (result.folder / PREDICTIONS_FILE).read_bytes() == (whole.folder / PREDICTIONS_FILE).read_bytes()


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_disk_that_is_full_when_they_are_written(
    whole: idl.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """No checkpoint says that they are there, so that the run goes on once there is room."""
    real, left = predictions.save, [failures]

    def save(*args: Any, **how: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise RunError("cannot write (No space left on device)")
        real(*args, **how)

    monkeypatch.setattr(predictions, "save", save)
    while left[0]:
        with pytest.raises(RunError, match="No space left"):
            idl.run(study(), tmp_path / "r", engine="sequential", resume=(tmp_path / "r").exists())
    result = idl.run(study(), tmp_path / "r", engine="sequential", resume=True)
    assert (result.folder / PREDICTIONS_FILE).read_bytes() == (whole.folder / PREDICTIONS_FILE).read_bytes()


@pytest.mark.parametrize("harm", ["gone", "broken"])
def test_what_is_lost_is_noticed_before_anything_is_written(whole: idl.Result, tmp_path: Path, harm: str) -> None:
    folder = Path(shutil.copytree(whole.folder, tmp_path / "r"))
    path = folder / "cells/02-local-seed3" / PREDICTIONS_FILE
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"local", b"lacol"))
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=r"local-seed3/predictions\.parquet cannot be read \(.*: restore it, or delet"):
        idl.run(study(), folder, engine="sequential", resume=True)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_the_runs_file_is_written_again(whole: idl.Result, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole.folder, tmp_path / "r"))
    path = folder / PREDICTIONS_FILE
    before = path.read_bytes()
    for content in (before[:-9], before.replace(b"local", b"lacol"), (folder / "records.parquet").read_bytes()):
        path.write_bytes(content)
        for ask in (idl.Result(folder, whole.study).predictions, idl.Result(folder, whole.study).clients):
            with pytest.raises(
                InputError, match=r"r/predictions\.parquet cannot be read \(.*resume the run, which wri"
            ):
                ask()
    idl.run(study(), folder, engine="sequential", resume=True)
    assert path.read_bytes() == before


def test_without_them(tmp_path: Path) -> None:
    result = idl.run(study(save_predictions=False, measures=()), tmp_path / "r", engine="sequential")
    assert not list(tmp_path.rglob(PREDICTIONS_FILE))
    assert not set(MEASURES) & set(result.records["metric"])
    assert {"balanced_accuracy", "macro_f1"} < set(result.records["metric"])
    with pytest.raises(
        InputError, match=r"r has no predictions\.parquet: run a study with save_predictions to its end"
    ):
        result.predictions()
    with pytest.raises(InputError, match="another study"):
        idl.run(study(), tmp_path / "r", engine="sequential", resume=True)


def test_a_measure_that_the_data_do_not_allow(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="measure specificity is for two classes, and these data have 10"):
        idl.run(study(measures="specificity"), tmp_path / "r")
    assert not (tmp_path / "r").exists()
