"""Several labels outside of the simulator: bundles, joining, predicting, thresholds, watching and exporting."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import mannwhitneyu, ttest_rel
from sklearn.metrics import f1_score, log_loss

import idiolect as idl
from idiolect import cli
from idiolect.core.errors import InputError
from idiolect.deploy import harm, harm_of_labels
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.join import candidates_of, join
from idiolect.deploy.predict import predict
from idiolect.deploy.samples import read
from idiolect.deploy.watch import watch

Call = Callable[[str], tuple[int, str, str]]
LABELS = ["cough", "fever", "rash"]


def visits(rows: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    """Clients whose labels depend on two numbers, each client's in a way of its own."""
    draw = np.random.default_rng(seed)
    client = np.arange(rows) % 4
    x = draw.normal(size=(rows, 2)) + shift
    noise = 0.5 * draw.normal(size=(rows, 3))
    score = np.stack([x[:, 0], x[:, 1] - 0.5, x[:, 0] * (client - 1.5) - 1], 1) + noise
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": [f"s{k}" for k in client]})
    return frame.assign(**{name: (score[:, k] > 0).astype(int) for k, name in enumerate(LABELS)})


def in_one_column(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with the labels in one column of texts."""
    tags = ["|".join(name for name in LABELS if row[name]) for _, row in frame.iterrows()]
    return frame.drop(columns=LABELS).assign(tags=tags)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> idl.Result:
    """Four clients that trained, with validation samples by which thresholds are chosen."""
    folder = tmp_path_factory.mktemp("labels")
    source = idl.data.from_frame(visits(240, 0), target="+".join(LABELS), client_column="site")
    study = idl.Study(
        data=source, methods=["fedavg_ft", "fedshrink"], rounds=3, batch_size=20, lr=0.2, local_epochs=2,
        protocol={"validation": 0.3, "threshold": "f1"},
    )  # fmt: skip
    return idl.run(study, folder / "run", engine="sequential")


@pytest.fixture(scope="module", params=["fedavg_ft", "fedshrink"])
def bundle(request: pytest.FixtureRequest, result: idl.Result) -> Bundle:
    return result.bundle(request.param, result.folder.parent / f"bundle-{request.param}")


@pytest.fixture(scope="module")
def site(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("site")
    visits(80, 1).drop(columns="site").to_csv(folder / "my.csv", index=False)
    return join(bundle, own(bundle, folder / "my.csv"), folder / "site")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    visits(80, 1).drop(columns="site").to_csv("my.csv", index=False)
    visits(50, 2).drop(columns=["site", *LABELS]).to_csv("new.csv", index=False)

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return ended.value.code, out, " ".join(err.split())

    return run


def own(bundle: Bundle, where: object, target: str | None = None, **how: object):
    return read(where, bundle.about.inputs, (), target, labels=bundle.about.labels, **how)


def best_f1(p_N: np.ndarray, yes_N: np.ndarray) -> float:
    """The largest F1 that a threshold gives, by trying all."""
    return max(f1_score(yes_N, p_N > at, zero_division=0) for at in [-1, *p_N])


def test_a_bundle_says_its_labels(result: idl.Result, bundle: Bundle) -> None:
    about = json.loads((bundle.folder / "bundle.json").read_text())
    assert (about["classes"], about["targets"], about["labels"]) == ([], [], LABELS)
    assert about["threshold"] == "f1"
    card = (bundle.folder / "README.md").read_text()
    for said in ("each of 3 labels", "cough, fever, rash", "Micro F1 on each client", "--target cough+fever+rash",
                 "the best F1 on the samples that a site joins with"):  # fmt: skip
        assert said in card
    assert "ccuracy" not in card + bundle._repr_html_()
    r = result.records
    last = r[(r["round"] == 3) & (r["method"] == about["method"]["name"]) & (r["metric"] == "micro_f1")]
    last = last[last["stage"] == "personalised"].set_index("client")["value"].sort_index()
    assert [c["personal"] for c in about["evaluation"]["clients"]] == pytest.approx(last.tolist())


@pytest.mark.parametrize("method", ["fedavg_ft", "fedshrink"])
def test_personal_models_predict_with_the_runs_thresholds(result: idl.Result, tmp_path: Path, method: str) -> None:
    """F1 of what they predict for a client's test samples is that of the records, which are at its thresholds."""
    bundle = result.bundle(method, tmp_path / "all", client="all")
    federation, r = result.study.federation(), result.records
    last = r[(r["round"] == 3) & (r["method"] == method) & (r["stage"] == "personalised")]
    values = {
        (k, metric): v for k, metric, v in zip(last["client"], last["metric"].astype(str), last["value"], strict=True)
    }
    assert len({of_one for of_one in bundle.about.thresholds}) > 1
    for k, name in enumerate(bundle.about.models):
        assert bundle.about.thresholds[k] == tuple(values[k, f"threshold[{label}]"] for label in LABELS)
        rows = federation.test[k]
        frame = pd.DataFrame(federation.x_R[rows].numpy(), columns=["a", "b"])
        frame.to_csv(tmp_path / "t.csv", index=False)
        predict(bundle, tmp_path / "t.csv", tmp_path / "p.csv", client=name)
        table = pd.read_csv(tmp_path / "p.csv", keep_default_na=False)
        said = np.array([[label in text.split("|") for label in LABELS] for text in table["labels"]])
        truth = federation.targets.value_RD[rows].numpy()
        assert f1_score(truth, said, average="micro") == pytest.approx(values[k, "micro_f1"])


@pytest.mark.parametrize("form", ["columns", "other order", "own names", "texts", "answers", "parquet of lists", "npz"])
def test_a_site_writes_its_labels_in_any_way(bundle: Bundle, form: str, tmp_path: Path) -> None:
    frame, target, where = visits(60, 3).drop(columns="site"), None, tmp_path / "t.csv"
    truth = frame[LABELS].to_numpy()
    if form == "other order":
        target = "rash+cough+fever"
    if form == "own names":
        frame, target = frame.rename(columns=dict(zip(LABELS, "xyz", strict=True))), "x+y+z"
    if form == "answers":
        frame[LABELS] = np.where(frame[LABELS] > 0, "yes", "no")
    if form == "texts":
        frame, target = in_one_column(frame), "tags"
    if form == "parquet of lists":
        lists = [[name for name in LABELS if row[name]] for _, row in frame.iterrows()]
        frame.drop(columns=LABELS).assign(tags=lists).to_parquet(where := tmp_path / "t.parquet")
        target = "tags"
    elif form == "npz":
        np.savez(where := tmp_path / "t.npz", x=frame[["a", "b"]].to_numpy(np.float32), y=truth)
    else:
        frame.to_csv(where, index=False)
    mine = own(bundle, where, target)
    np.testing.assert_array_equal(mine.y_N.numpy(), truth)
    np.testing.assert_allclose(mine.x_N.numpy(), frame[["a", "b"]], rtol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "target", "said"),
    [
        (lambda f: f.assign(rash=f["rash"] * 2), None, "target 'rash' of bad.csv has the values 0, 2"),
        (lambda f: f.drop(columns="fever"), None, "has no column 'fever'"),
        (lambda f: f, "cough+fever", "target: cough\\+fever is 2 columns, and the labels are cough, fever, rash"),
        (lambda f: in_one_column(f).replace({"tags": {"cough": "sneeze"}}), "tags", "has the label 'sneeze', which is"),
        (lambda f: f.assign(rash=f["rash"].astype(object).where(f.index != 7, "?")), None, "first is row 9"),
        (lambda f: f[:1], None, "1 sample compares no models"),
    ],
)
def test_labels_that_are_refused(bundle: Bundle, call: Call, spoil: Callable, target: str | None, said: str) -> None:
    spoil(visits(80, 1).drop(columns="site")).to_csv("bad.csv", index=False)
    code, _, err = call(f"join {bundle.folder} --data bad.csv --out site" + (f" --target {target}" if target else ""))
    assert code == 2
    assert pytest.importorskip("re").search(said, err), err
    assert not Path("site").exists()


