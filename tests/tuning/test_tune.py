"""A search as a whole: fair, without the test samples, the same after a stop, and with a study that runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import idiolect as idl
from idiolect import cli
from idiolect.cli.study import _with as with_options
from idiolect.core.objectives import ACCURACY
from idiolect.data import FederatedData
from idiolect.runs.store import Store, difference, settings_of_numbers
from idiolect.tuning import Tuning
from idiolect.tuning import plan as plans
from idiolect.tuning.halving import rungs
from idiolect.tuning.trials import Trial, Trials, study_of_trials, write

SMALL: dict[str, Any] = dict(
    dataset="digits", model="mlp:hidden=4", clients=3, keep=30, rounds=9, local_epochs=1, batch_size=8, seeds=[5, 6],
    lr_schedule="cosine", partition="iid:test_fraction=0.3",
)  # fmt: skip
STUDY = idl.Study(methods=["local", "fedavg", "fedavg_ft:epochs=1", "fedpac"], **SMALL)
SEARCH = {"lr": "0.001..0.5:log", "fedpac.alignment": "0.1..10:log"}


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    folder = tmp_path_factory.mktemp("tune") / "search"
    return idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True)


def same(a: Tuning, b: Tuning) -> None:
    pd.testing.assert_frame_equal(a.trials(), b.trials(), check_exact=True)
    assert a.chosen() == b.chosen()
    assert a.tuned == b.tuned


def test_every_method_has_the_same_trials_and_rounds(tuning: Tuning) -> None:
    trials = tuning.trials()
    ends = rungs(STUDY.rounds, 3)
    for use in STUDY.methods:
        mine = trials[trials["method"] == use.label]
        assert mine["trial"].tolist() == list(range(1, 7))
        assert mine["rounds"].value_counts().to_dict() == dict(zip(ends, (3, 1, 2), strict=True))
        assert mine.loc[mine["state"] == "complete", "trial"].gt(3).sum() == 1  # of three and three two, one, and one
    first = trials[trials["trial"] <= 3].pivot(index="trial", columns="method", values="lr")
    assert (first.nunique(axis=1) == 1).all()  # the first half is alike, so that methods share trainings


def test_the_best_of_each_half_go_on_at_each_cut(tmp_path: Path) -> None:
    """Of nine and nine trials five and four after a fifth of the rounds, and two and one after three fifths."""
    study = idl.Study(methods=["fedavg"], **SMALL)
    tuning = idl.tune(study, {"lr": "0.001..0.5:log"}, tmp_path / "search", trials=18, engine="sequential")
    trials = tuning.trials()
    assert trials["rounds"].value_counts().to_dict() == {2: 9, 6: 6, 9: 3}
    for number, counts in ((1, {2: 5, 6: 2}), (2, {2: 4, 6: 1})):
        records = pd.read_parquet(tuning.folder / f"trials-{number}" / "records.parquet")
        mine = trials[(trials["trial"] <= 9) == (number == 1)]
        for end, go_on in counts.items():
            cut = records[records["round"] == end].pivot_table(index="method", columns="metric", values="value")
            cut = cut.assign(trial=[int(str(label).rpartition("#")[2]) for label in cut.index])
            best = cut.sort_values(["validation_accuracy", "validation_loss", "trial"], ascending=[False, True, True])
            assert set(mine.loc[mine["rounds"] > end, "trial"]) == set(best["trial"][:go_on])
    note = "trained until round 2, up to 9 of them until round 6, and up to 3 of them until round 9"
    assert note in tuning.notes()[0]


@pytest.mark.thorough(but=["*gp*", "fedavg*"])
@pytest.mark.parametrize(
    ("method", "lr", "trials", "sampler", "go_on"),
    [
        ("pfedme:steps=2", "0.001..0.26", 8, "tpe", (1, 1)),  # of the first four one is not refused
        ("pfedme:steps=2", "0.001..0.5", 6, "gp", (1, 1)),  # of the first three none
        ("pfedme:steps=2", "0.02..0.26", 12, "random", (1,)),
        ("fedavg", [0.1, 1e30, 1e31, 1e32], 20, "tpe", (1,)),
    ],
)
def test_a_batch_with_few_trials_that_train_promotes_what_it_has(
    tmp_path: Path, method: str, lr: Any, trials: int, sampler: str, go_on: tuple[int, ...]
) -> None:
    study = idl.Study(methods=[method], **SMALL)
    tuning = idl.tune(
        study, {"lr": lr}, tmp_path / "search", trials=trials, sampler=sampler, halving=3, engine="sequential"
    )
    every = tuning.trials()
    failed = every["state"].isin(["refused", "diverged"])
    assert failed.any()
    for number, share in enumerate(go_on):
        mine = (every["trial"] > len(every) / len(go_on)) == (number == 1)
        assert (every["state"] == "complete")[mine].sum() == min(share, (~failed)[mine].sum())
    assert tuning.has_ended


def test_the_choice_is_the_best_of_the_complete_on_validation_samples(tuning: Tuning) -> None:
    """Computed anew from the records, in numpy and pandas."""
    values: dict[tuple[str, int], tuple[float, float]] = {}
    for number in (1, 2):
        records = pd.read_parquet(tuning.folder / f"trials-{number}" / "records.parquet")
        last = records[records["round"] == STUDY.rounds].pivot_table(index="method", columns="metric", values="value")
        for label, row in last.iterrows():
            method, _, trial = str(label).rpartition(" #")
            values[method, int(trial)] = row["validation_accuracy"], row["validation_loss"]
    for c in tuning.chosen():
        mine = {trial: value for (method, trial), value in values.items() if method == c.method}
        best = min(mine, key=lambda t: (-mine[t][0], mine[t][1], t))
        assert (c.trial, c.score) == (best, pytest.approx(mine[best][0], abs=1e-12))


def test_trials_measure_no_test_sample(tuning: Tuning) -> None:
    for number in (1, 2):
        folder = tuning.folder / f"trials-{number}"
        metrics = set(pd.read_parquet(folder / "records.parquet")["metric"])
        assert {"validation_accuracy", "validation_loss"} <= metrics
        assert not metrics & {"accuracy", "loss", "balanced_accuracy", "macro_f1", "brier", "calibration_error"}
        manifest = json.loads((folder / "manifest.json").read_text())
        assert all(sum(client["test"]) == 0 for client in manifest["clients"])


@pytest.mark.thorough(but=["0"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_test_sample_can_reach_a_choice(
    tuning: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The labels of all test samples in another order, and their inputs replaced: the same trials, the same choice."""
    whole = idl.Study.federation

    def shuffled(study: idl.Study) -> FederatedData:
        data = whole(study)
        rows = torch.cat([*data.test])
        draw = torch.Generator().manual_seed(seed)
        labels = data.y_R[rows[torch.randperm(len(rows), generator=draw)]]
        assert not torch.equal(labels, data.y_R[rows])
        data.y_R[rows] = labels
        data.x_R[rows] = torch.randint(256, data.x_R[rows].shape, dtype=torch.uint8, generator=draw)
        return data

    monkeypatch.setattr(idl.Study, "federation", shuffled)
    same(idl.tune(STUDY, SEARCH, tmp_path / "search", trials=6, engine="sequential"), _without_refit(tuning))


