"""Dates, quantities, pairs and odd writings in features: refused or said, and ordinary categories are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from idiolect.core.errors import InputError
from idiolect.data.custom import from_frame, open_data


def frame(values):
    return pd.DataFrame({"c": values, "x": [1.5, 2.5, 2.0, 7.5][: len(values)], "y": [0, 1, 1, 0][: len(values)]})


def said(caplog, values):
    caplog.clear()
    source = from_frame(frame(values))
    return source, [r.message for r in caplog.records if "'c'" in r.message]


DATES = {
    "day, month, year": ["5 Jan 2024", "17 February 2023", "1 Sept. 2022"],
    "month first": ["Jan 5, 2024", "February 17th, 2023", "May 1 2022"],
    "in hyphens": ["5-Jan-24", "17-FEB-23", "01-May-22"],
    "German": ["5. Januar 2024", "17. März 2023", "1. Mai 2022"],
    "French": ["5 janvier 2024", "17 février 2023", "1er août 2022"],
    "Spanish": ["5 de enero de 2024", "17 de marzo de 2023", "1 ago 2022"],
    "slashes": ["1/5/24", "2/17/2023", "05/01/2022"],
    "points": ["5.1.2024", "17.02.23", "1.5.2022 08:30"],
    "ISO": ["2024-01-05", "2023-02-17T08:30:00Z", "2022-05-01 08:30:00.5+02:00"],
    "weekdays": ["Fri, 5 Jan 2024", "Friday 17 February 2023", "Sun May 1 2022"],
    "months": ["2024-01", "02/2023", "May 2022"],
    "quarters and weeks": ["2024 Q1", "2023-W07", "Q2 2022"],
    "clock": ["08:30", "17:05", "23:59:30"],
    "clock with am": ["8:30 am", "5:05 PM", "11 pm"],
    "as one stray word": ["5 Jan 2024", "17 Feb 2023", "unknown", "1 May 2022"],
}


@pytest.mark.parametrize("name", DATES)
def test_dates_and_times_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="column 'c' has dates or times: drop it, or convert it to a number such as d"):
        from_frame(frame(DATES[name]))
    frame(DATES[name]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="column 'c' has dates or times"):
        open_data(tmp_path / "t.csv")
    assert open_data(tmp_path / "t.csv", drop="c").feature_names == ("x",)


@pytest.mark.parametrize(
    "values",
    [
        [20240105, 20231231, 19991231],
        [20240105.0, np.nan, 20231231.0],
        [20240105083000, 20231231235959, 19991231000000],
        [202401050830, 202312312359, 199912310000],
    ],
)
def test_dates_as_numbers_are_refused(values):
    with pytest.raises(InputError, match="column 'c' has dates or times such as 20240105: drop it, or convert"):
        from_frame(frame(values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["10 mg", "20 mg", "5.5 mg"], "numbers with units"),
        (["10mg", "1 g", "2 g", "unknown"], "numbers with units"),
        (["50%", "7 %", "12.5%"], "numbers with units"),
        (["$5", "$1,200", "$7.50"], "numbers with units"),
        (["37.5 °C", "38 °C", "36 °C"], "numbers with units"),
        (["12 mmol/L", "<5 mmol/L", "7 mmol/L"], "numbers with units"),
        (["120/80", "130/85", "110/70"], "pairs of numbers, as 120/80"),
        (["3x4", "5 x 6", "10 x 2"], "pairs of numbers"),
        (["(1, 2)", "(3, 4)", "(5, 6)"], "pairs of numbers"),
        (["1:40", "1:80", "1:160"], "pairs of numbers"),
        (["10", "9", "7"], "numbers that are texts"),
        (["12,34,567", "1,23,456", "98,76,543"], "numbers with marks that are not understood"),
    ],
)
def test_what_should_be_numbers_is_said(caplog, values, message):
    source, told = said(caplog, values)
    assert set(source.encodings[0].texts) == set(values)
    assert len(told) == 1
    assert f"column 'c' seems to have {message}" in told[0]
    assert not any(value in told[0] for value in values if len(value) > 2 and value != "120/80"), "no value is shown"


@pytest.mark.parametrize(
    ("values", "row"),
    [(["f", "m", "F"], 2), (["type a", "Type A", "b"], 1), (["ab", "a b", "c"], 1), (["x", "y", "ｘ"], 2)],
)
def test_categories_that_differ_only_in_their_writing_are_said(caplog, values, row):
    source, told = said(caplog, values)
    assert len(source.encodings[0].texts) == 3
    assert len(told) == 1
    assert "column 'c' has texts that differ only in letter case, spaces or the writing of a number" in told[0]
    assert f"(the first in row {row}, counting from 0)" in told[0]


@pytest.mark.parametrize(
    "values",
    [
        ["18-25", "26-40", "41-65", "65+"],
        ["1A", "1B", "2A", "2B"],
        ["T1", "T2", "T1c"],
        ["stage 1", "stage 2", "stage 3"],
        ["3a", "3b", "4"],
        ["may", "june", "april"],
        ["8500/3", "8520/3", "8480/3"],
        ["1.2.3", "1.2.4", "2.0.0-rc"],
        ["yes", "no", "not reported"],
        ["mar", "sol", "dec"],
        ["A 10", "B 20", "C 30"],
    ],
)
def test_ordinary_categories_are_read_as_such(caplog, values):
    source, told = said(caplog, values)
    assert set(source.encodings[0].texts) == set(values)
    assert not told


def test_ordinary_numbers_are_no_dates(caplog):
    for values in ([20240105, 20241305, 7], [1999, 2024, 2020], [12345678, 23456789, 34567890], [20240105] * 3):
        assert from_frame(frame(values)).x_R.shape[0] == 3
    assert not [r for r in caplog.records if "dates" in r.message]
