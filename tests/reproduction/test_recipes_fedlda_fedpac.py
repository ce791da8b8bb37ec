"""Recipes of FedPAC and FedLDA: what they run, against what the papers say, written out by hand."""

import json
import os
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import torch

from idiolect import report
from idiolect.reproduction import recipes
from idiolect.reproduction.outcomes import outcome
from idiolect.reproduction.seed_runs import digest
from idiolect.studies import Study, run

torch.set_num_threads(1)

REAL = Path(os.environ.get("IDIOLECT_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")

CELLS = {  # published numbers, and what is measured beside them
    "fedpac/table1": (15 * 4 * 2, 3 * 4 * 2),
    "fedpac/table2": (4 * 4, 0),
    "fedpac/table3": (8 * 2, 2),
    "fedpac/table4": (9 * 8, 0),
    "fedpac/table5": (5 * 2, 0),
    "fedpac/table6": (9 * 2, 2),
    "fedpac/table7": (9 * 2, 2),
    "fedpac/table8": (9 * 2, 2),
    "fedpac/table9": (5, 0),
    "fedpac/table10": (7, 0),
    "fedlda/table1": (7 * 10, 10),
    "fedlda/table2": (7 * 6, 6),
}
SETTINGS = {"fedpac/hyperparameters": (24, 1 + 12), "fedlda/hyperparameters": (13, 5 + 1)}
FIGURES = {
    "fedpac/fig1a": 4 * 4,
    "fedpac/fig1b": 4 * 4,
    "fedpac/fig2": 4,
    "fedpac/fig3": 4,
    "fedpac/fig4": 18 * 4,
    "fedpac/fig5": 4,
    "fedlda/fig1a": 8,
    "fedlda/fig1b": 8,
}


def cells(name, **where):
    found = [c for c in recipes.get(name).cells if all(c.where.get(k) == v for k, v in where.items())]
    assert found, f"{name} has no cell with {where}"
    return found


def cell(name, **where):
    (found,) = cells(name, **where)
    return found


def digests(name, **where):
    return {digest(c.study) for c in cells(name, **where)}


def test_every_table_and_figure_of_both_papers_is_there():
    ours = {n for n in recipes.names() if n.startswith(("fedpac/", "fedlda/"))}
    assert ours == {*CELLS, *SETTINGS, *FIGURES}


@pytest.mark.parametrize("name", CELLS)
def test_a_table_has_a_cell_for_every_published_number(name):
    made = recipes.get(name)
    published, beside = CELLS[name]
    assert made.kind == "results"
    assert sum(c.published is not None for c in made.cells) == published
    assert len(made.cells) == published + beside
    assert all(c.study is not None and len(c.study.methods) == 1 for c in made.cells)
    assert len({c.slug for c in made.cells}) == len(made.cells)  # a file each


@pytest.mark.parametrize("name", [*CELLS, *SETTINGS])
def test_published_numbers_stand_at_their_cells(name):
    text = resources.files("idiolect.reproduction.published").joinpath(f"{name}.json").read_text(encoding="utf-8")
    made = {json.dumps(dict(c.where), sort_keys=True): c.published for c in recipes.get(name).cells}
    for row in json.loads(text)["rows"]:
        where = {k: v for k, v in row.items() if k not in ("value", "std", "tuned_over")}
        assert made[json.dumps(where, sort_keys=True)] == row["value"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_runs_and_no_numbers(name):
    made = recipes.get(name)
    assert made.kind == "figure"
    assert len(made.cells) == FIGURES[name]
    assert all(c.study is not None and c.published is None for c in made.cells)


def test_all_that_is_unstated_is_said():
    for name in (*CELLS, *SETTINGS, *FIGURES):
        said = recipes.get(name).assumptions
        assert said, name
        assert all(s.endswith(".") for s in said)


@pytest.mark.parametrize(
    ("dataset", "lr", "batch_size", "sizes", "augment"),
    [
        ("emnist", 0.01, 100, (1000,), "none"),
        ("fashion_mnist", 0.01, 50, (), "none"),
        ("cifar10", 0.02, 50, (), "crop_flip"),
        ("cinic10", 0.02, 50, (), "crop_flip"),
    ],
)
def test_fedpac_trains_as_its_appendix_says(dataset, lr, batch_size, sizes, augment):
    for found in cells("fedpac/table1", dataset=dataset):
        s = found.study
        assert (s.dataset, s.rounds, s.local_epochs) == (dataset, 200, 5)
        assert (s.lr, s.momentum, s.weight_decay, s.batch_size) == (lr, 0.5, 5e-4, batch_size)
        assert (s.sizes, s.augment, s.model) == (sizes, augment, "auto")
        assert (s.partition.name, s.partition.options["share"]) == ("dominant", 20)


def test_of_100_clients_30_take_part_and_all_in_the_last_round():
    few, many = cells("fedpac/table1", clients=20), cells("fedpac/table1", clients=100)
    assert {(c.study.clients, c.study.participation, c.study.protocol.full_last_round) for c in few} == {(20, 1, False)}
    assert {(c.study.clients, c.study.participation, c.study.protocol.full_last_round) for c in many} == {
        (100, 0.3, True)
    }
    shared = {(c.where["dataset"], c.study.partition.options["official_quirks"]) for c in many}
    assert shared == {("emnist", False), ("cinic10", False), ("fashion_mnist", True), ("cifar10", True)}


@pytest.mark.parametrize(
    ("name", "where", "expected"),
    [
        ("fedpac/table3", {"dataset": "cifar10"}, {"shifts": ["permute_labels"], "clients": 20}),
        ("fedpac/table6", {"dataset": "cifar10"}, {"sizes": (300, 600, 1200), "participation": 1.0}),
        ("fedpac/table9", {}, {"clients": 1000, "participation": 0.03, "sizes": (50,), "lr": 0.02}),
        ("fedpac/table10", {}, {"shifts": ["rotate"], "dataset": "fashion_mnist", "clients": 20}),
        ("fedpac/table8", {"dataset": "fashion_mnist"}, {"clients": 100, "participation": 0.3, "lr": 0.01}),
    ],
)
def test_settings_of_the_appendix(name, where, expected):
    for found in cells(name, **where):
        for key, value in expected.items():
            had = getattr(found.study, key)
            assert ([s.name for s in had] if key == "shifts" else had) == value, key


@pytest.mark.parametrize(
    ("name", "where", "partition", "options"),
    [
        ("fedpac/table7", {"class_allocation": "random"}, "pathological", {"draw": "random"}),
        ("fedpac/table7", {"class_allocation": "clustered"}, "pathological", {"draw": "clustered"}),
        ("fedpac/table8", {}, "dirichlet", {"alpha": 1.0, "cap": False}),
        ("fedpac/table9", {}, "dominant", {"share": 20, "test_size": 50, "official_quirks": True}),
        ("fedpac/fig1a", {"share": 80}, "dominant", {"share": 80}),
        ("fedpac/fig2", {"share": 0}, "dominant", {"share": 0}),
        ("fedlda/table1", {"samples_per_client": 1500}, "dirichlet_fixed", {"alpha": 0.1, "rows": 1500}),
        ("fedlda/table1", {"partition": "dirichlet_volume"}, "dirichlet", {"alpha": 0.1, "test_fraction": 0.2}),
        ("fedlda/table2", {"dataset": "cifar100"}, "dirichlet_fixed", {"rows": 1000, "test_fraction": 0.2}),
        ("fedlda/table2", {"dataset": "fashion_mnist"}, "dirichlet_fixed", {"rows": 500}),
    ],
)
def test_partitions(name, where, partition, options):
    for found in cells(name, **where):
        assert found.study.partition.name == partition
        assert found.study.partition.options | options == found.study.partition.options


def test_fedlda_trains_as_its_section_says():
    networks = {"resnet18": "resnet18_cifar", "wrn16_2": "wrn16_2"}
    for name in ("fedlda/table1", "fedlda/table2"):
        for found in cells(name):
            s = found.study
            assert (s.rounds, s.local_epochs, s.batch_size, s.clients) == (200, 5, 50, 20)
            assert (s.participation, s.protocol.full_last_round) == (0.3, True)
            assert s.model == networks[found.where["model"]]
    options = cell("fedlda/table2", dataset="cifar100", model="wrn16_2", method="fedlda").study.methods[0].options
    assert (options["global_weight"], options["decorrelation"], options["ridge"]) == (0.5, 0.1, 1.0)
    assert (options["decorrelate"], options["centre"]) == ("batch", "interpolated")


@pytest.mark.parametrize(
    ("name", "where", "method", "options"),
    [
        ("fedpac/table1", {"method": "apfl"}, "apfl", {"alpha": 0.25}),
        ("fedpac/table1", {"method": "pfedme"}, "pfedme", {"pull": 10, "inner_steps": 5, "weighting": "samples"}),
        ("fedpac/table3", {"method": "fedpac_unaligned"}, "fedpac", {"alignment": 0, "collaboration": True}),
        ("fedpac/table1", {"method": "ditto"}, "ditto", {"pull": 1}),
        ("fedpac/table1", {"method": "pfedhn"}, "pfedhn", {"lr": 0.01, "server_lr": 0.01}),
        ("fedpac/table2", {"design": "none"}, "fedpac", {"alignment": 0, "collaboration": False}),
        ("fedpac/table2", {"design": "feature_alignment"}, "fedpac", {"alignment": 1, "collaboration": False}),
        ("fedpac/table2", {"design": "classifier_collaboration"}, "fedpac", {"alignment": 0, "collaboration": True}),
        ("fedpac/table2", {"design": "both"}, "fedpac", {"alignment": 1, "collaboration": True}),
        ("fedpac/table4", {"method": "hypcluster", "k": 3}, "hypcluster", {"clusters": 3}),
        ("fedpac/table4", {"method": "hypcluster", "k": 5}, "hypcluster", {"clusters": 5}),
        ("fedpac/table4", {"method": "fedem_ft", "M": 3}, "fedem", {"models": 3, "tuning_epochs": None}),
        ("fedpac/table4", {"method": "fedem_ft", "M": 5}, "fedem", {"models": 5, "tuning_epochs": None}),
        ("fedpac/table5", {"method": "fedproto_g"}, "fedproto", {"prototypes": "global", "predict_with": "head"}),
        ("fedpac/table5", {"method": "fedproto_l"}, "fedproto", {"prototypes": "local", "predict_with": "head"}),
    ],
)
def test_methods_have_the_papers_options(name, where, method, options):
    for found in cells(name, **where):
        (use,) = found.study.methods
        assert use.name == method
        assert {k: use.options[k] for k in options} == options


@pytest.mark.parametrize(
    ("name", "method", "tuned"),
    [
        ("fedpac/table1", "fedavg", "fedavg_ft"),
        ("fedlda/table1", "fedavg", "fedavg_ft"),
        ("fedpac/fig1a", "fedavg", "fedavg_ft"),
        ("fedpac/table4", "fedem", "fedem_ft"),
        ("fedpac/table8", "fedem", "fedem_ft"),
    ],
)
def test_one_run_measures_a_method_before_and_after_tuning(name, method, tuned):
    for before in cells(name, method=method):
        after = cell(name, **{**before.where, "method": tuned})
        assert digest(before.study) == digest(after.study)
        assert (before.stage, after.stage) == ("received", None)
        assert before.study.protocol.stages == ("personalised", "received")


def test_fedem_is_what_its_tuned_variant_has_before_tuning(tmp_path):
    def accuracies(name, stage, method, **more):
        settings = {"dataset": "digits", "model": "mlp", "clients": 3, "rounds": 2, "local_epochs": 1, **more}
        run(Study(methods=[method], **settings), tmp_path / name, engine="sequential")
        found = report.read(tmp_path / name).records
        found = found[(found["stage"] == stage) & (found["metric"] == "accuracy") & (found["round"] == 2)]
        return found.set_index("client")["value"].to_dict()

    plain = accuracies("plain", "personalised", "fedem:models=2")
    twice = accuracies("twice", "received", "fedem:models=2,tuning_epochs=null", protocol={"also": ["received"]})
    assert len(plain) == 3
    assert plain == twice


@pytest.mark.parametrize(
    ("one", "where", "other", "there"),
    [
        ("fedpac/table2", {"design": "both"}, "fedpac/table1", {"clients": 20, "method": "fedpac"}),
        ("fedpac/table4", {"method": "fedpac"}, "fedpac/table1", {"method": "fedpac"}),
        ("fedpac/table5", {"method": "local"}, "fedpac/table1", {"clients": 20, "method": "local"}),
        ("fedpac/table5", {"method": "fedavg_ft"}, "fedpac/table1", {"clients": 20, "method": "fedavg_ft"}),
        ("fedpac/fig4", {}, "fedpac/table1", {"clients": 20}),
        ("fedpac/fig1a", {"share": 20}, "fedpac/table1", {"clients": 20, "dataset": "cifar10"}),
        ("fedpac/fig1b", {"size": 600}, "fedpac/table1", {"clients": 20, "dataset": "cifar10"}),
        ("fedpac/fig5", {"local_epochs": 5}, "fedpac/table1", {"dataset": "cifar10", "method": "fedpac"}),
        ("fedlda/table2", {"dataset": "cifar10"}, "fedlda/table1", {"samples_per_client": 500}),
        ("fedlda/fig1a", {"method": "fedlda"}, "fedlda/table1", {"model": "wrn16_2", "samples_per_client": 500}),
        ("fedlda/fig1b", {}, "fedlda/table1", {"model": "wrn16_2", "samples_per_client": 500}),
    ],
)
def test_tables_and_figures_share_runs(one, where, other, there):
    assert digests(one, **where) <= digests(other, **there)


def test_different_conditions_are_different_runs():
    tables = ("table1", "table2", "table3", "table5", "table6", "table7", "table9", "table10")
    local = [c for t in tables for c in recipes.get(f"fedpac/{t}").cells if c.where["method"] == "local"]
    assert len({digest(c.study) for c in local}) == len(local) - 2  # Table 5 repeats two of Table 1


def test_weights_are_on_record_in_rounds_1_20_and_50():
    for name in ("fedpac/fig2", "fedpac/fig3"):
        assert {(c.study.rounds, c.study.evaluate_every) for c in cells(name)} == {(50, 1)}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_those_of_the_paper_but_for_what_is_known_to_differ(name):
    made = recipes.get(name)
    found = [outcome(c, []) for c in made.cells]
    stated, silent = SETTINGS[name]
    assert sum(c.published is None for c in made.cells) == silent
    numbers = [o for o in found if isinstance(o.cell.published, int | float)]
    differ = {o.cell.where["hyperparameter"] for o in numbers if o.status == "differs"}
    assert differ == ({"models_downloaded_M"} if "fedpac" in name else set())
    assert all(o.value == o.cell.published for o in found if isinstance(o.cell.published, str))
    assert len(found) == stated + silent


def test_a_difference_of_settings_shows():
    """A recipe that trained CIFAR-10 at another rate, or at two, would say so."""
    rows = [c for c in cells("fedpac/table1", clients=20) if c.where["dataset"] in ("cifar10", "cinic10")]
    changed = [replace(c, study=c.study.model_copy(update={"lr": 0.1})) for c in rows if c.where["method"] == "local"]

    def rate(where, study):
        return getattr(study, where["hyperparameter"]) if where["hyperparameter"] == "lr" else 0

    def of_cifar10(some):
        made = recipes.settings_table("fedpac/hyperparameters", some, rate)
        (c,) = (c for c in made.cells if c.where["hyperparameter"] == "lr" and c.where["dataset"] == "cifar10")
        return outcome(c, [])

    assert of_cifar10(rows).status == "matches"
    assert (of_cifar10(changed).value, of_cifar10(changed).status) == (0.1, "differs")
    assert of_cifar10([*rows, *changed]).value == "0.02 or 0.1"


@pytest.fixture(scope="module")
def fashion_mnist(tmp_path_factory):
    """The folder that holds the real data set, decoded once."""
    if not (REAL / "fashion_mnist" / "train.parquet").is_file():
        pytest.skip("fashion_mnist is not here: set IDIOLECT_DATA to the folder that holds fashion_mnist/train.parquet")
    with pytest.MonkeyPatch.context() as m:
        m.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield str(REAL)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "where", "clients", "train", "test"),
    [
        ("fedpac/table1", {"clients": 20, "method": "fedpac"}, 20, {600}, {300}),
        ("fedpac/table1", {"clients": 100, "method": "fedpac"}, 100, {600}, {600}),
        ("fedpac/table6", {"method": "fedpac"}, 20, {300, 600, 1200}, {300}),
        ("fedlda/table2", {"model": "wrn16_2", "method": "fedlda"}, 20, {400}, {100}),
    ],
)
def test_federations_can_be_built(name, where, clients, train, test, fashion_mnist):
    study = cell(name, dataset="fashion_mnist", **where).study.model_copy(update={"data_dir": fashion_mnist})
    made = study.federation()
    assert len(made.train) == clients
    assert {len(rows) for rows in made.train} == train
    assert {len(rows) for rows in made.test} == test
