"""Models of windows of sensors outside of the simulator: joined, asked, in scikit-learn, and as ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.export import export
from idiolect.deploy.join import join
from idiolect.deploy.predict import predict
from idiolect.deploy.samples import read


def walks(rows: int, seed: int, time: int = 30) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    fast = rng.random(rows) < 0.5
    wave = np.sin(np.arange(time) * np.where(fast, 1.1, 0.4)[:, None]) + 0.2 * rng.normal(size=(rows, time))
    other = rng.normal(5, 3, size=(rows, time))
    return pd.DataFrame(
        {
            "accel x": list(wave),
            "accel y": list(other),
            "activity": np.where(fast, "run", "walk"),
            "user": [f"user {k % 4}" for k in range(rows)],
        }
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("windows")
    walks(200, 0).to_parquet(folder / "walks.parquet")
    study = idl.Study(
        data=str(folder / "walks.parquet"), target="activity", client_column="user", methods=["fedavg_ft"], rounds=4,
        local_epochs=2, optimiser="adam", lr=0.003, model="mlp:hidden=8", batch_size=20,
    )  # fmt: skip
    return idl.run(study, folder / "run", engine="sequential").bundle("fedavg_ft", folder / "bundle")


@pytest.fixture(scope="module")
def site(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("site")
    walks(60, 1).to_parquet(folder / "mine.parquet")
    mine = read(folder / "mine.parquet", bundle.about.inputs, bundle.about.classes, "activity")
    return join(bundle, mine, folder / "site", ships="personal")


def test_what_a_bundle_says(bundle: Bundle) -> None:
    inputs = bundle.about.inputs
    assert (inputs.kind, inputs.shape, inputs.channels) == ("windows", (2, 30), ("accel x", "accel y"))
    assert abs(np.array(inputs.mean) - [0, 5]).max() < 0.3
    cards = "".join(path.read_text() for path in bundle.folder.glob("*.md"))
    assert "Windows of 2 channels and 30 time steps, in the columns accel x and accel y." in cards


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_files_are_predicted(site: Bundle, kind: str, tmp_path: Path) -> None:
    frame = walks(40, 2)
    path = tmp_path / f"new.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    assert predict(site, path, tmp_path / "p.csv") == (40, 0)
    found = pd.read_csv(tmp_path / "p.csv")
    assert list(found) == ["row", "activity", "user", "label", "p_run", "p_walk"]
    assert (found["label"] == found["activity"]).mean() > 0.9
    model = idl.load(site.folder)
    wanted = found[["p_run", "p_walk"]]
    np.testing.assert_allclose(model.predict_proba(frame), wanted, atol=1e-5)
    x = np.stack([np.stack(list(frame["accel x"])), np.stack(list(frame["accel y"]))], axis=1)
    np.testing.assert_allclose(model.predict_proba(x), wanted, atol=1e-5)


def test_columns_in_another_order_and_spelling(site: Bundle, tmp_path: Path) -> None:
    frame = walks(10, 3)
    plain = idl.load(site.folder).predict_proba(frame)
    other = frame[["user", "accel y", "accel x"]].rename(columns={"accel y": "Accel_Y"})
    np.testing.assert_allclose(idl.load(site.folder).predict_proba(other), plain)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (walks(5, 4).drop(columns="accel y"), "has no column 'accel y'"),
        (walks(5, 4, time=31), "has windows of 2 channels and 31 time steps, and this bundle takes 2 channels and 30"),
        (walks(5, 4).assign(**{"accel x": 1.5}), "has lists in accel y and single values in accel x"),
        (walks(5, 4).assign(**{"accel x": [[1.0]] * 5}), "have lists of different lengths"),
    ],
)
def test_tables_without_such_windows_are_refused(
    site: Bundle, frame: pd.DataFrame, message: str, tmp_path: Path
) -> None:
    frame.to_parquet(tmp_path / "n.parquet")
    with pytest.raises(InputError, match=message):
        predict(site, tmp_path / "n.parquet", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def test_as_onnx(site: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert export(site, tmp_path / "m.onnx").samples == 64
