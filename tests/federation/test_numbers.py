"""A federation that predicts numbers: the same as in one place, and what sites have to agree on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sites import NAMES, Away, Loop, masked, measuring, study, workers

from idiolect.core.errors import InputError
from idiolect.core.objectives import SCORES
from idiolect.federation.data.agreement import Agreement, agree, common_form
from idiolect.federation.data.samples import SiteFiles, SiteSamples, sums
from idiolect.federation.events import FILE as EVENTS
from idiolect.federation.events import Events
from idiolect.federation.monitor.overview import Overview
from idiolect.federation.monitor.page import render
from idiolect.federation.preview import preview
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct, result
from idiolect.federation.server.study import study_for
from idiolect.federation.trust.authority import provision
from idiolect.federation.trust.kits import Description, site_kit
from idiolect.federation.trust.policy import Policy
from idiolect.studies import Result
from rehearsal import rehearsed

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
Files = dict[str, Path]


def scores(k: int, rows: int = 30) -> pd.DataFrame:
    """Pupils of a school: two numbers to predict from three others, with a slope of the school's own."""
    rng = np.random.default_rng(k)
    x = rng.normal(size=(rows, 3))
    score = 60 + 8 * x[:, 0] + 3 * k * x[:, 1] + rng.normal(size=rows)
    frame = pd.DataFrame(x.round(3), columns=["age", "hours", "size"])
    return frame.assign(label=score.round(2), days=(200 + 5 * x[:, 2] + rng.normal(size=rows)).round(1))


@pytest.fixture
def schools(tmp_path: Path) -> Files:
    files = {name: tmp_path / f"{name}.csv" for name in NAMES}
    for k, file in enumerate(files.values()):
        scores(k).drop(columns="days").to_csv(file, index=False)
    return files


def _run(tmp_path: Path, link: Loop, **more: Any) -> Result:
    whole = study_for(tmp_path / "study.yaml", "trial")
    return conduct(whole, link, list(link.workers), tmp_path / "run", Events(quiet=True), **more)


