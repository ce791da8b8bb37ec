"""What is in a sample stays in the data: no value of a feature in a repr, in a message or in a file of a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.data import from_arrays, from_frame, open_data

WORD, NUMBER = "Zaphod", 271828.1875  # the number is the same in 32 bits
SITES = ["Oslo", "Porto"]


def table(rows: int = 40, **more: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"age": rng.normal(50, 9, rows), "job": ["clerk", "smith"] * (rows // 2)}
    columns |= {"site": np.repeat(SITES, rows // 2), "y": rng.permutation(["ill", "well"] * (rows // 2))}
    frame = pd.DataFrame(columns | more)
    frame.loc[3, "age"], frame.loc[5, "job"] = NUMBER, WORD
    return frame


def leaks(content: bytes) -> bool:
    known = [WORD.encode(), str(int(NUMBER)).encode(), *(np.array(NUMBER, d).tobytes() for d in ("<f4", "<f8"))]
    return any(one in content for one in known)


@pytest.mark.parametrize("given", ["frame", "file"])
def test_neither_a_repr_nor_a_file_of_a_run_holds_a_value(tmp_path: Path, given: str, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    table().to_csv(tmp_path / "patients.csv", index=False)
    named: dict[str, Any] = {"data": str(tmp_path / "patients.csv"), "client_column": "site", "target": "y"}
    if given == "frame":
        named = {"data": from_frame(table(), client_column="site")}
        assert leaks(named["data"].x_R.numpy().tobytes())
    study = idl.Study(**named, rounds=1, local_epochs=1, methods=["fedavg", "knnper"], new_clients="Porto+")
    federation = study.federation()
    result = idl.run(study, tmp_path / "run", engine="sequential")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [path.name for path in files if leaks(path.read_bytes())] == []
    said = [study, result, study.data, federation, study.jobs(federation), study.task_of(federation)]
    text = "\n".join([*map(repr, said), *map(str, said), caplog.text])
    assert not leaks(text.encode())
    assert "array" not in text
    assert "tensor(" not in text
    if given == "frame":
        assert "Source('table', x_R=float32 (40, 4), y_R=int64 (40,), classes=2, client_column='site')" in repr(study)
    assert "x_R=float32 (40, 4)" in repr(federation)


def test_the_manifest_has_mean_and_deviation_of_the_columns_that_are_scaled(tmp_path: Path) -> None:
    frame = table().assign(height=np.arange(40.0))
    study = idl.Study(data=from_frame(frame, client_column="site"), rounds=1, local_epochs=1, methods=["local"])
    made = idl.run(study, tmp_path / "run", engine="sequential")
    found = json.loads((made.folder / "manifest.json").read_text())["normalisation"]
    assert list(found["columns"]) == ["age", "height"]
    federation = study.federation()
    trained = np.concatenate([federation.x_R[rows].double().numpy() for rows in federation.train])
    for k, column in enumerate(["age", "height"]):
        names = [name for encoding in federation.encodings for name in encoding.features]
        at = names.index(column)
        assert (at, len(names)) == ([0, 4][k], 5)
        assert found["columns"][column]["mean"] == pytest.approx(trained[:, at].mean())
        assert found["columns"][column]["std"] == pytest.approx(trained[:, at].std())
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    grey = idl.Study(data=from_arrays(images, np.tile([0, 1], 20), clients=np.repeat(SITES, 20)))
    [mean] = idl.data.manifest(grey.federation())["normalisation"]["mean"]
    assert 0.4 < mean < 0.6


def csv(text: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        (folder / "t.csv").write_text(text)
        return open_data(folder / "t.csv", target="y").x_R

    return read


def of(**columns: Any) -> Callable[[Path], object]:
    return lambda folder: from_frame(table(**columns), target="y")


NAMES = [f"{WORD} {k}" for k in range(60)]
BAD: dict[str, Callable[[Path], object]] = {
    "many texts": lambda folder: from_frame(pd.DataFrame({"a": NAMES, "y": [0, 1] * 30})),
    "one text among numbers": csv(f"a,b,y\n1,1,u\n2,2,v\n{WORD},3,u\n5,7,v\n"),
    "a data frame for data": lambda folder: idl.Study(data=table()),
    "arrays for data": lambda folder: idl.Study(data=([WORD], [NUMBER])),
    "samples as a setting": lambda folder: idl.Study(dataset="digits", methods=table()),
    "samples as an option": lambda folder: idl.use("pfedfda", ridge=table()),
    "no line of names": csv(f"{NUMBER},{WORD},0\n2,b,1\n"),
    "no line of names, twice": csv(f"{NUMBER},{NUMBER},{WORD}\n2,2,b\n"),
    "a ragged line": csv(f"a,y\n1,u\n2,v,{WORD},{NUMBER}\n"),
    "an open quote": csv(f'a,y\n1,u\n"{WORD},v\n'),
    "lists in cells": of(l=[[WORD, NUMBER]] * 40),
    "mixed kinds": of(l=[WORD, NUMBER, (1,), b"x"] * 10),
    "infinite": of(l=[np.inf, NUMBER] * 20),
    "ragged rows": lambda folder: from_arrays([[NUMBER], [1, 2]], [0, 1]),
    "texts as numbers": lambda folder: from_arrays(np.array([[WORD], ["2"]]), [0, 1]),
    "values as labels": lambda folder: from_frame(table(), target="age"),
    "every row its own label": lambda folder: from_frame(pd.DataFrame({"a": range(60), "y": NAMES})),
    "a column that is not there": lambda folder: from_frame(table(), target="Y1", client_column="where"),
}


@pytest.mark.parametrize("name", BAD)
def test_no_message_quotes_a_value(name: str, tmp_path: Path, caplog: Any, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    said = ""
    try:
        BAD[name](tmp_path)
    except InputError as error:
        said = str(error)
    assert said or caplog.records
    everything = said + caplog.text + "".join(capfd.readouterr())
    assert not leaks(everything.encode()), everything


def warned(frame: pd.DataFrame, caplog: Any, **how: Any) -> list[str]:
    caplog.clear()
    from_frame(frame, target="y", **how)
    return [record.getMessage() for record in caplog.records]


def test_columns_that_look_like_sites_or_identifiers_are_said(caplog: Any) -> None:
    assert warned(table(), caplog) == [
        "column 'site' seems to say which client a sample belongs to, and is used as a feature: give "
        "client_column='site', or drop it"
    ]
    assert warned(table(), caplog, client_column="site") == []
    assert warned(table(), caplog, drop=["site"]) == []
    order = np.random.default_rng(1).permutation(40)
    numbers = {"PatientID": order, "siteArea": order / 40, "job_id": ["a", "b"] * 20}
    assert warned(table(**numbers), caplog, client_column="site") == [
        "column 'PatientID' looks like an identifier and is used as a feature: drop it with drop='PatientID' if it is "
        "one"
    ]
    named = from_frame(table(ward=list("abcd") * 10), target="y", client_column="site")
    assert named.few == ()


def test_invented_clients_are_said(caplog: Any) -> None:
    frame = table(ward=list("abcd") * 10).drop(columns="site")
    study = idl.Study(data=from_frame(frame), clients=4)
    caplog.clear()
    found = study.federation()
    sizes = [len(rows) for rows in found.train]
    [message] = [r.getMessage() for r in caplog.records if "client column" in r.getMessage()]
    assert message.startswith(
        f"no client column: 4 clients are drawn by dirichlet:alpha=0.3, with {min(sizes)} to {max(sizes)} training"
    )
    assert (
        "a column (of few texts: job, ward) says which client a sample belongs to, give it with client_column=..."
        in message
    )
    for told in ({"partition": "iid"}, {"partition": "dirichlet:alpha=0.3"}):
        caplog.clear()
        idl.Study(data=from_frame(frame), clients=4, **told).federation()
        assert "no client column" not in caplog.text
