import sys

import datasets
import pytest

from idiolect.core.errors import InputError
from idiolect.data.custom import open_data

PROGRAM = """
import sys
import datasets

def ends():
    sys.exit("no data today")

def lists():
    return {"x": [[1], [2]], "y": [0, 1]}

def splits():
    one = datasets.Dataset.from_dict({"a": [1, 2], "y": [0, 1]})
    return {"train": one, "test": one}

def streams():
    return splits()["train"].to_iterable_dataset()
"""


@pytest.fixture(autouse=True)
def programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    (tmp_path / "my_program.py").write_text(PROGRAM)
    (tmp_path / "my_script.py").write_text("raise SystemExit(3)")
    yield
    for name in ("my_program", "my_script"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_program.ends", r"data my_program.ends fails \(SystemExit: no data today\): fix the function"),
        ("my_script.data", r"importing my_script fails \(SystemExit: 3\)"),
        ("my_program.lists", r"data my_program.lists returns a dict: let it return arrays \(x, y\)"),
        ("my_program.streams", "my_program.streams is a IterableDataset, .*without streaming=True"),
    ],
)
def test_programs_that_give_no_data_are_said(path, message):
    with pytest.raises(InputError, match=message):
        open_data(path)


def test_a_dict_of_data_sets_is_read_as_splits():
    source = open_data("my_program.splits")
    assert source.x_R.tolist() == [[1], [2], [1], [2]]
    assert source.train_rows == 2