@pytest.mark.parametrize(
    ("methods", "more"),
    [
        ("fedavg, fedrep, fedshrink", {}),
        ("ditto, fedprox", {"protocol": "{validation: 0.25, round: best_validation}"}),
        ("fedavg_ft, 'fedavg:personal=*bias'", {"protocol": "{stage: personalised, also: [received, trained]}"}),
    ],
)
def test_the_numbers_are_those_of_a_simulation(methods: str, more: Any, schools: Files, tmp_path: Path) -> None:
    study(tmp_path, methods, rounds=2, task="regression", **more)
    run = _run(tmp_path, Loop(workers(tmp_path / "states", schools)))
    whole = study_for(tmp_path / "study.yaml", "trial")
    samples = {name: SiteFiles(file, target="label") for name, file in schools.items()}
    simulated = rehearsed(whole, samples, tmp_path / "simulated").records
    both = run.records.merge(simulated, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    np.testing.assert_allclose(both["value_x"], both["value_y"], rtol=1e-4, atol=1e-5)
    assert {"mse", "mae", "r2", "loss"} <= set(run.records["metric"])
    assert not run.records["metric"].str.contains("accuracy").any()
    assert run.table().columns[1].header == "MSE"


def _sites(tmp_path: Path, frames: dict[str, pd.DataFrame], target: str, **more: Any) -> dict[str, SiteFiles]:
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    return {name: SiteFiles(tmp_path / f"{name}.csv", target=target, **more) for name in frames}


def _agreed(samples: dict[str, SiteFiles]) -> tuple[Agreement, list[SiteSamples]]:
    offers = {name: own.offer("regression") for name, own in samples.items()}
    inputs, classes = common_form(offers, "regression")
    ready = [own.encode(inputs, classes, 0, k, look=False, task="regression") for k, own in enumerate(samples.values())]
    said = {name: sums(one, len(classes)) for name, one in zip(samples, ready, strict=True)}
    predicted = next(iter(offers.values())).targets
    return agree(inputs, classes, said, "reference", predicted=predicted), ready


@pytest.mark.parametrize("target", ["label", "days", "label+days", "days+label"])
@pytest.mark.parametrize("offset", [0.0, -3000.0, 1e6])
def test_mean_and_deviation_are_those_of_all_training_samples(target: str, offset: float, tmp_path: Path) -> None:
    frames = {name: scores(k, rows=15 + 7 * k) for k, name in enumerate(NAMES)}
    frames = {name: frame.assign(days=frame["days"] + offset) for name, frame in frames.items()}
    agreement, ready = _agreed(_sites(tmp_path, frames, target))
    names = target.split("+")
    assert [part.name for part in agreement.targets] == names
    for d, name in enumerate(names):
        values = np.concatenate(
            [frame[name].to_numpy()[one.train_N.numpy()] for frame, one in zip(frames.values(), ready, strict=True)]
        )
        assert agreement.targets[d].mean == pytest.approx(values.mean(), rel=1e-12)
        assert agreement.targets[d].std == pytest.approx(values.std(), rel=1e-3 if offset > 1e5 else 1e-8)
        np.testing.assert_array_equal(ready[2].value_ND[:, d], frames["east"][name])
    width = len(agreement.inputs.columns)
    assert width == 5 - len(names)  # the target is no feature
    data = agreement.federation("trial")
    assert data.task == "regression"
    assert data.outputs == len(names)
    assert data.class_names == (target,)
    assert len(data.target_R) == sum(len(one.train_N) + len(one.test_N) for one in ready)


def _changed(**of_site: Any) -> dict[str, pd.DataFrame]:
    frames = {name: scores(k, rows=40) for k, name in enumerate(("north", "south"))}
    return {name: of_site.get(name, lambda frame: frame)(frame) for name, frame in frames.items()}


@pytest.mark.parametrize(
    ("change", "target", "said"),
    [
        (
            {"south": lambda f: f.assign(label=1000 * f["label"])},
            "label",
            "target 'label' looks like another unit: at no",
        ),
        ({"south": lambda f: f.assign(days=f["days"] / 365.25)}, "label+days", "target 'days' looks like another unit"),
        ({"north": lambda f: f.assign(label=["a", "b"] * 20)}, "label", "target 'label' of .* has texts"),
        ({"north": lambda f: f.assign(label=f["label"].mask(f.index == 3))}, "label", "is missing in 1"),
        ({"north": lambda f: f.assign(label=f["label"].mask(f.index == 3, np.inf))}, "label", "inf"),
        ({k: lambda f: f.assign(label=5.0) for k in ("north", "south")}, "label", "label is the same number in all"),
        ({k: lambda f: f.assign(days=1e9) for k in ("north", "south")}, "label+days", "days is the same number in all"),
        (
            {k: lambda f: f.assign(label=f["label"] + 1e10) for k in ("north", "south")},
            "label",
            "differs by less than a millionth of its mean of 1e\\+10",
        ),
        ({"south": lambda f: f.drop(columns="days")}, "label+days", "has no column 'days'"),
    ],
)
def test_targets_that_sites_cannot_agree_on(change: Any, target: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        _agreed(_sites(tmp_path, _changed(**change), target))


def test_numbers_are_taken_as_they_are_and_may_be_constant_at_a_site(tmp_path: Path) -> None:
    large = _changed(south=lambda f: f.assign(label=1000 * f["label"]))
    agreement, _ = _agreed(_sites(tmp_path, large, "label", as_is=["label"]))
    assert agreement.targets[0].std > 1000
    equal = _changed(south=lambda f: f.assign(label=70.0))
    assert _agreed(_sites(tmp_path, equal, "label"))[0].targets[0].std > 1


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (("label", "days"), "north predicts 'label' and south 'days'"),
        (("label", "label+days"), "north predicts 'label' and south 'label', 'days'"),
        (("label+days", "days+label"), "need the same names at all sites, in one order"),
    ],
)
def test_sites_predict_the_same_numbers(targets: tuple[str, str], said: str, tmp_path: Path) -> None:
    frames = _changed()
    offers = {
        name: _sites(tmp_path, {name: frames[name]}, target)[name].offer("regression")
        for name, target in zip(frames, targets, strict=True)
    }
    with pytest.raises(InputError, match=said):
        common_form(offers, "regression")


@pytest.mark.parametrize("task", [None, "classification", "regression"])
def test_the_study_says_whether_amounts_are_numbers(task: Any, tmp_path: Path) -> None:
    samples = _sites(tmp_path, _changed(), "label")["north"]
    if task is None:
        with pytest.raises(InputError, match="looks like numbers to predict: write task: regression in the study"):
            samples.offer(task)
        return
    offer = samples.offer(task)
    assert offer.targets == (("label",) if task == "regression" else ())
    two = _sites(tmp_path, _changed(), "label+days")["north"]
    if task == "classification":
        with pytest.raises(InputError, match="has 2 columns, and classes are in one"):
            two.offer(task)


