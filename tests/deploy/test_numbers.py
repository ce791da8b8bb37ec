"""Numbers outside of the simulator: bundles, joining, predicting, intervals, watching and exporting."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp, mannwhitneyu
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

import idiolect as idl
from idiolect import cli
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.join import candidates_of, join
from idiolect.deploy.numbers import half_widths, unscaled
from idiolect.deploy.predict import number_table
from idiolect.deploy.samples import read
from idiolect.deploy.schema import Inputs, TargetPart
from idiolect.deploy.watch import watch

Call = Callable[[str], tuple[int, str, str]]


def visits(rows: int, seed: int, slope: float | None = None) -> pd.DataFrame:
    """Clients with slopes of their own; two numbers, in units far from 1 and from each other."""
    draw = np.random.default_rng(seed)
    client = np.arange(rows) % 4
    x = draw.normal(size=(rows, 2))
    own = 1.0 + client if slope is None else slope
    return pd.DataFrame({
        "a": x[:, 0], "b": x[:, 1], "site": [f"s{k}" for k in client],
        "pressure": 100 * (x[:, 0] * own + x[:, 1] + 0.3 * draw.normal(size=rows)) + 1000,
        "dose": 0.01 * x[:, 0] - 5 + 0.002 * draw.normal(size=rows),
    })  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    """Four clients that trained, two numbers."""
    folder = tmp_path_factory.mktemp("numbers")
    visits(160, 0).to_csv(folder / "t.csv", index=False)
    source = idl.data.open_data(folder / "t.csv", target="pressure+dose", client_column="site")
    study = idl.Study(data=source, methods=["fedshrink", "fedavg"], rounds=3, batch_size=20, lr=0.05, local_epochs=2)
    return idl.run(study, folder / "run", engine="sequential")


@pytest.fixture(scope="module")
def of_two(result: idl.Result) -> Bundle:
    return result.bundle("fedshrink", result.folder.parent / "bundle")


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("number")
    source = idl.data.from_frame(visits(160, 0).drop(columns="dose"), target="pressure", client_column="site")
    study = idl.Study(data=source, methods=["fedavg_ft"], rounds=3, batch_size=20, lr=0.05, local_epochs=2)
    return idl.run(study, folder / "run", engine="sequential").bundle("fedavg_ft", folder / "bundle")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a new site's tables."""
    monkeypatch.chdir(tmp_path)
    visits(60, 1, 2.5).drop(columns="site").to_csv("my.csv", index=False)
    visits(50, 2, 2.5).drop(columns=["site", "pressure", "dose"]).to_csv("new.csv", index=False)
    return tmp_path