def _without_refit(tuning: Tuning) -> Any:
    """What does not depend on ``refit``."""
    tuned = tuning.tuned.model_copy(update={"protocol": STUDY.protocol})

    class Compared:
        trials, chosen = tuning.trials, tuning.chosen

    Compared.tuned = tuned  # type: ignore[attr-defined]
    return Compared


def test_a_promoted_trial_is_as_if_it_had_never_stopped(tuning: Tuning, tmp_path: Path) -> None:
    """Its schedule too: the cosine ends in the last round of the study, not of a rung."""
    whole = idl.tune(STUDY, SEARCH, tmp_path / "search", trials=6, halving=1, engine="sequential")
    keys = ["method", "trial"]
    merged = tuning.trials().merge(whole.trials(), on=keys, suffixes=("", "_whole"))
    merged = merged[(merged["trial"] <= 3) & (merged["state"] == "complete")]
    assert len(merged) == len(STUDY.methods)
    assert (merged["validation_accuracy"] == merged["validation_accuracy_whole"]).all()
    assert (merged["validation_loss"] == merged["validation_loss_whole"]).all()
    assert (whole.trials()["rounds"] == STUDY.rounds).all()


def test_workers_change_nothing(tuning: Tuning, tmp_path: Path) -> None:
    other = idl.tune(STUDY, SEARCH, tmp_path / "search", trials=6, engine="processes", workers=2, refit=True)
    same(other, tuning)


