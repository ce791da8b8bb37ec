"""Methods that have settings of training of their own beside the study's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import idiolect as idl
from idiolect import report
from idiolect.core.method import SGD, Adam
from idiolect.report.unfinished import advice
from idiolect.reproduction.diff import Side, compare
from idiolect.studies.local_training import NAMES
from idiolect.studies.method_use import hidden_settings
from idiolect.training.sharing import same_training

SMALL: dict[str, Any] = dict(
    dataset="digits", model="mlp:hidden=4", clients=3, keep=8, rounds=2, local_epochs=1, batch_size=5, partition="iid"
)
OTHERS: dict[str, Any] = dict(
    local_epochs=2, batch_size=3, optimiser="adam", lr=0.07, momentum=0.9, weight_decay=0.01,
    server_optimiser="adam:lr=0.03", drop_last=True, clip=0.01, lr_schedule="step:every=1,factor=0.5",
)  # fmt: skip


def records(study: idl.Study, folder: Path) -> pd.DataFrame:
    return idl.run(study, folder, engine="sequential").records.drop(columns="method")


@pytest.mark.thorough(but=["local_epochs", "optimiser", "server_optimiser", "clip", "lr_schedule"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_method_with_a_setting_of_its_own_has_the_numbers_of_a_study_with_it(tmp_path: Path, name: str) -> None:
    value = OTHERS[name]
    nested = f"{value.replace(':', '(')})" if ":" in str(value) else value
    use = idl.use("fedavg", **{name: nested})
    usual = records(idl.Study(methods=["fedavg"], **SMALL), tmp_path / "usual")
    whole = records(idl.Study(methods=["fedavg"], **SMALL | {name: value}), tmp_path / "whole")
    own = records(idl.Study(methods=[use, "local"], **SMALL), tmp_path / "own")
    pd.testing.assert_frame_equal(own[: len(whole)], whole, check_exact=True)
    assert not usual["value"].equals(whole["value"])  # else the setting would do nothing here


def test_a_task_is_built_from_the_settings_of_the_method() -> None:
    study = idl.Study(methods=["fedavg", "fedpac:lr=0.2,local_epochs=3", "ditto:optimiser=adam,pull=2"], **SMALL)
    federation = study.federation()
    fedavg, fedpac, ditto = (study.of(use).task_of(federation).training for use in study.methods)
    assert fedavg.optimiser == SGD(0.01, 0.5, 5e-4)
    assert (fedpac.optimiser, fedpac.epochs) == (SGD(0.2, 0.5, 5e-4), 3)
    assert ditto.optimiser == Adam(0.01, weight_decay=5e-4)  # the study's momentum is for sgd alone
    assert study.methods[2].options["pull"] == 2


def test_sgd_of_one_method_beside_adam_is_the_same_when_the_study_is_read_again() -> None:
    study = idl.Study(methods=["fedavg:optimiser=sgd"], optimiser="adam", lr=0.001)
    again = idl.Study(**yaml.safe_load(study.to_yaml()))
    assert again == study
    assert again.of(again.methods[0]).momentum == study.of(study.methods[0]).momentum


def test_an_option_of_the_method_keeps_its_name() -> None:
    use = idl.use("fedcr", lr=0.2, batch_size=7)  # fedcr has an lr of its own
    assert (use.options["lr"], use.settings) == (0.2, {"batch_size": 7})


def test_methods_of_one_training_share_it_only_with_the_same_settings() -> None:
    study = idl.Study(methods=["fedavg:lr=0.1", "fedavg_ft:lr=0.1", "knnper"], **SMALL)
    fedavg, tuned, other = (job.build() for _, job in study.jobs(study.federation()))
    assert same_training(fedavg, tuned)
    assert not same_training(fedavg, other)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedavg:lr=-1", ["fedavg", "lr=-1", "greater than 0"]),
        ("fedavg:local_epochs=0.5", ["fedavg", "local_epochs=0.5"]),
        ("fedavg:lr=true", ["fedavg", "lr=true", "not true or false"]),
        ("fedavg:optimiser=sdg", ["fedavg", "optimiser=", "sgd"]),
        ("fedavg:momentum=0.3,optimiser=adam", ["fedavg", "momentum=0.3", "leave momentum out"]),
        ("fedavg:server_optimiser=adma", ["fedavg", "server", "adma", "adam"]),
        ("fedavg:clip=0", ["fedavg", "clip=0", "greater than 0"]),
        ("fedavg:lr_schedule=cosin", ["fedavg", "lr_schedule 'cosin'", "did you mean 'cosine'"]),
        ("fedavg:lr_schedule=constant(warmup=30)", ["method fedavg:", "warm-up of 30 rounds", "warmup below rounds"]),
        ("fedavg:optimiser=adamw,momentum=0.9", ["fedavg", "momentum=0.9", "not adamw", "leave momentum out"]),
        ("fedavg:lrr=1", ["fedavg", "'lrr'", "did you mean 'lr'"]),
        ("ditto:rounds=3", ["ditto", "'rounds'", "local_epochs"]),
        ({"name": "fedavg", "settings": {"rounds": 3}}, ["fedavg", "rounds"]),
        ({"name": "fedavg", "settings": 3}, ["fedavg", "settings=3", "mapping"]),
    ],
)
def test_bad_settings_of_a_method_are_one_sentence(method: Any, words: list[str]) -> None:
    with pytest.raises(idl.InputError) as error:
        idl.Study(methods=[method])
    said = str(error.value)
    assert all(word in said for word in words), said
    assert "\n" not in said


def test_settings_that_do_not_go_with_the_studys_are_refused() -> None:
    study = idl.Study(methods=["fedavg"], optimiser="adam", lr=0.001)
    with pytest.raises(idl.InputError, match=r"method fedavg:momentum=0\.5: momentum"):
        study.with_methods([idl.use("fedavg", momentum=0.5)])


@pytest.mark.parametrize("own", [{"lr": 0.2}, {"optimiser": "adam", "lr": 0.002}, {"server_optimiser": "momentum"}])
def test_a_study_with_own_settings_is_read_as_it_was_written(tmp_path: Path, own: dict[str, Any]) -> None:
    study = idl.Study(methods=[idl.use("fedpac", label="mine", head_epochs=2, **own), "fedavg"], **SMALL)
    (tmp_path / "study.yaml").write_text(study.to_yaml())
    assert idl.Study.read(tmp_path / "study.yaml") == study
    plain = yaml.safe_load(study.to_yaml())["methods"]
    assert plain[0]["settings"].keys() == own.keys()
    assert "settings" not in plain[1]


def test_differences_of_own_settings_are_told(tmp_path: Path) -> None:
    one, other = (idl.Study(methods=[idl.use("fedavg", label="mine", **own)], **SMALL) for own in ({"lr": 0.3}, {}))
    idl.run(one, tmp_path / "one", engine="sequential")
    with pytest.raises(idl.InputError, match=r"another study \(mine\.lr: 0\.3 there"):
        idl.run(other, tmp_path / "one", engine="sequential", resume=True)
    [difference] = compare(Side("one", one), Side("other", other)).differences
    assert (difference.what, difference.a, difference.b) == ("mine.lr", "0.3", "0.01")


def test_a_table_says_which_settings_methods_have_of_their_own(tmp_path: Path) -> None:
    study = idl.Study(methods=[idl.use("fedavg", label="mine", lr=0.3, local_epochs=2), "local"], **SMALL)
    result = idl.run(study, tmp_path / "run", engine="sequential")
    [note] = [n for n in result.notes() if "of their own" in n]
    assert "mine (local_epochs 2, lr 0.3)" in note
    assert "Local" not in note
    assert note in result.page.read_text().replace("&#39;", "'")


@pytest.mark.parametrize(
    ("use", "hidden"),
    [
        (idl.use("fedavg", lr=0.3), {}),
        (idl.use("fedpac", label="fedpac", lr=0.3, alignment=2.0), {"alignment": 2.0, "lr": 0.3}),
        (idl.use("fedpac", label="fedpac:alignment=2.0", lr=0.3, alignment=2.0), {"lr": 0.3}),
        (idl.use("fedpac", label="mine", alignment=2.0), {}),
        (idl.use("fedpac", preset="paper"), {}),
    ],
)
def test_what_a_label_does_not_show_stands_below_the_table(use: idl.Use, hidden: dict[str, Any]) -> None:
    assert hidden_settings(use) == hidden


def test_advice_about_the_learning_rate_is_not_for_methods_with_one_of_their_own(tmp_path: Path) -> None:
    small = SMALL | {"model": "mlp:hidden=32", "rounds": 8, "lr": 0.01, "keep": 60, "evaluate_every": 8}
    said = {}
    for name, use in {"own": "fedavg:lr=0.02", "study": "fedavg"}.items():
        result = idl.run(idl.Study(methods=[use], **small), tmp_path / name, engine="sequential")
        [said[name]] = [line for line in advice(report.read(result.folder)) if "may not be finished" in line]
    assert "lr=0.03" in said["study"]
    assert said["own"].endswith("or a larger learning rate.")


def test_sgd_of_one_method_has_the_default_momentum_beside_another_optimiser() -> None:
    study = idl.Study(methods=["fedavg:optimiser=sgd", "fedper"], optimiser="adamw", lr=0.001)
    own, other = (study.of(use) for use in study.methods)
    assert own.momentum == idl.Study().momentum
    assert other.momentum == 0


def test_a_bundle_trains_with_the_settings_of_its_method(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg_ft:lr=0.2,batch_size=3,epochs=1"], **SMALL)
    result = idl.run(study, tmp_path / "run", engine="sequential")
    bundle = result.bundle("fedavg_ft", tmp_path / "bundle")
    assert (bundle.about.training.lr, bundle.about.training.batch_size) == (0.2, 3)


def test_every_setting_of_its_own_is_one_of_a_study() -> None:
    assert set(NAMES) <= set(idl.Study.model_fields)
    assert {"augment", *OTHERS} <= set(NAMES)
