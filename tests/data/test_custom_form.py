"""Files without names, marks of missing values, and targets that are questions."""

import logging

import numpy as np
import pandas as pd
import pytest

from idiolect.core.errors import InputError
from idiolect.data.custom import from_frame, open_data, streaming
from idiolect.data.custom.form import form_of
from idiolect.data.custom.questions import Question, question_in
from idiolect.data.custom.text_files import Roles

HEART = "age+sex+cp+trestbps+chol+fbs+restecg+thalach+exang+oldpeak+slope+ca+thal+num"


def save(tmp_path, content, name="t.csv"):
    path = tmp_path / name
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "1,x,u\n2,y,v\n3,x,v\n"),
        ("t.csv", "1;x;u\n2;y;v\n3;x;v\n"),
        ("t.tsv", "1\tx\tu\n2\ty\tv\n3\tx\tv\n"),
        ("t.data", "1,x,u\n2,y,v\n3,x,v\n"),
        ("t.data", "  1   x  u\n  2   y  v\n  3   x  v\n"),
        ("t.arff", "1,x,u\n2,y,v\n3,x,v\n"),
    ],
)
@pytest.mark.parametrize("settings", [{"header": "none", "target": "3"}, {"columns": "a+b+c", "target": "c"}])
def test_the_first_line_of_a_file_without_names_is_a_row(name, content, settings, tmp_path, caplog):
    path = save(tmp_path, content, name)
    source = open_data(path, **settings)
    first, second = ("1", "2") if "header" in settings else ("a", "b")
    assert source.feature_names == (first, f"{second}=x", f"{second}=y")
    np.testing.assert_array_equal(source.x_R.numpy(), [[1, 1, 0], [2, 0, 1], [3, 1, 0]])
    assert source.y_R.tolist() == [0, 1, 1]
    assert "columns are called" not in caplog.text
    form = form_of(settings.get("header"), settings.get("columns"))
    parts = list(streaming.some(path, 2, Roles(settings["target"], form=form), lambda column: column == first))
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    assert frame[first].tolist() == [1, 2, 3]
    assert frame[second].tolist() == ["x", "y", "x"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"header": "no"}, "header='no' is not known: give none"),
        ({"header": "none", "columns": "a+b"}, "columns has 2 names, and .* has 3 columns"),
        ({"missing": "c=9"}, "missing: there is no column 'c' for 'c=9'"),
        ({"missing": "-9++5"}, "has an empty mark"),
        ({}, "give --header none to call them 1, 2, ...|give header='none' to call them 1, 2, ..."),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message, tmp_path):
    with pytest.raises(InputError, match=message):
        open_data(save(tmp_path, "1,2,0\n3,4,1\n"), **{"target": "label", **settings})


MARKS = "a,b,label\n1,low,-9\n-9,.,u\n3,-,u\n-9.0,high,.\n"


@pytest.mark.parametrize(
    ("missing", "a", "b"),
    [
        ("-9", [1, np.nan, 3, np.nan], ["low", ".", "-", "high"]),
        ("-9+.+-", [1, np.nan, 3, np.nan], ["low", None, None, "high"]),
        ("a=-9+b=.", [1, np.nan, 3, np.nan], ["low", None, "-", "high"]),
        ("b=low+a=3", [1, -9, np.nan, -9], [None, ".", "-", "high"]),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "jsonl"])
def test_marks_of_missing_values(missing, a, b, kind, tmp_path):
    """A number that is a mark is one however it is written; the labels keep theirs."""
    path = save(tmp_path, MARKS)
    frame = pd.read_csv(path, keep_default_na=False)
    if kind == "parquet":
        frame.to_parquet(path := tmp_path / "t.parquet")
    if kind == "jsonl":
        frame.to_json(path := tmp_path / "t.jsonl", orient="records", lines=True)
    if kind == "frame":
        source = from_frame(frame, target="label", missing=missing)
    else:
        source = open_data(path, target="label", missing=missing)
    assert source.class_names == ("-9", ".", "u")
    x_RF = dict(zip(source.feature_names, source.x_R.numpy().T, strict=True))
    np.testing.assert_array_equal(x_RF["a"], np.array(a, np.float32))
    assert [f"b={text}" in source.feature_names for text in ("low", ".", "-", "high")] == [
        text in b for text in ("low", ".", "-", "high")
    ]
    assert ("b=missing" in source.feature_names) == (None in b)


@pytest.mark.parametrize("missing", [-9, [-9], ["-9"], -9.0])
def test_marks_may_be_numbers_in_python(missing):
    frame = pd.DataFrame({"a": [1.0, -9.0, 3.0], "b": [-9, 2, 4], "y": ["u", "v", "u"]})
    source = from_frame(frame, target="y", missing=missing)
    assert source.feature_names == ("a", "a is missing", "b", "b is missing")
    np.testing.assert_array_equal(source.x_R.numpy()[:, 0], np.array([1, np.nan, 3], np.float32))


def test_a_frame_has_lists_of_columns_as_texts_joined_by_plus():
    frame = pd.DataFrame({"a": [1.0, 2.5, 3.5], "y": [0, 1, 1], "z+": [1, 0, 1], "u": ["x", "y", "w"]})
    frame["v"] = ["p", "q", ""]
    listed = from_frame(frame.drop(columns=["u", "v"]), target=["y", "z+"], task="multilabel")
    assert listed.targets.names == ("y", "z+")
    texts = [from_frame(frame.drop(columns=["z+"]), target="y", text=t) for t in (["u", "v"], "u+v")]
    np.testing.assert_array_equal(*(source.x_R.numpy() for source in texts))