def test_refit_runs_the_tuned_study_on_all_training_samples(tuning: Tuning, tmp_path: Path) -> None:
    tuned, result = tuning.tuned, tuning.result
    assert result is not None
    assert (tuned.protocol.validation, tuned.seeds, tuned.lr_schedule) == (0, STUDY.seeds, STUDY.lr_schedule)
    sizes = [len(rows) for rows in tuned.federation().train]
    assert sizes == [len(rows) for rows in STUDY.federation().train]
    for use, c in zip(tuned.methods, tuning.chosen(), strict=True):
        assert (use.options | use.settings).items() >= c.values.items()
    plain = idl.run(idl.Study.read(tuning.folder / "tuned.yaml"), tmp_path / "plain", engine="sequential")
    pd.testing.assert_series_equal(plain.accuracy(), result.accuracy(), check_exact=True)
    assert [n for n in result.notes() if "of their own" in n]


def test_without_refit_the_study_keeps_its_protocol(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL | {"protocol": "validation=0.3,round=best_validation"})
    tuning = idl.tune(study, {"batch_size": "4,8"}, tmp_path / "search", trials=2, engine="sequential")
    assert tuning.result is None
    assert tuning.tuned.protocol == study.protocol
    assert "30% of each client's training samples" in tuning.notes()[0]


def test_the_best_round_counts_if_the_protocol_says_so(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL | {"protocol": "validation=0.3,round=best_validation"})
    tuning = idl.tune(study, {"lr": "0.1,0.5"}, tmp_path / "search", trials=2, halving=1, engine="sequential")
    records = pd.read_parquet(tuning.folder / "trials-1" / "records.parquet")
    part = records[records["metric"] == "validation_accuracy"]
    best = part.groupby(["method", "round"])["value"].mean().groupby("method").max()
    assert tuning.trials()["validation_accuracy"].tolist() == pytest.approx([best["fedavg #1"], best["fedavg #2"]])


