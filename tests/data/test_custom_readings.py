"""Dates, quantities, pairs and odd writings in features: refused or said, and ordinary categories are not."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

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


UNDERSTOOD = {
    "ISO": (["2024-01-05", "2023-02-17T08:30:00Z", "2022-05-01 08:30:36.0+02:00"], [
        datetime(2024, 1, 5), datetime(2023, 2, 17, 8, 30), datetime(2022, 5, 1, 6, 30, 36),
    ]),
    "slashes, year first": (["2024/01/05", "2023/02/17", "2022/05/01"], None),
    "points": (["05.01.2024", "17.02.2023", "01.05.2022"], None),
    "points, short": (["5.1.24", "17.2.23", "1.5.22"], None),
    "slashes, day first": (["05/01/2024", "17/02/2023", "01/05/2022"], None),
    "slashes, month first": (["1/5/2024", "2/17/2023", "5/1/2022"], None),
    "hyphens": (["05-01-2024", "17-02-2023", "01-05-2022"], None),
    "months by name": (["05-Jan-2024", "17-Feb-2023", "01-May-2022"], None),
    "months by long name": (["January 5, 2024", "February 17, 2023", "May 1, 2022"], None),
    "numbers": ([20240105, 20230217, 20220501], None),
    "times beside": (["05.01.2024 13:15", "17.02.2023 00:00", "01.05.2022 23:30"], [
        datetime(2024, 1, 5, 13, 15), datetime(2023, 2, 17), datetime(2022, 5, 1, 23, 30),
    ]),
    "stamps": ([20240105083000, 20230217000000, 20220501120000], [
        datetime(2024, 1, 5, 8, 30), datetime(2023, 2, 17), datetime(2022, 5, 1, 12),
    ]),
    "pandas": (pd.to_datetime(["2024-01-05", "2023-02-17", "2022-05-01"]), None),
    "pandas with a zone": (pd.to_datetime(["2024-01-05", "2023-02-17", "2022-05-01"]).tz_localize("UTC"), None),
    "python": ([date(2024, 1, 5), date(2023, 2, 17), date(2022, 5, 1)], None),
}  # fmt: skip
DAYS = [datetime(2024, 1, 5), datetime(2023, 2, 17), datetime(2022, 5, 1)]


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("name", UNDERSTOOD)
def test_dates_become_numbers(tmp_path, caplog, name, gap):
    """Python's own calendar says which: year, month, weekday from Monday, days from 1970, and the hour."""
    values, instants = UNDERSTOOD[name]
    instants = instants or DAYS
    table = pd.DataFrame({"c": values, "x": [1.5, 2.5, 2.0], "y": [0, 1, 1]})
    if gap:
        table = pd.concat([table, table.assign(c=None)[:1]], ignore_index=True)
    expected = {
        "c year": [i.year for i in instants], "c month": [i.month for i in instants],
        "c weekday": [i.isoweekday() for i in instants],
        "c days": [(i.date() - date(1970, 1, 1)).days for i in instants],
        "c hour": [i.hour + i.minute / 60 + i.second / 3600 for i in instants],
    }  # fmt: skip
    expected = {part: of_rows for part, of_rows in expected.items() if len(set(of_rows)) > 1}
    sources = [from_frame(table, target="y")]
    if not name.startswith("p"):
        table.to_csv(tmp_path / "t.csv", index=False)
        sources.append(open_data(tmp_path / "t.csv", target="y"))
    for source in sources:
        gaps = ["c year is missing"] if gap else []
        assert source.feature_names == (*list(expected)[:1], *gaps, *list(expected)[1:], "x")
        for part, of_rows in expected.items():
            x_R = source.x_R[:3, source.feature_names.index(part)].numpy()
            np.testing.assert_allclose(x_R, of_rows, rtol=1e-6)
            if gap:
                assert source.x_R[3, source.feature_names.index(part)].isnan()
    said = [record.message for record in caplog.records if "'c'" in record.message]
    assert said
    assert all("column 'c' has dates or times, which become 'c year', 'c month'" in one for one in said)


@pytest.mark.parametrize(
    ("values", "feature", "expected"),
    [
        (["08:30", "17:05", "23:59:30"], "c hour", [8.5, 17 + 5 / 60, 23 + 59.5 / 60]),
        (["8:30 am", "5:05 PM", "11 pm"], "c hour", [8.5, 17 + 5 / 60, 23]),
        ([time(8, 30), time(17, 5), time(0, 0)], "c hour", [8.5, 17 + 5 / 60, 0]),
        (pd.to_timedelta(["36h", "12h", "72h"]), "c days", [1.5, 0.5, 3]),
    ],
)
def test_times_become_hours_and_lengths_of_time_days(values, feature, expected):
    source = from_frame(frame(values), target="y")
    assert source.feature_names == (feature, "x")
    np.testing.assert_allclose(source.x_R[:, source.feature_names.index(feature)], expected, rtol=1e-5)


