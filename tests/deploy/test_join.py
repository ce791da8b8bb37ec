"""A site joins with its own table or images: what is matched, what is refused, and what is written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch.nn import functional

import idiolect as idl
from idiolect import cli
from idiolect.core.errors import InputError
from idiolect.deploy import units
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.join import candidates_of, join
from idiolect.deploy.samples import Samples, read
from idiolect.statistics.intervals import auroc


@pytest.fixture
def call(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def samples(where: object, of_table: Bundle, **how: object):
    return read(where, of_table.about.inputs, of_table.about.classes, "diagnosis", **how)


def test_join_and_predict(call, of_table: Bundle, graz: pd.DataFrame) -> None:
    code, out, err = call(f"join {of_table.folder} --data graz.csv --target diagnosis --out site")
    assert (code, err) == (0, "")
    assert out.startswith("This site's model: it is ")
    site = Bundle.read("site")
    site.check()
    assert site.about.site.samples == 60
    assert set(site.about.site.weights) <= {"global", "personal", "local"}
    assert sorted(p.name for p in Path("site").iterdir()) == [
        "README.md", "bundle.json", "model.safetensors", "report.html", "watch.safetensors"
    ]  # fmt: skip
    page = Path("site/report.html").read_text()
    for said in ("pFedFDA at this site", "Class by class", "malignant", "Where they disagree", "personal"):
        assert said in page
    code, out, err = call("predict site --data new.csv --out p.csv")
    assert code == 0, err
    found = pd.read_csv("p.csv")
    assert list(found) == ["row", "label", "p_benign", "p_malignant"]
    assert len(found) == len(graz) - 60
    assert (found["label"] == graz["diagnosis"][60:].to_numpy()).mean() > 0.8
    np.testing.assert_allclose(found[["p_benign", "p_malignant"]].sum(axis=1), 1, atol=1e-5)


def test_the_joined_model_is_what_was_compared(of_table: Bundle, here: Path) -> None:
    mine = samples("graz.csv", of_table)
    found = candidates_of(of_table, mine)
    assert set(found.clients) == {"global", "personal", "local"}
    for name, logp_NC in found.choice.outputs.items():
        assert logp_NC.shape == (60, 2), name
        np.testing.assert_allclose(logp_NC.exp().sum(1), 1, atol=1e-5)
    again = candidates_of(of_table, mine)
    assert again.choice.weights == found.choice.weights
    few = candidates_of(of_table, type(mine)(mine.x_N[:30], mine.y_N[:30]))
    assert set(few.clients) == {"global", "personal"}


def test_the_page_has_the_area_under_the_curve_and_the_share_of_the_most_frequent_class(
    of_table: Bundle, here: Path, graz: pd.DataFrame
) -> None:
    mine = samples("graz.csv", of_table)
    choice = candidates_of(of_table, mine).choice
    join(of_table, mine, Path("site"))
    page = Path("site/report.html").read_text()
    rows = re.findall(r"<tr>(.*?)</tr>", page.split("All is by cross-validation")[0], re.DOTALL)[-len(choice.outputs) :]
    for row, logp_NC in zip(rows, choice.outputs.values(), strict=True):
        area = roc_auc_score(mine.y_N, logp_NC[:, 1].exp())
        low, high = auroc(logp_NC.exp().numpy(), mine.y_N.numpy())
        assert f">{100 * area:.1f}</td>" in row
        assert f"{100 * low:.1f} to {100 * high:.1f}" in row
    share = graz["diagnosis"][:60].value_counts(normalize=True)
    assert f"{share.index[0]}, {100 * share.iloc[0]:.1f} % of the samples" in page


@pytest.mark.parametrize("ships", ["global", "personal", "local"])
def test_one_model_can_be_asked_for(call, of_table: Bundle, ships: str) -> None:
    code, _, err = call(f"join {of_table.folder} --data graz.csv --target diagnosis --out site --ships {ships}")
    assert code == 0, err
    site = Bundle.read("site")
    assert site.about.site.weights == {ships: 1.0}
    assert "it was asked for" in site.about.site.why
    mine = samples("graz.csv", of_table)
    got = log_probabilities(site.model(), site.predicting, mine.x_N)
    for name, client in candidates_of(of_table, mine).clients.items():
        want = log_probabilities(Personal(of_table.model().down, client), of_table.methods[name], mine.x_N)
        assert torch.allclose(got, want, rtol=0, atol=1e-5) == (name == ships)


def test_order_case_and_further_columns_do_not_matter(of_table: Bundle, here: Path, graz, caplog) -> None:
    plain = samples("graz.csv", of_table)
    other = graz[:60].rename(columns={"worst points": "Worst_Points", "radius": "RADIUS"}).assign(ward=3)
    other[list(reversed(list(other)))].to_csv("other.csv", index=False)
    found = samples("other.csv", of_table)
    torch.testing.assert_close(found.x_N, plain.x_N, equal_nan=True, rtol=0, atol=0)
    said = [record.getMessage() for record in caplog.records]
    assert any("column 'RADIUS' is taken as 'radius'" in line for line in said)
    assert any("not used: ward" in line for line in said)


def test_what_the_bundle_does_not_know_is_said(of_table: Bundle, here: Path, graz, caplog) -> None:
    frame = graz[:60].copy()
    frame.loc[:4, "machine"] = "Q"
    frame.loc[6, "radius"] = np.nan
    frame.to_csv("odd.csv", index=False)
    found = samples("odd.csv", of_table)
    assert found.x_N[:5, -4:].tolist() == [[0.0] * 4] * 5
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "column 'machine' has 5 values that the bundle does not know" in said
    assert "column 'radius' has empty cells, which it never had in training: the mean is used" in said
    assert "Q" not in said.replace("'", "").split()


def spoilt(graz: pd.DataFrame, how: str) -> pd.DataFrame:
    frame = graz[:60].copy()
    if how == "column":
        return frame.drop(columns="radius")
    if how == "text":
        frame["radius"] = frame["radius"].astype(object)
        frame.loc[3, "radius"] = "Zaphod"
    if how == "unit":
        frame["radius"] *= 1000
    if how == "small unit":
        frame["radius"] /= 10
    if how == "categories":
        frame["machine"] = "Zaphod"
    if how == "label":
        frame.loc[3, "diagnosis"] = "unknown"
    if how == "no label":
        frame.loc[3, "diagnosis"] = np.nan
    if how == "infinite":
        frame.loc[3, "radius"] = np.inf
    if how == "one class":
        frame["diagnosis"] = "benign"
    return frame[:0] if how == "no rows" else frame


BAD = {
    "column": ("has no column 'radius'", "add it, with empty cells"),
    "text": ("column 'radius'", "1 texts where the bundle takes numbers", "row 3"),
    "unit": ("column 'radius'", "looks like another unit", "--as-is radius"),
    "small unit": ("column 'radius'", "looks like another unit"),
    "categories": ("column 'machine'", "none of the texts that the bundle knows"),
    "label": ("has the label 'unknown'", "benign, malignant"),
    "no label": ("target 'diagnosis' of bad.csv is missing in 1 of 60 rows", "row 5", "--unlabelled drop"),
    "infinite": ("column 'radius' has an infinite",),
    "one class": ("all 60 samples are of one class",),
    "no rows": ("has no rows",),
}


@pytest.mark.parametrize("how", BAD)
def test_what_is_refused(call, of_table: Bundle, graz: pd.DataFrame, how: str) -> None:
    spoilt(graz, how).to_csv("bad.csv", index=False)
    code, out, err = call(f"join {of_table.folder} --data bad.csv --target diagnosis --out site")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("idiolect: ")
    for words in BAD[how]:
        assert words in err
    assert "Zaphod" not in err
    assert not Path("site").exists()


def test_a_table_without_names_is_told_to_name_its_columns(call, of_table: Bundle, graz: pd.DataFrame) -> None:
    graz.to_csv("rows.csv", index=False, header=False)
    target = 1 + list(graz).index("diagnosis")
    code, _, err = call(f"join {of_table.folder} --data rows.csv --header none --target {target} --out site")
    assert code == 2
    assert "because its columns have no names: the bundle takes " in err
    assert err.rstrip().endswith("give the names with --columns")


def test_numbers_of_another_unit_can_be_right(call, of_table: Bundle, graz: pd.DataFrame) -> None:
    spoilt(graz, "unit").to_csv("bad.csv", index=False)
    code, _, err = call(f"join {of_table.folder} --data bad.csv --target diagnosis --out site --as-is radius")
    assert code == 0, err


def test_an_estimator_takes_such_numbers_too(of_table: Bundle, graz: pd.DataFrame) -> None:
    features, y = spoilt(graz, "unit").drop(columns="diagnosis"), graz["diagnosis"][:60]
    with pytest.raises(InputError, match=r"column .radius. looks like another unit.* give as_is=.radius. if"):
        idl.load(of_table.folder).fit(features, y)
    for as_is in ("radius", ["radius"]):
        assert idl.load(of_table.folder, as_is=as_is).fit(features, y).predict(features).shape == (60,)


@pytest.mark.parametrize(("rows", "different"), [(8, 1), (30, 3), (8, 8)])
def test_a_few_equal_numbers_are_no_other_unit(rows: int, different: int) -> None:
    """Eight patients of 92 years, where the mean is 50 with a deviation of 15; but as many close together are."""
    age_R = np.resize(92 + np.arange(different) / 100, rows)
    assert units.of_another_unit(age_R, 50.0, 15.0) == (different >= 8)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("join none --data graz.csv", "there is no bundle none"),
        ("join {b} --data none.csv", "there is no file or folder none.csv"),
        ("join {b} --data graz.csv --target outcome", "has no column 'outcome'"),
        ("join {b} --data graz.csv --target diagnosis --out full", "full exists"),
        ("join {b} --data graz.csv --target diagnosis --ships best", "--ships best is not a model"),
        ("join {b} --data graz.csv --target diagnosis --as-is age", "takes no column 'age'"),
        ("predict {b} --data new.csv --out p.txt", "end it in .parquet or .csv"),
        ("predict {b} --data new.csv --out p.csv --level 2", "level=2 is not between 0 and 1"),
    ],
)
def test_commands_that_cannot_be(call, of_table: Bundle, line: str, said: str) -> None:
    Path("full").mkdir()
    Path("full/a").write_text("a")
    code, out, err = call(line.format(b=of_table.folder))
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("site").exists()


def test_a_bundle_for_new_clients_does_not_predict(call, of_table: Bundle) -> None:
    code, _, err = call(f"predict {of_table.folder} --data new.csv --out p.csv")
    assert code == 2
    assert "join with it first" in err
    assert not Path("p.csv").exists()


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    study = idl.Study(dataset="digits", clients=4, rounds=2, local_epochs=1, methods=["fedlda"], model="mlp")
    folder = tmp_path_factory.mktemp("images")
    return idl.run(study, folder / "run", engine="sequential").bundle("fedlda", folder / "bundle")


def images(folder: Path, size: int = 8, mode: str = "L") -> None:
    source = idl.data.load("digits")
    for k in range(40):
        place = folder / source.class_names[int(source.y_R[k])]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.x_R[k, 0].numpy()).resize((size, size)).convert(mode).save(place / f"{k}.png")


def test_images_join(call, of_images: Bundle, here: Path) -> None:
    images(here / "mine")
    code, _, err = call(f"join {of_images.folder} --data mine --out site")
    assert code == 0, err
    code, _, err = call("predict site --data mine --out p.parquet --level 0.8")
    assert code == 0, err
    found = pd.read_parquet("p.parquet")
    assert len(found) == 40
    assert found["image"][0].endswith(".png")
    sets = found["set"].str.split("|").map(lambda names: [n for n in names if n])
    assert ((sets.map(len) == 1) == found["label"].notna()).all()


@pytest.mark.parametrize(
    ("size", "mode", "said"), [(9, "L", "images of 9x9 pixels, and this bundle takes 8x8"), (8, "RGB", "colour images")]
)
def test_images_of_another_kind(call, of_images: Bundle, here: Path, size: int, mode: str, said: str) -> None:
    images(here / "mine", size, mode)
    if mode == "RGB":  # so that they are not grey in truth
        for path in (here / "mine").rglob("*.png"):
            Image.new("RGB", (8, 8), "red").save(path)
    code, _, err = call(f"join {of_images.folder} --data mine --out site")
    assert code == 2
    assert said in err
    assert not Path("site").exists()
    if size == 9:
        assert call(f"join {of_images.folder} --data mine --out site --resize")[0] == 0


def test_a_table_for_images_and_the_reverse(call, of_images: Bundle, of_table: Bundle, here: Path) -> None:
    images(here / "mine")
    assert "takes images" in call(f"join {of_images.folder} --data graz.csv --target diagnosis --out site")[2]
    assert "takes a table" in call(f"join {of_table.folder} --data mine --out site")[2]


BATCH_NORM = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU()), nn.Linear(12, classes)
"""


