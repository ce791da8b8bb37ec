import logging
import re
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from idiolect.core.errors import InputError
from idiolect.data.custom import folders, from_arrays, from_frame, open_data, streaming
from idiolect.data.custom.tables import as_they_are, encode
from idiolect.data.custom.text_files import Roles, read_csv
from idiolect.data.datasets.dataset import Encoding
from idiolect.deploy.target_columns import labels
from idiolect.federation.data.agreement import Offer, common_form
from idiolect.federation.data.samples import SiteFiles
from idiolect.studies import Study
from idiolect.studies.source import source_of

PATIENTS = """age,sex,smoker,hospital,diagnosis
63,m,True,north,sick
41,f,False,south,well
57,,True,north,well
,m,True,east,sick
"""
FEATURES = np.array(
    [  # age, age is missing, f, m, sex missing, smoker
        [63, 0, 0, 1, 0, 1],
        [41, 0, 1, 0, 0, 0],
        [57, 0, 0, 0, 1, 1],
        [np.nan, 1, 0, 1, 0, 1],
    ],
    np.float32,
)
NAMES = ("age", "age is missing", "sex=f", "sex=m", "sex=missing", "smoker")


def is_patients(source, clients=("east", "north", "south")):
    np.testing.assert_array_equal(source.x_R.numpy(), FEATURES)
    assert source.x_R.dtype == torch.float32
    assert source.feature_names == NAMES
    assert source.scaled == (True, False, False, False, False, False)
    assert source.class_names == ("sick", "well")
    assert source.y_R.tolist() == [0, 1, 1, 0]
    assert source.client_column == "hospital"
    assert source.columns["hospital"].names == clients
    assert source.columns["hospital"].code_R.tolist() == [1, 2, 1, 0]
    assert source.train_rows == 4
    assert source.mean is None
    return True


def save(tmp_path, content, name="patients.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        PATIENTS,
        PATIENTS.encode("utf-8-sig"),
        PATIENTS.encode("utf-16"),
        PATIENTS.replace("\n", "\r\n"),
        PATIENTS.replace("\n", "\n\n"),
        "\n" + PATIENTS + ",,,,\n",
        PATIENTS.replace(",", ";"),
        "sep=;\r\n" + PATIENTS.replace(",", ";").replace("\n", "\r\n"),
        PATIENTS.replace(",", "\t"),
        PATIENTS.replace(",", "|"),
        PATIENTS.replace(",", ", "),
        PATIENTS.replace("\n,", "\n?,").replace(",,", ",NA,"),
        PATIENTS.replace("True", "TRUE").replace("False", "false"),
        PATIENTS.replace("63", "63.0"),
        PATIENTS.replace(",", ";").replace("63", "63,0"),
        '"' + PATIENTS.strip().replace(",", '","').replace("\n", '"\n"') + '"',
    ],
)
def test_csv_of_every_kind(tmp_path, content):
    assert is_patients(open_data(str(save(tmp_path, content)), client_column="hospital"))


def test_a_frame_and_parquet_and_json_lines_say_the_same(tmp_path):
    frame = pd.DataFrame(
        {
            "age": [63, 41, 57, np.nan],
            "sex": pd.Categorical(["m", "f", None, "m"]),
            "smoker": [True, False, True, True],
            "hospital": ["north", "south", "north", "east"],
            "diagnosis": ["sick", "well", "well", "sick"],
        }
    )
    before = frame.copy(deep=True)
    assert is_patients(from_frame(frame, target="diagnosis", client_column="hospital"))
    pd.testing.assert_frame_equal(frame, before)
    frame.set_index(np.array([7, 3, 5, 1])).to_parquet(tmp_path / "p.parquet")
    assert is_patients(open_data(tmp_path / "p.parquet", client_column="hospital"))
    frame.to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    assert is_patients(open_data(tmp_path / "p.jsonl", client_column="hospital"))


def test_train_and_test_in_one_folder(tmp_path, caplog):
    lines = PATIENTS.splitlines(keepends=True)
    save(tmp_path, "".join(lines[:3]), "train-0.csv")
    save(tmp_path, lines[0] + lines[3], "train-1.csv")
    save(tmp_path, "sex,age,smoker,diagnosis,hospital\nm,,True,sick,east\n", "test.csv")
    save(tmp_path, "id,diagnosis\n1,sick\n", "sample_submission.csv")
    source = open_data(tmp_path, client_column="hospital")
    np.testing.assert_array_equal(source.x_R.numpy(), FEATURES)
    assert source.train_rows == 3
    assert source.y_R.tolist() == [0, 1, 1, 0]
    assert source.name == tmp_path.name


