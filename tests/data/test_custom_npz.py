"""Arrays in a file of NumPy as a data set, and as samples for a bundle."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import idiolect as idl
from idiolect.cli import app
from idiolect.core.errors import InputError
from idiolect.data import open_data

R = 48


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    label = np.array(["no", "yes"])[np.arange(R) % 2]
    return {
        "x": rng.normal(size=(R, 3, 30)).astype(np.float32) + (np.arange(R) % 2)[:, None, None],
        "label": label, "site": np.array(["a", "b", "c"])[np.arange(R) * 3 // R],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.arange(R * 90.0).reshape(R, 3, 30), torch.float32),
        (np.arange(R * 48).reshape(R, 4, 4, 3).astype(np.uint8), torch.uint8),
        (np.arange(R * 5).reshape(R, 5) % 9, torch.int16),
        (np.arange(R * 4.0).reshape(R, 4), torch.float32),
    ],
    ids=["windows", "images", "ids", "table"],
)
def test_one_array_is_what_from_arrays_makes_of_it(x: Any, dtype: torch.dtype) -> None:
    every = arrays() | {"x": x, "extra": np.zeros(R)}
    np.savez("d.npz", **every)
    one = open_data("d.npz", client_column="site", drop=["extra"])
    other = idl.data.from_arrays(x, every["label"], clients=every["site"], name="d")
    assert one.x_R.dtype == dtype
    assert torch.equal(one.x_R, other.x_R)
    assert (one.class_names, one.y_R.tolist()) == (("no", "yes"), [0, 1] * (R // 2))
    assert one.columns["client"].names == ("a", "b", "c")
    assert one.sizes == other.sizes


def test_several_arrays_are_given_by_name() -> None:
    np.savez_compressed("d.npz", words=np.arange(R * 2).reshape(R, 2) % 7, age=np.ones((R, 1)), y=np.arange(R) % 3)
    one = open_data("d.npz")
    assert {name: (tuple(a.shape), a.dtype) for name, a in one.x_R.items()} == {
        "words": ((R, 2), torch.int16), "age": ((R, 1), torch.float32),
    }  # fmt: skip
    assert one.sizes == {"words": 7}
    assert open_data("d.npz", target="y>0").y_R.tolist() == [int(k % 3 > 0) for k in range(R)]


def test_texts_are_named(tmp_path: Path) -> None:
    np.savez("d.npz", say=np.array(["good", "bad film"] * 6), mood=np.arange(12.0), y=np.arange(12) % 2)
    one = open_data("d.npz", text="say", tokens="bytes", max_tokens=4)
    assert one.x_R[1].tolist() == [b + 1 for b in b"bad "]
    with pytest.raises(InputError, match=r"text: 'mood' of d\.npz has no texts: name the array that has some"):
        open_data("d.npz", text="mood")


def damaged() -> dict[str, bytes]:
    np.savez("whole.npz", **arrays())
    whole = Path("whole.npz").read_bytes()
    return {"half.npz": whole[: len(whole) // 2], "none.npz": b"", "text.npz": b"x,y\n1,2\n"}


@pytest.mark.parametrize("name", ["half.npz", "none.npz", "text.npz"])
def test_a_file_that_is_none_is_one_sentence(name: str) -> None:
    Path(name).write_bytes(damaged()[name])
    with pytest.raises(InputError, match=rf"{name} cannot be read as arrays \(.+\): write numbers or texts into it"):
        open_data(name)


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ({"x": np.zeros((4, 2)), "y": np.array([1, 2, {}, 3], object)}, {}, "it has Python objects"),
        ({"x": np.zeros((4, 2)), "y": np.float64(3)}, {}, "has 'y' without rows"),
        ({"x": np.zeros((4, 2)), "y": np.arange(3)}, {}, r"d\.npz: y has"),
        ({"y": np.arange(3)}, {}, "has no array beside those of labels and clients"),
        ({"x": np.zeros((4, 2)), "z": np.arange(4)}, {}, "no target is given for d.npz"),
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, {"client_column": "who"}, "has no column 'who'"),
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, {"client_column": "y"}, "give different arrays"),
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, {"resize": 8}, "resize is for image files"),
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, {"missing": "?"}, "missing is for tables"),
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, {"header": "none"}, "header is for files"),
        ({}, {}, "has no arrays"),
    ],
)
def test_arrays_that_cannot_be_used(content: dict[str, Any], options: dict[str, Any], said: str) -> None:
    np.savez("d.npz", **content)
    with pytest.raises(InputError, match=said):
        open_data("d.npz", **options)


def test_a_file_that_says_it_is_larger_than_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDIOLECT_MEMORY", "1e6")
    np.savez_compressed("d.npz", x=np.zeros((1000, 1000)), y=np.arange(1000) % 2)
    assert Path("d.npz").stat().st_size < 1e5
    with pytest.raises(InputError, match=r"the arrays of d\.npz"):
        open_data("d.npz")
    with zipfile.ZipFile("d.npz") as archive:
        assert archive.namelist() == ["x.npy", "y.npy"]


@pytest.mark.parametrize("kind", ["windows", "images", "table", "texts"])
def test_from_the_command_line_to_predictions(kind: str) -> None:
    every, rng = arrays(), np.random.default_rng(1)
    bright = np.arange(R) % 2
    x = {
        "windows": every["x"],
        "images": (rng.integers(0, 99, (R, 8, 8)) + 90 * bright[:, None, None]).astype(np.uint8),
        "table": rng.normal(size=(R, 4)) + 2 * bright[:, None],
        "texts": np.array(["good film", "very bad"])[bright],
    }[kind]
    every |= {"x": x}
    np.savez("d.npz", **every)
    np.savez("new.npz", x=x[:20])
    model = ["--model", "embedding_mean:width=4"] if kind == "texts" else ["--model", "mlp"]
    for line in (
        ["run", "--data", "d.npz", "--client-column", "site", "--methods", "fedavg", "--rounds", "1", "--engine",
         "sequential", "--out", "r", *model],
        ["bundle", "r", "--method", "fedavg", "--out", "b"],
        ["join", "b", "--data", "d.npz", "--out", "s"],
        ["predict", "s", "--data", "new.npz", "--out", "p.csv"],
    ):  # fmt: skip
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
    p_NC = pd.read_csv("p.csv")[["p_no", "p_yes"]].to_numpy()
    given: Any = list(x[:20]) if kind == "texts" else x[:20]
    np.testing.assert_allclose(p_NC, idl.load("s").predict_proba(given), atol=1e-6)
    np.savez("odd.npz", x=np.zeros((20, 7, 7, 7)))
    done = CliRunner().invoke(app, ["predict", "s", "--data", "odd.npz", "--out", "q.csv"])
    assert isinstance(done.exception, InputError)
    assert "odd.npz" in str(done.exception)
    assert not Path("q.csv").exists()


def test_groups_are_those_of_from_arrays() -> None:
    patient = np.arange(R) // 4
    np.savez("d.npz", **arrays(), patient=patient)
    one = open_data("d.npz", client_column="site", group_column="patient")
    other = idl.data.from_arrays(arrays()["x"], arrays()["label"], clients=arrays()["site"], groups=patient)
    assert one.group_column is not None
    assert other.group_column is not None
    codes = [source.columns[str(source.group_column)].code_R.tolist() for source in (one, other)]
    assert codes == [patient.tolist()] * 2
    assert one.x_R.shape == (R, 3, 30)