@pytest.fixture
def call(here: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return ended.value.code, out, " ".join(err.split())

    return run


def own(bundle: Bundle, where: object = "my.csv", target: str | None = None, **how: object):
    return read(where, bundle.about.inputs, (), target, targets=bundle.about.targets, **how)


@pytest.fixture(scope="module")
def site(of_two: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("site")
    visits(60, 1, 2.5).drop(columns="site").to_csv(folder / "my.csv", index=False)
    return join(of_two, own(of_two, folder / "my.csv"), folder / "site")


def test_a_bundle_says_its_numbers_and_their_units(result: idl.Result, of_two: Bundle) -> None:
    about = json.loads((of_two.folder / "bundle.json").read_text())
    assert about["classes"] == []
    federation = result.study.federation()
    train = visits(160, 0)[["pressure", "dose"]]
    assert [t["name"] for t in about["targets"]] == ["pressure", "dose"]
    rows = torch.cat([*federation.train])
    values = federation.targets.value_RD[rows].numpy()
    assert np.isin(values[:, 0].round(6), train["pressure"].to_numpy().round(6)).all()
    np.testing.assert_allclose([t["mean"] for t in about["targets"]], values.mean(0))
    np.testing.assert_allclose([t["std"] for t in about["targets"]], values.std(0))
    card = (of_two.folder / "README.md").read_text()
    for said in ("| pressure |", "| dose |", "Mean squared error on each client", "--target pressure+dose", "(d+1, D)"):
        assert said in card
    assert "ccuracy" not in card
    assert "probability" not in card
    assert "ccuracy" not in of_two._repr_html_()
    records = result.records
    last = records[(records["round"] == 3) & (records["method"] == "fedshrink") & (records["metric"] == "mse")]
    last = last[last["stage"] == "personalised"].set_index("client")["value"]
    assert [c["personal"] for c in about["evaluation"]["clients"]] == pytest.approx(last.sort_index().tolist())
    assert about["provenance"]["samples"] == [len(rows)]


@pytest.mark.parametrize("method", ["fedshrink", "fedavg"])
def test_personal_models_predict_what_the_run_recorded(result: idl.Result, tmp_path: Path, method: str) -> None:
    bundle = result.bundle(method, tmp_path / "all", client="all")
    federation = result.study.federation()
    records = result.records
    last = records[(records["round"] == 3) & (records["method"] == method) & (records["stage"] == "personalised")]
    for k, name in enumerate(bundle.about.models):
        rows = federation.test[k]
        scaled = log_probabilities(bundle.model(name), bundle.predicting, federation.x_R[rows])
        values, y = unscaled(scaled, bundle.about.targets).numpy(), federation.targets.value_RD[rows].numpy()
        metrics = last[last["client"] == k].set_index("metric")["value"]
        assert metrics["mse"] == pytest.approx(mean_squared_error(y, values), rel=1e-4)
        assert metrics["mae[dose]"] == pytest.approx(mean_absolute_error(y[:, 1], values[:, 1]), rel=1e-4)
    with pytest.raises(InputError, match="made without samples, which a level needs"):
        half_widths(bundle.about, 0.9)


def test_join_and_predict(call: Call, of_two: Bundle) -> None:
    code, out, err = call(f"join {of_two.folder} --data my.csv --out site")
    assert (code, err) == (0, "")
    assert "its mean squared error differs by -" in " ".join(out.split())
    site = Bundle.read("site")
    site.check()
    page = Path("site/report.html").read_text().split("<script")[0]
    for said in (
        "FedShrink at this site",
        "Number by number",
        "dose",
        "Intervals",
        "MSE",
        "the weighted mean of their",
    ):
        assert said in page
    assert "ccuracy" not in page
    assert "Class by class" not in page
    code, out, err = call("predict site --data new.csv --out p.csv --level 0.9")
    assert (code, err) == (0, "")
    assert out.strip() == "50 samples predicted: p.csv"
    table = pd.read_csv("p.csv")
    stems = ("", "_std", "_low", "_high")
    assert list(table) == ["row", *(f"{name}{stem}" for name in ("pressure", "dose") for stem in stems)]
    truth = visits(50, 2, 2.5)
    assert r2_score(truth["pressure"], table["pressure"]) > 0.9
    assert r2_score(truth["dose"], table["dose"]) > 0.8
    for d, name in enumerate(("pressure", "dose")):
        part = site.about.site.errors[d]
        assert len(part.sizes) == 60
        assert table[f"{name}_std"].unique() == pytest.approx([np.sqrt(np.mean(np.square(part.sizes)))])
        half = np.quantile([*part.sizes, np.inf], 0.9, method="inverted_cdf")
        np.testing.assert_allclose(table[f"{name}_high"] - table[name], half)
        np.testing.assert_allclose(table[name] - table[f"{name}_low"], half)
        inside = (truth[name] >= table[f"{name}_low"]) & (truth[name] <= table[f"{name}_high"])
        assert inside.mean() > 0.75


def test_what_was_compared_is_what_scikit_learn_says(of_two: Bundle, here: Path) -> None:
    mine = own(of_two)
    made = candidates_of(of_two, mine)
    assert set(made.clients) == {"global", "personal", "local"}
    site = join(of_two, mine, here / "site").about.site
    y = visits(60, 1, 2.5)[["pressure", "dose"]].to_numpy()
    for name, scaled in made.choice.outputs.items():
        values = unscaled(scaled, of_two.about.targets).numpy()
        assert site.compared[name]["mse"] == pytest.approx(mean_squared_error(y, values), rel=1e-6)
        assert site.compared[name]["mae"] == pytest.approx(mean_absolute_error(y, values), rel=1e-6)
        assert site.compared[name]["r2"] == pytest.approx(r2_score(y, values), rel=1e-6)
    errors = np.sort(np.abs(unscaled(made.choice.outputs[site.ships], of_two.about.targets).numpy() - y), axis=0)
    for d in range(2):
        np.testing.assert_allclose(site.errors[d].sizes, errors[:, d], rtol=1e-6)
    few = candidates_of(of_two, type(mine)(mine.x_N[:30], mine.y_N[:30]))
    assert set(few.clients) == {"global", "personal"}


@pytest.mark.parametrize("ships", ["global", "personal", "local"])
def test_one_model_can_be_asked_for(call: Call, of_one: Bundle, ships: str) -> None:
    code, _, err = call(f"join {of_one.folder} --data my.csv --out site --ships {ships}")
    assert code == 0, err
    site = Bundle.read("site").about.site
    assert site.weights == {ships: 1.0}
    assert "it was asked for" in site.why
    assert site.errors[0].std == pytest.approx(np.sqrt(site.compared[ships]["mse"]))


@pytest.mark.parametrize(
    ("rename", "target"),
    [
        ({"pressure": "p", "dose": "d"}, "p+d"),
        ({"pressure": "p+q", "dose": "d"}, '"p+q"+d'),
        ({}, "dose+pressure"),
        ({}, "pressure+dose"),
    ],
)
def test_the_columns_of_the_numbers(of_two: Bundle, here: Path, rename: dict[str, str], target: str) -> None:
    frame = visits(60, 1, 2.5).drop(columns="site").rename(columns=rename)
    frame.to_csv("other.csv", index=False)
    y = visits(60, 1, 2.5)[["pressure", "dose"]].to_numpy()
    values = unscaled(own(of_two, "other.csv", target).y_N, of_two.about.targets).numpy()
    np.testing.assert_allclose(values, y, rtol=1e-9)


@pytest.mark.parametrize("kind", ["parquet", "semicolons", "tsv", "jsonl", "npz"])
def test_every_kind_of_file(of_two: Bundle, here: Path, kind: str) -> None:
    frame = visits(60, 1, 2.5).drop(columns="site")
    y, where = frame[["pressure", "dose"]].to_numpy(), f"f.{kind}"
    if kind == "parquet":
        frame.to_parquet(where)
    elif kind == "jsonl":
        frame.to_json(where, orient="records", lines=True, double_precision=15)
    elif kind == "npz":
        np.savez(where, x=frame[["a", "b"]], y=y)
    else:
        where = "f.tsv" if kind == "tsv" else "f.csv"
        how = {"tsv": {"sep": "\t"}, "semicolons": {"sep": ";", "decimal": ","}}[kind]
        frame.to_csv(where, index=False, **how)
    mine = own(of_two, where)
    np.testing.assert_allclose(unscaled(mine.y_N, of_two.about.targets).numpy(), y, rtol=1e-6)
    np.testing.assert_allclose(mine.x_N.numpy(), frame[["a", "b"]], rtol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: f.assign(dose=1.0), "target 'dose' of bad.csv is 1 in all 60 samples"),
        (lambda f: f.assign(dose=f["dose"].where(f.index != 3)), "target 'dose' of bad.csv is missing in 1 of 60 rows"),
        (
            lambda f: f.assign(dose=f["dose"].astype(object).where(f.index != 3, "high")),
            r"target 'dose' of bad.csv has texts \(high\)",
        ),
        (
            lambda f: f.assign(dose=f["dose"].astype(object).where(f.index != 3, "inf")),
            "target 'dose' of bad.csv is infinite in 1 of 60 rows",
        ),
        (
            lambda f: f.assign(dose=f["dose"].astype(object).where(f.index != 3, "1e400")),
            "target 'dose' of bad.csv is (infinite|too large) in 1 of 60 rows",
        ),
        (lambda f: f.assign(pressure=f["pressure"] * 1000), "target 'pressure' of bad.csv looks like another unit"),
        (lambda f: f.drop(columns="dose"), "target: bad.csv has no column 'dose'"),
        (lambda f: f.drop(columns="a"), "bad.csv has no column 'a'"),
        (lambda f: f[:1], "in all 1 samples"),
    ],
)
def test_what_the_bundle_does_not_take(
    call: Call, of_two: Bundle, spoil: Callable[[pd.DataFrame], pd.DataFrame], said: str
) -> None:
    spoil(visits(60, 1, 2.5).drop(columns="site")).to_csv("bad.csv", index=False)
    code, _, err = call(f"join {of_two.folder} --data bad.csv --out site")
    assert code == 2
    assert pytest.importorskip("re").search(said, err), err
    assert not Path("site").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("join {b} --data my.csv --target pressure --out o", "target: pressure is 1 columns, and the bundle predicts"),
        ("join {b} --data my.csv --target pressure+a+dose --out o", "give one column for each, joined by +"),
        ("join {b} --data my.csv --target pressure+pressure --out o", "has a column twice: give each once"),
        ("join {b} --data my.csv --target 'pressure>900' --out o", "has no column 'pressure>900'"),
        ("join {b} --data my.csv --target pressure+mass --out o", "has no column 'mass'"),
        ("predict {b} --data new.csv --out o.csv", "is not a site's model yet: join with it first"),
        ("predict {s} --data new.csv --out o.csv --level 1.5", "level=1.5 is not between 0 and 1"),
        ("predict {s} --data new.csv --out o.csv --level 0", "level=0 is not between 0 and 1"),
        ("watch {s} --data my.csv --adapt --out o", "--adapt is for proportions of classes"),
        ("watch {s} --data my.csv --target pressure", "give one column for each, joined by +"),
        ("watch {b} --data my.csv", "was not made from a site's samples"),
    ],
)
def test_wrong_options(call: Call, of_two: Bundle, site: Bundle, line: str, said: str) -> None:
    code, _, err = call(line.format(b=of_two.folder, s=site.folder))
    assert code == 2
    assert said in err
    assert not Path("o").exists()
    assert not Path("o.csv").exists()


