"""Official test splits are kept or refused, never divided again without a word; classes that clients only test on."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from PIL import Image

import idiolect as idl
from idiolect.core.errors import InputError

BOTH = {"a": [(1, 0), (2, 1)], "b": [(3, 0), (4, 1)]}


def table(folder, train, test):
    """train.csv and test.csv, from the rows (x, label) of each client."""
    folder.mkdir(exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        lines = [f"{site},{x},{label}" for site, own in rows.items() for x, label in own]
        (folder / f"{name}.csv").write_text("\n".join(["site,x,label", *lines]) + "\n")
    return folder


def pictures(folder, train, test):
    """train/<client>/<class>/<image>, and so for test."""
    for part, rows in (("train", train), ("test", test)):
        for site, own in rows.items():
            for x, label in own:
                path = folder / part / site / f"class{label}" / f"{x}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((4, 4), x, np.uint8)).save(path)
    return folder


def study(where, **more):
    return idl.Study(data=str(where), methods=["local"], rounds=1, **more)


def federation(where, column="site", **more):
    return study(where, client_column=column, **more).federation()


def said(caplog, *about):
    return [r.getMessage() for r in caplog.records if any(word in r.getMessage() for word in about)]


def values(data, rows):
    """The only column of a table, or the grey value of an image, of some samples."""
    return data.x_R[rows].flatten(1)[:, 0].tolist()


KINDS = [table, pictures]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    ("train", "test", "who", "what"),
    [
        (BOTH, {"a": [(90, 0), (91, 1)]}, "'b'", "has no samples in the official test split; give it some there"),
        (BOTH, {"b": [(90, 0), (91, 1)]}, "'a'", "has no samples in the official test split; give it some there"),
        (BOTH, BOTH | {"c": [(90, 0), (91, 1)]}, "'c'", "has no samples in the official training split"),
        (BOTH, {"b": [(9, 1)], "c": [(90, 0)]}, "'a'", r"official test split \(1 more cannot both train and test\)"),
        (BOTH | {"d": [(7, 1)]}, BOTH, "'d'", "has no samples in the official test split"),
    ],
)
def test_a_client_in_one_official_split_only_is_refused_with_the_ways_out(tmp_path, make, train, test, who, what):
    where = make(tmp_path / "own", train, test)
    with pytest.raises(InputError, match=f"client {who} of own .*{what}") as caught:
        federation(where)
    for way in ("partition natural:min_rows=2", "partition natural:official_split=false"):
        assert way in str(caught.value)


@pytest.mark.parametrize("make", KINDS)
def test_clients_that_are_new_in_the_test_split(tmp_path, make):
    where = make(tmp_path / "own", BOTH, {"c": [(90, 0), (91, 1)]})
    with pytest.raises(
        InputError, match=r"no client of own has samples in both official splits; give each .*divide all"
    ):
        federation(where)
    assert federation(where, partition="natural:official_split=false").names == ("a", "b", "c")


@pytest.mark.parametrize("make", KINDS)
def test_each_way_out_does_what_the_message_says(tmp_path, make, caplog):
    where = make(tmp_path / "own", BOTH, {"a": [(90, 0), (91, 1)]})
    kept = federation(where, partition="natural:min_rows=2")
    assert (kept.names, kept.official_split) == (("a",), True)
    again = federation(where, partition="natural:official_split=false")
    assert (again.names, again.official_split) == (("a", "b"), False)
    assert not said(caplog, "is not kept"), "it was asked for"
    whole = federation(make(tmp_path / "whole", BOTH, {"a": [(90, 0)], "b": [(91, 1)]}))
    assert (whole.names, whole.official_split) == (("a", "b"), True)
    grey = whole.x_R.flatten(1)[:, 0]
    for k, (train, test) in enumerate([([1, 2], [90]), ([3, 4], [91])]):
        assert sorted(grey[whole.train[k]].tolist()) == train
        assert sorted(grey[whole.test[k]].tolist()) == test


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("partition", ["iid", "dirichlet:min_rows=2", "classes:per_client=2"])
def test_a_partition_that_divides_the_official_split_again_says_so(tmp_path, make, caplog, partition):
    rows = {"a": [(x, x % 2) for x in range(30)]}
    where = make(tmp_path / "own", rows, {"a": [(x, x % 2) for x in range(100, 110)]})
    found = federation(where, partition=partition, clients=2)
    assert found.official_split is False
    (line,) = said(caplog, "is not kept")
    trained = sum(value >= 100 for part in found.train for value in values(found, part))
    name = partition.partition(":")[0]
    assert f"partition {name} divides all samples again, and clients train on {trained} of its 10 test samples" in line


def test_without_a_client_column_it_says_so_too(tmp_path, caplog):
    where = tmp_path / "own"
    where.mkdir()
    for name, start in (("train", 0), ("test", 100)):
        rows = "".join(f"{start + x},{x % 2}\n" for x in range(40))
        (where / f"{name}.csv").write_text(f"x,label\n{rows}")
    found = study(where, clients=3).federation()
    assert found.official_split is False
    assert len(said(caplog, "the official test split of own is not kept: partition dirichlet")) == 1


def test_one_table_has_no_official_split(tmp_path, caplog):
    path = tmp_path / "one.csv"
    path.write_text("site,x,label\n" + "".join(f"{'ab'[k % 2]},{k},{k % 3 % 2}\n" for k in range(40)))
    found = federation(path)
    assert found.official_split is None
    assert not said(caplog, "official")
    assert "official_split" not in idl.data.manifest(found)


# --- classes that a client only tests on


@pytest.mark.parametrize(
    ("train", "test", "told"),
    [
        (  # drawers whose characters are all new
            {"a": [(1, 0), (2, 1)], "b": [(3, 2), (4, 3)]},
            {"a": [(5, 2), (6, 3)], "b": [(7, 0), (8, 1)]},
            "4 of 4 test samples (100 %) .* at 2 of 2 clients (most at client 'a': 2 of 2)",
        ),
        (
            {"a": [(1, 0), (2, 1)], "b": [(3, 0), (4, 2)]},
            {"a": [(5, 0), (6, 1), (7, 1)], "b": [(8, 0), (9, 1)]},
            "1 of 5 test samples (20 %) .* at 1 of 2 clients (most at client 'b': 1 of 2)",
        ),
        (
            {"a": [(1, 0), (2, 1)], "b": [(3, 0), (4, 2)]},
            {"a": [(x, 0) for x in range(5, 54)] + [(60, 2)], "b": [(x, 2) for x in range(70, 119)] + [(120, 1)]},
            "2 of 100 test samples (2 %) .* at 2 of 2 clients (most at client 'a': 1 of 50)",
        ),
        (
            {"a": [(1, 0), (2, 1)], "b": [(3, 0), (4, 2)], "c": [(5, 1), (6, 2)]},
            {"a": [(7, 1)], "b": [(8, 2)], "c": [(9, 0), (10, 0)]},
            "2 of 4 test samples (50 %) .* at 1 of 3 clients (most at client 'c': 2 of 2)",
        ),
    ],
)
@pytest.mark.parametrize("make", KINDS)
def test_classes_that_clients_only_test_on_are_counted(tmp_path, make, train, test, told, caplog):
    federation(make(tmp_path / "own", train, test))
    (line,) = said(caplog, "no training samples of")
    first, _, second = told.partition(" .* ")
    assert line.startswith(first)
    assert second in line


def test_clients_that_test_on_what_they_train_on_are_not_warned_of(tmp_path, caplog):
    federation(table(tmp_path / "own", BOTH, {"a": [(90, 0)], "b": [(91, 1)]}))
    assert not said(caplog, "no training samples of")


def test_drawn_clients_are_warned_of_where_it_is_much(caplog):
    """Twenty clients of few samples and Dirichlet labels: a stray test sample is no news, a tenth of them is."""
    with caplog.at_level(logging.WARNING):
        idl.Study(dataset="digits", methods=["local"], partition="iid", clients=5).federation()
        assert not said(caplog, "no training samples of")
        found = idl.Study(dataset="digits", methods=["local"], partition="iid", clients=20, keep=3).federation()
    (line,) = said(caplog, "no training samples of")
    new = sum(
        int((~np.isin(found.y_R[test], found.y_R[train])).sum())
        for train, test in zip(found.train, found.test, strict=True)
    )
    assert line.startswith(f"{new} of {sum(map(len, found.test))} test samples")