def test_a_folders_only_table(tmp_path):
    save(tmp_path, PATIENTS)
    assert is_patients(open_data(tmp_path, client_column="hospital"))


def test_quotes_hold_separators_quotes_and_lines(tmp_path):
    path = save(tmp_path, 'note,"a;b;c;d",y\n"x, ""then"" y",1,u\n"line\nline",2,v\n')
    source = open_data(path)
    assert source.feature_names == ("note=line\nline", 'note=x, "then" y', "a;b;c;d")
    assert source.x_R.tolist() == [[0, 1, 1], [1, 0, 2]]


def test_latin_1_is_read_and_said(tmp_path, caplog):
    path = save(tmp_path, "größe,y\n1,jünger\n2,älter\n".encode("latin-1"))
    source = open_data(path)
    assert source.feature_names == ("größe",)
    assert source.class_names == ("jünger", "älter")
    assert "is not in UTF-8 and is read as latin-1" in caplog.text


def test_clients_keep_their_zeros_and_columns_without_a_name_are_left_out(tmp_path, caplog):
    path = save(tmp_path, ",site,a,NA,y,\n0,007,1,5,u,\n1,7,2,6,v,\n2,007,3,7,v,\n")
    source = open_data(path, client_column="site")
    assert source.columns["site"].names == ("007", "7")
    assert source.columns["site"].code_R.tolist() == [0, 1, 0]
    assert source.feature_names == ("a", "NA")
    assert "2 columns without a name are left out" in caplog.text


def test_targets_that_are_numbers_are_sorted_as_numbers(tmp_path):
    source = open_data(save(tmp_path, "x,stage\n1,10\n2,9\n3,2.0\n"), target="stage")
    assert source.class_names == ("2", "9", "10")
    assert source.y_R.tolist() == [2, 1, 0]
    source = open_data(save(tmp_path, "x,stage\n1,0.5\n2,1.5\n3,1\n"), target="stage")
    assert source.class_names == ("0.5", "1", "1.5")


WORDS = ["None", "Apnea", "NA", "Apnea", "null", "None"]
SITES = ["N/A", "N/A", "NULL", "?", "NULL", "?"]


def read_words(kind, tmp_path, words, sites):
    frame = pd.DataFrame({"x": [1.0, 2, 3, 4, 5, 7], "label": words, "site": sites})
    if kind == "arrays":
        return from_arrays(frame[["x"]].to_numpy(), np.array(words), clients=sites)
    if kind == "frame":
        return from_frame(frame, client_column="site")
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    return open_data(path, client_column="site")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "frame", "arrays"])
def test_words_for_missing_values_are_names_of_classes_and_clients(tmp_path, caplog, kind):
    source = read_words(kind, tmp_path, WORDS, SITES)
    assert source.class_names == ("Apnea", "NA", "None", "null")
    assert source.y_R.tolist() == [2, 0, 1, 0, 3, 2]
    [owner] = source.columns.values()
    assert owner.names == ("?", "N/A", "NULL")
    said = [r.message for r in caplog.records if "is taken as the name of a" in r.message]
    assert len(said) == 6
    assert any("'None', in 2 rows, is taken as the name of a class" in line for line in said)


def test_rows_with_few_cells_are_said(tmp_path, caplog):
    """A row that a spreadsheet wrote without its last, empty cells, and one of a file that was cut."""
    path = tmp_path / "t.csv"
    path.write_text('label,note,size,age\nx,"a, b",3,1\n\ny,c\nx,"d\ne",,2\ny,f,5,4\nx,g,')
    frame = read_csv(path)
    assert frame["age"].isna().tolist() == [False, True, False, False, True]
    assert "t.csv: rows with fewer than 4 cells: 4, 7; the cells that they lack are taken as empty" in caplog.text


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "frame"])
@pytest.mark.parametrize("empty", ["", None, "  "])
def test_only_empty_cells_of_target_and_client_are_missing(tmp_path, kind, empty):
    first = {"csv": "3, where", "tsv": "3, where", "frame": "1, counting from 0"}.get(kind, "2, counting from 1")
    with pytest.raises(InputError, match=rf"target 'label' of .* is missing in 1 of 6 rows \(the first is row {first}"):
        read_words(kind, tmp_path, ["None", empty, *WORDS[2:]], SITES)
    with pytest.raises(InputError, match=r"client_column 'site' of \w+ is missing in 1 of 6 rows \(the first is row 2"):
        read_words(kind, tmp_path, WORDS, [*SITES[:2], empty, *SITES[3:]])