def test_numbers_of_another_unit_may_be_right(call: Call, of_two: Bundle) -> None:
    frame = visits(60, 1, 2.5).drop(columns="site")
    frame.assign(pressure=frame["pressure"] * 1000).to_csv("bad.csv", index=False)
    code, _, err = call(f"join {of_two.folder} --data bad.csv --out site --as-is pressure")
    assert code == 0, err


@pytest.mark.parametrize(("count", "level", "finite"), [(8, 0.9, False), (9, 0.9, True), (12, 0.95, False)])
def test_too_few_samples_for_an_interval_are_said(
    call: Call, of_one: Bundle, caplog: pytest.LogCaptureFixture, count: int, level: float, finite: bool
) -> None:
    visits(count, 1, 2.5).to_csv("few.csv", index=False)
    assert call(f"join {of_one.folder} --data few.csv --out site")[0] == 0
    assert call(f"predict site --data new.csv --out p.csv --level {level}")[0] == 0
    table = pd.read_csv("p.csv")
    assert np.isfinite(table["pressure"]).all()
    assert np.isfinite(table["pressure_high"]).all() == finite
    said = f"intervals of pressure that hold {100 * level:g}% are infinite, because they take the errors of "
    assert any(said in line and "samples or more" in line for line in caplog.messages) != finite