@pytest.mark.thorough(but=["fedshrink"])
def test_harm_is_judged_by_the_log_loss(bundle: Bundle, tmp_path: Path) -> None:
    visits(80, 1).drop(columns="site").to_csv(tmp_path / "my.csv", index=False)
    samples = own(bundle, tmp_path / "my.csv")
    y = samples.y_N.numpy()
    choice = candidates_of(bundle, samples).choice
    assert set(choice.outputs) == {"global", "personal", "local", "blend"}

    def losses(output: torch.Tensor) -> np.ndarray:
        p = output[..., 1].exp().numpy()
        return np.array([np.mean([log_loss([y[n, k]], [p[n, k]], labels=[0, 1]) for k in range(3)]) for n in range(80)])

    base = losses(choice.outputs["global"])
    for name, difference in choice.difference.items():
        mine = losses(choice.outputs[name])
        test = ttest_rel(mine, base)
        low, high = test.confidence_interval(0.95)
        assert difference == pytest.approx((float((mine - base).mean()), low, high), abs=1e-6)
    # the best weights of the product of experts, by brute force
    models = {name: p for name, p in choice.outputs.items() if name != "blend"}
    first = np.array([harm.FIRST[name] for name in models])
    expert = np.log(0.85 * torch.stack(list(models.values())).exp().numpy() + 0.075)
    surplus = expert[..., 1] - expert[..., 0]  # of a label over none

    def cost(weight: np.ndarray) -> float:
        surprise = np.logaddexp(0, np.where(y > 0, -1, 1) * np.tensordot(weight, surplus, 1))
        return surprise.mean(1).sum() + 2 * ((weight - first) ** 2).sum()

    grid = [np.array(weight) for weight in itertools.product(np.linspace(0, 3, 31), repeat=len(models))]
    best = min(grid, key=cost)
    assert np.count_nonzero(best) > 1
    assert choice.weights == harm_of_labels.weights(models, samples.y_N)
    assert cost(np.array([choice.weights.get(name, 0.0) for name in models])) <= cost(best)
    assert "log loss differs by" in choice.why