def test_trials_that_diverge_or_are_refused_are_not_chosen(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg", "pfedme:steps=2"], **SMALL)
    search = {"fedavg.lr": [0.05, 1e30], "pfedme.lr": [0.01, 0.5]}
    tuning = idl.tune(study, search, tmp_path / "search", trials=2, engine="sequential")
    trials = tuning.trials().set_index(["method", "trial"])
    assert trials.loc[("fedavg", 2), "state"] == "diverged"
    assert trials.loc[("pfedme:steps=2", 2), "state"] == "refused"
    assert {c.trial for c in tuning.chosen()} == {1}
    page = tuning.page.read_text()
    assert "diverged: in round" in page
    assert "refused: " in page
    assert any("FedAvg: 1 of 2 trials diverged (lr 1e+30)" in note for note in tuning.notes())
    assert any("1 of 2 trials were refused" in note for note in tuning.notes())


def test_no_wider_range_is_advised_where_a_trial_beyond_the_choice_failed(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL)
    tuning = idl.tune(study, {"lr": [0.01, 0.1, 1e30]}, tmp_path / "up", trials=3, engine="sequential")
    assert tuning.chosen()[0].edges == ()
    tuning = idl.tune(study, {"lr": [0.001, 0.01, 0.1]}, tmp_path / "all", trials=3, engine="sequential")
    assert tuning.chosen()[0].edges == ("lr",)


def test_a_label_names_what_was_chosen(tmp_path: Path) -> None:
    uses = [idl.use("fedavg", label=label, lr=0.1) for label in ("mine", "fedavg:mine")]
    study = idl.Study(methods=["fedavg:lr=0.1", *uses, "fedavg"], **SMALL)
    tuning = idl.tune(study, {"lr": [0.2]}, tmp_path / "search", trials=1, engine="sequential")
    assert [use.label for use in tuning.tuned.methods] == ["fedavg:lr=0.2", "mine", "fedavg:mine", "fedavg"]
    assert {use.settings["lr"] for use in tuning.tuned.methods} == {0.2}


def test_an_option_and_a_setting_of_one_name_stay_apart(tmp_path: Path) -> None:
    use = {"name": "feddbe", "options": {"momentum": 0.3}, "settings": {"momentum": 0.8}}
    study = idl.Study(methods=[use, "fedavg"], **SMALL)
    tuning = idl.tune(study, {"lr": [0.2]}, tmp_path / "search", trials=1, engine="sequential")
    mine = tuning.tuned.methods[0]
    assert (mine.options["momentum"], mine.settings) == (0.3, {"momentum": 0.8, "lr": 0.2})
    for sets, momentum in ((["fedavg.lr=0.1"], 0.3), (["feddbe.momentum=0.5"], 0.5)):
        mine = with_options(study.methods, sets)[0]
        assert (mine.options["momentum"], mine.settings) == (momentum, {"momentum": 0.8})
    there, here = (
        settings_of_numbers(idl.Study(methods=[use | {"label": "d", "options": {"momentum": m}}])) for m in (0.3, 0.5)
    )
    assert "momentum: 0.3 there, 0.5 here" in str(difference(there, here))


def test_rounds_are_those_that_were_trained_where_a_trial_stops_early(tmp_path: Path) -> None:
    study = idl.Study(
        methods=["fedavg"], **SMALL | {"rounds": 12, "evaluate_every": 1}, patience=2, protocol={"validation": 0.3}
    )
    tuning = idl.tune(study, {"lr": [1e-12]}, tmp_path / "search", trials=1, engine="sequential")
    # nothing is learnt, so that no evaluation after the first has a new best
    assert tuning.trials()["rounds"].tolist() == [3]
    assert tuning.chosen()[0].rounds == 3


def test_a_trial_that_diverged_late_is_no_good_one_for_the_sampler() -> None:
    trials = Trials.__new__(Trials)
    trials._by = ACCURACY
    trial = Trial("fedavg", 1, {"lr": 0.1}, {2: (0.9, 0.1), 6: (0.95, 0.1)}, "stopped")
    assert trials._end(trial).rungs == {2: 0.9, 6: 0.95}
    assert trials._end(trial._replace(state="diverged")).rungs == {}


@pytest.mark.parametrize("name", ["base.yaml", "search.yaml"])
def test_an_edited_search_is_refused(tuning: Tuning, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "search"
    shutil.copytree(tuning.folder, folder)
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("rounds: 9", "rounds: 8").replace("trials: 6", "trials: 5"))
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(idl.InputError, match=f"{name} has changed since the search began"):
        idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True, resume=True)
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_search_that_was_killed_at_its_very_start_begins_anew(tuning: Tuning, tmp_path: Path) -> None:
    study, folder = idl.Study(methods=["fedavg"], **SMALL), tmp_path / "search"
    folder.mkdir()
    for name in ("manifest.json", "base.yaml"):
        shutil.copy(tuning.folder / name, folder / name)
        again = idl.tune(study, {"lr": [0.1]}, folder, trials=1, engine="sequential", resume=name == "base.yaml")
        assert again.chosen()[0].values == {"lr": 0.1}
        shutil.rmtree(folder)
        folder.mkdir()


def test_a_search_without_refit_can_have_it_later(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL)
    idl.tune(study, {"lr": [0.1, 0.2]}, tmp_path / "s", trials=2, engine="sequential")
    tuning = idl.tune(study, {"lr": [0.1, 0.2]}, tmp_path / "s", trials=2, engine="sequential", refit=True, resume=True)
    assert tuning.result is not None
    assert Tuning.read(tmp_path / "s").tuned.protocol.validation == 0
    shutil.rmtree(tmp_path / "s" / "refit")  # as after a stop
    again = idl.tune(study, {"lr": [0.1, 0.2]}, tmp_path / "s", trials=2, engine="sequential", resume=True)
    assert again.result is not None


@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_refit_that_is_added_and_cut_off_between_two_files_goes_on(tmp_path: Path, written: int) -> None:
    study, folder = idl.Study(methods=["fedavg"], **SMALL), tmp_path / "s"
    search = {"lr": [0.1, 0.2]}
    idl.tune(study, search, folder, trials=2, engine="sequential")
    names = ("manifest.json", "base.yaml", "search.yaml")
    before = {name: (folder / name).read_bytes() for name in names}
    plans.write(folder, study, plans.read(folder).model_copy(update={"refit": True}))
    for name in names[written:]:
        (folder / name).write_bytes(before[name])
    tuning = idl.tune(study, search, folder, trials=2, engine="sequential", refit=True, resume=True)
    assert tuning.result is not None


