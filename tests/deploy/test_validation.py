"""Validation at a site: the numbers against scikit-learn, what is not told, and what is refused."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, recall_score, roc_auc_score
from torch import Tensor

from idiolect import cli
from idiolect.core.errors import InputError
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.join import join
from idiolect.deploy.predict import predict
from idiolect.deploy.samples import read
from idiolect.deploy.schema import TargetPart
from idiolect.deploy.validate import judge, validate
from idiolect.deploy.validation import Settings
from idiolect.deploy.validation_result import Validation, cautions, ranges, sentences
from idiolect.statistics.decision_curve import NetBenefit
from idiolect.statistics.intervals import Estimate

FILES = {"report.html", "validation.json", "classes.csv", "sensitivity.csv", "calibration.csv", "decision_curve.csv"}


@pytest.fixture(scope="module")
def site(of_table: Bundle, graz: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("validated")
    graz[:60].to_csv(folder / "graz.csv", index=False)
    own = read(folder / "graz.csv", of_table.about.inputs, of_table.about.classes, "diagnosis")
    return join(of_table, own, folder / "site", ships="personal")


@pytest.fixture
def tested(here: Path, graz: pd.DataFrame) -> pd.DataFrame:
    """Labelled samples that the site did not join with, with a name for each and columns to divide them by."""
    frame = graz[60:].reset_index(drop=True)
    frame["patient"] = [f"Patient-{k}-Name" for k in range(len(frame))]
    frame["ward"] = ["east"] * 40 + ["west"] * (len(frame) - 45) + ["attic"] * 5
    frame["age"] = np.arange(len(frame)) % 60 + 20
    frame.loc[3, "age"] = np.nan
    frame.to_csv("tested.csv", index=False)
    return frame


@pytest.fixture
def call(site: Bundle, tested: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple]:
    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["validate", *shlex.split(line.format(s=site.folder))])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def probabilities(site: Bundle) -> np.ndarray:
    """Those of ``idiolect predict``, of the second class."""
    predict(site, "tested.csv", Path("p.csv"))
    return pd.read_csv("p.csv")["p_malignant"].to_numpy()


def test_the_numbers_are_those_of_what_predict_gives(site: Bundle, tested: pd.DataFrame) -> None:
    result = validate(site, "tested.csv", target="diagnosis", subgroup_columns=["ward"])
    p, y = probabilities(site), (tested["diagnosis"] == "malignant").to_numpy()
    one = result.one
    assert one
    assert (list(result.classes), one.samples, one.cases) == (["malignant"], len(y), y.sum())
    np.testing.assert_allclose(one.auroc.value, roc_auc_score(y, p))
    np.testing.assert_allclose(one.brier.value, brier_score_loss(y, p), rtol=1e-5)
    np.testing.assert_allclose(one.accuracy.value, accuracy_score(y, p > 0.5))
    np.testing.assert_allclose(one.named.sensitivity.value, recall_score(y, p > 0.5))
    np.testing.assert_allclose(one.specific.specificity.value, np.mean(p[~y] <= one.specific.threshold))
    assert one.specific.specificity.value >= 0.9
    assert one.sensitive.sensitivity.value >= 0.9
    east = result.subgroups[1]
    assert (east.column, east.value, east.samples, east.cases) == ("ward", "east", 40, y[:40].sum())
    assert east.auroc
    assert east.accuracy
    np.testing.assert_allclose(east.auroc.value, roc_auc_score(y[:40], p[:40]))
    np.testing.assert_allclose(east.accuracy.value, np.mean((p > 0.5)[:40] == y[:40]))
    np.testing.assert_allclose(east.predicted, p[:40].mean(), rtol=1e-5)


def test_the_first_class_is_the_mirror_of_the_second(site: Bundle, tested: pd.DataFrame) -> None:
    one = validate(site, "tested.csv", target="diagnosis", of_class="benign").one
    other = validate(site, "tested.csv", target="diagnosis").one
    assert one
    assert other
    assert one.named.sensitivity == other.named.specificity
    np.testing.assert_allclose(one.auroc, other.auroc)
    np.testing.assert_allclose(one.recalibration.slope, other.recalibration.slope, rtol=1e-3)


def test_no_file_tells_a_sample(site: Bundle, tested: pd.DataFrame) -> None:
    columns = ["ward", "age", "age>=65", "machine"]
    result = validate(site, "tested.csv", Path("v"), target="diagnosis", subgroup_columns=columns)
    assert {path.name for path in Path("v").iterdir()} == FILES | {"subgroups.csv"}
    texts = {path.name: path.read_text() for path in Path("v").iterdir()}
    for name, text in texts.items():
        assert not re.search(r"Patient-\d", text), name
    p = probabilities(site)
    page = json.loads(re.search(r'id="specs">(.*?)</script>', texts["report.html"])[1].replace("\\u003c", "<"))
    assert len(page) == 3
    assert max(len(spec["data"]["values"]) for spec in page.values()) <= 3 * 19
    numbers = np.array(re.findall(r"\d\.\d{6,}", texts["validation.json"] + texts["calibration.csv"]), float)
    assert np.abs(numbers[:, None] - p).min() > 1e-9
    assert result.curves
    assert min(b.samples for b in result.curves.bins) >= 10
    attic = result.subgroups[0]
    assert attic[:2] == ("ward", "attic")
    assert set(attic[2:]) == {None}
    [row] = [line for line in texts["subgroups.csv"].splitlines() if "attic" in line]
    assert set(row) == set("ward,attic")
    row = r"attic</th>\s*<td[^>]*>&lt; 10</td>\s*<td[^>]*>too few to judge</td>(\s*<td[^>]*>-</td>)+\s*</tr>"
    assert re.search(row, texts["report.html"])
    assert "3 subgroups have fewer than 10 samples" in " ".join(cautions(result))


def test_subgroups_of_numbers_are_quartiles_and_questions_have_two(site: Bundle, tested: pd.DataFrame) -> None:
    groups = validate(site, "tested.csv", target="diagnosis", subgroup_columns=["age", "age>=65"]).subgroups
    ages = tested["age"].dropna().to_numpy()
    first, _, last = np.quantile(ages, [0.25, 0.5, 0.75], method="inverted_cdf")
    by = {(group.column, group.value): group.samples for group in groups}
    assert by["age", f"up to {first:g}"] == (ages <= first).sum()
    assert by["age", f"above {last:g}"] == (ages > last).sum()
    assert by["age", "no value"] is None
    assert by["age>=65", "yes"] == (ages >= 65).sum()
    assert by["age>=65", "no"] == (ages < 65).sum()


def test_subgroups_of_numbers_that_are_close_have_names_of_their_own(site: Bundle, tested: pd.DataFrame) -> None:
    (tested.assign(lot=1000 + np.arange(len(tested)) / 1e4)).to_csv("tested.csv", index=False)
    groups = validate(site, "tested.csv", target="diagnosis", subgroup_columns=["lot"]).subgroups
    assert len({group.value for group in groups}) == len(groups) == 4


def test_few_cases_hide_what_is_of_cases_alone(site: Bundle, tested: pd.DataFrame) -> None:
    y = (tested["diagnosis"] == "malignant").to_numpy()
    tested["rare"] = np.where(~y | (np.cumsum(y) <= 4), "mostly well", "ill")
    tested.to_csv("tested.csv", index=False)
    groups = validate(site, "tested.csv", target="diagnosis", subgroup_columns=["rare"]).subgroups
    well = {group.value: group for group in groups}["mostly well"]
    assert well.samples == (~y).sum() + 4
    assert (well.cases, well.controls, well.auroc, well.sensitivity, well.observed) == (None,) * 5
    assert well.specificity
    assert well.accuracy


def of_classes(site: Bundle, names: tuple[str, ...], **changes: object) -> Bundle:
    about = site.about.model_copy(update={"classes": names, "thresholds": (), "provenance": None} | changes)
    return Bundle(site.folder, about, site.digest)


def three(count: int = 120) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    y = np.where(np.arange(count) < 5, 2, np.arange(count) % 2)
    return torch.from_numpy(rng.normal(size=(count, 3)) + 1.5 * np.eye(3)[y]).log_softmax(1), torch.from_numpy(y)


def test_several_classes_are_a_table_and_one_of_them_has_curves(site: Bundle, tmp_path: Path) -> None:
    bundle, (logp, y) = of_classes(site, ("a", "b", "<i>c")), three()
    result = judge(bundle, (), logp, y, tmp_path / "v")
    assert result.curves is None
    assert result.classes["<i>c"] is None, "5 samples"
    assert result.accuracy
    np.testing.assert_allclose(result.accuracy.value, accuracy_score(y, logp.argmax(1)))
    of_b = result.classes["b"]
    assert of_b
    np.testing.assert_allclose(of_b.auroc.value, roc_auc_score(y == 1, logp[:, 1].exp()))
    page = (tmp_path / "v" / "report.html").read_text()
    assert "&lt;i&gt;c" in page
    assert "<i>c" not in page
    assert {path.name for path in (tmp_path / "v").iterdir()} == {"report.html", "validation.json", "classes.csv"}
    one = judge(bundle, (), logp, y, of_class="b")
    assert one.one == of_b
    assert math.isnan(of_b.named.threshold)
    with pytest.raises(InputError, match=r"give class=... as one of a, b"):
        judge(bundle, (), logp, y, subgroup_columns=["ward"])
    with pytest.raises(InputError, match="5 samples that are <i>c and 115 that are not"):
        judge(bundle, (), logp, y, of_class="<i>c")


def test_labels_are_judged_one_by_one_at_their_own_thresholds(site: Bundle, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    y = rng.random((100, 2)) < 0.4
    p = 1 / (1 + np.exp(-rng.normal(2 * y - 1)))
    logp = torch.from_numpy(np.log(np.stack([1 - p, p], -1)))
    bundle = of_classes(site, (), labels=("cough", "rash"))
    result = judge(bundle, (0.3, 0.7), logp, torch.from_numpy(y * 1.0), tmp_path / "v")
    assert result.accuracy is None
    assert list(result.classes) == ["cough", "rash"]
    for k, of in enumerate(result.classes.values()):
        assert of
        np.testing.assert_allclose(of.auroc.value, roc_auc_score(y[:, k], p[:, k]))
        np.testing.assert_allclose(of.named.sensitivity.value, recall_score(y[:, k], p[:, k] > (0.3, 0.7)[k]))
    assert judge(bundle, (), logp, torch.from_numpy(y * 1.0), of_class="rash").curves


def test_a_sites_threshold_says_what_is_named(site: Bundle, tested: pd.DataFrame) -> None:
    own = Bundle(site.folder, site.about.model_copy(update={"thresholds": ((0.2,),)}), site.digest)
    one = validate(own, "tested.csv", target="diagnosis").one
    p, y = probabilities(site), (tested["diagnosis"] == "malignant").to_numpy()
    assert one
    assert one.named.threshold == 0.2
    np.testing.assert_allclose(one.named.sensitivity.value, recall_score(y, p > 0.2))


def test_sentences_say_what_the_numbers_say() -> None:
    def points(*gains: tuple[float, float]) -> list[NetBenefit]:
        none = Estimate(0.0, 0.0, 0.0)
        return [
            NetBenefit(0.1 * k, Estimate(value, low, 1.0), none, Estimate(value, low, 1.0))
            for k, (value, low) in enumerate(gains, 1)
        ]

    curve = points((-0.1, -0.2), (0.1, 0.05), (0.1, 0.01), (0.1, -0.1), (0.1, 0.02))
    np.testing.assert_allclose(ranges(curve, sure=True), [(0.2, 0.3), (0.5, 0.5)])
    np.testing.assert_allclose(ranges(curve, sure=False), [(0.2, 0.5)])
    assert ranges(points((-0.1, -0.2)), sure=False) == []


@pytest.mark.parametrize(
    ("factor", "move", "words"),
    [(1, 0, "0 is inside"), (3, 0, "too extreme"), (0.3, 0, "not extreme enough"), (1, 2, "too high on average"),
     (1, -2, "too low on average")],
)  # fmt: skip
def test_sentences_say_how_probabilities_are_wrong(site: Bundle, factor: float, move: float, words: str) -> None:
    rng = np.random.default_rng(3)
    odds = rng.normal(size=400) * 1.5
    y = torch.from_numpy((rng.random(400) < 1 / (1 + np.exp(-odds))) * 1)
    told = torch.from_numpy(np.stack([np.zeros(400), factor * odds + move], 1)).log_softmax(1)
    assert words in " ".join(sentences(judge(of_classes(site, ("no", "yes")), (), told, y)))


def test_samples_of_one_patient_and_few_samples_are_said(site: Bundle, tested: pd.DataFrame) -> None:
    tested["visit_of"] = np.arange(len(tested)) // 2
    tested.to_csv("tested.csv", index=False)
    result = validate(
        site, "tested.csv", target="diagnosis", group_column="visit_of", settings=Settings(prevalence=0.1)
    )
    said = " ".join(cautions(result))
    assert f"are of {(len(tested) + 1) // 2} groups" in said
    assert "needs about 100 of each kind" in said
    assert "for a prevalence of 10 %" in said


def test_the_command_writes_the_page_and_the_tables(
    call: Callable, tested: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    code, out, err = call("{s} --data tested.csv --target diagnosis --subgroup ward --subgroup 'age>=65' --out v")
    assert (code, err) == (0, ""), err
    assert out.startswith("AUROC 0.9")
    assert "are not used: patient\n" in caplog.text, "the columns of subgroups are"
    assert "Validation: v (report: v/report.html)" in out
    content = json.loads(Path("v/validation.json").read_text())
    assert content["samples"] == len(tested)
    assert {group["column"] for group in content["subgroups"]} == {"ward", "age>=65"}
    curve = pd.read_csv("v/decision_curve.csv")
    assert list(curve)[:4] == ["threshold", "model", "model_low", "model_high"]
    assert (curve["threshold"].iloc[0], curve["threshold"].iloc[-1], len(curve)) == (0.05, 0.95, 19)
    code, out, _ = call("{s} --data tested.csv --target diagnosis --thresholds 0.1,0.4 --out w --json")
    assert code == 0
    assert json.loads(out) == json.loads(Path("w/validation.json").read_text())
    assert json.loads(out)["settings"]["thresholds"] == [0.1, 0.4]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--specificity 1.5", "--specificity 1.5 is not between 0 and 1: give a share"),
        ("--prevalence 0", "--prevalence 0.0 is not between 0 and 1"),
        ("--thresholds 0.5", "--thresholds 0.5 is not understood: give two probabilities"),
        ("--thresholds 0.5,0.1", "--thresholds 0.5 to 0.1 is no range"),
        ("--least 1", "--least 1 is too small"),
        ("--class nobody", "this model predicts no class or label 'nobody'; known: benign, malignant"),
        ("--subgroup wards", "has no column 'wards'; did you mean 'ward'?"),
        ("--subgroup patient", "different values, more than 20: is it an identifier?"),
        ("--subgroup 'age>=old'", "subgroup age>=old: 'old' is no number"),
        ("--least 60", "a validation needs 60 samples of a class and 60 of the others"),
        ("--own", "give --data (labelled samples), or --own"),
        ("--method fedper", "--method is for a site's state folder"),
        ("--target nothing", "has no column 'nothing'"),
        ("--out full", "full exists and is not an empty folder: choose another with --out"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call: Callable, more: str, said: str) -> None:
    Path("full").mkdir()
    Path("full", "x").write_text("")
    target, out = "" if "--target" in more else "--target diagnosis", "" if "--out" in more else "--out v"
    code, printed, err = call(f"{{s}} --data tested.csv {target} {out} {more}")
    assert (code, printed) == (2, ""), err
    assert said in " ".join(err.split())
    assert err.count("\n") == 1
    assert not Path("v").exists()
    assert not list(Path().glob(".v*"))


def test_models_that_are_not_ready_or_predict_numbers_are_refused(
    site: Bundle, of_table: Bundle, tested: pd.DataFrame
) -> None:
    with pytest.raises(InputError, match="is not a site's model yet: join with it first"):
        validate(of_table, "tested.csv", target="diagnosis")
    bundle = of_classes(site, (), targets=(TargetPart(name="pressure", mean=0, std=1),))
    with pytest.raises(InputError, match=r"this model predicts numbers \(pressure\): compare its errors"):
        validate(bundle, "tested.csv", target="diagnosis")


def test_the_result_is_plain_in_json() -> None:
    empty = Validation("FedAvg", "", 3, None, Settings(), Estimate(math.nan), {"a": None}, None, [])
    assert json.loads(json.dumps(empty.as_json(), allow_nan=False))["accuracy"] == dict.fromkeys(Estimate._fields)
    assert sentences(empty)[-1] == "Too few samples to judge: a."