def test_only_a_frame_is_one():
    with pytest.raises(InputError, match=r"takes a pandas\.DataFrame, not a ndarray: arrays are for from_arrays$"):
        from_frame(np.zeros((3, 2)), target="y")
    with pytest.raises(InputError, match=r"takes a pandas\.DataFrame, not a dict"):
        from_frame(pd.DataFrame({"a": [1, 2], "y": [0, 1]}), target="y", test={"a": [1]})


def test_a_column_of_numbers_and_marks_is_one_of_numbers(tmp_path):
    content = "a,y\n1.5,u\nn.d.,v\n2.5,v\n"
    assert open_data(save(tmp_path, content), target="y", missing="n.d.").feature_names == ("a", "a is missing")
    arff = "@attribute a numeric\n@attribute y {u,v}\n@data\n1.5,u\nn.d.,v\n2.5,v\n"
    assert open_data(save(tmp_path, arff, "t.arff"), target="y", missing="n.d.").feature_names == ("a", "a is missing")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("num>0", ["no", "yes", "yes", "no", "yes"]),
        ("num >= 2", ["no", "no", "yes", "no", "yes"]),
        ("num<2", ["yes", "yes", "no", "yes", "no"]),
        ("num<=0", ["yes", "no", "no", "yes", "no"]),
        ("num=1", ["no", "yes", "no", "no", "no"]),
        ("num!=1.0", ["yes", "no", "yes", "yes", "yes"]),
        ("stage=IV", ["no", "yes", "no", "no", "yes"]),
        ("stage==IV", ["no", "yes", "no", "no", "yes"]),
        ("stage != IV", ["yes", "no", "yes", "yes", "no"]),
    ],
)
@pytest.mark.parametrize("from_file", [True, False])
def test_a_target_of_two_classes_is_asked_of_a_column(target, expected, from_file, tmp_path):
    table = {"num": [0, 1, 3, 0, 2], "stage": ["I", "IV", "II", "I", "IV"], "age": [50, 60, 70, 40, 30]}
    frame = pd.DataFrame(table)
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = open_data(tmp_path / "t.csv", target=target) if from_file else from_frame(frame, target=target)
    assert source.class_names == ("no", "yes")
    assert [source.class_names[y] for y in source.y_R.tolist()] == expected
    asked = "num" if "num" in target else "stage"
    assert not any(name.startswith(asked) for name in source.feature_names)


def test_a_column_whose_name_has_a_sign_is_a_column():
    assert question_in("p<0.05", ["p<0.05", "p"], "t") is None
    assert question_in("a>b<3", ["a>b"], "t") == Question("a>b", "<", "3")
    source = from_frame(pd.DataFrame({"p<0.05": ["u", "v", "v"], "x": [1, 2, 3]}), target="p<0.05")
    assert source.class_names == ("u", "v")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nom>0", "target: t has no column 'nom'; did you mean 'num'"),
        ("num>high", "target num>high: 'high' is no number"),
        ("stage>2", "column 'stage' of t has 2 values that are no numbers"),
        ("num>9", "has only one class"),
        ("gap>1", "is missing in 1 of 3 rows"),
        (">3", "has no column '>3'"),
    ],
)
def test_questions_without_answers_are_refused(target, message):
    frame = pd.DataFrame({"num": [0, 1, 2], "stage": ["I", "2", "III"], "gap": [1, None, 2], "x": [1.0, 2, 3]})
    with pytest.raises(InputError, match=message):
        from_frame(frame, target=target, name="t")


def test_zeros_that_may_be_gaps_are_said(caplog):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "chol": rng.integers(150, 300, 120), "flag": rng.integers(0, 2, 120), "dose": 0,
        "site": np.repeat(["a", "b", "c"], 40), "y": rng.integers(0, 2, 120),
    })  # fmt: skip
    frame.loc[frame["site"] == "b", ["chol", "flag"]] = 0
    frame.loc[:2, "dose"] = 7
    with caplog.at_level(logging.WARNING):
        from_frame(frame, target="y", client_column="site")
    said = [record.getMessage() for record in caplog.records if "stands for a missing value" in record.getMessage()]
    assert said == [
        "column 'chol' is 0 in nearly every row of b, and hardly ever elsewhere: give missing='chol=0' if 0 stands for "
        "a missing value"
    ]


def test_the_four_hospitals_as_they_are_published(natural, caplog):
    """The facts of the folder's README: patients, 0 for a missing chol at one, and who is sick by the column num."""
    folder = natural("heart")
    counts = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    source = open_data(folder / "*.data", columns=HEART, target="num>0", missing="chol=0")
    column = source.columns["client"]
    assert dict(zip(column.names, np.bincount(column.code_R).tolist(), strict=True)) == counts
    rows = {
        name: pd.read_csv(folder / f"{name}.data", header=None, names=HEART.split("+"), na_values="?")
        for name in counts
    }
    expected = pd.concat(rows.values(), ignore_index=True)
    assert source.y_R.tolist() == (expected["num"] > 0).astype(int).tolist()
    x_RF = dict(zip(source.feature_names, source.x_R.numpy().T, strict=True))
    np.testing.assert_array_equal(x_RF["age"], expected["age"].to_numpy(np.float32))
    np.testing.assert_array_equal(x_RF["chol"], expected["chol"].mask(expected["chol"] == 0).to_numpy(np.float32))
    assert x_RF["chol is missing"][column.code_R == 2].all()
    assert "stands for a missing value" not in caplog.text
    open_data(folder / "*.data", columns=HEART, target="num>0")
    assert "column 'chol' is 0 in nearly every row of switzerland" in caplog.text