def test_the_text_that_numpy_makes_of_nan_is_missing(tmp_path):
    words = np.array(["a", np.nan, "b"])  # texts
    assert words.dtype.kind == "U"
    frame = pd.DataFrame({"x": [1.0, 2, 3], "label": words, "site": words})
    frame.to_parquet(tmp_path / "t.parquet")
    for read in (
        lambda: from_arrays(np.eye(3), words),
        lambda: from_arrays(np.eye(3), ["a", float("nan"), "b"]),
        lambda: from_arrays(np.eye(3), [0, 1, 1], clients=words),
        lambda: from_frame(frame),
        lambda: from_frame(frame.assign(label=[0, 1, 1]), client_column="site"),
        lambda: open_data(tmp_path / "t.parquet"),
    ):
        with pytest.raises(InputError, match=r"is missing in 1 of 3 rows \(the first is row (1.* 0|2.* 1)"):
            read()


def test_words_for_missing_values_in_features(tmp_path):
    words = ["NA", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", "?", " NA ", ""]
    rows = "".join(f"{word},{word},{k % 2}\n" for k, word in enumerate(words))
    source = open_data(save(tmp_path, f"a,b,y\n1,u,0\n2,v,1\n{rows}"))
    assert source.feature_names == ("a", "a is missing", "b=u", "b=v", "b=missing")
    assert source.x_R[2:, [1, 4]].eq(1).all()


def test_every_reader_keeps_the_words_of_target_and_client(tmp_path):
    path = save(tmp_path, "x,site,label\n1,NA,None\n2,b,Apnea\n,NA,None\n")
    roles = Roles(features=lambda name: name == "x")
    [part] = streaming.some(path, 10, roles, lambda name: name == "x")
    assert part.frame["label"].tolist() == ["None", "Apnea", "None"]
    assert part.frame["site"].tolist() == ["NA", "b", "NA"]
    assert SiteFiles(path, drop=["site"]).offer().classes == ("Apnea", "None")
    assert SiteFiles(path, target="site").offer().classes == ("NA", "b")
    assert labels(pd.Series(["None", "Apnea"]), ("Apnea", "None"), "t").tolist() == [1, 0]


def test_texts_of_a_target_stay_as_they_are_written(tmp_path, caplog):
    read = lambda *texts: open_data(save(tmp_path, "x,y\n" + "".join(f"{k},{t}\n" for k, t in enumerate(texts))))  # noqa: E731
    assert read("1E5", "2E3", "1E5").class_names == ("2E3", "1E5")
    assert read("007", "10", "9").class_names == ("007", "9", "10")
    assert read("1.0", "0.0", "2.").class_names == ("0", "1", "2")
    assert read("0.5", "1.5", "-1").class_names == ("-1", "0.5", "1.5")
    assert read("TRUE", "false", "True").class_names == ("False", "True")
    assert read("inferior", "infinite", "nan").class_names == ("inferior", "infinite", "nan")
    assert read('"0,5"', '"1,5"', '"0,5"').class_names == ("0.5", "1.5")
    assert read('"1,234"', '"1,234,567"', '"1,234"').class_names == ("1234", "1234567")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["Oslo", "oslo", "Bergen"], "'Oslo' and 'oslo'"),
        (["New York", "New  York", "Rome"], "'New  York' and 'New York'"),
        (["ward a", "WardA", "b"], "'WardA' and 'ward a'"),
        (["7", "007", "8"], "'007' and '7'"),
        (["Zürich", "Zu\u0308rich", "Basel"], "'Zürich'"),
        (["a", "b", "ab"], ""),
        (["1", "10", "100"], ""),
    ],
)
def test_names_that_differ_only_in_their_writing_are_named(tmp_path, caplog, names, said):
    for column in ("site", "label"):
        caplog.clear()
        other = "label" if column == "site" else "site"
        frame = pd.DataFrame({"x": [1.0, 2, 3], column: names, other: ["u", "v", "u"]})
        frame.to_csv(tmp_path / "t.csv", index=False)
        source = open_data(tmp_path / "t.csv", client_column="site")
        assert len(source.class_names if column == "label" else source.columns["site"].names) == 3
        told = [r.message for r in caplog.records if "differ only in letter case" in r.message]
        assert len(told) == bool(said)
        assert said in "".join(told)


