"""The recipes of the report of FedShrink, and what is left of FedPool's: the design that their protocols describe."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest

from idiolect import methods
from idiolect.reproduction import outcome_files, recipes
from idiolect.reproduction.seed_runs import digest
from idiolect.studies.method_use import use

ROOT = Path(__file__).parents[2]
PROTOCOL, RESULTS = ROOT / "docs" / "methods" / "fedpool-protocol.md", ROOT / "results"
METHODS = {
    "fedshrink", "fedlda", "fedpac", "pfedfda", "pfedfda_0.1", "fedcr", "fedavg_ft", "ditto", "fedrep",
    "local", "fedavg",
}  # fmt: skip


def test_every_number_of_samples_meets_every_partition_and_every_shift() -> None:
    cells = [c.where for c in recipes.get("own/table1").cells if c.where["method"] == "fedshrink"]
    assert len(cells) == 24
    assert len({tuple(w[k] for k in ("dataset", "partition", "shift")) for w in cells}) == 24
    for other in ("partition", "shift"):
        met = Counter((w["dataset"], w[other], w["samples"]) for w in cells)
        assert set(met.values()) == {1} if other == "partition" else set(met.values()) <= {1, 2}
        assert len(met) == 2 * 3 * len({w[other] for w in cells})


def test_all_methods_train_alike() -> None:
    cells = recipes.get("own/table1").cells
    for condition in {(c.where["dataset"], c.where["partition"], c.where["shift"]) for c in cells}:
        here = [c for c in cells if (c.where["dataset"], c.where["partition"], c.where["shift"]) == condition]
        assert {c.where["method"] for c in here if c.study} == METHODS
        without = {"methods", "name", "protocol"}
        assert len({str(c.study.model_dump(exclude=without)) for c in here if c.study}) == 1
        runs = {c.where["method"]: digest(c.study) for c in here if c.study}
        assert runs["fedavg"] == runs["fedavg_ft"]
        assert len(set(runs.values())) == 10
        assert next(c.stage for c in here if c.where["method"] == "fedavg") == "received"
    study = cells[0].study
    assert study is not None
    assert (study.rounds, study.local_epochs, study.batch_size) == (60, 2, 20)
    assert (study.lr, study.momentum, study.weight_decay) == (0.01, 0.5, 5e-4)
    assert (study.clients, study.new_clients) == (15, 3)
    assert all(c.study.methods[0] == use("fedshrink") for c in cells if c.study and c.where["method"] == "fedshrink")


def test_trials_are_spread_alike_over_clients_of_their_own() -> None:
    """As docs/results/rivals.md says: one in each sixth of a range, the same learning rates for all, other clients."""
    cells = recipes.get("own/development").cells
    compared = recipes.get("own/table6").cells
    assert len(compared) == 24 * len({c.where["method"] for c in cells})
    rates = {}
    for c in cells:
        assert c.study is not None
        (one,) = c.study.methods
        given = one.options | one.settings
        rates.setdefault(c.where["method"], []).append(given.get("lr"))
        assert (c.study.data_seed, c.study.new_clients, c.study.protocol.validation) == (1, None, 0.2)
        assert c.reads == "validation_accuracy"
    own = rates.pop("fedcr")
    assert len(set(map(tuple, rates.values()))) == 1
    for spread, low, high in ((rates["local"], 0.001, 0.3), (own, *_range("fedcr", "lr"))):
        assert spread[:6] == spread[6:]
        sixth = sorted(int(6 * math.log(v / low) / math.log(high / low)) for v in spread[:6])
        assert sixth == list(range(6))


def _range(method: str, option: str) -> tuple[float, float]:
    low, _, high = methods.get(method).search[option].removesuffix(":log").partition("..")
    return float(low), float(high)


def test_the_protocol_says_what_is_run() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    at = {
        tuple(c.where[k] for k in ("dataset", "partition", "shift")): c.where["samples"]
        for c in recipes.get("own/table1").cells
    }
    rows = {"dominant": "`dominant", "dirichlet_0.1": "`dirichlet:alpha=0.1", "dirichlet_0.5": "`dirichlet:alpha=0.5",
            "classes_5": "`classes:per_client=5"}  # fmt: skip
    for partition, begins in rows.items():
        line = next(row for row in text.splitlines() if row.startswith(f"| {begins}"))
        said = [cell.strip() for cell in line.strip("|").split("|")[1:]]
        shifts = ("clean", "half_corrupted", "rotated_groups")
        assert said == [f"{at['fashion_mnist', partition, s]} / {at['cifar10', partition, s]}" for s in shifts]


@pytest.mark.parametrize(("recipe", "cells"), [("own/table1", 24), ("own/table3", 48)])
def test_the_numbers_of_a_method_that_went_are_kept(recipe: str, cells: int) -> None:
    assert "fedpool" not in methods.names()
    gone = [c for c in recipes.get(recipe).cells if c.where["method"] == "fedpool"]
    assert len(gone) == cells
    for c in gone:
        assert c.study is None
        assert c.absent.startswith("FedPool is no longer a method")
        seeds = outcome_files.kept_results(recipes.get(recipe), c, RESULTS)
        assert sorted(seeds) == [0, 1, 2]
        assert all(0 < one.value < 100 for one in seeds.values() if one.value is not None)


def test_parts_are_left_out_one_at_a_time() -> None:
    cells, name = recipes.get("own/table4").cells, "fedshrink"
    assert len(cells) == 6 * 10
    for c in cells:
        assert c.study is not None
        assert c.study.methods[0].name == name
    of = {c.where["method"]: c.study.methods[0].options for c in cells if c.study}
    default = of.pop(name)
    assert all(sum(options[k] != default[k] for k in default) == 1 for options in of.values())
    table1 = {digest(c.study) for c in recipes.get("own/table1").cells if c.study}
    assert sum(digest(c.study) in table1 for c in cells if c.study) == 6


def test_the_protocol_of_fedshrink_names_its_recipes() -> None:
    text = PROTOCOL.with_name("fedshrink-protocol.md").read_text(encoding="utf-8")
    asked = re.findall(r"^idiolect reproduce (\S+) --seeds (\S+)$", text, re.MULTILINE)
    assert asked == [(f"own/table{n}", "0" if n == 5 else "0,1,2") for n in (1, 3, 4, 5)]
    _, _, second = text.partition("## The report of the second version")
    measured = re.findall(r"^\d\. `(\S+)`:", second, re.MULTILINE)
    assert measured == ["own/table6", "own/long", "natural/table1", "own/one_round", "own/private"]
    assert {*measured, *(name for name, _ in asked)} <= set(recipes.names())


def test_other_clients_are_the_only_difference() -> None:
    first = {(*c.where.values(),): c.study for c in recipes.get("own/table1").cells}
    other = recipes.get("own/table5").cells
    assert len(other) == 24 * 7
    absent = {(c.where["dataset"], c.where["partition"], c.where["shift"]) for c in other if c.study is None}
    assert absent == {
        ("fashion_mnist", "dirichlet_0.1", "rotated_groups"),
        ("cifar10", "dirichlet_0.1", "half_corrupted"),
    }
    for c in (c for c in other if c.study):
        study = first[(*c.where.values(),)]
        assert study is not None
        assert c.study == study.model_copy(update={"data_seed": 2})


@pytest.mark.parametrize(("first", "joins"), [("own/table1", "own/table3"), ("own/table6", "own/table7")])
def test_clients_that_join_are_measured_in_the_same_runs(first: str, joins: str) -> None:
    one, other = ({digest(c.study) for c in recipes.get(name).cells if c.study} for name in (first, joins))
    assert one == other


def test_one_round_has_its_cells_where_its_network_is_not_at_hand() -> None:
    cells = recipes.get("own/one_round").cells
    assert all(c.study and not c.absent for c in cells)
    assert {c.study.model.partition(":")[0] for c in cells if c.study} == {"hf", "torch"}


def test_new_clients_have_no_stage() -> None:
    with pytest.raises(ValueError, match="new clients are measured at one stage: leave out stage=received"):
        recipes.cell({}, {"dataset": "digits", "clients": 4}, "fedavg_ft", stage="received", condition="")


def test_clients_that_join_come_as_they_are_or_in_noise() -> None:
    third = recipes.get("own/table3").cells
    met = Counter((c.where["new_clients"], c.condition) for c in third)
    assert met == {("clean", ""): 264, ("noise", "noise:std=0.3"): 264}
    assert all(c.condition == "" for c in recipes.get("own/table7").cells if c.study)