@pytest.mark.thorough(but=["fedshrink"])
def test_a_sites_model_keeps_thresholds_and_errors(bundle: Bundle, site: Bundle) -> None:
    about = site.about
    assert (about.task, about.models) == ("multilabel", ("this site",))
    samples = own(bundle, site.folder.parent / "my.csv")
    y = samples.y_N.numpy()
    p = candidates_of(bundle, samples).choice.outputs[about.site.ships][..., 1].exp().numpy()
    [at] = about.thresholds
    for k in range(3):
        assert f1_score(y[:, k], p[:, k] > at[k]) == pytest.approx(best_f1(p[:, k], y[:, k]))
        np.testing.assert_allclose(about.site.errors[k].sizes, np.sort(np.abs(y[:, k] - p[:, k])), atol=1e-9)
    measured = about.site.compared[about.site.ships]
    assert measured["micro_f1"] == pytest.approx(f1_score(y, p > 0.5, average="micro"))
    assert measured["f1[rash]"] == pytest.approx(f1_score(y[:, 2], p[:, 2] > 0.5))
    page = (site.folder / "report.html").read_text()
    for said in ("Label by label", "Log loss", "Average precision, %", "rash", "Share that has it"):
        assert said in page
    assert "Accuracy" not in page
    assert "Intervals" not in page


def test_predictions_and_sets_at_a_level(site: Bundle, call: Call) -> None:
    assert call(f"predict {site.folder} --data new.csv --out p.csv")[0] == 0
    table = pd.read_csv("p.csv", keep_default_na=False)
    assert list(table) == ["row", "labels", "p_cough", "p_fever", "p_rash"]
    model = log_probabilities(site.model(), site.predicting, torch.tensor(pd.read_csv("new.csv").to_numpy("float32")))
    np.testing.assert_allclose(table[["p_cough", "p_fever", "p_rash"]], model[..., 1].exp(), atol=1e-6)
    p, at = table[["p_cough", "p_fever", "p_rash"]].to_numpy(), np.array(site.about.thresholds[0])
    expected = ["|".join(name for name, yes in zip(LABELS, row, strict=True) if yes) for row in p > at]
    assert table["labels"].tolist() == expected
    assert call(f"predict {site.folder} --data new.csv --out q.csv --level 0.9")[0] == 0
    sets = pd.read_csv("q.csv", keep_default_na=False)
    for k, name in enumerate(LABELS):
        sizes = np.sort(site.about.site.errors[k].sizes)
        half = sizes[int(np.ceil(0.9 * (len(sizes) + 1))) - 1]
        may, may_lack = 1 - p[:, k] <= half, p[:, k] <= half
        is_in = sets["labels"].str.split("|").map(lambda names, name=name: name in names)
        is_open = sets["undecided"].str.split("|").map(lambda names, name=name: name in names)
        assert is_in.tolist() == (may & ~may_lack).tolist()
        assert is_open.tolist() == (may == may_lack).tolist()
        own = idl.load(site.folder).predict_set(pd.read_csv("new.csv"), level=0.9)
        np.testing.assert_array_equal(own[:, k], np.stack([may_lack, may], -1))