def test_a_target_needs_no_name_where_it_is_plain():
    frame = pd.DataFrame({"a": [1, 2, 3], "Diagnosis": ["u", "v", "u"]})
    assert from_frame(frame).y_R.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match=r"no target is given for table: give target as one of its columns \(a, b\)"):
        from_frame(frame.rename(columns={"Diagnosis": "b"}))
    with pytest.raises(
        InputError, match=r"several columns may be the target of table \(y, Diagnosis\): give target as one of"
    ):
        from_frame(frame.rename(columns={"a": "y"}))


def test_the_order_of_categories_is_the_order_of_classes_and_clients_are_sorted():
    low, high = pd.Categorical(["high", "low"], ["low", "mid", "high"]), pd.Categorical(["b", "a"], ["b", "a"])
    source = from_frame(pd.DataFrame({"a": [1, 2], "y": low, "c": high}), target="y", client_column="c")
    assert source.class_names == ("low", "high")
    assert source.y_R.tolist() == [1, 0]
    assert source.columns["c"].names == ("a", "b")


@pytest.mark.parametrize(
    ("values", "expected", "scaled"),
    [
        ([0, 1, 1], [[0], [1], [1]], [False]),
        ([1, 2, 2], [[1], [2], [2]], [True]),
        ([True, None, False], [[1, 0], [np.nan, 1], [0, 0]], [False, False]),
        (pd.array([4, None, 6], "Int64"), [[4, 0], [np.nan, 1], [6, 0]], [True, False]),
        (pd.array([True, None, False], "boolean"), [[1, 0], [np.nan, 1], [0, 0]], [False, False]),
        ([Decimal("1.5"), None, Decimal(2)], [[1.5, 0], [np.nan, 1], [2, 0]], [True, False]),
        ([7.0, np.nan, 7.0], [[0], [1], [0]], [False]),
        (["u", "", "u"], [[1, 0], [0, 1], [1, 0]], [False, False]),
        (pd.Categorical([10, 9, 10]), [[0, 1], [1, 0], [0, 1]], [False, False]),
        (["10", "9", "10"], [[0, 1], [1, 0], [0, 1]], [False, False]),
    ],
)
def test_columns_of_every_kind(values, expected, scaled):
    source = from_frame(pd.DataFrame({"a": values, "y": [0, 1, 0]}))
    np.testing.assert_array_equal(source.x_R.numpy(), np.array(expected, np.float32))
    assert source.scaled == tuple(scaled)
    assert len(source.feature_names) == len(scaled)


def test_columns_of_one_value_are_left_out_and_said(caplog):
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 3], "c": ["u", "u"], "d": [None, None], 5: [0, 0], "y": [0, 1]})
    assert from_frame(frame, target="y").feature_names == ("a",)
    assert "columns with only one value are left out: b, c, d, 5" in caplog.text


def test_numbers_that_look_like_identifiers_are_said(caplog):
    frame = pd.DataFrame(
        {"patient": np.arange(60), "age": np.arange(60) % 30, "w": np.arange(60) / 7, "y": [0, 1] * 30}
    )
    from_frame(frame)
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "column 'patient' has a different whole number in every row: drop it with drop='patient' if it is an "
        "identifier",
        "column 'w' counts from row to row, as a row number or a time does: drop it with drop='w' if it is one",
    ]
    caplog.clear()
    assert from_frame(frame, drop=["patient", "w"]).feature_names == ("age",)
    assert from_frame(frame, drop="patient+w").feature_names == ("age",)
    assert not caplog.records


def test_numbers_with_a_stray_text_are_said(tmp_path, caplog):
    assert open_data(save(tmp_path, "a,y\n1,u\n2,v\n-,v\n")).feature_names == ("a=-", "a=1", "a=2")
    assert (
        "column 'a' is read as text, although most values are numbers (1 of them are not numbers, the first in row 2,"
        in caplog.text
    )
    caplog.clear()
    from_frame(pd.DataFrame({"a": ["3a", "3b", "4"], "y": [0, 1, 1]}))
    assert not caplog.text


