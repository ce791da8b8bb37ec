"""Predictions: the same from every kind of file, by parts, and sets that hold the right class as often as they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.data.custom import streaming
from idiolect.deploy import predict as module
from idiolect.deploy import samples
from idiolect.deploy.bundle import Bundle, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.groups import scores_of
from idiolect.deploy.join import join
from idiolect.deploy.predict import finite, predict, prediction_table
from idiolect.deploy.samples import read


@pytest.fixture(scope="module")
def site(of_table: Bundle, graz: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("site")
    graz[:60].to_csv(folder / "graz.csv", index=False)
    mine = read(folder / "graz.csv", of_table.about.inputs, of_table.about.classes, "diagnosis")
    return join(of_table, mine, folder / "site", ships="personal")


@pytest.fixture
def rest(graz: pd.DataFrame) -> pd.DataFrame:
    return graz[60:].reset_index(drop=True)


def wanted(site: Bundle, graz: pd.DataFrame, tmp_path: Path) -> np.ndarray:
    graz.to_csv(tmp_path / "labelled.csv", index=False)
    mine = read(tmp_path / "labelled.csv", site.about.inputs, site.about.classes, "diagnosis")
    return log_probabilities(site.model(), site.predicting, mine.x_N).exp().numpy()


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolons", "quoted", "latin", "parquet", "jsonl"])
@pytest.mark.parametrize("to", ["p.csv", "p.parquet"])
def test_every_kind_of_file(site: Bundle, rest: pd.DataFrame, tmp_path: Path, monkeypatch, kind: str, to: str) -> None:
    monkeypatch.setattr(samples, "ROWS", 7)
    monkeypatch.setattr(streaming, "_BLOCK", 500)
    path = tmp_path / {"tsv": "a.tsv", "parquet": "a.parquet", "jsonl": "a.jsonl"}.get(kind, "a.csv")
    frame = rest.assign(note=[f"größe {k}" for k in range(len(rest))])
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        how = {"tsv": {"sep": "\t"}, "semicolons": {"sep": ";", "decimal": ","}, "quoted": {"quoting": 1}}
        frame.to_csv(path, index=False, encoding="latin-1" if kind == "latin" else "utf-8", **how.get(kind, {}))
    counted = predict(site, path, tmp_path / to)
    assert counted == (len(rest), 0)
    found = pd.read_csv(tmp_path / to) if to.endswith("csv") else pd.read_parquet(tmp_path / to)
    assert list(found) == ["row", "diagnosis", "note", "label", "p_benign", "p_malignant"]
    p_NC = wanted(site, rest, tmp_path)
    np.testing.assert_allclose(found[["p_benign", "p_malignant"]], p_NC, atol=1e-6)
    assert found["label"].tolist() == [site.about.classes[k] for k in p_NC.argmax(1)]
    assert found["note"].tolist() == frame["note"].tolist()


def test_a_fault_far_down_leaves_no_file(site: Bundle, rest: pd.DataFrame, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(streaming, "_BLOCK", 500)
    text = rest.to_csv(index=False).splitlines()
    text[-2] = "Zaphod" + text[-2][text[-2].index(",") :]
    (tmp_path / "a.csv").write_text("\n".join(text))
    (tmp_path / "p.csv").write_text("before")
    with pytest.raises(idl.InputError) as error:
        predict(site, tmp_path / "a.csv", tmp_path / "p.csv")
    assert "Zaphod" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "p.csv"]
    assert (tmp_path / "p.csv").read_text() == "before"


@pytest.mark.parametrize(
    "what", ["a line longer than a block", "line ends of old Macs", "empty lines", "no last line end"]
)
def test_texts_that_are_cut_into_blocks(
    site: Bundle, rest: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(streaming, "_BLOCK", 500)
    long = "x" * 5000 if what == "a line longer than a block" else "x"
    text = rest.assign(note=["y", long] * (len(rest) // 2) + ["z"] * (len(rest) % 2)).to_csv(index=False)
    change = {"line ends of old Macs": ("\n", "\r"), "empty lines": ("\n", "\n" * 300)}
    text = text.replace(*change.get(what, ("", "")))
    (tmp_path / "a.csv").write_bytes(text.rstrip("\n").encode() if what == "no last line end" else text.encode())
    assert predict(site, tmp_path / "a.csv", tmp_path / "p.parquet").samples == len(rest)
    found = pd.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_allclose(found[["p_benign", "p_malignant"]], wanted(site, rest, tmp_path), atol=1e-6)


@pytest.mark.parametrize(
    ("bad", "of_numbers"),
    [(float("nan"), False), (float("inf"), False), (float("nan"), True), (float("inf"), True), (-float("inf"), True)],
)
def test_what_is_not_finite_is_no_prediction(bad: float, of_numbers: bool) -> None:
    output_NC = torch.tensor([[0.0, -1.0], [bad, -2.0], [-float("inf") if not of_numbers else 0.0, 0.0]])
    with pytest.raises(InputError, match="gives no prediction for 1 of 3 samples"):
        finite(output_NC, of_numbers=of_numbers)
    assert len(finite(output_NC[::2], of_numbers=of_numbers)) == 2


def test_no_rows(site: Bundle, rest: pd.DataFrame, tmp_path: Path) -> None:
    rest[:0].to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(idl.InputError):
        predict(site, tmp_path / "a.csv", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()


def test_sets_hold_the_right_class_as_often_as_asked() -> None:
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(300):
        p_NC = rng.dirichlet([0.5] * 3, 80)
        y_N = np.array([rng.choice(3, p=p) for p in p_NC])
        scores = tuple(np.sort(p_NC[np.arange(40), y_N[:40]]))
        about = type("About", (), {"site": type("Site", (), {"scores": scores, "score_weights": ()})})
        threshold = module.threshold_of(about, 0.9)
        covered.append((p_NC[np.arange(40, 80), y_N[40:]] >= threshold).mean())
    assert np.mean(covered) == pytest.approx(37 / 41, abs=0.01)  # 1 - floor(41 * 0.1) / 41


@pytest.mark.parametrize(("groups", "most"), [(20, 3), (20, 12), (40, 1)])
def test_sets_hold_the_right_class_for_samples_of_new_groups_as_often_as_asked(groups: int, most: int) -> None:
    """Samples of one group are right or wrong together; the guarantee is about a sample of a group that is new."""
    rng = np.random.default_rng(0)
    covered, samples_alone = [], []
    for _ in range(500):
        hard_G = rng.uniform(0.2, 3, groups + 1)
        count_G = rng.integers(1, most + 1, groups + 1)
        score = [rng.beta(5, hard, n) for hard, n in zip(hard_G, count_G, strict=True)]
        right_N = torch.from_numpy(np.concatenate(score[:-1]))
        group_N = torch.repeat_interleave(torch.arange(groups), torch.from_numpy(count_G[:-1]))
        scores, weights = scores_of(right_N, group_N)
        assert sum(weights) == pytest.approx(groups / (groups + 1))
        site = type("Site", (), {"scores": scores, "score_weights": weights})
        threshold = module.threshold_of(type("About", (), {"site": site}), 0.9)
        covered.append((score[-1] >= threshold).mean())
        alone = type("Site", (), {"scores": scores, "score_weights": ()})
        samples_alone.append(module.threshold_of(type("About", (), {"site": alone}), 0.9))
        if most == 1:
            assert threshold == samples_alone[-1]
    assert np.mean(covered) >= 0.9 - 0.015


def test_a_label_is_given_where_the_set_has_one_class() -> None:
    p_NC = torch.tensor([[0.9, 0.1], [0.55, 0.45], [0.3, 0.7]])
    beside = pd.DataFrame({"label": [1, 2, 3], "p_b": [7, 8, 9]})
    found = prediction_table(p_NC, ("a", "b"), 0.4, beside).to_pydict()
    assert found["set"] == ["a", "a|b", "b"]
    assert found["label"] == ["a", None, "b"]
    assert (found["label of the data"], found["p_b of the data"]) == ([1, 2, 3], [7, 8, 9])


@pytest.mark.parametrize("second", [0.3, 0.5, 0.8])
def test_at_a_level_the_label_is_the_class_of_the_set_whatever_the_threshold(second: float) -> None:
    p_NC, nothing = torch.tensor([[0.65, 0.35], [0.25, 0.75], [0.55, 0.45]]), pd.DataFrame(index=range(3))
    found = prediction_table(p_NC, ("neg", "pos"), 0.46, nothing, second).to_pydict()
    assert found["set"] == found["label"] == ["neg", "pos", "neg"]
    without = prediction_table(p_NC, ("neg", "pos"), None, nothing, second).to_pydict()
    assert without["label"] == ["pos" if p > second else "neg" for p in (0.35, 0.75, 0.45)]
    no_label = prediction_table(p_NC, ("neg", "pos"), 0.4, nothing, second).to_pydict()
    assert (no_label["set"][2], no_label["label"][2]) == ("neg|pos", None)


def test_onnx_takes_raw_columns(site: Bundle, rest: pd.DataFrame, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    checked = export(site, tmp_path / "m.onnx")
    assert checked.difference < 1e-5
    session = runtime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    fed = {
        c.name: rest[c.name].to_numpy(np.float64 if c.kind == "number" else object) for c in site.about.inputs.columns
    }
    assert [i.name for i in session.get_inputs()] == list(fed)
    assert np.isnan(fed["texture"]).any()
    np.testing.assert_allclose(session.run(None, fed)[0], wanted(site, rest, tmp_path), atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert about["classes"].split("\n") == list(site.about.classes)
    assert json.loads((site.folder / "bundle.json").read_text())["seal"].endswith(about["bundle"])


@pytest.mark.parametrize("bad", [[1], [0, 3], [0, 1, 2, 3, 4]])
def test_numbers_that_are_not_finite_are_no_prediction(bad: list[int]) -> None:
    """A network of one's own may divide by the length of an empty text."""
    logp_NC = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    assert finite(logp_NC) is logp_NC
    logp_NC[bad] = torch.nan
    with pytest.raises(InputError, match=f"gives no prediction for {len(bad)} of 5 samples, because its network"):
        finite(logp_NC)
