"""Columns of numbers that are codes of categories."""

import logging

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.data.custom import open_data
from idiolect.data.custom.form import form_of
from idiolect.deploy.join import join
from idiolect.deploy.samples import read
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.samples import SiteFiles


def visits(seed=0, rows=60):
    draw = np.random.default_rng(seed)
    cp = draw.integers(1, 5, rows)
    return pd.DataFrame({
        "age": draw.normal(50, 9, rows).round(1), "cp": cp, "thal": draw.choice([3.0, 6.0, 7.0, np.nan], rows),
        "y": np.where(cp + draw.normal(size=rows) > 2.5, "ill", "well"),
    })  # fmt: skip


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("names", ["cp", "cp+thal", "thal+cp"])
def test_codes_become_a_feature_each(kind, names, tmp_path, caplog):
    frame, path = visits(), tmp_path / f"t.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    with caplog.at_level(logging.WARNING):
        source = open_data(path, target="y", categorical=names)
    assert "numbers that are texts" not in caplog.text
    x = dict(zip(source.feature_names, source.x_R.numpy().T, strict=True))
    expected = pd.get_dummies(frame["cp"]).set_axis([f"cp={k}" for k in range(1, 5)], axis=1)
    if "thal" in names:
        expected[["thal=3", "thal=6", "thal=7"]] = pd.get_dummies(frame["thal"])
        expected["thal=missing"] = frame["thal"].isna()
        assert "thal" not in x
    else:
        np.testing.assert_array_equal(x["thal"], frame["thal"].astype("float32"))
    for name in expected:
        np.testing.assert_array_equal(x[name], expected[name].astype("float32"), err_msg=name)
    assert "cp" not in x


def test_marks_are_no_category(tmp_path):
    visits().fillna(-9).to_csv(tmp_path / "t.csv", index=False)
    source = open_data(tmp_path / "t.csv", target="y", categorical="thal", missing="-9")
    assert [name for name in source.feature_names if name.startswith("thal")] == [
        "thal=3", "thal=6", "thal=7", "thal=missing",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"categorical": "cq"}, "categorical: there is no feature 'cq'; known: age, cp"),
        ({"categorical": "y"}, "categorical: there is no feature 'y'"),
        ({"categorical": "cp+age", "drop": "age"}, "categorical: there is no feature 'age'"),
        ({"categorical": "id"}, "column 'id' has 60 different texts, more than 50"),
    ],
)
def test_what_cannot_be_a_category(settings, said, tmp_path):
    visits().assign(id=range(60)).to_csv(tmp_path / "t.csv", index=False)
    out = {} if settings["categorical"] == "id" else {"drop": "id"}
    with pytest.raises(InputError, match=said):
        open_data(tmp_path / "t.csv", target="y", **out | settings)


def test_who_joins_need_not_say_it(tmp_path):
    visits(0, 120).assign(site=np.arange(120) % 3).to_csv(tmp_path / "t.csv", index=False)
    study = idl.Study(
        data=str(tmp_path / "t.csv"), target="y", client_column="site", categorical="cp+thal", rounds=1,
        methods=["fedavg"],
    )  # fmt: skip
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "bundle")
    visits(1).to_csv(tmp_path / "my.csv", index=False)
    samples = read(tmp_path / "my.csv", bundle.about.inputs, bundle.about.classes, "y")
    at = [name for column in bundle.about.inputs.columns for name in column.features].index("cp=1")
    np.testing.assert_array_equal(samples.x_N[:, at : at + 4], pd.get_dummies(visits(1)["cp"]).astype("float32"))
    assert join(bundle, samples, tmp_path / "site").about.site is not None


def test_sites_of_a_federation(tmp_path):
    offers = {}
    for k, name in enumerate(["north", "south"]):
        visits(k)[lambda f, k=k: f["cp"] != k + 1].to_csv(tmp_path / f"{name}.csv", index=False)
        offers[name] = SiteFiles(tmp_path / f"{name}.csv", target="y", form=form_of(categorical="cp+thal")).offer()
    inputs, _ = common_form(offers)
    by_name = {column.name: column for column in inputs.columns}
    assert by_name["cp"].texts == ("1", "2", "3", "4")
    assert by_name["thal"].gaps
    with pytest.raises(InputError, match="column 'cp' has texts at north and numbers at south"):
        common_form(offers | {"south": SiteFiles(tmp_path / "south.csv", target="y").offer()})


def test_bundles_say_what_they_are_made_of(tmp_path, caplog):
    """Which of several seeds, and that validation samples were not trained on."""
    visits(0, 120).assign(site=np.arange(120) % 3).to_csv(tmp_path / "t.csv", index=False)
    for seeds, validation in (((3, 4), 0.25), ((3,), 0.0)):
        study = idl.Study(
            data=str(tmp_path / "t.csv"), target="y", client_column="site", rounds=1, methods=["fedavg"], seeds=seeds,
            protocol={"validation": validation},
        )  # fmt: skip
        result = idl.run(study, tmp_path / f"run{validation}", engine="sequential")
        caplog.clear()
        bundle = result.bundle("fedavg", tmp_path / f"bundle{validation}")
        assert bundle.about.key.seed == 3
        assert ("the bundle has the models of seed 3, the first of 2" in caplog.text) == (len(seeds) > 1)
        kept = sum(map(len, study.federation().validation))
        said = f"the models were trained without the {kept} of {kept + sum(bundle.about.provenance.samples)} training"
        assert (said in caplog.text) == (validation > 0)
        caplog.clear()
        result.bundle("fedavg", tmp_path / f"other{validation}", seed=seeds[-1])
        assert "the first of" not in caplog.text
