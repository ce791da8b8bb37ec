"""A site's columns by their names, and arrays by their shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.data.custom import from_arrays, from_frame
from idiolect.deploy.column_names import in_order, names_of
from idiolect.deploy.export import export


@pytest.mark.parametrize(
    ("there", "wanted", "own"),
    [
        (["q1.1", "q11"], ["Q1.1", "Q11"], {"Q1.1": "q1.1", "Q11": "q11"}),
        (["q11", "q1.1"], ["Q1.1", "Q11"], {"Q1.1": "q1.1", "Q11": "q11"}),
        ([" Worst_Points "], ["worst points"], {"worst points": " Worst_Points "}),
        (["t-", "t+"], ["T+", "T-"], {"T+": "t+", "T-": "t-"}),
        (["a", "A"], ["a"], {"a": "a"}),
        (["b"], ["a"], {}),
    ],
)
def test_the_nearest_spelling_is_taken(there: list[str], wanted: list[str], own: dict[str, str]) -> None:
    assert names_of(there, wanted, "t.csv") == own


@pytest.mark.parametrize(
    ("there", "wanted", "said"),
    [
        (["RADIUS", "Radius "], ["radius"], "t.csv: RADIUS, Radius  may be radius: name the columns as in training"),
        (["x1"], ["x_1", "x-1"], "t.csv: x1 may be x-1, x_1: name the columns as in training"),
    ],
)
def test_what_may_be_two_is_refused(there: list[str], wanted: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        names_of(there, wanted, "t.csv")
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("own", "order"),
    [
        (["rash", "cough", "fever"], ["cough", "fever", "rash"]),
        (["RASH", "Fever", "cough"], ["cough", "Fever", "RASH"]),
        (["husten", "fieber", "ausschlag"], ["husten", "fieber", "ausschlag"]),
        (["cough", "temperature", "rash"], ["cough", "temperature", "rash"]),
    ],
)
def test_targets_are_known_by_name_or_place(own: list[str], order: list[str]) -> None:
    assert in_order(own, ["cough", "fever", "rash"]) == order


def test_a_name_at_the_place_of_another_is_refused() -> None:
    with pytest.raises(InputError, match="'rash' is 'rash' by its name and 'cough' by its place: name all as in"):
        in_order(["rash", "temperature", "cough"], ["cough", "fever", "rash"])


def test_arrays_of_another_layout_are_refused(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 3, 16)).astype(np.float32)
    y = (x[:, 0].mean(1) > 0).astype(int)
    study = idl.Study(data=from_arrays(x, y, clients=np.arange(120) % 3), methods=["fedavg"], rounds=1, model="mlp")
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "bundle")
    site = idl.load(bundle.folder).fit(x[:40], y[:40])
    p_NC = site.predict_proba(x[40:])
    np.testing.assert_array_equal(site.predict_proba(x[40:].reshape(80, 48)), p_NC)
    for wrong in (x[40:].transpose(0, 2, 1), x[40:].reshape(80, 6, 8)):
        with pytest.raises(ValueError, match=r"give numbers of shape \(N, \*\(3, 16\)\)"):
            site.predict_proba(wrong)


@pytest.mark.parametrize("name", ["samples", "axis", "linear"])
def test_a_table_with_rare_texts_and_names_of_the_file_is_exported(name: str, tmp_path: Path) -> None:
    """Two texts that few samples have are one category each without a name."""
    draw = np.random.default_rng(0)
    c = draw.choice(["red", "blue"], 200).astype(object)
    c[[0, 40, 90, 130]] = ["cyan", "ochre", "plum", "teal"]
    frame = pd.DataFrame({name: draw.normal(size=200), "c": c, "site": np.arange(200) % 2})
    frame["y"] = np.where(frame[name] + (c == "red") > 0, "yes", "no")
    pytest.importorskip("onnxruntime")
    study = idl.Study(data=from_frame(frame, target="y", client_column="site"), methods=["fedavg"], rounds=1)
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "bundle", client="0")
    export(bundle, tmp_path / "m.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    [given] = session.run(None, {name: frame[name].to_numpy(), "c": c})
    want = idl.load(bundle.folder).predict_proba(frame[[name, "c"]])
    np.testing.assert_allclose(given, want, atol=1e-5)


def test_a_column_called_as_the_output_cannot_be_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    frame = pd.DataFrame({"probabilities": np.linspace(-1, 1, 80), "site": np.arange(80) % 2})
    frame["y"] = np.where(frame["probabilities"] > 0, "yes", "no")
    study = idl.Study(data=from_frame(frame, target="y", client_column="site"), methods=["fedavg"], rounds=1)
    bundle = idl.run(study, tmp_path / "run", engine="sequential").bundle("fedavg", tmp_path / "bundle", client="0")
    with pytest.raises(InputError, match="column 'probabilities' is called as the file's output"):
        export(bundle, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