def test_the_call_that_goes_on_has_what_is_not_usual(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL)
    with pytest.raises(
        idl.Interrupted, match=r"idl\.tune\(study, search, out=.*resume=True.*, trials=2, sampler='random'\)"
    ):
        idl.tune(study, {"lr": "0.1..0.2"}, tmp_path / "s", trials=2, sampler="random", engine="sequential", budget=0)


def test_the_number_of_validation_samples_is_told(tuning: Tuning) -> None:
    held_out = sum(len(rows) for rows in study_of_trials(STUDY, 5).federation().validation)
    assert f"on {held_out} validation samples, 20%" in tuning.notes()[0]


def test_the_folder_of_a_search_is_no_run(tuning: Tuning) -> None:
    with pytest.raises(idl.InputError, match=r"is the folder of a search: its page is tuning\.html"):
        idl.report.read(tuning.folder)


def test_a_method_without_a_choice_keeps_its_settings(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg", "local"], **SMALL)
    tuning = idl.tune(study, {"fedavg.lr": [1e30, 2e30]}, tmp_path / "search", trials=2, engine="sequential")
    assert tuning.tuned.methods == study.methods
    assert any("no trial reached the last round" in note for note in tuning.notes())
    local = tuning.chosen()[1]
    assert (local.values, local.trials) == ({}, 1)


def test_a_choice_at_the_edge_is_told(tuning: Tuning, tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL)
    low = idl.tune(study, {"lr": "0.00001..0.1:log"}, tmp_path / "low", trials=8, engine="sequential")
    [note] = [n for n in low.notes() if "edge" in n]
    assert "0.1:log" in note
    assert low.chosen()[0].edges == ("lr",)


@pytest.mark.parametrize(
    ("diverged", "told"), [((0.17, 0.19), "lr 0.17"), ((0.2,), "lr 0.2"), ((0.201, 0.05, 0.1), None), ((), None)]
)
def test_a_rate_is_told_near_which_training_diverged(
    diverged: tuple[float, ...], told: str | None, tuning: Tuning, tmp_path: Path
) -> None:
    """A learning rate of 0.1 was chosen."""
    folder = tmp_path / "search"
    shutil.copytree(tuning.folder, folder)
    label = STUDY.methods[0].label
    best = Trial(label, 1, {"lr": 0.1}, {9: (0.9, 0.1)}, "complete")
    others = [Trial(label, 2 + k, {"lr": lr}, {}, "diverged") for k, lr in enumerate(diverged)]
    elsewhere = Trial(STUDY.methods[1].label, 1, {"lr": 0.15}, {}, "diverged")
    write(folder, [best, *others, elsewhere])
    notes = [n for n in Tuning.read(folder).notes() if "at most twice the choice, diverged" in n]
    assert [told in note for note in notes] == ([True] if told else [])


def test_a_search_goes_on_after_an_interruption(tuning: Tuning, tmp_path: Path) -> None:
    folder = tmp_path / "search"
    with pytest.raises(idl.Interrupted, match=r"continue with: idl\.tune\(study, search, out="):
        idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True, budget=0.3)
    with pytest.raises(idl.InputError, match=r"another search \(trials: 6 there, 5 here\)"):
        idl.tune(STUDY, SEARCH, folder, trials=5, engine="sequential", refit=True, resume=True)
    with pytest.raises(idl.InputError, match=r"another search \(search: "):
        idl.tune(STUDY, {"lr": "0.01..0.5"}, folder, trials=6, engine="sequential", refit=True, resume=True)
    other = STUDY.model_copy(update={"rounds": 8})
    with pytest.raises(idl.InputError, match=r"another search \(rounds: 9 there, 8 here\)"):
        idl.tune(other, SEARCH, folder, trials=6, engine="sequential", refit=True, resume=True)
    with pytest.raises(idl.InputError, match="continue the search in it"):
        idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True)
    same(idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True, resume=True), tuning)
    same(idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True, resume=True), tuning)  # at its end


