"""A table becomes the same features in training, when a site joins, and when it predicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import idiolect as idl
from idiolect.core.errors import InputError
from idiolect.data.custom import streaming
from idiolect.data.datasets.dataset import Encoding
from idiolect.data.normalisation import moments
from idiolect.deploy import predict, samples
from idiolect.deploy.samples import Reader
from idiolect.deploy.schema import Inputs

ROWS = 80


def csv(value_of: Callable[[int], object], mark: str = ",", decimal: str = ".") -> str:
    rows = (f"{value_of(k)}{mark}{k * 37 % 11}{decimal}5{mark}{k % 2}\n" for k in range(ROWS))
    return f"v{mark}z{mark}label\n" + "".join(rows)


def lines(value_of: Callable[[int], object]) -> str:
    every = ({"v": value_of(k), "z": k * 37 % 11 / 2, "label": k % 2} for k in range(ROWS))
    return "".join(json.dumps({c: v for c, v in row.items() if v is not None}) + "\n" for row in every)


def month(k: int) -> int:
    return 1 + k % 12


TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "codes as pandas writes them with gaps": (csv(lambda k: ["1.0", "2.0", "3.0", ""][k % 4]), {"categorical": "v"}),
    "codes with zeros in front": (csv(lambda k: ["01", "02", "03"][k % 3]), {"categorical": "v"}),
    "codes with signs": (csv(lambda k: ["+1", "-1", "0"][k % 3]), {"categorical": "v"}),
    "codes with commas": (csv(lambda k: ["1,5", "2,5", "3,5"][k % 3], ";", ","), {"categorical": "v"}),
    "truth values": (csv(lambda k: ["true", "false"][k % 2 ^ (k % 5 == 0)]), {"categorical": "v"}),
    "dates as numbers": (csv(lambda k: f"2024{month(k):02d}03"), {}),
    "dates as numbers with gaps": (csv(lambda k: "" if k % 5 == 0 else f"2024{month(k):02d}03"), {}),
    "dates of november": (csv(lambda k: f"202411{1 + k % 28:02d}"), {}),
    "dates with minutes": (csv(lambda k: f"2024{month(k):02d}03{k % 24:02d}30"), {}),
    "dates with minutes of november": (csv(lambda k: f"202411{1 + k % 28:02d}0530"), {}),
    "dates with seconds": (csv(lambda k: f"2024{month(k):02d}03{k % 24:02d}3015"), {}),
    "lines that begin without a key": (lines(lambda k: None if k < 14 else k % 5), {}),
    "lines that begin without a text": (lines(lambda k: None if k < 14 else "ab"[k % 2 ^ (k % 5 == 0)]), {}),
}


def classes(path: Path) -> None:
    """Numbers whose names ``datasets`` has written beside the table."""
    info = {"info": {"features": {"v": {"_type": "ClassLabel", "names": ["low", "middle", "high"]}}}}
    columns = {"v": [k % 3 for k in range(ROWS)], "z": [k * 37 % 11 / 2 for k in range(ROWS)]}
    table = pa.table(columns | {"label": [k % 2 for k in range(ROWS)]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), path)


@pytest.mark.parametrize("kind", [*TABLES, "named classes"])
def test_training_joining_and_predicting_read_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, how = TABLES.get(kind, ("", {}))
    path = tmp_path / ("a.parquet" if not text else "a.jsonl" if text.startswith("{") else "a.csv")
    _ = path.write_text(text) if text else classes(path)
    source = idl.data.open_data(path, target="label", **how)
    mean, std = moments(source, np.arange(ROWS), "training")
    inputs = Inputs(kind="table", shape=tuple(source.x_R.shape[1:]), columns=source.encodings, mean=mean, std=std)
    assert len(source.x_R.unique(dim=0)) > 3

    reader = Reader(inputs, str(path))
    [part] = streaming.whole(path, target="label", roles=reader.roles("label"))
    joined = reader.encode(part._replace(frame=part.frame.drop(columns="label")))
    assert torch.equal(joined.nan_to_num(nan=-9), source.x_R.nan_to_num(nan=-9))
    for rows in (ROWS, 7):
        monkeypatch.setattr(samples, "ROWS", rows)
        streamed = torch.cat([x_B for x_B, _ in samples.stream(path, inputs)])
        assert torch.equal(streamed.nan_to_num(nan=-9), source.x_R.nan_to_num(nan=-9))


def test_two_classes_of_one_name_are_named(tmp_path: Path) -> None:
    info = {"info": {"features": {"v": {"_type": "ClassLabel", "names": ["low", "low"]}}}}
    table = pa.table({"v": [0, 1] * 9, "label": [0, 1] * 9})
    for name in ("a", "b"):
        more = table if name == "a" else table.append_column("z", pa.array(range(18)))
        pq.write_table(more.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"column 'v' of .* has two classes of the name 'low': give each its own"):
        idl.data.open_data(tmp_path / "a.parquet", target="label")
    idl.data.open_data(tmp_path / "b.parquet", target="label", drop="v")


LINES = """{"id": 1, "z": 1.5, "v": "a", "n": 1, "rest": [1]}
{"id": "A2", "z": 2, "v": "b", "n": 2.5, "rest": [2, 3]}

{"z": 3, "n": 3, "v": 7}
{"id": true, "z": 4, "v": "a"}
"""
COLUMNS = (Encoding("z"), Encoding("v", "text", ("a", "b")))


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_lines_of_several_kinds(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    inputs = Inputs(kind="table", shape=(3,), columns=COLUMNS, mean=(0.0,) * 3, std=(1.0,) * 3)
    monkeypatch.setattr(samples, "ROWS", rows)
    parts = [*samples.stream(tmp_path / "a.jsonl", inputs)]
    assert torch.cat([x_B for x_B, _ in parts]).tolist() == [[1.5, 1, 0], [2, 0, 1], [3, 0, 0], [4, 1, 0]]
    tables = [pa.table(predict._beside(beside, ())) for _, beside in parts]
    predict.save(tmp_path / "out.parquet", iter(tables))
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.column("id").to_pylist() == ["1", "A2", None, "true"]
    assert written.column("n").to_pylist() == [1.0, 2.5, 3.0, None]
    assert written.column("row").to_pylist() == [1, 2, 3, 4]


def test_no_lines_are_no_samples(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    inputs = Inputs(kind="table", shape=(3,), columns=COLUMNS, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert not [*samples.stream(tmp_path / "a.jsonl", inputs)]


def test_columns_beside_may_begin_empty(tmp_path: Path) -> None:
    first = pa.table({"note": pa.nulls(2), "p": [0.5, 0.25]})
    predict.save(tmp_path / "out.csv", [first, pa.table({"note": ["late", None], "p": [0.1, 0.2]})])
    assert pd.read_csv(tmp_path / "out.csv")["note"].tolist()[2] == "late"


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ({"note": ["a text"], "p": [0.1]}, "column 'note' has texts further down, and numbers in the first rows"),
        ({"note": [1], "p": [0.1], "more": [2]}, "column 'more' is not in the first of the files"),
    ],
)
def test_columns_beside_that_change_are_named(tmp_path: Path, later: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        predict.save(tmp_path / "out.parquet", [pa.table({"note": [1], "p": [0.5]}), pa.table(later)])
    assert not any(tmp_path.iterdir())


def test_a_column_beside_that_a_later_file_lacks_is_empty_there(tmp_path: Path) -> None:
    predict.save(tmp_path / "out.parquet", [pa.table({"note": [1], "p": [0.5]}), pa.table({"p": [0.1]})])
    assert pq.read_table(tmp_path / "out.parquet").column("note").to_pylist() == [1, None]