def frame(**columns):
    rows = len(next(iter(columns.values()))) if columns else 4
    return pd.DataFrame({"a": np.arange(rows), "y": np.arange(rows) % 2, **columns})


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (frame(), {"target": "z"}, r"target: table has no column 'z'; known: a, y"),
        (frame(hospital=[1, 2]), {"client_column": "hospitals"}, "client_column: table has no column 'hospitals'; did"),
        (frame(), {"drop": ["b"]}, "drop: table has no column 'b'"),
        (frame(), {"drop": ["y"]}, "must be different columns"),
        (frame(), {"client_column": "y"}, "target y and client_column y must be different columns, and 'y' is in two"),
        (frame(y=[0, 1, None]), {}, r"target 'y' of table is missing in 1 of 3 rows \(the first is row 2"),
        (frame(y=["u", " ", "v"]), {}, r"is missing in 1 of 3 rows \(the first is row 1"),
        (frame(y=[[1], [2]]), {}, "target 'y' of table holds lists or the like: give one number or one text"),
        (frame(y=[3, 3]), {}, r"has only one class \(3\): give a column with two classes"),
        (frame(y=[*"ab"] * 15), {"task": "regression"}, r"has texts \(a, b\), and a regression predicts numbers"),
        (frame(y=np.arange(1001)), {}, "has 1001 classes, more than 1000: is it an identifier"),
        (frame(y=[f"p{i}" for i in range(1001)]), {}, "has 1001 classes"),
        (frame(c=["u", None]), {"client_column": "c"}, r"client_column 'c' of table is missing in 1 of 2 rows"),
        (frame(i=[f"p{i}" for i in range(51)]), {}, r"'i' has 51 different texts, more than 50 \(51 .* in row 0, c"),
        (frame(i=[*map(str, range(60)), "?"]), {}, r"'i' has 61 different texts.*\(1 of .* row 60,.*correct it"),
        (frame(i=[*map(str, range(60))]), {}, r"'i' has 60 different texts, more than 50: drop it"),
        (frame(m=[1, "u"]), {}, "'m' has values of mixed or unknown type .*make them numbers or texts, or drop it"),
        (frame(m=[[1], [2]]), {}, "has lists in m and single values in"),
        (frame(m=[1.0, np.inf]), {}, r"column 'm' has an infinite or .* in 1 rows \(the first is row 1"),
        (frame(m=[1e300, 1]), {}, r"column 'm' has an infinite or .* in 1 rows \(the first is row 0"),
        (frame(m=[1, 10**400]), {}, r"column 'm' has an infinite or .* in 1 rows \(the first is row 1"),
        (frame(a=[1, 1]), {}, "table has no feature besides target and client"),
        (frame(a=[]), {}, "table has no rows"),
        (pd.DataFrame([[1, 2, 0]], columns=["a", "a", "y"]), {}, r"more than once \(a\): rename them"),
        (pd.DataFrame([[1, 2, 0]], columns=["1", 1, "y"]), {}, r"more than once \(1\): rename them"),
        (frame(), {"test": frame(b=[1, 2])}, "training split and the test split differ in the columns b: give"),
        (frame(), {"test": frame(a=["u", "v"])}, "column .a. has numbers in table: the training split and texts in"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(table, options, message):
    with pytest.raises(InputError, match=message):
        from_frame(table, **options)


PLUSES = pd.DataFrame(
    {"CD4+": [1, 2, 4], "CD4": [3, 1, 2], "a+b": [5, 4, 4], "a": [0, 1, 0], "x": [2, 7, 1], "y": [0, 1, 0]}
)


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        ("CD4+", ["CD4", "a+b", "a", "x"]),
        ('"CD4+"+x', ["CD4", "a+b", "a"]),
        ("CD4++x", ["CD4", "a+b", "a"]),
        ("CD4+x", ["CD4+", "a+b", "a"]),
        ("x+a+b", ["CD4+", "CD4", "a"]),
        (["a+b", "CD4+"], ["CD4", "a", "x"]),
        ('"a" + x', ["CD4+", "CD4", "a+b"]),
        (["x"], ["CD4+", "CD4", "a+b", "a"]),
    ],
)
def test_names_with_a_plus_can_be_dropped(tmp_path, drop, left):
    assert from_frame(PLUSES, drop=drop).feature_names == tuple(left)
    PLUSES.to_csv(tmp_path / "t.csv", index=False)
    study = Study(data=str(tmp_path / "t.csv"), drop=drop, partition="iid", clients=1)
    assert [e.name for e in source_of(study).encodings] == left
    assert Study(**yaml.safe_load(study.to_yaml())) == study
    offer = SiteFiles(tmp_path / "t.csv", drop=[drop] if isinstance(drop, str) else drop).offer()
    assert [column.name for column in offer.columns] == left