def test_watching(site: Bundle, call: Call) -> None:
    same, moved = visits(200, 5), visits(200, 6, shift=1.0)
    for name, frame in (("same", same), ("moved", moved)):
        frame.drop(columns="site").to_csv(f"{name}.csv", index=False)
    code, out, _ = call(f"watch {site.folder} --data moved.csv --json")
    parts = json.loads(out)
    assert code == 1
    assert parts["predictions"]["moved"]
    assert set(parts["predictions"]["now"]) == set(LABELS)
    assert parts["predictions"]["now"]["cough"] > parts["predictions"]["before"]["cough"]
    assert call(f"watch {site.folder} --data same.csv --level 0.0001")[0] == 0
    known = own(site, "same.csv")
    result = watch(site, known.x_N, y_MD=known.y_N)
    p = log_probabilities(site.model(), site.unshifted, known.x_N)[..., 1].double().exp().numpy()
    errors = np.abs(p - known.y_N.numpy())
    tests = [
        mannwhitneyu(errors[:, k], site.about.site.errors[k].sizes, alternative="greater", method="asymptotic").pvalue
        for k in range(3)
    ]
    assert result.errors.p == pytest.approx(min(1, 3 * min(tests)), rel=0.05)
    assert result.intervals is None
    code, _, err = call(f"watch {site.folder} --data same.csv --adapt --out adapted")
    assert (code, "predicts several labels" in err) == (2, True)


@pytest.mark.thorough(but=["fedshrink-onnx"])
@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_exports(site: Bundle, format: str, tmp_path: Path) -> None:
    if format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    path = tmp_path / "model"
    export(site, path, format=format)
    frame = visits(20, 9)[["a", "b"]].astype("float64")
    expected = log_probabilities(site.model(), site.predicting, torch.tensor(frame.to_numpy("float32")))[..., 1].exp()
    if format == "torch":
        given = torch.export.load(path).module()(torch.tensor(frame.to_numpy("float32")))
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        assert session.get_modelmeta().custom_metadata_map["labels"].split("\n") == LABELS
        [given] = session.run(["probabilities"], {name: frame[name].to_numpy() for name in frame})
    np.testing.assert_allclose(np.asarray(given), expected, atol=1e-5)


def test_as_an_estimator(bundle: Bundle, site: Bundle) -> None:
    frame = visits(80, 1)
    x, y = frame[["a", "b"]], frame[LABELS].to_numpy()
    model = idl.load(bundle.folder).fit(x, y)
    assert isinstance(model, idl.PersonalMultilabelClassifier)
    assert model.classes_.tolist() == LABELS
    new = visits(30, 8)[["a", "b"]]
    ready = idl.load(site.folder)
    np.testing.assert_allclose(model.predict_proba(new), ready.predict_proba(new), atol=1e-6)
    np.testing.assert_array_equal(model.predict(new), ready.predict(new))
    np.testing.assert_array_equal(ready.predict(new), ready.predict_proba(new) > site.about.thresholds[0])
    assert ready.score(new, ready.predict(new)) == 1.0
    with pytest.raises(InputError, match="predicts several labels: take PersonalMultilabelClassifier"):
        idl.PersonalClassifier(bundle.folder).fit(x, y[:, 0])
    with pytest.raises(ValueError, match="give 0 or 1 for each of 3 labels"):
        idl.load(bundle.folder).fit(x, y[:, :2])


