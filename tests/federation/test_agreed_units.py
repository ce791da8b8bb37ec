"""A site with numbers of another unit is found before anything is trained; sites as they are raise no alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sites import Away, Loop, study, workers

from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.predict import predict
from idiolect.deploy.samples import read
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.remarks import hidden_gaps
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct, result
from idiolect.federation.server.study import study_for
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.state_folder import site_model
from idiolect.federation.site.worker import Worker
from idiolect.federation.trust.policy import Policy

SITES = ("alba", "brig", "coast")


def frame(seed: int, rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.5
    return pd.DataFrame(
        {
            "age": rng.normal(50 + 4 * (seed % 3), 9, rows).round(),
            "chol": (rng.normal(230, 45, rows) + 20 * ill).round(),
            "temp": rng.normal(37, 0.4, rows).round(1) + 0.5 * ill,
            "oldpeak": np.where(rng.random(rows) < 0.4, 0, rng.exponential(1.2, rows).round(1)),
            "label": np.where(ill, "ill", "well"),
        }
    )


def spoilt(column: str, to: Callable[[pd.Series], pd.Series], seed: int = 1) -> pd.DataFrame:
    found = frame(seed)
    return found.assign(**{column: to(found[column])})


def files(folder: Path, frames: dict[str, pd.DataFrame]) -> dict[str, Path]:
    for name, one in frames.items():
        one.to_csv(folder / f"{name}.csv", index=False)
    return {name: folder / f"{name}.csv" for name in frames}


def offers(folder: Path, frames: dict[str, pd.DataFrame], **as_is: list[str]):
    made = files(folder, frames)
    return {name: SiteFiles(path, target="label", as_is=as_is.get(name, ())).offer() for name, path in made.items()}


SMALLER, LARGER = (rf"at brig it is about [\d.e+]+ times {way} than at .*" for way in ("smaller", "larger"))
WRONG = {
    "chol": (lambda x: (x / 38.67).round(1), rf"{SMALLER} \(mmol/L in place of mg/dl\?\)"),
    "temp": (lambda x: 1.8 * x + 32, rf"{LARGER} \(degrees Fahrenheit in place of degrees Celsius\?\)"),
    "age": (lambda x: 12 * x, rf"{LARGER} \(months in place of years\?\)"),
    "oldpeak": (lambda x: 1000 * x, LARGER),
}


@pytest.mark.parametrize("column", WRONG)
def test_sites_do_not_agree_on_numbers_of_two_units(column: str, tmp_path: Path) -> None:
    to, said = WRONG[column]
    mixed = {"alba": frame(0), "brig": spoilt(column, to), "coast": frame(2)}
    with pytest.raises(InputError, match=f"column '{column}' looks like another unit: {said}") as error:
        common_form(offers(tmp_path, mixed))
    assert str(error.value).endswith(f"convert it, or give as_is='{column}' at brig if the numbers are right")
    inputs, _ = common_form(offers(tmp_path, mixed, brig=[column]))
    assert inputs.columns[[c.name for c in inputs.columns].index(column)].value


def test_sites_as_they_are_agree(tmp_path: Path) -> None:
    usual = {name: frame(k) for k, name in enumerate(SITES)}
    for change in (
        {"brig": spoilt("age", lambda x: x / 2.5)},
        {"coast": spoilt("oldpeak", lambda x: 3 * x)},
        {"alba": frame(0).drop(columns="chol")},
        {"alba": spoilt("chol", lambda x: 0 * x)},
        {"alba": spoilt("chol", lambda x: x / 38.67)[:19]},  # too few to say anything of
    ):
        common_form(offers(tmp_path, usual | change))


def test_zeros_are_said_by_the_server_and_at_the_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = {"alba": frame(0), "brig": spoilt("chol", lambda x: 0 * x), "coast": frame(2)}
    found = offers(tmp_path, mixed)
    inputs, _ = common_form(found)
    [said] = hidden_gaps(inputs.columns, found)
    assert said.startswith("column 'chol' at brig is 0 in most rows")
    study(tmp_path, rounds=1)
    link = Loop(workers(tmp_path / "states", {name: tmp_path / f"{name}.csv" for name in SITES}))
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, SITES, tmp_path / "run", Events())
    assert said in capsys.readouterr().err
    here = [r.getMessage() for r in caplog.records if "is 0 in most rows" in r.getMessage()]
    assert here
    assert all("brig.csv" in text and "'chol'" in text for text in here)


def test_a_site_that_comes_late_is_compared(tmp_path: Path) -> None:
    mixed = {"alba": frame(0), "brig": frame(1), "coast": spoilt("chol", lambda x: x / 38.67)}
    study(tmp_path, rounds=3)
    link = Away(workers(tmp_path / "states", files(tmp_path, mixed)), 2)
    said: list[str] = []

    class Heard(Events):
        def __call__(self, what: str, /, **values: object) -> None:
            said.append(what)

    terms = Terms(Patience(2, 60.0, 0.2), start=2)
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, SITES, tmp_path / "run", Heard(quiet=True), terms=terms)
    assert [text for text in said if "at coast it is about" in text and "than at the other sites" in text]


def test_few_samples_are_compared_at_the_site_itself(tmp_path: Path) -> None:
    """Of fewer than 20 numbers nothing is said to the server; the site looks at what the others agreed on."""
    small = spoilt("chol", lambda x: x / 38.67)[:15]
    mixed = {"alba": frame(0), "brig": frame(1), "coast": small}
    study(tmp_path, rounds=1)
    link = Loop(workers(tmp_path / "states", files(tmp_path, mixed)))
    whole = study_for(tmp_path / "study.yaml", "trial")
    conduct(whole, link, SITES, tmp_path / "run", Events(quiet=True), terms=Terms(Patience(2, 60.0, 0.2), start=2))
    [told] = {r.about.get("failed") for s, r in link.received if s == "coast" and r.about["kind"] == "begin"}
    assert "column 'chol' looks like another unit: at" in told
    assert "mmol/L in place of mg/dl" in told


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("units")
    mixed = {"alba": frame(0), "brig": spoilt("chol", lambda x: 0 * x), "coast": frame(2)}
    study(folder, "fedper", rounds=1)
    link = Loop(workers(folder / "states", files(folder, mixed)))
    conduct(study_for(folder / "study.yaml", "trial"), link, SITES, folder / "run", Events(quiet=True))
    result(folder / "run").bundle("fedper", folder / "b")
    return folder


@pytest.mark.parametrize("column", ["chol", "temp", "age"])
def test_a_new_site_and_new_samples_are_compared(column: str, finished: Path, tmp_path: Path) -> None:
    """Also where zeros stand for missing values at one of the sites, which blur the mean."""
    to, said = WRONG[column]
    said = said.replace("brig", ".*spoilt.csv")
    spoilt(column, to, 7).to_csv(tmp_path / "spoilt.csv", index=False)
    bundle = Bundle.read(finished / "b")
    with pytest.raises(InputError, match=said):
        read(tmp_path / "spoilt.csv", bundle.about.inputs, bundle.about.classes, "label")
    assert (
        len(read(tmp_path / "spoilt.csv", bundle.about.inputs, bundle.about.classes, "label", as_is=[column]).y_N) == 60
    )
    model = site_model(finished / "states" / "alba")
    with pytest.raises(InputError, match=said):
        predict(model, tmp_path / "spoilt.csv", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def test_zeros_at_a_new_site_are_said_and_used(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt("chol", lambda x: 0 * x, 8).to_csv(tmp_path / "zeros.csv", index=False)
    frame(9).to_csv(tmp_path / "usual.csv", index=False)
    bundle = Bundle.read(finished / "b")
    read(tmp_path / "usual.csv", bundle.about.inputs, bundle.about.classes, "label")
    assert not caplog.records
    read(tmp_path / "zeros.csv", bundle.about.inputs, bundle.about.classes, "label")
    assert "column 'chol' is 0 in most rows, and hardly ever at the sites that trained" in caplog.text


def test_as_is_reaches_the_agreement(tmp_path: Path) -> None:
    mixed = files(tmp_path, {"alba": frame(0), "brig": spoilt("chol", lambda x: x / 38.67), "coast": frame(2)})
    study(tmp_path, rounds=1)
    made = {}
    for k, (name, path) in enumerate(mixed.items()):
        samples = SiteFiles(path, target="label", as_is=["chol"] if name == "brig" else ())
        made[name] = Worker(
            samples, k, tmp_path / "states" / name, Policy(), Vault.of(tmp_path / "states" / name), Events(quiet=True)
        )
    conduct(study_for(tmp_path / "study.yaml", "trial"), Loop(made), SITES, tmp_path / "run", Events(quiet=True))
