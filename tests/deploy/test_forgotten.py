"""What a site is told of its files: marks and questions of the training, rows, and why its model is what it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as idl
from idiolect import cli
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.data.custom.form import form_of
from idiolect.deploy import harm
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.samples import read, stream
from idiolect.deploy.usual import Usual, usual_of

Call = Callable[[str], tuple[int, str, str]]


def visits(seed: int, rows: int = 60) -> pd.DataFrame:
    """A hospital's table, in which a cholesterol of 0 and an age of -9 were not measured."""
    draw = np.random.default_rng(seed)
    num = draw.integers(0, 4, rows)
    frame = pd.DataFrame({
        "age": (50 + 8 * (num > 0) + draw.normal(0, 5, rows)).round(1), "chol": draw.integers(150, 300, rows),
        "id": [f"p{seed}-{k}" for k in range(rows)], "num": num,
    })  # fmt: skip
    frame.loc[::7, "chol"], frame.loc[3::11, "age"] = 0, -9
    return frame


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("hospitals")
    (folder / "sites").mkdir()
    for k, name in enumerate(["oslo", "porto", "bern"]):
        visits(k).drop(columns="id").to_csv(folder / "sites" / f"{name}.csv", index=False)
    study = idl.Study(
        data=str(folder / "sites"), target="num>0", missing="chol=0+age=-9", rounds=2, lr=0.05, methods=["fedavg_ft"]
    )
    return idl.run(study, folder / "run", engine="sequential").bundle("fedavg_ft", folder / "bundle")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    visits(7).to_csv("my.csv", index=False)

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return ended.value.code, out, " ".join(err.split())

    return run


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", ["--missing chol=0", "--missing age=-9"]),
        ("--missing chol=0", ["--missing age=-9"]),
        ("--missing age=-9", ["--missing chol=0"]),
        ("--missing chol=0+age=-9", []),
    ],
)
def test_marks_of_the_training_are_said(
    bundle: Bundle, call: Call, given: str, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    join = f"join {bundle.folder} --data my.csv --target num>0 --as-is chol --as-is age --out site"
    for line in (f"{join} {given}", f"predict site --data my.csv --as-is chol --as-is age {given} --out p.csv"):
        caplog.clear()
        assert call(line)[0] == 0
        for mark in ("--missing chol=0", "--missing age=-9"):
            sentence = f"which stood for a missing value in training: give {mark} if it does here too"
            assert (sentence in caplog.text) == (mark in said)
    name = bundle.about.provenance.study["missing"]
    assert usual_of(bundle.about) == Usual(None, name, "num>0")


@pytest.mark.parametrize(
    ("missing", "given", "columns", "expected"),
    [
        ("-9", None, {"a": [1, -9.0], "b": [1, 2]}, ["a=-9"]),
        ("-9+a=7", "-9", {"a": [7, -9.0], "b": [7, 2]}, ["a=7"]),
        ("unknown", None, {"a": ["u", "unknown"], "b": [1, 2]}, ["a=unknown"]),
        (None, None, {"a": [0, 0]}, []),
        ("a=0", "0", {"a": [0, 0]}, []),
    ],
)
def test_which_marks_are_forgotten(missing, given, columns, expected) -> None:
    said = list(Usual(missing=missing).forgotten(pd.DataFrame(columns), form_of(missing=given)))
    assert [text.partition("missing='")[2].partition("'")[0] for text in said] == expected


def test_a_question_of_the_training_is_named(bundle: Bundle, call: Call) -> None:
    code, _, err = call(f"join {bundle.folder} --data my.csv --target num --missing chol=0+age=-9 --out site")
    assert code == 2
    assert "its classes are no, yes; in training the target was 'num>0': give this as --target, in quotes" in err
    with pytest.raises(InputError, match="correct the labels"):
        read("my.csv", bundle.about.inputs, bundle.about.classes, "num")


def test_another_question_is_refused_and_one_of_another_column_is_said(
    bundle: Bundle, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    join = f"join {bundle.folder} --missing chol=0+age=-9 --out site"
    for other in ("num<1", "num>=2", "num!=0"):
        code, _, err = call(f"{join} --data my.csv --target {other}")
        assert code == 2
        assert f"target: {other!r} asks 'num' something else than in training, where the target was 'num>0'" in err
        assert not Path("site").exists()
    pd.read_csv("my.csv").rename(columns={"num": "stage"}).to_csv("stage.csv", index=False)
    assert call(f"{join} --data stage.csv --target stage>0")[0] == 0
    assert "the target is 'stage>0', and in training it was 'num>0': yes must mean the same in both" in caplog.text


def test_all_columns_that_are_not_used_are_named(bundle: Bundle, call: Call, caplog: pytest.LogCaptureFixture) -> None:
    more = pd.DataFrame({f"extra{k}": [k] * 60 for k in range(20)})
    pd.concat([visits(7).drop(columns="num"), more], axis=1).to_csv("wide.csv", index=False)
    call(f"join {bundle.folder} --data my.csv --target num>0 --missing chol=0+age=-9 --out site")
    call("predict site --data wide.csv --missing chol=0+age=-9 --out p.csv")
    assert all(name in caplog.text for name in more)


@pytest.mark.parametrize("kind", ["csv", "blank lines", "parquet", "jsonl", "pattern", "npz", "own row"])
def test_predictions_have_the_numbers_of_their_rows(bundle: Bundle, call: Call, kind: str) -> None:
    call(f"join {bundle.folder} --data my.csv --target num>0 --missing chol=0+age=-9 --out site")
    frame, where, expected = visits(8, 50).drop(columns="num"), "new.csv", list(range(1, 51))
    if kind == "parquet":
        frame.to_parquet(where := "new.parquet")
    elif kind == "jsonl":
        frame.to_json(where := "new.jsonl", orient="records", lines=True)
    elif kind == "pattern":
        Path("new").mkdir()
        frame[:20].to_csv("new/a.csv", index=False)
        frame[20:].to_csv("new/b.csv", index=False)
        where, expected = "new/*.csv", [*range(1, 21), *range(1, 31)]
    elif kind == "npz":
        known = frame[["age", "chol"]].where(frame[["age", "chol"]] > 0)
        np.savez("new.npz", x=known.to_numpy(np.float32), id=frame["id"].to_numpy(str))
        where = "new.npz"
    elif kind == "blank lines":
        Path("new.csv").write_text(frame.to_csv(index=False).replace("\n", "\n\n"))
    else:
        (frame.assign(row="mine") if kind == "own row" else frame).to_csv("new.csv", index=False)
    marks = "" if kind == "npz" else " --missing chol=0+age=-9"
    assert call(f"predict site --data '{where}'{marks} --out p.csv")[0] == 0
    table = pd.read_csv("p.csv")
    assert table["row"].tolist() == expected
    assert table["id"].tolist() == frame["id"].tolist()
    assert next(iter(table)) == "row"
    if kind == "own row":
        assert set(table["row of the data"]) == {"mine"}


def test_rows_of_several_parts_go_on(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idiolect.deploy.samples.ROWS", 16)
    visits(8, 50).to_parquet(tmp_path / "new.parquet")
    parts = [beside for _, beside in stream(tmp_path / "new.parquet", bundle.about.inputs, as_is=["age", "chol"])]
    assert len(parts) > 1
    assert [number for part in parts for number in part.index] == list(range(1, 51))


@pytest.mark.parametrize(
    ("knows", "said"),
    [
        ({"global": 0.9, "personal": -0.9, "local": -0.9}, "it is the global model alone, because no other model"),
        ({"global": -0.9, "personal": 0.9, "local": -0.9}, "it is the personal model alone; against the global model"),
        ({"global": 0.6, "personal": 0.8, "local": 0.7}, None),
    ],
)
def test_why_a_blend_or_one_model_is_taken(knows: dict[str, float], said: str | None) -> None:
    """Experts that lean to the right class, or to the wrong one, in as many samples as ``knows`` says."""
    y, draw = torch.arange(100) % 2, torch.Generator().manual_seed(0)
    experts = {}
    for name, share in knows.items():
        leans = torch.where(torch.rand(100, generator=draw) < abs(share), 1.0, -1.0) * (1 if share > 0 else -1)
        experts[name] = torch.stack([leans, -leans], 1).mul(1 - 2 * y[:, None]).log_softmax(1).double()
    choice = harm.compare({n: lambda _, p=p: lambda rows: p[rows] for n, p in experts.items()}, y, keys.key(0))
    if said is not None:
        assert choice.why.startswith(said)
        return
    right = {name: float((p.argmax(1) == y).double().mean()) for name, p in choice.outputs.items()}
    assert f"samples that they were made without ({100 * right['blend']:.1f}% right; alone: " in choice.why
    for name in experts:
        assert f"{name} {100 * right[name]:.1f}% right" in choice.why


def test_paths_take_variables_of_the_environment(bundle: Bundle, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("place").mkdir()
    known, y = visits(9)[["age", "chol"]], np.where(visits(9)["num"] > 0, "yes", "no")
    np.savez("place/my.npz", x=known.where(known > 0).to_numpy(np.float32), y=y)
    monkeypatch.setenv("CLINIC", str(Path("place").resolve()))
    assert call(f"join {bundle.folder} --data '$CLINIC/my.npz' --target y --out site")[0] == 0
    assert call("predict site --data '$CLINIC/my.npz' --out p.csv")[0] == 0
    code, _, err = call("predict site --data '$NOWHERE/my.npz' --out q.csv")
    assert code == 2
    assert "NOWHERE" in err
    study = idl.Study(dataset="digits", data_dir="$CLINIC", methods=["local"], rounds=1)
    assert study.federation().clients > 1