def test_no_number_of_a_sample_leaves_a_site(schools: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg", rounds=1, task="regression")
    link = Loop(workers(tmp_path / "states", schools))
    _run(tmp_path, link)
    [said] = [m for site, m in link.received if m.about["kind"] == "inputs" and site == "north"]
    assert {path: tuple(a.shape) for path, a in said.arrays.items() if "target" in path} == {
        "sums/target_sum_D": (1,), "sums/target_square_D": (1,)
    }  # fmt: skip
    [measured] = [m.about["measured"] for site, m in link.received if m.about["kind"] == "evaluate" and site == "north"]
    assert set(measured) == {"loss", "measures"}
    assert set(measured["measures"]) == {"mse", "mse_low", "mse_high", "mae", "r2"}


def test_secure_aggregation_gives_the_same_numbers(schools: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg", rounds=2, task="regression", secure_aggregation="true")
    run = masked(tmp_path, study_for(tmp_path / "study.yaml", "trial"), schools)
    plain = tmp_path / "plain"
    plain.mkdir()
    study(plain, "fedavg", rounds=2, task="regression")
    whole = study_for(plain / "study.yaml", "trial")
    samples = {name: SiteFiles(file, target="label") for name, file in schools.items()}
    simulated = rehearsed(whole, samples, plain / "simulated").records
    both = run.records.merge(simulated, on=SIDES)
    both = both[both["metric"].isin(["mse", "mae"])]
    assert len(both) == 2 * 2 * len(NAMES)
    np.testing.assert_allclose(both["value_x"], both["value_y"], rtol=1e-2)  # uploads are whole numbers under masks


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss": None, "measures": {"mae": 1.0}}, "other measurements"),
        ({"accuracy": 0.5}, "other measurements"),
        ({"measures": {"mse": -1.0, "mae": 1.0}}, "a value of -1 of mse is not possible"),
        ({"measures": {"mse": 1.0, "mae": -0.5}}, "a value of -0.5 of mae is not possible"),
        ({"measures": {"mse": 1.0, "mae": 1.0, "r2": 1.5}}, "a value of 1.5 of r2 is not possible"),
        ({"measures": {"mse": 1.0, "mae": 1.0, "mse[b]": -2.0}}, r"other measurements than the study\'s \(mse\[b\]\)"),
        ({"validation_loss": 1.0}, "only some of its numbers of validation samples"),
    ],
)
def test_measures_that_are_not_possible_do_not_count(
    values: dict[str, Any], said: str, schools: Files, tmp_path: Path
) -> None:
    study(tmp_path, rounds=1, task="regression")
    run = _run(
        tmp_path,
        Loop(workers(tmp_path / "states", schools), {"east": measuring(values)}),
        terms=Terms(Patience(least=3)),
    )
    there = run.records[run.records["metric"] == "mse"]
    assert set(there["client"]) == {0, 1, 3, 4}
    events = (tmp_path / "run" / EVENTS).read_text()
    assert re.search(said, events)


def test_a_site_that_comes_late_and_a_run_that_goes_on(schools: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=3, task="regression")
    link = Away(workers(tmp_path / "states", schools), 2)
    run = _run(tmp_path, link, terms=Terms(Patience(least=3), start=4))
    assert run.records.query("client == 4 and metric == 'mse'")["round"].min() >= 2
    again = result(tmp_path / "run")
    assert again.table().columns[1].header == "MSE"
    pd.testing.assert_series_equal(again.score(), run.score())


def test_the_operators_page_shows_errors(schools: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1, task="regression", protocol="{also: [received]}")
    link, say = Loop(workers(tmp_path / "states", schools)), Events(quiet=True)
    whole = study_for(tmp_path / "study.yaml", "trial")
    overview = Overview(link, "trial", whole.name, lambda: NAMES, tmp_path / "run", say, 30)
    assert "mean squared error" not in render(overview.status())
    run = conduct(whole, overview, list(NAMES), tmp_path / "run", say, watcher=overview)
    status = overview.status()
    assert status["metric"] == "mse"
    [there] = run.records.query("metric == 'mse' and client == 1 and stage == 'personalised'")["value"]
    assert status["sites"][1]["mse"]["fedavg"]["personalised"] == there
    mean = run.records.query("metric == 'mse' and stage == 'personalised'")["value"].mean()
    assert status["latest"][0]["mse"] == pytest.approx(mean)
    page = render(status)
    assert "Mean squared error at the sites" in page
    assert SCORES["mse"].text(there) in page
    assert "ccuracy" not in page.partition("</style>")[2]


@pytest.mark.parametrize("target", ["label", "days", "label+days"])
def test_a_site_sees_before_what_it_would_send(target: str, tmp_path: Path) -> None:
    scores(0).to_csv(tmp_path / "north.csv", index=False)
    provision(Description(name="trial", server="127.0.0.1:9092", sites=NAMES), tmp_path / "kits")
    kit = site_kit(tmp_path / "kits" / "site-north")
    path = study(tmp_path, "fedavg", rounds=1, task="regression")
    said = list(preview(kit, SiteFiles(tmp_path / "north.csv", target=target), Policy(), path, tmp_path / "state"))
    count = target.count("+") + 1
    assert any("sums/target_sum_D" in line and f"({count},)" in line for line in said)
    assert any("(errors, R2, ...): yes" in line for line in said)
    assert any(line.startswith("fedavg: ") for line in said)


def test_methods_that_need_classes_are_refused_before_anything_is_written(schools: Files, tmp_path: Path) -> None:
    for method in ("fedpac", "pfedfda", "fedproto"):
        study(tmp_path, method, rounds=1, task="regression")
        with pytest.raises(InputError, match=method):
            _run(tmp_path, Loop(workers(tmp_path / "states", schools)))
        assert not (tmp_path / "run").exists()
