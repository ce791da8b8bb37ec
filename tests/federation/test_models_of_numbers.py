"""Personal models of numbers at the sites of a federation, and what a new site gets from its server."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from sites import Loop, study, workers
from test_numbers import scores

from idiolect.core.errors import InputError
from idiolect.deploy import watch as watching
from idiolect.deploy.predict import predict
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.server.conduct import conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site import comparison
from idiolect.federation.site.state_folder import site_model
from idiolect.studies import Result

FEW = ("north", "south", "east")


class Finished(NamedTuple):
    folder: Path
    run: Result
    targets: tuple[str, ...]

    @property
    def target(self) -> str:
        return "+".join(self.targets)

    def state(self, site: str = "north"):
        return site_model(self.folder / "states" / site)


@pytest.fixture(scope="module", params=[("label",), ("label", "days")], ids=["one", "two"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A federation of three schools with 30 test samples each."""
    folder, targets = tmp_path_factory.mktemp("schools"), request.param
    files = {name: folder / f"{name}.csv" for name in FEW}
    for k, file in enumerate(files.values()):
        frame = scores(k, 150)
        (frame if len(targets) == 2 else frame.drop(columns="days")).to_csv(file, index=False)
    study(folder, "fedper", rounds=3, task="regression", save_predictions="true")
    link = Loop(workers(folder / "states", files))
    if len(targets) == 2:
        for worker in link.workers.values():
            worker._samples = SiteFiles(worker._samples.where, target="label+days")
    run = conduct(study_for(folder / "study.yaml", "trial"), link, FEW, folder / "run", Events(quiet=True))
    return Finished(folder, run, targets)


def test_a_site_predicts_in_the_units_of_its_data(finished: Finished, tmp_path: Path) -> None:
    model = finished.state()
    assert [target.name for target in model.about.targets] == list(finished.targets)
    own = model.predictions()[0].to_pandas()
    errors = [(own[name] - own[f"{name} of the data"]).to_numpy() for name in finished.targets]
    recorded = finished.run.records.query("client == 0 and round == 3 and metric == 'mse'")["value"].item()
    assert np.mean([(error**2).mean() for error in errors]) == pytest.approx(recorded, rel=1e-9)
    assert len(own) == model.about.site.samples == 30
    for name, error, part in zip(finished.targets, errors, model.about.site.errors, strict=True):
        assert part.std == pytest.approx(np.sqrt((error**2).mean()))
        np.testing.assert_allclose(part.sizes, np.sort(np.abs(error)))
        assert (own[f"{name}_std"] == part.std).all()
    assert f"mean squared error {recorded:.4g} on 30 test samples" in model.about.site.why
    assert "accuracy" not in model.about.site.why

    new = scores(0, 400)[150:]
    new.drop(columns=[*finished.targets]).to_csv(tmp_path / "new.csv", index=False)
    predict(model, tmp_path / "new.csv", tmp_path / "out.csv", level=0.9)
    out = pd.read_csv(tmp_path / "out.csv")
    assert len(out) == 250
    for name, error in zip(finished.targets, errors, strict=True):
        assert abs(out[name].mean() - new[name].mean()) < new[name].std()
        half = np.sort(np.abs(error))[int(np.ceil(31 * 0.9)) - 1]  # split conformal prediction, by hand
        np.testing.assert_allclose(out[f"{name}_high"] - out[name], half, rtol=1e-9)
        inside = (new[name].to_numpy() >= out[f"{name}_low"]) & (new[name].to_numpy() <= out[f"{name}_high"])
        assert inside.mean() > 0.75


def test_a_site_keeps_what_it_predicted(finished: Finished) -> None:
    [path] = finished.folder.glob("states/south/*/*/fedper-*/predictions.parquet")
    frame = pd.read_parquet(path)
    assert len(frame) == 30
    data = pd.read_csv(finished.folder / "south.csv")
    for d, name in enumerate(finished.targets):
        assert set(frame[f"target[{d}]"]) <= set(data[name])


def test_a_site_is_told_of_other_samples(finished: Finished, tmp_path: Path) -> None:
    model = finished.state()
    for name, moved in (("same", 0.0), ("moved", 6.0)):
        frame = scores(0, 400)[150:].drop(columns=[*finished.targets])
        (frame + moved).to_csv(tmp_path / f"{name}.csv", index=False)
        report = watching.watch(model, watching_rows(model, tmp_path / f"{name}.csv"))
        assert report.alarm == (name == "moved")


def watching_rows(model, path: Path):
    from idiolect.deploy.samples import stream

    every = [column.name for column in model.about.inputs.columns]
    return (x for x, _ in stream(path, model.about.inputs, as_is=every))


def test_a_sites_models_are_compared_by_errors(finished: Finished, tmp_path: Path) -> None:
    model = finished.state()
    samples = SiteFiles(finished.folder / "north.csv", target=finished.target)
    site = comparison.join(model, samples, tmp_path / "best").about.site
    assert set(site.compared) == {"global", "personal", "local", "blend"}
    recorded = finished.run.records.query("client == 0 and round == 3 and metric == 'mse'")["value"].item()
    assert site.compared["personal"]["mse"] == pytest.approx(recorded, rel=1e-5)
    assert "accuracy" not in site.compared["personal"]
    other = pd.read_csv(finished.folder / "north.csv")
    for column in finished.targets:
        other.assign(**{column: other[column] + 1}).to_csv(tmp_path / "other.csv", index=False)
        with pytest.raises(InputError, match="is not the data with which north took part"):
            comparison.join(model, SiteFiles(tmp_path / "other.csv", target=finished.target), tmp_path / "no")


def test_a_new_site_gets_a_model_from_the_server(finished: Finished, tmp_path: Path) -> None:
    bundle = finished.run.bundle("fedper", tmp_path / "bundle")
    assert [target.name for target in bundle.about.targets] == list(finished.targets)
    frames = [pd.read_csv(finished.folder / f"{name}.csv") for name in FEW]
    mean = np.mean([frame["label"].mean() for frame in frames])
    assert bundle.about.targets[0].mean == pytest.approx(mean, abs=3)
    assert {client.name for client in bundle.about.evaluation.clients} == set(FEW)
    assert all(client.personal > 0 for client in bundle.about.evaluation.clients)
