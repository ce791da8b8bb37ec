"""Ranges of a search: how they are read, whose they are, and what lies at their edge."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import idiolect as idl
from idiolect.tuning.figures import together
from idiolect.tuning.space import Choice, Interval, grid, parse, size, spaces

STUDY = idl.Study(methods=["fedavg", "fedpac", "fedcr"])


@pytest.mark.parametrize(
    ("text", "range"),
    [
        ("0.001..0.3:log", Interval(0.001, 0.3, log=True)),
        (" 0 .. 1 ", Interval(0.0, 1.0)),
        ("1e-4..1e-2 : log", Interval(1e-4, 1e-2, log=True)),
        ("-1..2.5", Interval(-1.0, 2.5)),
        ("10,25,50", Choice((10, 25, 50))),
        ("sgd, adam", Choice(("sgd", "adam"))),
        ("true,false", Choice((True, False))),
        ([0.1, "0.2"], Choice((0.1, 0.2))),
        ("0.5", Choice((0.5,))),
        (Choice((1, 2)), Choice((1, 2))),
    ],
)
def test_a_range_is_read_as_it_is_written(text: Any, range: Any) -> None:
    assert parse("x", text) == range


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"lr": "0.3..0.001"}, ["lr=0.3..0.001", "reversed", "lower end first"]),
        ({"lr": "0.1..0.1"}, ["lr=0.1..0.1", "empty", "two different ends, or lr=0.1"]),
        ({"lr": "0..0.1:log"}, ["lr=0..0.1:log", "logarithmic", "above 0"]),
        ({"lr": "0.1..0.2:sqrt"}, ["'sqrt'", "log"]),
        ({"lr": "a..b"}, ["lr=a..b", "cannot read"]),
        ({"lr": "0.1.."}, ["lr=0.1..", "cannot read"]),
        ({"lr": "0.1..inf"}, ["cannot read"]),
        ({"lr": ""}, ["lr", "no value"]),
        ({"lr": "0.1,0.1"}, ["lr=0.1,0.1", "twice"]),
        ({"lr": [[0.1]]}, ["lr", "single value"]),
        ({"lr": "-0.1..0.1"}, ["lr", "-0.1", "greater than 0"]),
        ({"batch_size": "0.5..10"}, ["batch_size", "0.5"]),
        ({"optimiser": "sgd,adma"}, ["optimiser", "adma"]),
        ({"alignmet": "0..1"}, ["alignmet", "no method of this study", "alignment"]),
        ({"fedavg.alignment": "0..1"}, ["fedavg", "no option or setting 'alignment'"]),
        ({"fedpca.alignment": "0..1"}, ["'fedpca' is not in this study", "fedpac"]),
        ({}, ["nothing to search", "default"]),
    ],
)
def test_a_range_that_cannot_be_searched_is_one_sentence(search: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(idl.InputError) as error:
        spaces(STUDY, search)
    said = str(error.value)
    assert all(word in said for word in words), said
    assert "\n" not in said


def test_a_name_is_of_every_method_that_has_it_and_of_its_own_option_first() -> None:
    each = spaces(STUDY, {"lr": "0.01..0.1:log", "alignment": "0..1", "fedcr.lr": "0.02..0.2", "local_epochs": "1..4"})
    assert each["fedavg"] == {"lr": Interval(0.01, 0.1, log=True), "local_epochs": Interval(1, 4, whole=True)}
    assert set(each["fedpac"]) == {"lr", "alignment", "local_epochs"}
    assert each["fedcr"]["lr"] == Interval(0.02, 0.2)  # that of one method goes before that of all


def test_a_label_names_one_of_two_uses() -> None:
    study = idl.Study(methods=["fedpac", idl.use("fedpac", label="plain", collaboration=False)])
    each = spaces(study, {"plain.alignment": "0..1", "lr": "0.1,0.2"})
    assert set(each["fedpac"]) == {"lr"}
    assert set(each["plain"]) == {"lr", "alignment"}


@pytest.mark.parametrize("name", idl.methods.names())
def test_the_ranges_that_a_method_declares_are_of_its_options(name: str) -> None:
    study = idl.Study(methods=[name])
    [space] = spaces(study, {"default": ""}).values()
    assert "lr" in space
    assert set(idl.methods.get(name).search) <= set(space)
    for option, default in idl.methods.get(name).options.items():
        if isinstance(range := space.get(option), Interval) and isinstance(default, int | float):
            assert range.low <= default <= range.high, option


def test_a_range_given_goes_before_the_declared_one() -> None:
    study = idl.Study(methods=["ditto"], optimiser="adam", lr=0.001)
    assert spaces(study, {"default": "", "pull": "1,2"})["ditto"]["pull"] == Choice((1, 2))
    assert spaces(study, {"default": ""})["ditto"]["lr"].high < 0.1  # adam takes smaller steps


@pytest.mark.parametrize(
    "range", [Interval(0.001, 0.3, log=True), Interval(-2, 5), Interval(1, 10, whole=True), Interval(1, 64, True, True)]
)
def test_shares_of_a_range_cover_it_evenly(range: Interval) -> None:
    shares = (np.arange(4000) + 0.5) / 4000
    values = np.array([range.at(u) for u in shares], float)
    assert values.min() >= range.low
    assert values.max() <= range.high
    assert (np.diff(values) >= 0).all()
    if range.whole:
        assert set(values.astype(int)) == set(np.arange(range.low, range.high + 1).astype(int))
    if range.whole and not range.log:
        assert np.bincount(values.astype(int))[1:].std() < 2  # every number as often
    if not range.whole:
        scale = np.log(values) if range.log else values
        ends = [math.log(range.low), math.log(range.high)] if range.log else [range.low, range.high]
        np.testing.assert_allclose(scale, ends[0] + shares * (ends[1] - ends[0]), atol=2e-3 * (ends[1] - ends[0]))


@pytest.mark.parametrize(
    ("range", "inside", "at_edge"),
    [
        (Interval(0.001, 0.3, log=True), [0.01, 0.1, 0.0014], [0.001, 0.00105, 0.29, 0.3]),
        (Interval(0, 1), [0.5, 0.06, 0.94], [0.0, 0.01, 0.99]),
        (Interval(1, 10, whole=True), [2, 9], [1, 10]),
        (Interval(1, 2, whole=True), [1, 2], []),
        (Choice((10, 25, 50)), [25], [10, 50]),
        (Choice((10, 50)), [10, 50], []),
        (Choice(("a", "b", "c")), ["a", "c"], []),
    ],
)
def test_what_lies_at_the_edge(range: Any, inside: list[Any], at_edge: list[Any]) -> None:
    assert not any(range.edge(value) for value in inside)
    assert all(range.edge(value) for value in at_edge)


def test_all_settings_of_a_finite_space() -> None:
    space = {"a": Interval(1, 3, whole=True), "b": Choice(("x", "y"))}
    assert size(space) == 6
    assert grid(space) == [{"a": a, "b": b} for a in (1, 2, 3) for b in "xy"]
    assert size(space | {"c": Interval(0, 1)}) == math.inf


@pytest.mark.parametrize(
    ("ranges", "scale"),
    [
        (["0.1..10:log", "0.01..1:log"], "log"),
        (["0.1..10:log", "0..1"], "linear"),
        (["0.1..1:log", "2..3"], "linear"),
        (["1..5", "7,9"], "linear"),
        (["0.1..10:log", "20,30"], "log"),
        (["0.1..10:log", "sgd,adam"], None),
        (["0.1..1", "true,false"], None),
        (["1,2", "3,4"], None),
    ],
)
def test_the_axis_of_a_figure_has_the_values_of_every_method(ranges: list[str], scale: str | None) -> None:
    each = [parse("x", text) for text in ranges]
    axis = together(each)
    assert (axis and ("log" if axis.log else "linear")) == scale
    if axis:
        ends = [end for one in each for end in (one.values if isinstance(one, Choice) else (one.low, one.high))]
        assert (axis.low, axis.high) == (min(ends), max(ends))