@pytest.mark.parametrize("patients", [6, 15, 30])
def test_samples_of_one_patient_stay_together(
    call: Call, of_one: Bundle, caplog: pytest.LogCaptureFixture, patients: int
) -> None:
    frame = visits(60, 1, 2.5).drop(columns="site").assign(patient=[f"p{k % patients}" for k in range(60)])
    frame.to_csv("my.csv", index=False)
    code, _, err = call(f"join {of_one.folder} --data my.csv --out site --group-column patient")
    assert code == 0, err
    part = Bundle.read("site").about.site.errors[0]
    assert sum(part.weights) == pytest.approx(patients / (patients + 1))
    assert call("predict site --data new.csv --out p.csv --level 0.9")[0] == 0
    table = pd.read_csv("p.csv")
    half = (table["pressure_high"] - table["pressure"]).iloc[0]
    assert np.isinf(half) == (patients < 9)
    if patients >= 9:
        up_to = np.cumsum(part.weights)[np.array(part.sizes) <= half + 1e-9]
        assert up_to[-1] >= 0.9 - 1e-9
        assert len(up_to) < 2 or up_to[-2] < 0.9
    else:
        assert any("9 groups or more" in line for line in caplog.messages)


def test_columns_that_are_beside_keep_their_names(call: Call, of_one: Bundle) -> None:
    assert call(f"join {of_one.folder} --data my.csv --out site")[0] == 0
    visits(50, 2, 2.5).assign(note="n", label="x").to_csv("old.csv", index=False)
    assert call("predict site --data old.csv --out p.parquet")[0] == 0
    table = pd.read_parquet("p.parquet")
    assert list(table) == ["row", "site", "dose", "note", "label", "pressure of the data", "pressure", "pressure_std"]


