"""Columns that count inside each client, or from row to row, are named; ordinary features are not."""

from __future__ import annotations

import shlex

import numpy as np
import pandas as pd
import pytest

from idiolect.core.errors import as_options, option
from idiolect.data.custom import from_frame, open_data
from idiolect.federation.data.samples import SiteFiles

USERS, ROWS = 12, 8
RNG = np.random.default_rng(3)
USER = np.repeat([f"u{k}" for k in range(USERS)], ROWS)


def frame(**columns):
    x = RNG.normal(size=USERS * ROWS)
    return pd.DataFrame({"user": USER, "x": x, "label": (x > 0).astype(int), **columns})


def warned(caplog, read):
    caplog.clear()
    read()
    return [r.message for r in caplog.records if "counts" in r.message or "different whole number" in r.message]


COUNTING = {
    "0 to 7": np.tile(np.arange(ROWS), USERS),
    "1 to 8, down": np.tile(np.arange(ROWS, 0, -1), USERS),
    "with gaps": np.cumsum(RNG.integers(1, 5, (USERS, ROWS)), axis=1).ravel(),
    "from another start": (np.arange(ROWS) + RNG.integers(0, 900, (USERS, 1))).ravel(),
    "row numbers": np.arange(USERS * ROWS),
    "seconds": np.cumsum(RNG.random(USERS * ROWS)),
    "seconds of each client": np.cumsum(RNG.random((USERS, ROWS)), axis=1).ravel(),
    "time stamps": 1_700_000_000 + np.cumsum(RNG.integers(1, 90, USERS * ROWS)),
    "with one recording begun again": np.r_[np.arange(4), np.arange(4), np.tile(np.arange(ROWS), USERS - 1)],
    "in any order": np.concatenate([RNG.permutation(ROWS) for _ in range(USERS)]),
    "in any order, with gaps": np.concatenate([RNG.choice(11, ROWS, replace=False) for _ in range(USERS)]),
    "a value missing": np.where(np.arange(USERS * ROWS) == 5, np.nan, np.tile(np.arange(ROWS), USERS)),
}


@pytest.mark.parametrize("name", COUNTING)
def test_columns_that_count_inside_each_client(caplog, name):
    said = warned(caplog, lambda: from_frame(frame(n=COUNTING[name]), client_column="user"))
    assert len(said) == 1
    assert "column 'n' " in said[0]
    assert "drop it with drop='n' if it is" in said[0]


def test_also_where_clients_are_mixed_and_in_files(caplog, tmp_path):
    table = frame(n=COUNTING["0 to 7"]).sort_values("n", kind="stable")  # round by round
    assert len(warned(caplog, lambda: from_frame(table, client_column="user"))) == 1
    table.to_csv(tmp_path / "train.csv", index=False)
    table.to_csv(tmp_path / "test.csv", index=False)  # where it begins again
    assert len(warned(caplog, lambda: open_data(tmp_path, client_column="user"))) == 1
    assert not warned(caplog, lambda: open_data(tmp_path, client_column="user", drop="n"))


def test_row_numbers_without_clients_and_at_a_site(caplog, tmp_path):
    table = frame(n=np.arange(0.0, 48, 0.5)).drop(columns="user")
    said = warned(caplog, lambda: from_frame(table))
    assert said == [
        "column 'n' counts from row to row, as a row number or a time does: drop it with drop='n' if it is one"
    ]
    table.to_csv(tmp_path / "t.csv", index=False)
    assert warned(caplog, lambda: SiteFiles(tmp_path / "t.csv").offer()) == said


AGE = RNG.integers(18, 90, USERS * ROWS)
ORDINARY = {
    "measurements": RNG.normal(size=USERS * ROWS),
    "ages": AGE,
    "ages, sorted in each client": np.sort(AGE.reshape(USERS, ROWS), axis=1).ravel() // 10,
    "one number for each client": np.repeat(np.arange(USERS), ROWS),
    "counts": RNG.poisson(2, USERS * ROWS),
    "heights that differ by client": np.round(RNG.normal(np.repeat(RNG.normal(170, 20, USERS), ROWS), 9)),
    "true or false": RNG.random(USERS * ROWS) < 0.5,
    "a drift with noise": np.tile(np.arange(ROWS), USERS) + RNG.normal(0, 3, USERS * ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_features_are_not_named(caplog, name):
    assert not warned(caplog, lambda: from_frame(frame(n=ORDINARY[name]), client_column="user"))
    assert not warned(caplog, lambda: from_frame(frame(n=ORDINARY[name]).drop(columns="user")))


@pytest.mark.parametrize("values", [[1, 2, 3, 4, 5, 6], [38.5, 41, 52, 55.1, 63, 70, 71, 80], [9, 8, 7]])
def test_a_tiny_table_that_happens_to_be_sorted(caplog, values):
    table = pd.DataFrame({"n": values, "label": np.arange(len(values)) % 2})
    assert not warned(caplog, lambda: from_frame(table))


def test_the_advice_to_drop_a_column_can_be_copied():
    with as_options():
        assert shlex.split(option("drop", "Patient Nr")) == ["--drop", "Patient Nr"]
