"""Validation samples at sites: each keeps its own, sends means over them, and the study goes by these."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from sites import NAMES, Away, Loop, measuring, study, tables, workers

from idiolect import report
from idiolect.core.errors import InputError, RunError
from idiolect.core.option_spec import Spec
from idiolect.data.partitions.apart import splitting_of
from idiolect.data.validation import held_out
from idiolect.federation.data.agreement import common_form
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.messages import Message
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct, result
from idiolect.federation.server.study import study_for
from idiolect.federation.site.state_folder import site_model
from idiolect.federation.trust.policy import Policy
from idiolect.studies import Result
from rehearsal import rehearsed

SIDES = ["method", "seed", "round", "client", "stage", "metric", "other"]
Files = dict[str, Path]


def _run(tmp_path: Path, link: Loop, **more: Any) -> Result:
    whole = study_for(tmp_path / "study.yaml", "trial")
    return conduct(whole, link, list(link.workers), tmp_path / "run", Events(quiet=True), **more)


def _simulated(tmp_path: Path, files: Files) -> Result:
    samples = {name: SiteFiles(file, target="label") for name, file in files.items()}
    return rehearsed(study_for(tmp_path / "study.yaml", "trial"), samples, tmp_path / "simulated")


@pytest.mark.parametrize(
    ("share", "protocol"),
    [
        (0.2, "{validation: 0.2}"),
        (0.3, "{validation: 0.3, round: best_validation, weighting: sample}"),
        (0.5, "{validation: 0.5, stage: received, also: [personalised]}"),
    ],
)
def test_the_numbers_are_those_of_a_simulation(share: float, protocol: str, files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg, fedper", rounds=3, protocol=protocol)
    link = Loop(workers(tmp_path / "states", files))
    found, simulated = _run(tmp_path, link), _simulated(tmp_path, files)
    both = found.records.merge(simulated.records, on=SIDES, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6
    there = found.records[found.records["metric"] == "validation_accuracy"]
    assert set(there["client"]) == set(range(len(NAMES)))
    pd.testing.assert_series_equal(found.validation(), simulated.validation(), atol=1e-6)
    manifest = report.read(found.folder).manifest
    assert [sum(c["validation"]) for c in manifest["clients"]] == [round(share * 16)] * len(NAMES)
    assert [sum(c["train"]) for c in manifest["clients"]] == [16 - round(share * 16)] * len(NAMES)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6])
def test_a_site_draws_as_a_simulation_does(share: float, files: Files) -> None:
    samples = SiteFiles(files["south"], target="label")
    inputs, classes = common_form({"south": samples.offer()})
    plain, ready = (
        samples.encode(inputs, classes, 7, 3, look=False, **how) for how in ({}, {"validation": share})
    )  # fmt: skip
    at_N = held_out(plain.y_N[plain.train_N].numpy(), share, 7, 3)
    assert ready.validation_N.tolist() == plain.train_N[at_N].tolist()
    assert ready.train_N.tolist() == [n for n in plain.train_N.tolist() if n not in ready.validation_N.tolist()]
    assert ready.test_N.tolist() == plain.test_N.tolist()


def test_samples_are_not_divided_in_order_and_by_groups(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1, split="ordered", group_column="patient")
    with pytest.raises(InputError, match=r"study\.yaml: .*patient.* and .*ordered.* do not go together"):
        study_for(tmp_path / "study.yaml", "trial")
    table = pd.read_csv(files["south"])
    first = table.columns.drop("label")[0]
    samples = SiteFiles(files["south"], target="label", group_column=first)
    inputs, classes = common_form({"south": SiteFiles(files["south"], target="label").offer()})
    with pytest.raises(InputError, match=f"{first}.* and .*ordered.* do not go together"):
        samples.encode(inputs, classes, 0, 0, look=False, way=splitting_of(Spec(name="ordered")))


def test_what_leaves_a_site_of_its_validation_samples_are_means_and_counts(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1, protocol="{validation: 0.25}")
    link = Loop(workers(tmp_path / "states", files))
    _run(tmp_path, link)
    named = [
        (message.about["kind"], path)
        for _, message in link.received
        for path in (*message.arrays, *(message.about.get("measured") or {}))
        if "validation" in path
    ]
    assert set(named) == {
        ("inputs", "sums/validation_C"), ("evaluate", "validation_accuracy"), ("evaluate", "validation_loss")
    }  # fmt: skip


def test_a_policy_keeps_them(files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=1, protocol="{validation: 0.25}")
    link = Loop(workers(tmp_path / "states", files, Policy(evaluate=False)))
    records = _run(tmp_path, link).records
    assert not records["metric"].str.contains("accuracy").any()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"validation_accuracy": 1.5}, "a value of 1.5 of validation_accuracy is not possible"),
        ({"validation_accuracy": -0.1}, "a value of -0.1 of validation_accuracy is not possible"),
        ({"validation_loss": "low"}, "measured validation_loss is not a finite number"),
        ({"validation_precision": 0.5}, "it holds other measurements"),
    ],
)
def test_odd_numbers_of_validation_samples_do_not_count(
    values: dict[str, Any], said: str, files: Files, tmp_path: Path
) -> None:
    study(tmp_path, rounds=1, protocol="{validation: 0.25}")
    found = _run(
        tmp_path, Loop(workers(tmp_path / "states", files), {"east": measuring(values)}), terms=Terms(Patience(least=3))
    )
    there = found.records[found.records["metric"].isin(["accuracy", "validation_accuracy"])]
    assert set(there["client"]) == {0, 1, 3, 4}
    assert said in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("count", "said"), [(-1, "a number of samples is negative"), (2**27, "and 4.02653e+08 for validation")]
)
def test_numbers_of_validation_samples_that_are_not_possible(
    count: int, said: str, files: Files, tmp_path: Path
) -> None:
    def lies(asked: Message, reply: Message) -> Message:
        arrays = {k: torch.full_like(a, count) if "validation_C" in k else a for k, a in reply.arrays.items()}
        return Message(reply.about, arrays) if asked.about["kind"] == "inputs" else reply

    study(tmp_path, rounds=1, protocol="{validation: 0.25}")
    link = Loop(workers(tmp_path / "states", files), {"coast": lies})
    found = _run(tmp_path, link, terms=Terms(Patience(least=3), start=4))
    assert 4 not in set(found.records.loc[found.records["metric"] == "accuracy", "client"])
    assert said in (tmp_path / "run" / "events.jsonl").read_text()


def test_half_of_the_numbers_does_not_count(files: Files, tmp_path: Path) -> None:
    def tamper(asked: Message, reply: Message) -> Message:
        if asked.about["kind"] != "evaluate":
            return reply
        measured = {k: v for k, v in reply.about["measured"].items() if k != "validation_loss"}
        return Message(reply.about | {"measured": measured}, reply.arrays)

    study(tmp_path, rounds=1, protocol="{validation: 0.25}")
    _run(tmp_path, Loop(workers(tmp_path / "states", files), {"west": tamper}), terms=Terms(Patience(least=3)))
    assert "only some of its numbers of validation samples" in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_share_that_leaves_a_site_nothing_to_train_on(tmp_path: Path) -> None:
    small = tables(tmp_path, NAMES[:3], rows=10)
    study(tmp_path, rounds=1, protocol="{validation: 0.97}")
    loop = Loop(workers(tmp_path / "states", small))
    loop.workers["north"]._say = Events(tmp_path / "north.jsonl", quiet=True)
    with pytest.raises((InputError, RunError)):
        _run(tmp_path, loop, terms=Terms(Patience(least=3, deadline=1, silence=1)))
    said = (tmp_path / "north.jsonl").read_text()
    assert "validation=0.97 leaves" in said
    assert "north.csv none of its 8 samples to train on" in said


def test_methods_stop_early_as_in_a_simulation(files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study(tmp_path, "fedavg, fedper, local", rounds=30, lr=0.6, patience=3, protocol="{validation: 0.3}")
    link = Loop(workers(tmp_path / "states", files))
    found, simulated = _run(tmp_path, link), _simulated(tmp_path, files)
    stopped = report.read(found.folder).stopped
    assert stopped == report.read(simulated.folder).stopped
    assert len({stop.round for stop in stopped.values()}) > 1
    asked = len(link.sent)
    again = _run(tmp_path, link)  # what is finished is not asked for again
    assert [m.about["kind"] for _, m in link.sent[asked:]] == ["done"] * len(NAMES)
    assert report.read(again.folder).stopped == stopped
    for (label, seed), stop in stopped.items():
        with caplog.at_level(logging.WARNING):
            model = site_model(tmp_path / "states" / "north", method=label, seed=seed)
        assert model.about.key.round == stop.round
        assert f"is from round {stop.round} of at most 30, this site's last evaluation of it" in caplog.text
        bundle = result(found.folder).bundle(label, tmp_path / f"bundle-{label}", seed=seed)
        assert bundle.about.key.round == stop.round
        assert f"its accuracy in the table is that of round {stop.best}" in caplog.text


@pytest.mark.thorough(but=["2-client", "4-sample"])
@pytest.mark.parametrize("weighting", ["client", "sample"])
@pytest.mark.parametrize("back", [2, 4])
def test_a_site_that_comes_late_counts_as_in_the_report(
    weighting: str, back: int, files: Files, tmp_path: Path
) -> None:
    """So that a server that is started again decides alike."""
    protocol = f"{{validation: 0.3, weighting: {weighting}}}"
    study(tmp_path, "fedavg, fedper, local", rounds=25, lr=0.6, patience=3, protocol=protocol)
    link = Away(workers(tmp_path / "states", files), back)
    whole = study_for(tmp_path / "study.yaml", "trial")
    terms = Terms(Patience(least=3), start=4)
    found = conduct(whole, link, list(NAMES), tmp_path / "run", Events(quiet=True), terms=terms)
    run = report.read(found.folder)
    assert 4 in set(run.records.loc[run.records["metric"] == "validation_accuracy", "client"])
    ends = run.records.groupby(["method", "seed"])["round"].max().to_dict()
    assert {key: run.stopped[key].round if key in run.stopped else 25 for key in ends} == ends
    assert run.stopped


def test_a_finished_run_stays_as_it_is_when_a_site_is_added(files: Files, tmp_path: Path) -> None:
    three = {name: files[name] for name in NAMES[:3]}
    study(tmp_path, "fedavg", rounds=30, lr=0.6, patience=2, protocol="{validation: 0.3}")
    found = _run(tmp_path, Loop(workers(tmp_path / "states", three)))
    assert report.read(found.folder).stopped
    before = (found.folder / "records.parquet").read_bytes()
    four = {name: files[name] for name in NAMES[:4]}
    whole = study_for(tmp_path / "study.yaml", "trial")
    link = Loop(workers(tmp_path / "states", four))
    conduct(whole, link, NAMES[:4], tmp_path / "run", Events(quiet=True), roster=lambda: NAMES[:4])
    assert "local" not in {message.about["kind"] for _, message in link.sent}
    assert (found.folder / "records.parquet").read_bytes() == before