@pytest.mark.parametrize("drop", ["CD8+", '"CD8+"+x', "x+nothing"])
def test_a_name_with_a_plus_that_is_not_there(drop):
    with pytest.raises(
        InputError, match=r"drop: table has no column .*a name that has a \+ itself stands in double quo"
    ):
        from_frame(PLUSES, drop=drop)


def scored(values, **more):
    y = np.array(values)
    return pd.DataFrame({"x": np.random.default_rng(0).normal(size=len(y)), "y": y, **more})


SCORES = [*range(1, 71)] * 2
DAYS = [*(7 * np.arange(830)), 7, 14]
AMOUNTS = [SCORES, DAYS, [*range(0, -31, -1), 0], [*range(100, 132), 100], [*range(62)] * 3, [*range(100)] * 2]


@pytest.mark.parametrize("values", AMOUNTS, ids=["scores", "days", "negative", "32 values", "62 from 0", "100 from 0"])
def test_many_whole_numbers_in_a_table_are_amounts_unless_said_otherwise(tmp_path, values, caplog):
    count = len(set(values))
    said = f"has {count} different whole numbers, which are taken as numbers to predict; .*task='classification'"
    table = scored(values)
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    for read in (
        lambda **more: from_frame(table, **more),
        lambda **more: from_frame(table.astype({"y": float}), **more),
        lambda **more: open_data(tmp_path / "t.csv", **more),
        lambda **more: open_data(tmp_path / "t.parquet", **more),
        lambda **more: from_arrays(table[["x"]].to_numpy(), table.y, **more),
    ):
        caplog.clear()
        source = read()
        assert (source.task, source.classes) == ("regression", 1)
        np.testing.assert_array_equal(source.targets.value_RD[:, 0].numpy(), np.array(values, float))
        assert re.search(said, caplog.text)
        if count < 1000:
            source = read(task="classification")
            assert source.class_names == tuple(map(str, sorted(set(values))))
    with pytest.raises(
        InputError, match=f"the target 'y' of .*t.csv has {count} different whole numbers, which looks like num"
    ):
        SiteFiles(tmp_path / "t.csv").offer()
    assert len(SiteFiles(tmp_path / "t.csv").offer("classification").classes) == count


def test_whole_numbers_that_are_classes(tmp_path):
    letters = np.array([*range(62)] * 3)
    images = np.random.default_rng(0).integers(0, 255, (186, 4, 4)).astype(np.uint8)
    assert from_arrays(images, letters).classes == 62, "codes of classes"
    assert from_arrays(np.ones((186, 2)), letters, class_names=[f"c{k}" for k in range(62)]).classes == 62
    assert from_frame(scored(letters).assign(y=pd.Categorical(letters))).classes == 62
    assert from_frame(scored([f"c{k}" for k in letters])).classes == 62
    assert from_frame(scored([*range(30)] * 2)).classes == 30
    assert from_frame(scored([*range(10)] * 2)).classes == 10
    assert from_arrays(images, letters + 18).task == "regression", "such as ages"
    with pytest.raises(InputError, match="task='regress' is not known: give classification or regression or mul"):
        from_frame(scored([0, 1]), task="regress")


def test_the_sites_of_a_federation_together():
    one = {"kind": "table", "columns": (Encoding("x"),)}
    offers = {f"s{k}": Offer(**one, classes=tuple(map(str, range(k, 70, 3)))) for k in range(3)}
    with pytest.raises(InputError, match="the target of all sites together has 70 different whole numbers"):
        common_form(offers)
    assert len(common_form(offers, "classification")[1]) == 70


