"""Labels of which a sample can have several: columns, lists, texts and arrays, against pandas and scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MultiLabelBinarizer

from idiolect.core.errors import InputError
from idiolect.data import from_arrays, from_frame, open_data

TAGS = [["red"], ["red", "big"], [], ["big"], ["old", "red"], ["old"], ["red", "old", "big"], ["big"]]


def frame(**columns: object) -> pd.DataFrame:
    rows = len(next(iter(columns.values())))
    return pd.DataFrame({"x": np.arange(rows) / 7.0, "z": np.arange(rows)[::-1] / 3.0} | columns)


ANSWERS = {
    "numbers": (0, 1), "fractions": (0.0, 1.0), "truth": (False, True), "words": ("no", "yes"), "Words": ("No", "YES"),
    "letters": ("n", "y"), "texts": ("0", "1"), "true texts": ("false", "True"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ANSWERS)
def test_columns_of_answers_are_labels(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    value_RL = np.random.default_rng(0).integers(0, 2, (40, 3))
    names = ("a", "b", "c")
    table = frame(**{name: [ANSWERS[kind][v] for v in value_RL[:, k]] for k, name in enumerate(names)})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for source in (
        from_frame(table, target="a+b+c"),
        open_data(tmp_path / "t.csv", target="a+b+c"),
        open_data(tmp_path / "t.parquet", target="a+b+c", task="multilabel"),
    ):
        assert source.task == "multilabel"
        assert source.targets.names == names
        np.testing.assert_array_equal(source.targets.value_RD, value_RL)
        assert [e.name for e in source.encodings] == ["x", "z"]
    assert "the targets a, b, c have two values each, which say which labels a sample has" in caplog.text


def test_other_columns_are_numbers_and_a_task_that_is_said_counts(caplog: pytest.LogCaptureFixture) -> None:
    zero_one, counts = np.arange(40) % 2, np.arange(40) % 3
    assert from_frame(frame(a=zero_one, b=counts), target="a+b").task == "regression"
    assert (
        "the targets a, b are taken as numbers to predict, because b has the values 0, 1, 2, and labels" in caplog.text
    )
    caplog.clear()
    assert from_frame(frame(a=zero_one, b=1 - zero_one), target="a+b", task="regression").task == "regression"
    assert "taken as numbers" not in caplog.text
    assert from_frame(frame(a=zero_one), target="a").task == "classification"


@pytest.mark.parametrize("between", ["|", ";", " | ", "; "])
def test_texts_are_divided(between: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = MultiLabelBinarizer()
    want_RL = encoder.fit_transform(TAGS)
    table = frame(tags=[between.join(tags) for tags in TAGS])
    table.to_csv(tmp_path / "t.csv", index=False)
    for source in (
        from_frame(table, target="tags", task="multilabel"),
        open_data(tmp_path / "t.csv", target="tags", task="multilabel"),
    ):
        assert source.targets.names == tuple(encoder.classes_)
        np.testing.assert_array_equal(source.targets.value_RD, want_RL)
    assert f"{between.strip()!r} stands between labels; 1 of 8 rows are empty, which says that they have" in caplog.text


def test_lists_are_labels(tmp_path: Path) -> None:
    encoder = MultiLabelBinarizer()
    want_RL = encoder.fit_transform(TAGS)
    table = frame(tags=TAGS)
    table.to_parquet(tmp_path / "t.parquet")
    table.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    for source in (
        from_frame(table, target="tags", task="multilabel"),
        from_frame(table.assign(tags=[set(tags) for tags in TAGS]), target="tags", task="multilabel"),
        from_frame(table.assign(tags=[np.array(tags, object) for tags in TAGS]), target="tags", task="multilabel"),
        open_data(tmp_path / "t.parquet", target="tags", task="multilabel"),
        open_data(tmp_path / "t.jsonl", target="tags", task="multilabel"),
    ):
        assert source.targets.names == tuple(encoder.classes_)
        np.testing.assert_array_equal(source.targets.value_RD, want_RL)


def test_labels_that_are_numbers_are_in_their_order() -> None:
    source = from_frame(frame(tags=[[10, 2], [2], [9], [10, 9]]), target="tags", task="multilabel")
    assert source.targets.names == ("2", "9", "10")
    np.testing.assert_array_equal(source.targets.value_RD, [[1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1]])


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.bool_, np.float32])
def test_arrays_of_0_and_1_are_labels(kind: type) -> None:
    value_RL = np.random.default_rng(1).integers(0, 2, (30, 4))
    x = np.random.default_rng(2).normal(size=(30, 2))
    source = from_arrays(x, value_RL.astype(kind))
    assert source.task == "multilabel"
    assert source.targets.names == ("y[0]", "y[1]", "y[2]", "y[3]")
    np.testing.assert_array_equal(source.targets.value_RD, value_RL)
    assert from_arrays(x, value_RL.astype(kind), class_names=[*"abcd"]).targets.names == ("a", "b", "c", "d")
    one_hot = np.eye(4)[np.arange(30) % 4].astype(kind)
    assert from_arrays(x, one_hot, task="multilabel").task == "multilabel"
    with pytest.raises(InputError, match=r"y has the shape \(30, 4\): give one value per row, for example y.argmax"):
        from_arrays(x, one_hot)
    with pytest.raises(InputError, match="y has 4 columns and class_names 2 names: give each of several labels"):
        from_arrays(x, value_RL.astype(kind), class_names=[*"ab"])


@pytest.mark.parametrize(
    ("columns", "target", "said"),
    [
        (
            {"a": [0, 1, 2, 0], "b": [0, 1, 0, 1]},
            "a+b",
            r"target 'a' .* has the values 0, 1, 2, and a column of a label",
        ),
        (
            {"a": ["no", "yes", "maybe", "no"], "b": [0, 1, 0, 1]},
            "a+b",
            "has the values maybe, no, yes, and a column of",
        ),
        (
            {"a": ["pos", "neg", "pos", "neg"], "b": [0, 1, 0, 1]},
            "a+b",
            "has the values neg, pos, and a column of a lab",
        ),
        ({"a": [0, 0, 0, 0], "b": [0, 1, 0, 1]}, "a+b", "target 'a' .* is 0 in all rows: leave this label out"),
        ({"a": [0, 1, None, 0], "b": [0, 1, 0, 1]}, "a+b", "target 'a' .* is missing in 1 of 4 rows"),
        ({"a": ["u", "v", "u", "w"]}, "a", "has one value in each row: give a column for each label"),
        ({"a": [0, 1, 0, 1]}, "a", "has one value in each row: give a column for each label"),
        ({"a": ["u|v", "v|u", "u|v", "u | v"]}, "a", "has the same labels in all rows"),
        ({"a": [["u"], None, ["v"], []]}, "a", "is missing in 1 of 4 rows .the first is row 1"),
        ({"a": [None, ["u"], ["v"], []]}, "a", "is missing in 1 of 4 rows .the first is row 0"),
        ({"a": [["u"], "v", ["v"], []]}, "a", "has lists, but none in row 1, counting from 0"),
        ({"a": [["u"], [None], ["v"], []]}, "a", "has a list of other things than texts and numbers in row 1"),
        ({"a": [["u"], [["w"]], ["v"], []]}, "a", "has a list of other things than texts and numbers in row 1"),
        ({"a": [[], [], [], []]}, "a", "has the same labels in all rows"),
    ],
)
def test_what_is_no_label(columns: dict[str, list[object]], target: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_frame(frame(**columns), target=target, task="multilabel")


def test_more_labels_than_a_network_should_have_are_refused() -> None:
    tags = [[f"id{row}", f"id{row + 1}"] for row in range(1100)]
    with pytest.raises(InputError, match="has 1101 labels, more than 1000: give a column with fewer"):
        from_frame(frame(tags=tags), target="tags", task="multilabel")


def test_names_that_may_be_one_label_are_said(caplog: pytest.LogCaptureFixture) -> None:
    from_frame(frame(tags=["Red|big", "red", "big|red", "big"]), target="tags", task="multilabel")
    assert "different labels ('Red' and 'red')" in caplog.text


@pytest.mark.parametrize("target", ["a,b", "a, b", "b,a,x"])
def test_columns_joined_by_commas_are_said(target: str) -> None:
    with pytest.raises(InputError, match=r"columns are joined by \+: write [ab]\+[ab]"):
        from_frame(frame(a=[0, 1, 1], b=[1, 0, 1]), target=target)