@pytest.mark.parametrize("second", ["dose_std", "dose_low", "other"])
def test_no_column_takes_the_place_of_another(site: Bundle, second: str) -> None:
    names = ("dose", second)
    targets = tuple(TargetPart(name=name, mean=0, std=1) for name in names)
    about = site.about.model_copy(update={"targets": targets})
    table = number_table(torch.tensor([[1.0, 7.0]]), about, [0.5, 2.0], pd.DataFrame({"note": ["x"], "dose": [3]}))
    assert len(table.column_names) == 10
    row = table.to_pylist()[0]
    assert (row["dose"], row[second], row["dose of the data"], row["note"]) == (1.0, 7.0, 3, "x")
    assert row["dose_high"] == 1.5
    assert row["low of dose" if second == "dose_low" else "dose_low"] == 0.5
    assert (row[f"{second}_low"], row[f"{second}_high"]) == (5.0, 9.0)


@pytest.mark.parametrize("change", ["nothing", "inputs", "relation", "one number"])
def test_watching(site: Bundle, change: str) -> None:
    frame = visits(80, 3, 2.5)
    if change == "inputs":
        frame["a"] += 3
    if change == "relation":
        frame["pressure"] = 5000 - 3 * frame["pressure"]
    if change == "one number":
        frame["dose"] += 0.01
    x = torch.tensor(frame[["a", "b"]].to_numpy()).float()
    targets = site.about.targets
    y = (torch.tensor(frame[["pressure", "dose"]].to_numpy()) - torch.tensor([t.mean for t in targets])) / (
        torch.tensor([t.std for t in targets])
    )
    plain, known = watch(site, x), watch(site, x, y_MD=y)
    assert plain.labels is None
    assert plain.errors is None
    assert known.features.p == plain.features.p
    assert plain.alarm == (change == "inputs")
    assert known.errors.moved == (change != "nothing")
    assert known.alarm == (change != "nothing")
    assert not known.adaptable
    values = unscaled(log_probabilities(site.model(), site.predicting, x), targets).numpy()
    size = np.abs(values - frame[["pressure", "dose"]].to_numpy())
    wanted = [mannwhitneyu(size[:, d], site.about.site.errors[d].sizes, alternative="greater").pvalue for d in range(2)]
    assert known.errors.p == pytest.approx(min(1.0, 2 * min(wanted)), rel=1e-3)
    assert known.errors.now["dose"] == pytest.approx(size[:, 1].mean(), rel=1e-3)
    assert known.errors.before["dose"] == pytest.approx(np.mean(site.about.site.errors[1].sizes))
    for d, name in enumerate(("pressure", "dose")):
        half = np.quantile([*site.about.site.errors[d].sizes, np.inf], 0.9, method="inverted_cdf")
        beyond = np.maximum(size[:, d] - half, 0)
        coverage, width, score = known.intervals[name]
        assert coverage == pytest.approx((beyond == 0).mean(), abs=0.02)
        assert (width, score) == pytest.approx((2 * half, 2 * half + 20 * beyond.mean()), rel=1e-3)


