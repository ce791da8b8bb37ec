"""What is reached without a model, in describe: each client's most frequent class, mean, or frequent labels."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error

import idiolect as idl
from idiolect import cli
from idiolect.report.baseline import baseline, line


def frame(seed: int, rows: int = 120) -> pd.DataFrame:
    """Four clients with frequencies and means of their own."""
    draw = np.random.default_rng(seed)
    site = draw.choice(4, rows, p=[0.4, 0.3, 0.2, 0.1])
    return pd.DataFrame({
        "a": draw.normal(size=rows), "site": [f"s{k}" for k in site],
        "grade": [["low", "middle", "high"][(draw.random() < 0.6) * k % 3] for k in site],
        "score": 10 * site + draw.normal(size=rows), "days": 3 - site + 0.1 * draw.normal(size=rows),
        "cough": (draw.random(rows) < 0.2 + 0.2 * site).astype(int), "rash": (draw.random(rows) < 0.8).astype(int),
    })  # fmt: skip


def data_of(seed: int, target: str, **more):
    table = frame(seed)[["a", "site", *target.split("+")]]
    source = idl.data.from_frame(table, target=target, client_column="site", **more)
    return idl.Study(data=source).federation()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_classes(seed):
    data = data_of(seed, "grade")
    expected = []
    for train, test in zip(data.train, data.test, strict=True):
        y_train, y_test = data.y_R[train].numpy(), data.y_R[test].numpy()
        dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(train), 1)), y_train)
        expected.append(accuracy_score(y_test, dummy.predict(np.zeros((len(test), 1)))))
    np.testing.assert_allclose(baseline(data), expected)
    name, text = line(data)
    assert name == "The most frequent class"
    mean, low, high = (f"{100 * value:.1f}%" for value in (np.mean(expected), min(expected), max(expected)))
    assert text.startswith(f"accuracy {mean} on average over clients ({low} to {high})")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("target", ["score", "score+days"])
def test_of_numbers(seed, target):
    data = data_of(seed, target, task="regression")
    value = data.targets.value_RD.numpy()
    expected = []
    for train, test in zip(data.train, data.test, strict=True):
        dummy = DummyRegressor().fit(np.zeros((len(train), 1)), value[train])
        expected.append(mean_squared_error(value[test], dummy.predict(np.zeros((len(test), 1)))))
    np.testing.assert_allclose(baseline(data), expected)
    assert line(data)[0] == "The mean"
    assert line(data)[1].startswith("mean squared error ")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_labels(seed):
    data = data_of(seed, "cough+rash")
    value = data.targets.value_RD.numpy()
    expected = []
    for train, test in zip(data.train, data.test, strict=True):
        said = np.tile(value[train].mean(0) > 0.5, (len(test), 1))
        expected.append(f1_score(value[test], said, average="micro"))
    np.testing.assert_allclose(baseline(data), expected)
    assert line(data)[0] == "Labels that most samples have"


def test_describe_says_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame(0)[["a", "site", "grade"]].to_csv("t.csv", index=False)
    own = ["describe", "--data", "t.csv", "--target", "grade", "--client-column", "site"]
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            cli.main([*own, *more])
        assert ended.value.code == 0
        out = capsys.readouterr().out
        if not more:
            assert "The most frequent class" in out
    about = json.loads(out)
    assert about["baseline"] == {"metric": "accuracy", "what": "The most frequent class"}
    assert [client["baseline"] for client in about["clients"]] == pytest.approx(baseline(data_of(0, "grade")).tolist())
    assert "The most frequent class" in (tmp_path / "runs" / "describe.html").read_text()
