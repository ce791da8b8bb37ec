"""Files of data that are made to harm, or harmed: a sentence each, and never the end of the process."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from idiolect.core.errors import InputError
from idiolect.data import open_data

GOOD = '{"a": 1, "label": "x"}\n{"a": 2, "label": "y"}\n{"a": 3, "label": "x"}\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 50_000, "line 4 is nested more than 64 levels deep"),
        ('{"a": ' * 50_000 + "1" + "}" * 50_000, "line 4 is nested more than 64 levels deep"),
        ("[\n" * 50_000, "line 4 is not a whole object"),
        ('{"a": 1, "label": "x"', "line 4 is not a whole object"),
        ('{"a": "\\', "line 4 is not a whole object"),
    ],
    ids=["lists", "objects", "lines", "cut", "quote"],
)
def test_nested_lines(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "t.jsonl").write_text(GOOD + line)
    with pytest.raises(InputError, match=rf"t.jsonl is not a table \({said}\): write one JSON object per line"):
        open_data(tmp_path / "t.jsonl")


def test_brackets_in_texts_are_no_levels(tmp_path: Path) -> None:
    label = json.dumps("[[{" * 40 + '"\\')
    (tmp_path / "t.jsonl").write_text(GOOD + f'{{"a": 5, "label": {label}}}\n' * 2)
    assert len(open_data(tmp_path / "t.jsonl").y_R) == 5


@pytest.mark.parametrize("name", ["dataset_dict.json", "state.json", "dataset_info.json"])
@pytest.mark.parametrize("content", ["[]", "{}", "null", "[" * 50_000, '{"splits": [3]}', '{"splits": ["../.."]}'])
def test_a_saved_data_set_of_another_shape(tmp_path: Path, name: str, content: str) -> None:
    if name == "dataset_info.json":
        (tmp_path / "state.json").write_text('{"_data_files": [], "_fingerprint": "", "_format_type": null}')
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        open_data(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("about", ["{", "[]", "null", '{"info": []}', '{"info": {"features": {"a": 3}}}', "[" * 50_000])
@pytest.mark.parametrize("key", ["huggingface", "pandas"])
def test_odd_metadata(tmp_path: Path, about: str, key: str) -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0], "label": [0, 1, 0]}).replace_schema_metadata({key: about})
    pq.write_table(table, tmp_path / "t.parquet")
    if key == "pandas" or about.startswith('{"info"'):  # which name no classes
        assert len(open_data(tmp_path / "t.parquet").y_R) == 3
        return
    with pytest.raises(InputError, match=r"t.parquet: its metadata 'huggingface' cannot be read \(") as caught:
        open_data(tmp_path / "t.parquet")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.sep != "/", reason="backslashes separate folders there")
def test_backslashes_in_names_of_images(tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    for k in range(3):
        Image.new("L", (4, 4)).save(tmp_path / f"img/{k}.png")
    for wrong in ("img\\1.png", "gone\\1.png", ".\\img\\1.png"):
        (tmp_path / "metadata.csv").write_text(f"file_name,label\nimg/0.png,a\n{wrong},b\nimg/2.png,a\n")
        right = wrong.replace("\\", "/")
        with pytest.raises(InputError) as caught:
            open_data(tmp_path)
        assert f"names the image {wrong}, which does not exist" in str(caught.value)
        assert f"backslashes do not separate folders here: write {right}" in str(caught.value)
    Image.new("L", (4, 4)).save(tmp_path / "img\\1.png")  # which is a name like others here
    (tmp_path / "metadata.csv").write_text("file_name,label\nimg/0.png,a\nimg\\1.png,b\nimg/2.png,a\n")
    assert len(open_data(tmp_path).y_R) == 3


@pytest.mark.skipif(os.name != "posix", reason="names are bytes there")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("L", (4, 4)).save(picture, "png")
    for k, name in enumerate([b"caf\xe9", b"b"]):
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        folder.mkdir()
        for i in range(2):
            (folder / f"{k}{i}.png").write_bytes(picture.getvalue())
    with pytest.raises(InputError, match="not UTF-8") as caught:
        open_data(tmp_path)
    assert "\n" not in str(caught.value)
