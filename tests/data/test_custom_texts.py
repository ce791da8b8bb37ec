import json

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core.errors import InputError
from idiolect.data.custom import from_arrays, from_dataset, from_frame, open_data

ROWS = [
    ("oslo", "Great, really", "I'd buy it again.", "good"),
    ("oslo", "Bad", "", "bad"),
    ("rome", "NA", "null and void", "bad"),
    ("rome", "007", "shaken", "good"),
    ("rome", 'He said "no"', "two\nlines; and, marks", "bad"),
    ("oslo", "none", "1,5", "good"),
]
FRAME = pd.DataFrame(ROWS, columns=["shop", "title", "body", "label"])


def written(frame, kind, folder):
    path = folder / f"reviews.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "tsv":
        frame.to_csv(path, index=False, sep="\t")
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    return path


def texts_of(source):
    return [source.tokens.encoder.decode(row.tolist()) for row in source.x_R]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl"])
@pytest.mark.parametrize("column", ["title", "body"])
def test_a_column_of_texts_of_any_file_is_read_as_it_is_written(kind, column, tmp_path):
    path = written(FRAME, kind, tmp_path)
    source = open_data(path, text=column, target="label", client_column="shop", tokens="bytes")
    assert texts_of(source) == list(FRAME[column])
    assert source.x_R.dtype == torch.int16
    assert (source.class_names, source.y_R.tolist()) == (("bad", "good"), [1, 0, 0, 1, 0, 1])
    assert (source.client_column, source.encodings, source.tokens.columns) == ("shop", (), (column,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("title+body", [f"{row[1]}\n{row[2]}".strip() for row in ROWS]),
        ("body+title", [f"{row[2]}\n{row[1]}".strip() for row in ROWS]),
        ("shop+title+body", ["\n".join(filter(None, row[:3])) for row in ROWS]),
    ],
)
def test_several_columns_become_one_text_with_a_line_for_each(text, expected):
    source = from_frame(FRAME, text=text, target="label", tokens="bytes")
    assert texts_of(source) == expected


def test_a_name_with_a_plus_is_a_name():
    frame = FRAME.rename(columns={"title": "a+b"})
    assert texts_of(from_frame(frame, text="a+b", target="label", tokens="bytes")) == list(FRAME["title"])
    both = from_frame(frame, text='"a+b"+body', target="label", tokens="bytes")
    assert both.tokens.columns == ("a+b", "body")