@pytest.mark.thorough
@pytest.mark.parametrize("calls", [3, 7])
def test_a_search_ends_the_same_that_stops_between_its_jobs_and_their_records(
    tuning: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """At the end of one of its six rungs, or in the refit: the rounds are in cells, not in the records of all."""
    merge, count = Store.merge, 0

    def stops(store: Any) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise KeyboardInterrupt
        merge(store)

    monkeypatch.setattr(Store, "merge", stops)
    folder = tmp_path / "search"
    with pytest.raises(idl.Interrupted):
        idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True)
    same(idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True, resume=True), tuning)


@pytest.mark.parametrize(("rates", "code"), [("0.05,1e30", 0), ("1e29,1e30", 1)])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_exit_code_says_that_a_method_has_no_choice(rates: str, code: int, more: list[str], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(idl.Study(methods=["fedavg"], **SMALL).to_yaml())
    command = ["tune", str(tmp_path / "study.yaml"), "--search", f"lr={rates}", "--trials", "2", "--quiet"]
    with pytest.raises(SystemExit) as end:
        cli.main([*command, "--engine", "sequential", "--out", str(tmp_path / "search"), *more])
    assert end.value.code == code


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_search_that_is_killed_three_times_ends_the_same(tuning: Tuning, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.to_yaml())
    start = ["tune", "study.yaml", "--trials", "6", "--refit", "--engine", "sequential", "--out", "search", "--quiet"]
    start += [piece for name, text in SEARCH.items() for piece in ("--search", f"{name}={text}")]
    again = ["tune", "--resume", "--out", "search", "--engine", "sequential", "--quiet"]
    command = [sys.executable, "-m", "idiolect"]
    draw = random.Random(0)
    for kill in range(3):
        process = subprocess.Popen(
            [*command, *(start if kill == 0 else again)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        size, deadline = _bytes(tmp_path / "search"), time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:  # until it has written something new
            time.sleep(0.02)
            if (tmp_path / "search" / "search.yaml").exists() and _bytes(tmp_path / "search") > size + 20_000:
                break
        time.sleep(draw.random() / 2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = subprocess.run([*command, *again], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    whole = tuning.folder
    for name in ("tuned.yaml", "trials.json"):
        assert (tmp_path / "search" / name).read_bytes() == (whole / name).read_bytes()
    a, b = (pd.read_parquet(folder / "refit" / "records.parquet") for folder in (tmp_path / "search", whole))
    pd.testing.assert_frame_equal(a, b, check_exact=True)


def _bytes(folder: Path) -> int:
    """Of all files; a folder that disappears meanwhile ends the count."""
    size = 0
    with suppress(OSError):
        for path in folder.rglob("*"):
            size += path.stat().st_size
    return size


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (dict(trials=1), ["1 trial for 2 settings of fedpac", "lr, alignment", "more trials"]),
        (dict(trials=0), ["trials=0", "greater than 0"]),
        (dict(halving=0), ["halving=0"]),
        (dict(sampler="tpo"), ["unknown sampler 'tpo'", "tpe"]),
        (dict(search={"lr": "0.3..0.1"}), ["reversed"]),
        (dict(search="defualt"), ["defualt"]),
        (dict(resume=True, out=None), ["folder to continue"]),
        (dict(engine="procesess"), ["procesess", "processes"]),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    how = {"search": SEARCH, "out": "search", **how}
    with pytest.raises(idl.InputError) as error:
        idl.tune(STUDY, **how)
    said = str(error.value)
    assert all(word in said for word in words), said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_share_that_leaves_a_client_nothing_to_train_on(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL | {"keep": 2, "protocol": "validation=0.99"})
    with pytest.raises(idl.InputError, match="validation"):
        idl.tune(study, {"lr": "0.1,0.2"}, tmp_path / "search", trials=2)
    assert not (tmp_path / "search").exists()


def test_a_refit_has_no_samples_to_choose_a_threshold_on(tmp_path: Path) -> None:
    """It would train on all training samples, and its study, which keeps the threshold, could not be read again."""
    x, y = torch.randn(120, 6).numpy(), (torch.arange(120) % 2).numpy()
    data = idl.data.from_arrays(x, y, clients=["a", "b", "c"] * 40)
    study = idl.Study(data=data, methods=["fedavg"], rounds=2, protocol="validation=0.3,threshold=f1")
    with pytest.raises(idl.InputError, match="refit=True trains on all training samples, and threshold=f1") as error:
        idl.tune(study, {"lr": "0.1,0.2"}, tmp_path / "search", trials=2, refit=True)
    assert "leave out refit=True and run tuned.yaml" in str(error.value)
    assert not (tmp_path / "search").exists()


def test_files_of_a_search_that_are_broken_are_one_sentence(tuning: Tuning, tmp_path: Path) -> None:
    for name, content in (("search.yaml", "trials: [1"), ("search.yaml", "trials: 6"), ("base.yaml", "rounds: x")):
        folder = tmp_path / f"{name}{len(content)}"
        shutil.copytree(tuning.folder, folder)
        (folder / name).write_text(content)
        with pytest.raises(idl.InputError) as error:
            idl.tune(STUDY, SEARCH, folder, trials=6, engine="sequential", refit=True, resume=True)
        assert "\n" not in str(error.value)


def test_the_page_shows_every_trial_and_no_test_number_before_the_choice(tuning: Tuning) -> None:
    page = tuning.page.read_text()
    for t in tuning.each_trial:
        assert f"{t.value.score:.1%}" in page
    assert 'href="refit/report.html"' in page
    assert "No test sample was measured." in page
    assert f"lr: {tuning.tuned.methods[0].settings['lr']}" in page
    for number in (1, 2):
        run = idl.report.read(tuning.folder / f"trials-{number}")
        assert (
            run.records["metric"].str.contains("accuracy").sum()
            == (run.records["metric"] == "validation_accuracy").sum()
        )


def test_a_search_is_read_from_its_folder_and_keeps_no_states(tuning: Tuning) -> None:
    same(Tuning.read(tuning.folder), tuning)
    assert not list(tuning.folder.glob("trials-*/cells/*/*.safetensors"))
    with pytest.raises(idl.InputError, match="has no search"):
        Tuning.read(tuning.folder / "refit")


def test_own_data_given_in_python_are_tuned(tmp_path: Path) -> None:
    x, y = torch.randn(120, 6).numpy(), (torch.arange(120) % 3).numpy()
    data = idl.data.from_arrays(x, y, clients=["a", "b", "c"] * 40)
    study = idl.Study(data=data, methods=["fedavg"], rounds=2, local_epochs=1)
    tuning = idl.tune(study, {"lr": "0.01,0.1"}, tmp_path / "search", trials=2, engine="sequential", refit=True)
    assert tuning.tuned.data is data
    assert tuning.result is not None
    assert len(tuning.result.accuracy()) == 1


def test_all_trials_may_be_refused(tmp_path: Path) -> None:
    study = idl.Study(methods=["pfedme"], **SMALL)
    search = {"lr": [0.4, 0.5]}
    for resume in (False, True):
        tuning = idl.tune(study, search, tmp_path / "search", trials=2, engine="sequential", resume=resume)
        assert tuning.trials()["state"].tolist() == ["refused", "refused"]
        assert tuning.tuned.methods == study.methods


@pytest.mark.parametrize(
    ("methods", "lr", "trials"),
    [
        (["fedavg"], "1e28..1e32:log", 4),
        (["fedavg"], [1e30, 1e31], 2),
        (["local", "fedper"], [1e30], 1),
        (["local", "fedavg"], "1e25..1e33:log", 3),
    ],
)
def test_all_trials_may_diverge_before_the_cut(tmp_path: Path, methods: list[str], lr: Any, trials: int) -> None:
    study = idl.Study(methods=methods, **SMALL)
    for resume in (False, True):
        tuning = idl.tune(
            study, {"lr": lr}, tmp_path / "search", trials=trials, engine="sequential", resume=resume
        )  # fmt: skip
        assert tuning.trials()["state"].tolist() == ["diverged"] * trials * len(methods)
        assert tuning.tuned.methods == study.methods
        assert sum("no trial reached the last round" in note for note in tuning.notes()) == len(methods)


def test_new_clients_are_not_measured_in_trials(tmp_path: Path) -> None:
    study = idl.Study(methods=["fedavg"], **SMALL | {"new_clients": 1, "protocol": "clients=new"})
    tuning = idl.tune(study, {"lr": "0.1,0.2"}, tmp_path / "search", trials=2, engine="sequential", refit=True)
    assert "new" not in set(pd.read_parquet(tuning.folder / "trials-1" / "records.parquet")["stage"])
    assert tuning.result is not None
    assert tuning.result.accuracy().notna().all()
