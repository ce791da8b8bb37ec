"""Numbers in text files: which mark is the decimal mark is decided once, and every reader reads the same numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from idiolect.core.errors import InputError
from idiolect.data.custom import open_data, streaming
from idiolect.data.custom.text_files import Roles, read_csv


def save(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def numbers_in(tmp_path, text, name="t.csv"):
    """The features that a text file with the target y gives."""
    return open_data(save(tmp_path, text, name)).x_R.numpy().astype(np.float64)


def lines(separator, *rows):
    return "".join(separator.join(row.split("|")) + "\n" for row in rows)


READ = [
        # the right numbers were written by hand
        (lines("\t", "a|b|y", "950|0.125|u", "1,234|0.250|v"), [[950, 0.125], [1234, 0.25]],
         "numbers are read with commas between thousands"),
        (lines("\t", "a|b|y", "950|0,125|u", "1.234|0,250|v"), [[950, 0.125], [1234, 0.25]],
         "numbers are read with decimal commas and points between thousands"),
        (lines(";", "a|b|c|d|y", "3,5|1.234|2.345.678|1,0|u", "-1.234,25|7|1|2,0|v", "1e3|12.000|3|3,0|v"),
         [[3.5, 1234, 2345678, 1], [-1234.25, 7, 1, 2], [1000, 12000, 3, 3]], "decimal commas and points"),
        (lines(";", "a|b|y", "1.234|2|u", "2.345|3|v"), [[1.234, 2], [2.345, 3]],
         "1.234 is read as 1.234, as no number of the file has a decimal comma"),
        (lines(",", "a|b|y", '"1,234"|0.5|u', '"12,345,678"|2.5|v', "-7|1e-3|v"),
         [[1234, 0.5], [12345678, 2.5], [-7, 0.001]], "commas between thousands"),
        (lines(",", "a|b|y", '"1,234"|5|u', '"2,345"|6|v'), [[1234, 5], [2345, 6]],
         "1,234 is read as 1234, because commas separate the cells"),
        (lines(",", "a|b|y", '"3,5"|5|u', '"1.234,5"|6|v'), [[3.5, 5], [1234.5, 6]], "decimal commas and points"),
        (lines(";", "a|b|y", "1,234|5|u", "2,345|6|v"), [[1.234, 5], [2.345, 6]],
         "1,234 is read as 1.234, because semicolons separate the cells"),
        (lines(";", "a|y", "1 234,5|u", "-1 234 567|v", "8|v"), [[1234.5], [-1234567], [8]],
         "decimal commas and spaces between thousands"),
        (lines(",", "a|y", "1\u00a0234.5|u", "12\u202f000|v"), [[1234.5], [12000]], "spaces between thousands"),
        (lines(",", "a|b|y", "1'234.5|3|u", "12\u2019000|4|v"), [[1234.5, 3], [12000, 4]], "apostrophes between"),
        (lines("\t", "a|b|y", "1 234|1,250|u", "5|2,500|v"), [[1234, 1.25], [5, 2.5]], "decimal commas and spaces"),
        (lines("|", "a|b|y", "1,5e3|-,5|u", "2,5E-1|+7|v"), [[1500, -0.5], [0.25, 7]], "decimal commas"),
        (lines(",", "a|b|y", "\u22125|.5|u", "7|5.|v"), [[-5, 0.5], [7, 5]], ""),
        (lines("\t", "a|b|y", "1,234|u|0.5", "950|v|1.5"), [[1234, 1, 0], [950, 0, 1]], "commas between thousands"),
        (lines(",", "a|b|y", "1.234|5|u", "2.345|6|v"), [[1.234, 5], [2.345, 6]], ""),
        (lines(";", "a|b|y", "0.125|5|u", "2.5|6|v"), [[0.125, 5], [2.5, 6]], ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "said"), READ)
def test_the_marks_of_numbers_are_decided_once_for_a_file(tmp_path, caplog, text, expected, said):
    text = text.replace("site\t", "").replace("\ns\t", "\n").replace("\nt\t", "\n")
    np.testing.assert_allclose(numbers_in(tmp_path, text), expected, rtol=1e-6)
    about = [r.message for r in caplog.records if "read" in r.message]
    assert len(about) == bool(said)
    assert said in "".join(about)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines(";", "a|b|y", "3,5|1.5|u", "4,5|2.25|v"), "'a' has decimal commas and column 'b' has decimal points"),
        (lines(",", "a|b|y", '"3,5"|1.5|u', '"4,5"|2.5|v'), "'a' has decimal commas and column 'b' has decimal points"),
        (lines("\t", "a|b|y", "1.234.567|0.5|u", "5|2.5|v"), "'a' has decimal commas and column 'b' has decimal"),
        (lines("\t", "a|b|y", "1,234|5|u", "950|6|v"), "nothing shows whether a number such as 1,234 is 1234 or 1.234"),
        (lines("|", "a|b|y", "12,345|1.234|u", "950|6.789|v"), "nothing shows whether a number such as 1,234"),
        (lines("\t", "a|b|y", "1'234|1 000|u", "950|2 000|v"), "writes numbers in different ways .*column 'a'.* 'b'"),
        (lines(";", "a|b|y", "3,5|5|u", "1.5|6|v"), "column 'a' has numbers with different decimal marks"),
    ],
)  # fmt: skip
def test_marks_that_contradict_each_other_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        numbers_in(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_columns_that_are_not_used_decide_nothing(tmp_path, caplog):
    path = save(tmp_path, lines(";", "site|note|a|y", "1.5|2.5|3,5|u", "2.5|4.5|4,5|v"))
    source = open_data(path, client_column="site", drop=["note"])
    np.testing.assert_array_equal(source.x_R[:, 0].numpy(), [3.5, 4.5])
    assert source.columns["site"].names == ("1.5", "2.5")


def test_the_files_of_a_folder_are_read_in_one_way(tmp_path):
    save(tmp_path, lines("\t", "a|b|y", "1,234|0.5|u", "950|0.25|v"), "train.tsv")
    save(tmp_path, lines("\t", "a|b|y", "2,345|8|u"), "test.tsv")
    np.testing.assert_allclose(open_data(tmp_path).x_R.numpy(), [[1234, 0.5], [950, 0.25], [2345, 8]])
    save(tmp_path, lines("\t", "a|b|y", "2,345|0,5|u"), "test.tsv")
    with pytest.raises(InputError, match=r"train.tsv, .*test.tsv writes numbers in different ways"):
        open_data(tmp_path)
    save(tmp_path, lines("\t", "a|b|y", "2,345|8|u"), "train-1.tsv")
    save(tmp_path, lines("\t", "a|b|y", "2,5|9|v"), "test.tsv")
    (tmp_path / "train.tsv").unlink()
    np.testing.assert_allclose(open_data(tmp_path).x_R.numpy(), [[2.345, 8], [2.5, 9]], rtol=1e-6)


@pytest.mark.parametrize("cell", ["1.2.3", "12,34,567", "1 23", "1,2,3", "$5", "5-", "(5)", "1 2345", "0,125.5"])
def test_other_writings_stay_texts(tmp_path, cell):
    source = open_data(save(tmp_path, f'a;b;y\n"{cell}";1;u\n{cell};2;v\n{cell};2;v\nz;3;v\n'))
    assert source.feature_names == (f"a={cell}", "a=z", "b")


def streamed(path, numbers=("a", "b", "c", "d")):
    roles = Roles(features=lambda name: name in (*numbers, "note"))
    parts = [part.frame for part in streaming.some(path, 2, roles, lambda name: name in numbers)]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("many", [1, 40])
@pytest.mark.parametrize(("text", "expected", "said"), READ)
def test_the_reader_of_large_files_reads_the_same_numbers(tmp_path, monkeypatch, text, expected, said, many):
    monkeypatch.setattr(streaming, "_BLOCK", 100)
    monkeypatch.setattr(streaming, "_OVERLAP", 20)
    head, *rows = text.splitlines(keepends=True)
    path = save(tmp_path, head + "".join(rows) * many)
    frame = streamed(path)
    columns = [name for name in "abcd" if name in frame and not frame[name].isin(["u", "v"]).any()]
    wanted = [row[: len(columns)] for row in expected]  # without the 0/1 features of a text
    if "b" in frame and "b" not in columns:
        columns, wanted = ["a"], [row[:1] for row in expected]
    np.testing.assert_allclose(frame[columns].astype(float), wanted * many, rtol=1e-9)
    assert frame.shape == read_csv(path).shape


def test_marks_that_come_late_count(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_BLOCK", 200)
    monkeypatch.setattr(streaming, "_HEAD", 200)
    head = "a\tb\tnote\n"
    path = save(tmp_path, head + "950\t7\tx y\n" * 100 + "1.234\t7\tz\n" * 50 + "5\t0,5\tz\n")
    np.testing.assert_allclose(streamed(path)["a"].iloc[[0, 100, -1]].astype(float), [950, 1234, 5])
    path = save(tmp_path, head + "950\t7\tx y\n" * 100 + "1.234\t7\tz\n" * 50 + "5\t0.5\tz\n")
    np.testing.assert_allclose(streamed(path)["a"].iloc[[0, 100, -1]].astype(float), [950, 1.234, 5])
    path = save(tmp_path, head + "9.5\t7\tx y\n" * 100 + "1\t0,5\tz\n")
    with pytest.raises(InputError, match="column 'a' has decimal points and column 'b' has decimal commas"):
        streamed(path)


def test_rows_that_decide_nothing_are_read_as_the_training_was(tmp_path, caplog):
    known = {"a": (1500.0, 400.0), "b": (2.0, 1.0)}
    roles = Roles(features=known.__contains__, scale_of=known.get)
    for text, wanted in [
        ("a\tb\n1,234\t2\n", [1234, 2]), ("a\tb\n1200\t1,234\n", [1200, 1.234]), ("a;b\n1.234;2\n", [1234, 2]),
        ("a;b\n1200;2.345\n", [1200, 2.345]), ('a,b\n1200,"2,345"\n', [1200, 2.345]), ("a;b\n950;2\n", [950, 2]),
    ]:  # fmt: skip
        path = save(tmp_path, text)
        [part] = streaming.some(path, 10, roles, known.__contains__)
        np.testing.assert_allclose(part.frame[["a", "b"]].astype(float).to_numpy(), [wanted], err_msg=text)
        np.testing.assert_allclose(read_csv(path, roles)[["a", "b"]].to_numpy(), [wanted], err_msg=text)
    assert "are then near those of the training" in caplog.text
