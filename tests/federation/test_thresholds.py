"""Thresholds in a federation: each site chooses its own on validation samples, as a simulated client does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sites import Loop, study, workers
from sklearn.metrics import balanced_accuracy_score, f1_score

from idiolect.cli import main
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.predict import predict
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site import comparison
from idiolect.federation.site.state_folder import site_model
from idiolect.studies import Result
from rehearsal import rehearsed

SITES = ("north", "south", "east")
SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]


def patients(k: int, rows: int = 120) -> pd.DataFrame:
    """A clinic's patients, of whom a fifth is ill; the two kinds overlap."""
    draw = np.random.default_rng(k)
    ill = draw.random(rows) < 0.2
    x = draw.normal(size=(rows, 3)) + np.array([0.8, 0.4 * k, 0]) * ill[:, None]
    return pd.DataFrame(x.round(3), columns=["a", "b", "c"]).assign(label=np.where(ill, "ill", "healthy"))


@pytest.fixture
def clinics(tmp_path: Path) -> dict[str, Path]:
    for k, name in enumerate(SITES):
        patients(k).to_csv(tmp_path / f"{name}.csv", index=False)
    return {name: tmp_path / f"{name}.csv" for name in SITES}


def run(tmp_path: Path, clinics: dict[str, Path]) -> Result:
    whole = study_for(tmp_path / "study.yaml", "trial")
    return conduct(
        whole, Loop(workers(tmp_path / "states", clinics)), SITES, tmp_path / "run", Events(quiet=True)
    )  # fmt: skip


@pytest.mark.parametrize("threshold", ["f1", "balanced"])
def test_a_site_chooses_as_a_simulated_client(threshold: str, clinics: dict[str, Path], tmp_path: Path) -> None:
    protocol = f"{{validation: 0.4, threshold: {threshold}, stage: personalised}}"
    study(tmp_path, "fedavg_ft, fedrep", rounds=2, protocol=protocol)
    records = run(tmp_path, clinics).records
    samples = {name: SiteFiles(file, target="label") for name, file in clinics.items()}
    simulated = rehearsed(study_for(tmp_path / "study.yaml", "trial"), samples, tmp_path / "simulated").records
    both = records.merge(simulated, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-5
    last = records.query("method == 'fedrep' and round == 2 and client == 1").set_index("metric")["value"]
    model = site_model(tmp_path / "states" / "south", method="fedrep")
    assert model.about.thresholds == ((pytest.approx(last["threshold"]),),)
    own = model.predictions()[0].to_pandas()
    np.testing.assert_array_equal(own["label"] == "ill", own["p_ill"] > last["threshold"])
    truth = own["label of the data"] == "ill"
    assert (own["label"] == own["label of the data"]).mean() == pytest.approx(last["accuracy"])
    assert f1_score(truth, own["label"] == "ill", average="macro") == pytest.approx(last["macro_f1"])
    assert balanced_accuracy_score(truth, own["label"] == "ill") == pytest.approx(last["balanced_accuracy"])
    assert f"{last['accuracy']:.1%} of {len(own)} test samples right" in model.about.site.why


def test_models_that_leave_the_federation_have_them(
    clinics: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path, "fedavg_ft", rounds=2, protocol="{validation: 0.4, threshold: f1}")
    result = run(tmp_path, clinics)
    model = site_model(tmp_path / "states" / "north")
    written = model.to_bundle(tmp_path / "written")
    assert written.about.thresholds == model.about.thresholds
    assert written.about.thresholds != ((0.5,),)
    patients(9)[["a", "b", "c"]].to_csv(tmp_path / "new.csv", index=False)
    predict(written, tmp_path / "new.csv", tmp_path / "p.csv")
    said = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_array_equal(said["label"] == "ill", said["p_ill"] > written.about.thresholds[0][0])
    joined = comparison.join(model, SiteFiles(clinics["north"], target="label"), tmp_path / "site").about
    assert (joined.threshold, len(joined.thresholds)) == ("f1", 1)
    result.bundle("fedavg_ft", tmp_path / "server")
    assert Bundle.read(tmp_path / "server").about.threshold == "f1"
    patients(8).to_csv(tmp_path / "fourth.csv", index=False)
    join = ["join", "server", "--data", "fourth.csv", "--target", "label", "--out", "fourth"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(join)
    assert end.value.code == 0
    assert len(Bundle.read(tmp_path / "fourth").about.thresholds) == 1


def test_of_three_classes_there_is_none(clinics: dict[str, Path], tmp_path: Path) -> None:
    frame = patients(1)
    frame.assign(label=frame["label"].mask(frame.index < 9, "unknown")).to_csv(clinics["south"], index=False)
    study(tmp_path, "fedavg", rounds=1, protocol="{validation: 0.4, threshold: f1}")
    with pytest.raises(InputError, match="threshold=f1 is for two classes or several labels, and these data have 3"):
        run(tmp_path, clinics)
    assert not (tmp_path / "run").exists()