def test_predictions_that_moved_are_found_by_the_test_of_kolmogorov_and_smirnov(
    of_one: Bundle, here: Path, call: Call
) -> None:
    assert call(f"join {of_one.folder} --data my.csv --out site")[0] == 0
    new = visits(60, 5, 2.5)
    new[["a", "b"]] += 3
    new.to_csv("moved.csv", index=False)
    code, out, _ = call("watch site --data moved.csv --json")
    assert code == 1
    said = json.loads(out)
    joined = visits(60, 1, 2.5)
    down, global_ = of_one.model().down, of_one.received
    own_N, new_N = (
        global_.predict(down, of_one.fresh, torch.tensor(f[["a", "b"]].to_numpy()).float())[:, 0].double().numpy()
        for f in (joined, new)
    )
    assert said["predictions"]["p"] == pytest.approx(ks_2samp(own_N, new_N).pvalue, rel=1e-3)
    assert said["predictions"]["moved"]
    assert "labels" not in said
    code, out, _ = call("watch site --data moved.csv --target pressure")
    assert "mean absolute error" in " ".join(out.split())


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_file_gives_numbers_in_the_units_of_the_data(site: Bundle, tmp_path: Path, format: str) -> None:
    path = tmp_path / ("m.onnx" if format == "onnx" else "m.pt2")
    if format == "onnx":
        runtime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    check = export(site, path, format=format)
    assert check.difference < 1e-5
    frame = visits(20, 2, 2.5)
    x = torch.tensor(frame[["a", "b"]].to_numpy()).float()
    wanted = unscaled(log_probabilities(site.model(), site.predicting, x), site.about.targets).numpy()
    if format == "onnx":
        session = runtime.InferenceSession(path)
        values = session.run(["predictions"], {c: frame[c].to_numpy() for c in ("a", "b")})[0]
        meta = session.get_modelmeta().custom_metadata_map
        assert meta["targets"].split("\n") == ["pressure", "dose"]
        assert "classes" not in meta
    else:
        values = torch.export.load(path).module()(x).detach().numpy()
    std = [t.std for t in site.about.targets]
    np.testing.assert_allclose(values / std, wanted / std, atol=1e-4)


def test_every_method_of_numbers_makes_a_bundle_and_joins(tmp_path: Path) -> None:
    able = ["local", "fedrep", "ditto", "apfl", "fedem", "hypcluster", "pfedme", "fedbabu", "lg_fedavg", "scaffold"]
    source = idl.data.from_frame(visits(80, 0).drop(columns="dose"), target="pressure", client_column="site")
    study = idl.Study(data=source, methods=able, rounds=1, batch_size=20, lr=0.02, local_epochs=1)
    made = idl.run(study, tmp_path / "run", engine="sequential")
    visits(20, 1, 2.5).to_csv(tmp_path / "my.csv", index=False)
    for method in able:
        bundle = made.bundle(method, tmp_path / method)
        joined = join(bundle, own(bundle, tmp_path / "my.csv"), tmp_path / f"{method}-site")
        assert np.isfinite(joined.about.site.errors[0].std), method


@pytest.mark.parametrize(
    ("columns", "classes", "names"),
    [
        ({"age": [31.5, 40.25, 38.0, 77.0]}, (), ("age",)),
        ({"age": [31.5, 40.25, 38.0, 77.0], "dose": [1, 2, 3, 5]}, (), ("age", "dose")),
        ({"label": ["b", "a", "b", "a"]}, ("a", "b"), ()),
        ({"label": [7, 7, 3, 7]}, ("3", "7"), ()),
    ],
)
def test_images_beside_a_table(
    tmp_path: Path, columns: dict[str, list], classes: tuple[str, ...], names: tuple[str, ...]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8), np.uint8)
    for k, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{k}.png")
    pd.DataFrame({"file_name": [f"{k}.png" for k in range(4)]} | columns).to_csv(tmp_path / "metadata.csv", index=False)
    inputs = Inputs(kind="images", shape=(1, 8, 8), mean=(0.5,), std=(0.5,))
    targets = [TargetPart(name=name, mean=40, std=20) for name in names]
    mine = read(tmp_path, inputs, classes, None, targets=targets)
    np.testing.assert_array_equal(mine.x_N[:, 0], pixels)
    if names:
        np.testing.assert_allclose(unscaled(mine.y_N, targets), np.column_stack([columns[name] for name in names]))
    else:
        assert [classes[c] for c in mine.y_N] == [str(label) for label in columns["label"]]