@pytest.mark.parametrize(("buffers", "ships"), [("local", "personal"), ("local", "local"), ("aggregate", "local")])
def test_batch_normalisation_is_measured_at_the_site(
    here: Path, monkeypatch: pytest.MonkeyPatch, buffers: str, ships: str
) -> None:
    """By its own samples, and not by those that are predicted; who trains alone has no moments of others."""
    monkeypatch.syspath_prepend(here)
    (here / "normed_net.py").write_text(BATCH_NORM)
    study = idl.Study(
        dataset="digits", clients=3, rounds=1, methods=["fedper"], model=f"normed_net.net:buffers={buffers}"
    )
    bundle = idl.run(study, "run", engine="sequential").bundle("fedper", "b")
    source = idl.data.load("digits")
    mine = Samples(source.x_R[:60], source.y_R[:60])
    site = join(bundle, mine, Path("site"), ships=ships)
    model = site.model()
    own = model.client.method
    body, head = own if ships == "local" else (model.down.shared.body, own.value)
    z = functional.linear(bundle.task.inputs(mine.x_N).flatten(1), body["1.weight"], body["1.bias"])
    z = functional.batch_norm(z, None, None, body["2.weight"], body["2.bias"], training=True).relu()
    want = functional.linear(z, head["weight"], head["bias"]).log_softmax(1)
    got = log_probabilities(model, site.predicting, mine.x_N[:7])
    torch.testing.assert_close(got, want[:7], rtol=0, atol=1e-5)