FAR = {
    "ISO": ["2024-01-05", "9999-12-31", "1888-05-01"],
    "points": ["05.01.2024", "31.12.9999", "01.05.1888"],
    "python": [date(2024, 1, 5), date(9999, 12, 31), date(1888, 5, 1)],
    "python with times": [datetime(2024, 1, 5), datetime(9999, 12, 31), datetime(1888, 5, 1)],
    "numpy": np.array(["2024-01-05", "9999-12-31", "1888-05-01"], "datetime64[s]"),
    "periods": pd.PeriodIndex(["2024-01-05", "9999-12-31", "1888-05-01"], freq="D"),
}


@pytest.mark.parametrize("name", FAR)
def test_dates_that_nanoseconds_cannot_count_become_numbers_too(name):
    """9999-12-31 often stands for an open end, and 3022 is a slip of the finger; Python's calendar has both."""
    source = from_frame(frame(FAR[name]), target="y")
    days = [date(2024, 1, 5), date(9999, 12, 31), date(1888, 5, 1)]
    x_R = source.x_R[:, source.feature_names.index("c days")].numpy()
    np.testing.assert_array_equal(x_R, [(one - date(1970, 1, 1)).days for one in days])
    x_R = source.x_R[:, source.feature_names.index("c year")].numpy()
    np.testing.assert_array_equal(x_R, [2024, 9999, 1888])


@pytest.mark.parametrize(
    "values",
    [np.array(["2024-01-05", "900000-12-31"], "datetime64[s]"), [timedelta(days=1), timedelta(days=999_999_999)]],
)
def test_dates_that_nothing_can_count_are_refused(values):
    with pytest.raises(InputError, match="column 'c' has dates or times that are too far away to count with"):
        from_frame(frame(values), target="y")


NOT_UNDERSTOOD = {
    "several writings": ["5 Jan 2024", "17 February 2023", "1 Sept. 2022"],
    "German": ["5. Januar 2024", "17. März 2023", "1. Mai 2022"],
    "French": ["5 janvier 2024", "17 février 2023", "1er août 2022"],
    "Spanish": ["5 de enero de 2024", "17 de marzo de 2023", "1 ago 2022"],
    "slashes": ["1/5/24", "2/17/2023", "05/01/2022"],
    "weekdays": ["Fri, 5 Jan 2024", "Friday 17 February 2023", "Sun May 1 2022"],
    "months": ["2024-01", "02/2023", "May 2022"],
    "quarters and weeks": ["2024 Q1", "2023-W07", "Q2 2022"],
    "as one stray word": ["5 Jan 2024", "17 Feb 2023", "unknown", "1 May 2022"],
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_dates_that_are_not_understood_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="column 'c' has dates or times that are not understood: write them as 2024-"):
        from_frame(frame(NOT_UNDERSTOOD[name]))
    frame(NOT_UNDERSTOOD[name]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match="column 'c' has dates or times"):
        open_data(tmp_path / "t.csv")
    assert open_data(tmp_path / "t.csv", drop="c").feature_names == ("x",)


@pytest.mark.parametrize(
    ("values", "clear"),
    [
        (["05/01/2024", "07/02/2023", "01/05/2022"], "13/01/2024"),
        (["1-5-2024", "2-7-2023", "5-1-2022"], "1-13-2024"),
        (["05/01/24 08:30", "07/02/23 17:00", "01/05/22 23:00"], "31/05/22 10:00"),
    ],
)
def test_dates_whose_day_may_be_the_month_are_refused(values, clear):
    with pytest.raises(InputError, match="nothing shows whether the day or the month stands first"):
        from_frame(frame(values))
    assert "c month" in from_frame(frame([*values, clear])).feature_names


def test_a_name_of_a_part_that_is_there_is_refused():
    table = frame(UNDERSTOOD["points"][0]).assign(**{"c year": [1, 2, 3]})
    with pytest.raises(InputError, match="column 'c' has dates, and there is a column 'c year' too"):
        from_frame(table)


NOTES = ["seen for a cough today", "no pain since last week", "came back with fever and cough", "is well and goes home"]


@pytest.mark.parametrize("values", [NOTES, [f"{note} {k}" for k in range(20) for note in NOTES], [*NOTES[:3], None]])
def test_free_text_is_left_out_and_said(values, caplog):
    table = pd.DataFrame({"c": values, "x": np.arange(len(values)) + 0.5, "y": np.arange(len(values)) % 2})
    source = from_frame(table)
    assert source.feature_names == ("x",)
    assert "column 'c' has free text and is left out: give text='c' to learn from it" in caplog.text
    assert "only one value" not in caplog.text
    assert from_frame(table, text="c").tokens is not None


def test_answers_of_several_words_are_categories():
    """A questionnaire repeats its sentences."""
    answers = ["I fully agree with this", "I do not agree with this", "I have no opinion of it"] * 10
    source = from_frame(pd.DataFrame({"c": answers, "x": np.arange(30) + 0.5, "y": [0, 1] * 15}))
    assert len(source.feature_names) == 4


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