def test_the_columns_of_a_frame_are_found_by_name(bundle: Bundle) -> None:
    """In any order, and the labels of an array by their place."""
    frame = visits(80, 1)
    x, new = frame[["a", "b"]], visits(30, 8)
    by_place = idl.load(bundle.folder).fit(x, frame[LABELS].to_numpy())
    by_name = idl.load(bundle.folder).fit(x, frame[["rash", "cough", "fever"]])
    want = by_place.predict_proba(new[["a", "b"]])
    np.testing.assert_array_equal(by_name.predict_proba(new[["a", "b"]]), want)
    found = pd.DataFrame(by_name.predict(new[["a", "b"]]), columns=LABELS)
    assert by_name.score(new[["a", "b"]], found[["fever", "rash", "cough"]]) == 1.0
    for other in (frame[["cough", "fever"]], frame[[*LABELS, "site"]], frame[LABELS].set_axis(["x", "y", "z"], axis=1)):
        with pytest.raises(
            InputError, match=r"^y has the columns .*, and the bundle predicts cough, fever, rash: give"
        ):
            idl.load(bundle.folder).fit(x, other)
        with pytest.raises(InputError, match=r"^y has the columns"):
            by_name.score(x, other)


@pytest.mark.parametrize("rule", ["f1", "balanced"])
def test_two_classes_keep_their_threshold(rule: str, tmp_path: Path) -> None:
    """Of a client as of a joined site; what is predicted follows it, also by scikit-learn."""
    frame = visits(240, 0).drop(columns=["cough", "fever"])
    source = idl.data.from_frame(frame, target="rash", client_column="site", task="classification")
    study = idl.Study(
        data=source, methods=["fedavg_ft"], rounds=2, batch_size=20, lr=0.1,
        protocol={"validation": 0.3, "threshold": rule},
    )  # fmt: skip
    result = idl.run(study, tmp_path / "run", engine="sequential")
    r = result.records
    last = r[(r["round"] == 2) & (r["stage"] == "personalised") & (r["metric"] == "threshold")]
    all_of_them = result.bundle("fedavg_ft", tmp_path / "all", client="all")
    assert [at for (at,) in all_of_them.about.thresholds] == last.sort_values("client")["value"].tolist()
    bundle = result.bundle("fedavg_ft", tmp_path / "bundle")
    visits(80, 1).drop(columns=["site", "cough", "fever"]).to_csv(tmp_path / "my.csv", index=False)
    mine = join(bundle, read(tmp_path / "my.csv", bundle.about.inputs, bundle.about.classes, "rash"), tmp_path / "site")
    [(at,)] = mine.about.thresholds
    predict(mine, tmp_path / "my.csv", tmp_path / "p.csv")
    table = pd.read_csv(tmp_path / "p.csv")
    assert table["label"].tolist() == (table["p_1"] > at).astype(int).tolist()
    x = pd.read_csv(tmp_path / "my.csv")[["a", "b"]]
    assert idl.load(tmp_path / "site").predict(x).tolist() == table["label"].tolist()
    card = (tmp_path / "site" / "README.md").read_text()
    assert "The class 1 is predicted from the probability on that has the best" in card


@pytest.mark.parametrize(
    ("target", "protocol"),
    [
        ("rash", {"stage": "received"}),
        ("rash", {"stage": "trained"}),
        ("rash", {"clients": "participants"}),
        ("+".join(LABELS), {"stage": "received"}),
    ],
)
def test_a_personal_models_threshold_is_its_own_whatever_the_run_measured(
    target: str, protocol: dict[str, str], tmp_path: Path
) -> None:
    """The same training gives the same bundle, and its accuracies are those at its thresholds."""
    names = target.split("+")
    frame = visits(160, 0).drop(columns=[name for name in LABELS if name not in names])
    source = idl.data.from_frame(
        frame, target=target, client_column="site", task="classification" if names == ["rash"] else "multilabel"
    )

    def bundle(folder: Path, more: dict[str, str]) -> Bundle:
        study = idl.Study(
            data=source, methods=["fedavg_ft"], rounds=1, batch_size=20, lr=0.1, participation=0.5,
            protocol={"validation": 0.3, "threshold": "balanced"} | more,
        )  # fmt: skip
        return idl.run(study, folder / "run", engine="sequential").bundle("fedavg_ft", folder / "all", client="all")

    made, usual = bundle(tmp_path / "made", protocol), bundle(tmp_path / "usual", {})
    assert made.about.thresholds == usual.about.thresholds
    assert len(set(made.about.thresholds)) > 1
    personal = [[c.personal for c in one.about.evaluation.clients] for one in (made, usual)]
    assert personal[0] == personal[1]