def test_fifty_texts_are_not_too_many():
    source = from_frame(frame(i=[f"p{i}" for i in range(50)]), drop=["a"])
    assert source.x_R.shape == (50, 50)
    assert (source.x_R.sum(1) == 1).all()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "is not a table .*: give every line one cell for each name"),
        ("\n\n", {}, "is not a table"),
        ("a,y\n", {}, "has no rows: add some, under one line of column names"),
        ("a,y\n1,0\n2,1,5\n", {}, r"is not a table \(.*line 3.*\): give every line one cell for each name"),
        ("a,a,y\n1,2,0\n", {}, r"uses 1 column names more than once \(a\): rename them"),
        (
            "63,1,145,0\n67,1,160,1\n",
            {},
            r"begins with a line of which 4 of 4 cells are numbers, which looks like data: add a first",
        ),
        ("63,m,sick\n67,f,well\n", {"target": "diagnosis"}, "looks like data: add a first line of column names"),
        (
            "63,0,0\n67,1,1\n",
            {},
            "begins with a line of which 3 of 3 cells are numbers, which looks like data: add a first line",
        ),
        (
            "a,y\n1,0\n" + "9" * 400 + ",1\n",
            {},
            r"'a' of .*patients\.csv has an infinite or .* in 1 rows \(the first is row 3, where the names of the col",
        ),
        ("a,y\n1,0\n" + "9" * 5000 + ",1\n", {}, r"'a' of .* has an infinite or too large number in 1 rows .*row 3"),
        (
            "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(60)) + "-Inf,0\n",
            {},
            r"'a' of .* has an infinite .*row 62",
        ),
        ("a;b;y\n1,5;2;u\n2,5;3;v\ninf;4;v\n", {}, r"'a' of .* has an infinite or too large number in 1 rows .*row 4"),
        (b"PK\x03\x04\0\0", {}, "is not a text file: save it as CSV"),
        ("a,y\n1,0\n2,1\n", {"resize": 32}, "resize: patients is a table, and resize is only for images: leave it out"),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path, content, options, message):
    with pytest.raises(InputError, match=message):
        open_data(save(tmp_path, content), **options)


def test_of_several_files_the_one_with_an_infinite_number_is_named(tmp_path):
    for name, bad in (("graz", "5"), ("oslo", "1e400")):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "1,a\n2,b\n" * 30 + f"{bad},a\n")
    with pytest.raises(
        InputError, match=r"'x' of .*oslo\.csv has an infinite .* \(the first is row 62, where the names"
    ):
        open_data(tmp_path, target="y")


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"target": "y", "drop": ["w+v"]}, (60, 1)),
        ({"target": "w>0", "drop": ["v+y"]}, (60, 1)),
        ({"target": "y", "unlabelled": "drop"}, (40, 3)),
    ],
)
def test_an_infinite_number_that_is_no_feature_is_no_error(tmp_path, options, shape):
    frame = pd.DataFrame(
        {"w": [np.inf, 1.0, -1.0] * 20, "v": np.arange(60) % 7, "x": np.arange(60.0), "y": ["a", "b"] * 30}
    )
    if "unlabelled" in options:
        frame.loc[np.isinf(frame["w"]), "y"] = None
    frame.to_parquet(tmp_path / "t.parquet")
    assert open_data(tmp_path / "t.parquet", **options).x_R.shape == shape


@pytest.mark.parametrize(
    "values",
    [
        [100_000_000, 100_000_001, 100_000_002],
        [90230101, 90230102, 90230201],
        [1_700_000_000.25, 1_700_000_000.5, 1_700_086_400],
        [16_777_216, 16_777_217, None],
        [1, 16_777_216, 16_777_217],
        [1000 + 2**-15, 1000 + 2**-16, 1000],
    ],
)
def test_numbers_that_float32_would_merge_keep_their_distances(values, caplog):
    with caplog.at_level(logging.INFO):
        source = from_frame(pd.DataFrame({"a": values, "b": [1000, 1001, 1003], "y": [0, 1, 0]}))
    exact = np.array(values, np.float64)
    found = source.x_R[:, source.feature_names.index("a")].numpy()
    np.testing.assert_array_equal(found - found[0], exact - exact[0])
    assert source.x_R[:, source.feature_names.index("b")].tolist() == [1000, 1001, 1003]
    assert "the median of column 'a' was subtracted" in caplog.text
    assert "'b'" not in caplog.text


def test_other_numbers_stay_as_they_are(caplog):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=3000), "b": rng.uniform(35, 42, 3000), "y": [0, 1] * 1500})
    with caplog.at_level(logging.INFO):
        source = from_frame(frame)
    np.testing.assert_array_equal(source.x_R.numpy(), frame[["a", "b"]].to_numpy(np.float32))
    assert not caplog.records