@pytest.mark.parametrize(
    "texts",
    [
        ["one text", "another", "a third"],
        ("one text", "another", "a third"),
        np.array(["one text", "another", "a third"]),
        np.array(["one text", "another", "a third"], object),
        pd.Series(["one text", "another", "a third"]),
        pd.Series(["one text", "another", "a third"], dtype="category"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_texts_of_every_kind_of_array(texts):
    source = from_arrays(texts, [0, 1, 0], clients=["a", "b", "a"])
    assert texts_of(source) == ["one text", "another", "a third"]
    assert source.tokens.columns == ()
    assert (source.tokens.encoder.name, source.client_column) == ("words", "client")


def test_missing_texts_are_empty_and_are_counted(caplog):
    frame = FRAME.assign(title=["a", None, np.nan, "b", "", "c"])
    source = from_frame(frame, text="title", target="label", tokens="bytes")
    assert texts_of(source) == ["a", "", "", "b", "", "c"]
    assert "3 of 6 texts are empty (the first is row 1, counting from 0)" in caplog.text


def test_an_official_test_split_has_the_same_width():
    source = from_arrays(["ab", "a"], [0, 1], test=(["abcd"], [0]), tokens="bytes")
    assert (source.x_R.shape, source.train_rows) == ((3, 4), 2)
    frame = from_frame(FRAME, test=FRAME[:2], text="title", target="label", tokens="characters", max_tokens=4)
    assert (frame.x_R.shape, frame.train_rows) == ((8, 4), 6)


def test_columns_of_the_package_datasets():
    datasets = pytest.importorskip("datasets")
    classes = datasets.ClassLabel(names=["bad", "good"])
    table = datasets.Dataset.from_dict({"text": ["fine", "poor"], "label": [1, 0]})
    source = from_dataset(table.cast_column("label", classes), text="text", tokens="characters")
    assert texts_of(source) == ["fine", "poor"]
    assert source.class_names == ("bad", "good")


def test_other_columns_may_still_be_clients(caplog):
    source = from_frame(pd.concat([FRAME] * 3), text="title", target="label")
    assert source.encodings == ()
    assert source.client_column is None
    many = FRAME.assign(shop=["a", "b", "c"] * 2)
    assert from_frame(pd.concat([many] * 3), text="title", target="label").few == ("shop", "body")


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({}, {"text": "headline"}, "text: table has no column 'headline'"),
        ({}, {"text": "title+text"}, "text: table has no column 'text'"),
        ({}, {"text": "title+title"}, "text: 'title\\+title' names a column twice"),
        ({}, {"text": "label"}, "text label must be different columns"),
        ({}, {"text": "title", "drop": "title"}, "text title must be different columns"),
        ({}, {"text": "shop", "client_column": "shop"}, "text shop must be different columns"),
        ({"title": range(6)}, {"text": "title"}, "column 'title' of table has numbers and not texts"),
        ({"title": [0.5] * 6}, {"text": "title"}, "column 'title' of table has numbers and not texts"),
        ({"title": ["1", "2", "-3", "4.5", "5", "6e1"]}, {"text": "title"}, "has numbers and not texts"),
        ({"title": [True, False] * 3}, {"text": "title"}, "column 'title' of table has numbers and not texts"),
        ({"title": pd.date_range("2024", periods=6)}, {"text": "title"}, "has dates or times and not texts"),
        (
            {"title": ["a", "b", ["c"], "d", "e", "f"]},
            {"text": "title"},
            "has a list in row 2, counting from 0",
        ),
        (
            {"title": ["a", "b", b"c", "d", "e", "f"]},
            {"text": "title"},
            "has a bytes in row 2, counting from 0",
        ),
        ({"title": [""] * 6}, {"text": "title"}, "the texts of table are all empty"),
        ({}, {"text": "title", "tokens": "letters"}, "tokens='letters' is not known"),
        ({}, {"text": "title", "max_tokens": 0}, "max_tokens=0 is not possible"),
        ({}, {"tokens": "bytes"}, "tokens is for texts: say with text=... which column has them"),
        ({}, {"max_tokens": 5}, "max_tokens is for texts"),
    ],
)
def test_what_cannot_be_read_as_texts_is_refused_in_a_sentence(change, settings, message):
    with pytest.raises(InputError, match=message) as error:
        from_frame(FRAME.assign(**change), **{"target": "label"} | settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("x", "settings", "message"),
    [
        (np.array([["a", "b"], ["c", "d"]]), {}, r"x has texts of shape \(2, 2\): give one text per row"),
        (["a", 2], {}, "x has a int in row 1, counting from 0, and not texts"),
        (["1", "2"], {}, "x has numbers and not texts"),
        ([[0.5], [1.5]], {"tokens": "bytes"}, "tokens is for texts, and x has none"),
        ([[0.5], [1.5]], {"max_tokens": 3}, "max_tokens is for texts, and x has none"),
        (["a", "b"], {"test": ([[0.5]], [0])}, "x and x of test differ"),
        ([[0.5], [1.5]], {"test": (["a"], [0])}, "x and x of test differ"),
    ],
)
def test_arrays_that_are_no_texts_are_refused_in_a_sentence(x, settings, message):
    with pytest.raises(InputError, match=message):
        from_arrays(x, [0, 1], **settings)


def test_texts_beside_images_are_refused(tmp_path):
    from PIL import Image

    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    Image.new("L", (4, 4)).save(tmp_path / "b.png")
    (tmp_path / "metadata.csv").write_text("file_name,label,note\na.png,x,fine\nb.png,y,poor\n")
    with pytest.raises(InputError, match="a sample is either an image or a text"):
        open_data(tmp_path, text="note", target="label")


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize(
    ("names", "title"), [("shop+title+body+label", "title"), ('a+"b+c"+d+label', "b+c"), (" x + y+z + label", "y")]
)
def test_a_file_without_a_line_of_names_gets_them(suffix, names, title, tmp_path):
    path = tmp_path / f"reviews{suffix}"
    FRAME.to_csv(path, index=False, header=False, sep="," if suffix == ".csv" else "\t")
    source = open_data(path, columns=names, text=title, target="label", tokens="bytes")
    assert texts_of(source) == list(FRAME["title"])
    assert source.class_names == ("bad", "good")


def test_names_for_a_table_of_numbers(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("1.5,2,0\n2.5,1,1\n3.5,7,0\n")
    with pytest.raises(InputError, match=r"name the columns with columns=\.\.\., joined by \+"):
        open_data(path, target="y")
    source = open_data(path, columns="a+b+y", target="y")
    assert source.x_R.tolist() == [[1.5, 2], [2.5, 1], [3.5, 7]]


@pytest.mark.parametrize(
    ("file", "names", "message"),
    [
        ("t.csv", "a+b", r"columns has 2 names, and .*t\.csv has 3 columns"),
        ("t.csv", "a+b+c+d", r"columns has 4 names, and .*t\.csv has 3 columns"),
        ("t.csv", "a+a+b", r"columns: give each column of .*t\.csv a name of its own"),
        ("t.csv", "a++b", r"columns: give each column of .*t\.csv a name of its own"),
        ("t.parquet", "a+b+c", r"columns is for files ending in \.csv, \.tsv, \.data, \.arff without names"),
        ("t.jsonl", "a+b+c", "columns is for files ending in"),
        (".", "a+b+c", "columns is for files ending in"),
        ("t.arff", "a+b+c", "columns is for tables without names"),
    ],
)
def test_names_that_do_not_fit_are_refused(file, names, message, tmp_path):
    (tmp_path / "t.csv").write_text("1,2,x\n3,4,y\n")
    (tmp_path / "t.jsonl").write_text('{"a": 1, "y": 0}\n')
    pd.DataFrame({"a": [1], "y": [0]}).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.arff").write_text("@attribute p real\n@attribute q real\n@attribute r {x,y}\n@data\n1,2,x\n3,4,y\n")
    with pytest.raises(InputError, match=message):
        open_data(tmp_path / file, columns=names, target="c")
