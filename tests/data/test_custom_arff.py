import numpy as np
import pandas as pd
import pytest

from idiolect.core.errors import InputError
from idiolect.data.custom import open_data
from idiolect.data.custom.arff import arff

HEADER = """% made by hand
@RELATION weather

@attribute outlook {sunny, overcast, 'light rain'}
@ATTRIBUTE "air temperature"\tREAL
@attribute humidity Integer
@attribute 'is it windy' string
@attribute play {yes,no}
@DATA
"""
ROWS = "sunny,21.5,?,no,yes\n\n% a comment\n'light rain',-3,80,?,no\novercast, 1e1 ,75,'a, b',yes\nsunny,0,1,no,no\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_every_kind_of_column_and_missing_values(encoding, tmp_path):
    path = tmp_path / "weather.arff"
    path.write_text((HEADER + ROWS).replace("comment", "kommentár"), encoding=encoding)
    frame = arff(path)
    assert list(frame) == ["outlook", "air temperature", "humidity", "is it windy", "play"]
    assert frame["air temperature"].tolist() == [21.5, -3, 10, 0]
    np.testing.assert_array_equal(frame["humidity"], [np.nan, 80, 75, 1])
    assert frame["outlook"].tolist() == ["sunny", "light rain", "overcast", "sunny"]
    assert frame["is it windy"].fillna("?").tolist() == ["no", "?", "a, b", "no"]


def test_a_file_is_a_data_set_like_any_table(tmp_path):
    path = tmp_path / "weather.arff"
    path.write_text(HEADER + ROWS)
    source = open_data(path, target="play", client_column="outlook", drop="is it windy")
    assert source.feature_names == ("air temperature", "humidity", "humidity is missing")
    assert source.class_names == ("no", "yes")


def test_rows_alone_have_numbers_as_names(tmp_path, caplog):
    path = tmp_path / "bare.arff"
    path.write_text("1,33,0.5,?,Jogging\n2,33,0.25,7,Sitting\n3,19,1,8,Sitting\n")
    frame = arff(path)
    assert list(frame) == ["1", "2", "3", "4", "5"]
    assert "its columns are called 1 to 5" in caplog.text
    source = open_data(path, target="5", client_column="2", drop="1")
    assert source.feature_names == ("3", "4", "4 is missing")
    assert source.columns["2"].names == ("19", "33")


def test_the_same_as_scipy_reads(tmp_path):
    from scipy.io import arff as scipy_arff

    path = tmp_path / "plain.arff"
    path.write_text(
        "@relation r\n@attribute a numeric\n@attribute b real\n@attribute c {x,y}\n@data\n1,2.5,x\n-4,?,y\n"
    )
    expected = pd.DataFrame(scipy_arff.loadarff(path)[0])
    frame = arff(path)
    np.testing.assert_array_equal(frame[["a", "b"]].to_numpy(float), expected[["a", "b"]].to_numpy(float))
    assert frame["c"].tolist() == [text.decode() for text in expected["c"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows"),
        ("@relation r\n@attribute a numeric\n@data\n", "has no rows"),
        ("% only\n% comments\n", "has no rows"),
        ("@relation r\n@attribute a\n@data\n1\n", "line 2 is not understood: write @attribute, the name and numeric"),
        ("@attribute a relational\n@data\n1\n", "line 1 is not understood"),
        ("@attribute a numeric\n1,2\n", "line 2 is not ARFF: give @attribute lines, then @data, then the rows"),
        ("@something\n1,2\n", "line 1 is not ARFF"),
        (
            "@attribute a numeric\n@attribute b {x,y}\n@data\n1,x,3\n2,y,3\n",
            "has 2 @attribute lines and rows of 3 values",
        ),
        ("@attribute a numeric\n@attribute b {x,y}\n@data\n1,x\n2,y,3\n", "rows with different numbers of values"),
        ("@attribute a numeric\n@attribute b {x,y}\n@data\n{0 1, 1 x}\n", "has sparse rows, in braces"),
        (
            "@attribute a numeric\n@data\n1\nlow\nhigh\n",
            "has 2 texts where its @attribute line says numbers",
        ),
    ],
)
def test_what_is_no_arff_is_refused_in_a_sentence(content, message, tmp_path):
    path = tmp_path / "t.arff"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        arff(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
