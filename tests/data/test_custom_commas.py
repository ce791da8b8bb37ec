"""Large files with decimal commas: the same numbers as by the patient reader, and the same judgement of each cell."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.data.custom import numbers, streaming
from idiolect.data.custom.text_files import Roles, read_csv

SPACES, APOSTROPHES = " \u00a0\u2009\u202f", "'\u2019"
CLASSES = {",": ",", ".": ".", " ": SPACES, "'": APOSTROPHES}


def is_number(cell: str, decimal: str, thousands: str) -> bool:
    """By hand: whether a cell is a number with these marks."""
    text = cell[1:] if cell[:1] in ("+", "-", "\u2212") and cell else cell
    if text.lower() in ("inf", "infinity"):
        return cell[:1] != "\u2212"
    head, _, tail = text.partition(decimal)
    groups = re.split(f"[{re.escape(CLASSES[thousands])}]", head) if thousands else [head]
    if len(groups) > 1:
        first, *rest = groups
        whole = 1 <= len(first) <= 3 and first.isdigit() and first[0] != "0" and all(len(g) == 3 for g in rest)
        return whole and all(g.isdigit() for g in rest) and (not tail or tail.isdigit())
    if not set(text) <= set("0123456789eE+-" + decimal) or (decimal == "," and "." in text):
        return False
    try:
        float(text.replace(decimal, "."))
    except ValueError:
        return False
    return not text.startswith(("+", "-"))


PARTS = ["0", "1", "12", "234", "567", ",", ".", " ", "\u202f", "'", "-", "+", "\u2212", "e5", "inf", "x"]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=5).map("".join), min_size=1, max_size=4))
def test_each_cell_is_judged_as_by_hand(cells: list[str]) -> None:
    """Together, because what all cells hold decides how they are looked at."""
    column = pd.Series([*cells], dtype=str).str.strip()
    found = numbers.readings_of(column.mask(column == ""), len(cells))
    for cell, bits in zip(column, found, strict=True):
        expected = [not cell or is_number(cell, marks.decimal, marks.thousands) for marks in numbers.READINGS]
        assert [bool(bits >> k & 1) for k in range(len(expected))] == expected, cell


FILES = {
    "fractions": ["1,5", "-2,25", "0,125", "7"],
    "whole and fractions": ["12", "3", "4,5"],
    "missing": ["1,5", "", "NA", "2,75", "nan"],
    "signs": ["+1,5", "-2,25", "3,5"],
    "another minus": ["\u22121,5", "2,25"],
    "exponents": ["1,5e3", "2,5E-3", "-1e2"],
    "infinite": ["1,5", "inf", "-Infinity"],
    "spaces around": [" 1,5", "2,25 ", "3"],
    "points between thousands": ["1.234,5", "2,25"],
    "spaces between thousands": ["1 234,5", "2,25"],
    "none before the comma": [",5", "1,", "2,25"],
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", FILES)
def test_a_large_file_has_the_numbers_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, late: bool
) -> None:
    """``late``: the odd cells come after many plain ones, in another block of the file."""
    monkeypatch.setattr(streaming, "_BLOCK", 512)
    plain = ["1,5", "2,25", "10,125"]
    cells = plain * 60 + FILES[kind] if late else FILES[kind] * 20
    path = tmp_path / "t.csv"
    lines = [f"{cell};{k},75;{'ab'[k % 2]}" for k, cell in enumerate(cells)]
    path.write_text("\n".join(["a;b;label", *lines, ""]), encoding="utf-8")
    roles = Roles("label")
    parts = [part.frame for part in streaming.some(path, 1000, roles, lambda name: name != "label")]
    assert len(parts) > 1
    frame, small = pd.concat(parts, ignore_index=True), read_csv(path, roles)
    for name in ("a", "b"):
        np.testing.assert_array_equal(frame[name].astype(float), small[name].astype(float))
    assert frame["label"].tolist() == small["label"].tolist()
    np.testing.assert_array_equal(frame["b"].astype(float), np.arange(len(cells)) + 0.75)


@pytest.mark.parametrize(
    ("kind", "by_arrow"),
    [("fractions", True), ("exponents", True), ("missing", True), ("points between thousands", False)],
)
def test_arrow_reads_decimal_commas_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by_arrow: bool
) -> None:
    points: list[str] = []
    read = pyarrow.csv.read_csv

    def spy(source: object, reading: object, parsing: object, how: pyarrow.csv.ConvertOptions) -> object:
        table = read(source, reading, parsing, how)
        points.append(how.decimal_point if "double" in map(str, table.schema.types) else "text")
        return table

    monkeypatch.setattr(pyarrow.csv, "read_csv", spy)
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a;label", *(f"{cell};x" for cell in FILES[kind] * 5), ""]))
    list(streaming.some(path, 1000, Roles("label"), lambda name: name == "a"))
    assert points == ["text", "," if by_arrow else "text"]