def test_names_that_are_numbers_are_no_data_where_the_target_is_there(tmp_path):
    assert open_data(save(tmp_path, "0,1,label\n5,6,u\n7,9,v\n")).feature_names == ("0", "1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.xlsx",
            b"PK",
            r"a.xlsx is not a table that idiolect reads: give one of .csv, .tsv, .data, .parquet, .jsonl",
        ),
        ("a.parquet", b"no", "a.parquet cannot be read as parquet .*: write the file again"),
        ("a.jsonl", b"{no", "a.jsonl is not a table .*: write one JSON object per line"),
    ],
)
def test_files_of_another_kind(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        open_data(save(tmp_path, content, name))


@pytest.mark.parametrize("names", [("a.csv", "b.tsv"), ("d-00000-of-00002.csv", "d-00001-of-00002.csv")])
def test_several_tables_are_not_guessed_between(names, tmp_path):
    for name in names:
        save(tmp_path, PATIENTS, name)
    with pytest.raises(InputError, match="give one of its tables, or call them train and test"):
        open_data(tmp_path)


@pytest.mark.parametrize("name", ["X.CSV", "X.Parquet"])
def test_a_table_that_is_not_there_is_no_import_path(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"there is no file or folder {name}"):
        open_data(name)


def refuse(*_, **__):
    raise PermissionError(13, "Permission denied", "there/it")


@pytest.mark.parametrize(
    ("name", "where", "what"),
    [
        ("a.csv", Path, "exists"),
        ("a.csv", Path, "read_bytes"),
        ("a.parquet", folders.pq, "read_metadata"),
        ("a.jsonl", folders.pa.json, "read_json"),
        ("some/state.json", datasets, "load_from_disk"),
        ("some/class/1.txt", folders.os, "scandir"),
    ],
)
def test_what_may_not_be_read_is_said(tmp_path, monkeypatch, name, where, what):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    save(tmp_path, "a,y\n1,0\n", name)
    place = tmp_path / name.partition("/")[0]
    with monkeypatch.context() as m:
        m.setattr(where, what, refuse)
        with pytest.raises(
            InputError, match=r"cannot read there/it \(Permission denied\): allow reading it, or give another path"
        ):
            open_data(place)


def test_unknown_paths_name_what_is_near(tmp_path):
    save(tmp_path, PATIENTS)
    with pytest.raises(InputError, match=r"there is no file or folder .*patient.csv; did you mean patients.csv\?"):
        open_data(tmp_path / "patient.csv")
    with pytest.raises(InputError, match=r"there is no file or folder .*zzz; .* has patients.csv"):
        open_data(tmp_path / "zzz")
    with pytest.raises(InputError, match=r"there is no folder .*gone: give the path"):
        open_data(tmp_path / "gone" / "a.csv")


@pytest.mark.parametrize("name", ["patients.cvs", "patients.xlsx", "patiens.csv"])
def test_a_name_of_a_file_that_could_be_one_of_code_is_both(tmp_path, monkeypatch, name):
    save(tmp_path, PATIENTS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=rf"there is no file or folder {name}( and no module {name[:-5]}s?)?; did you mea"
    ):
        open_data(name)


def test_many_columns_are_not_all_listed():
    wide = pd.DataFrame(np.arange(2000).reshape(2, 1000))
    with pytest.raises(InputError, match=r"\(0, 1, .*, 39 and 960 more\)"):
        from_frame(wide)


def test_a_table_of_numbers_as_pandas_reads_it(tmp_path):
    rng = np.random.default_rng(0)
    before = pd.DataFrame(rng.normal(size=(200, 5)), columns=list("abcde")).assign(y=rng.integers(0, 3, 200))
    before.to_csv(tmp_path / "t.csv", index=False)
    read = pd.read_csv(tmp_path / "t.csv")
    source = open_data(tmp_path / "t.csv")
    np.testing.assert_array_equal(source.x_R.numpy(), read[list("abcde")].to_numpy(np.float32))
    assert source.y_R.tolist() == read.y.tolist()
    found = read_csv(tmp_path / "t.csv").astype({"y": int})  # texts, as the names of classes
    pd.testing.assert_frame_equal(found, read, check_dtype=False)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_that_stay_as_they_are(kind):
    encodings = [Encoding(name) for name in "ab"]
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(5000, 2)), columns=list("ab")).astype(kind)
    wanted = frame.to_numpy().astype(np.float32)
    for found in (as_they_are(encodings, frame), encode(encodings, frame)):
        assert found is not None
        assert (found.dtype, found.is_contiguous()) == (torch.float32, True)
        np.testing.assert_array_equal(found.numpy(), wanted)
    for odd in (np.nan, np.inf, -np.inf):
        assert as_they_are(encodings, frame.assign(b=odd)) is None
    assert as_they_are(encodings, frame.assign(b=1)) is None
    assert as_they_are(encodings, frame.astype({"a": np.float64}).assign(a=1e39)) is None
    for other in (Encoding("b", shift=1.0), Encoding("b", gaps=True), Encoding("b", "text", ("1",))):
        assert as_they_are([encodings[0], other], frame) is None
