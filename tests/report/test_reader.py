from __future__ import annotations

import json

import pandas as pd
import pytest

from idiolect import report
from idiolect.core.errors import InputError
from idiolect.runs.folder import cell_folder


def test_reads_what_was_written(make, tmp_path):
    made = make()
    run = report.read(made.save(tmp_path / "run"))
    assert run.name == "demo"
    assert run.study == made.study
    assert run.manifest == made.manifest | {"study": made.study}
    assert len(run.records) == len(made.records)
    assert len(run.timings) == len(made.timings)


def test_last_round_is_per_method_and_seed(make, tmp_path):
    made = make()
    made.drop(lambda r: r[:2] == ("fedpac", 1) and r[2] > 5)
    final = report.read(made.save(tmp_path / "run")).final
    ends = {(m, s): set(f["round"]) for (m, s), f in final.groupby(["method", "seed"])}
    assert ends == {(m, s): {5 if (m, s) == ("fedpac", 1) else 7} for m in made.labels for s in (0, 1)}


def test_no_best_round_before_the_first_evaluation(make, tmp_path):
    made = make()
    made.study["protocol"] = {"round": "best_validation", "validation": 0.2}
    made.drop(lambda r: r[4] == "personalised")
    run = report.read(made.save(tmp_path / "run"))
    assert run.final.empty
    assert {row.accuracy for row in report.summary(run)} == {None}


def test_two_methods_of_one_title_are_told_apart(make, tmp_path):
    made = make(["fedavg", "fedpac", "fedrep"])
    made.manifest["methods"]["fedrep"]["title"] = "FedPAC"
    run = report.read(made.save(tmp_path / "run"))
    assert run.titles == {"fedavg": "FedAvg", "fedpac": "FedPAC (fedpac)", "fedrep": "FedPAC (fedrep)"}


@pytest.mark.parametrize("name", ["study.yaml", "manifest.json", "records.parquet", "timings.parquet"])
@pytest.mark.parametrize("harm", ["missing", "broken", "empty"])
def test_a_harmed_file_is_named(make, tmp_path, name, harm):
    folder = make().save(tmp_path / "run")
    file = folder / name
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(b"\xff{:[\x00" if harm == "broken" else b"")
    with pytest.raises(InputError) as caught:
        report.read(folder)
    message = str(caught.value)
    assert name in message
    assert "run the study again" in message
    assert "\n" not in message


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match=r"no run folder .*nowhere: give the folder"):
        report.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.study.pop("partition"), "study.yaml has no 'partition'"),
        (lambda m: m.study.update(rounds="many"), "study.yaml has rounds: 'many'"),
        (lambda m: m.manifest.pop("methods"), "manifest.json: methods"),
        (lambda m: m.manifest.update(clients=[]), "manifest.json: clients"),
        (
            lambda m: m.manifest["clients"][2]["test"].pop(),
            "manifest.json: client 2 does not have one count for each class",
        ),
        (
            lambda m: m.manifest["methods"]["fedpac"]["reports"]["combination"].pop("name"),
            r"manifest.json: methods\.fedpac\.reports\.combination\.pair\.name: field required",
        ),
        (lambda m: m.manifest["methods"].pop("fedpac"), "has method fedpac, which"),
        (lambda m: m.manifest["clients"].pop(), "has client 5, which"),
    ],
)
def test_files_that_do_not_fit(make, tmp_path, change, message):
    made = make()
    change(made)
    with pytest.raises(InputError, match=message):
        report.read(made.save(tmp_path / "run"))


def test_what_diverged_has_no_final_results(make, tmp_path):
    made = make(["fedavg", "fedpac"], seeds=(0, 1))
    made.drop(lambda r: r[0] == "fedpac" and r[1] == 1 and r[2] > 5)
    made.diverged = [{"method": "fedpac", "seed": 1, "round": 6, "said": "client 3 has no end"}]
    folder = made.save(tmp_path / "run")
    run = report.read(folder)
    assert set(run.final["method"]) == {"fedavg"}
    assert set(run.scores["method"]) == {"fedavg", "fedpac"}, "its curve is drawn"
    fedavg, fedpac = report.summary(run)
    assert (fedpac.accuracy, fedpac.diverged, fedpac.versus_fedavg) == (None, 6, None)
    assert fedavg.diverged is None
    assert "diverged in round 6" in report.as_latex([fedpac])
    with pytest.raises(InputError, match="fedpac diverged in round 6 with seed 1"):
        report.compare(run, "fedavg", "fedpac")
    page = report.write([folder], tmp_path / "r.html").read_text(encoding="utf-8")
    said = "FedPAC, seed 1: diverged in round 6, so the method has no final results (client 3 has no end)."
    assert said in page


@pytest.mark.parametrize("harm", ["[", "{}", '[{"method": "fedavg"}]', '[["nobody", 0, 1, ""]]'])
def test_a_harmed_note_of_what_diverged(make, tmp_path, harm):
    folder = make().save(tmp_path / "run")
    (folder / "diverged.json").write_text(harm)
    with pytest.raises(InputError, match=r"diverged\.json .*run the study again"):
        report.read(folder)


def test_a_manifest_that_is_a_list(make, tmp_path):
    folder = make().save(tmp_path / "run")
    (folder / "manifest.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match=r"manifest\.json: content"):
        report.read(folder)


def test_records_without_a_column_or_of_another_type(make, tmp_path):
    folder = make().save(tmp_path / "run")
    records = pd.read_parquet(folder / "records.parquet")
    records.drop(columns="metric").to_parquet(folder / "records.parquet")
    with pytest.raises(InputError, match="no column 'metric'"):
        report.read(folder)
    records.assign(value="high").to_parquet(folder / "records.parquet")
    with pytest.raises(InputError, match="column of the wrong type"):
        report.read(folder)


def in_cells(folder, labels, seeds):
    """The records of a run, as its cells have them."""
    for name in ("records.parquet", "timings.parquet"):
        whole = pd.read_parquet(folder / name)
        for label in labels:
            for seed in seeds:
                cell = cell_folder(folder, labels, label, seed)
                cell.mkdir(parents=True, exist_ok=True)
                whole[(whole.method == label) & (whole.seed == seed)].to_parquet(cell / name, index=False)


def by_cell(frame):
    return frame.sort_values(list(frame.columns)).reset_index(drop=True)


@pytest.mark.parametrize("joined", ["nothing", "one method", "the first rounds", "records alone", "old times"])
def test_a_run_that_goes_on_is_read_from_its_cells(make, tmp_path, joined):
    made = make(["local", "fedpac"])
    folder = made.save(tmp_path / "run")
    whole = report.read(folder)
    in_cells(folder, ["local", "fedpac"], (0, 1))
    for name in ("records.parquet", "timings.parquet"):
        frame = pd.read_parquet(folder / name)
        (folder / name).unlink()
        some = frame.method == "local" if joined == "one method" else frame["round"] < 4
        if joined in ("records alone", "old times") and name == "records.parquet":
            some = frame["round"] > 0
        if joined != "nothing" and (joined, name) != ("records alone", "timings.parquet"):
            frame[some].to_parquet(folder / name, index=False)
    run = report.read(folder)
    for mine, expected in ((run.records, whole.records), (run.timings, whole.timings)):
        pd.testing.assert_frame_equal(by_cell(mine), by_cell(expected))


def test_a_cell_that_is_being_written_counts_to_its_last_time(make, tmp_path):
    made = make(["local"], seeds=(0,), rounds=5)
    folder = made.save(tmp_path / "run")
    in_cells(folder, ["local"], (0,))
    timings = cell_folder(folder, ["local"], "local", 0) / "timings.parquet"
    frame = pd.read_parquet(timings)
    frame[frame["round"] < 4].to_parquet(timings, index=False)
    for name in ("records.parquet", "timings.parquet"):
        (folder / name).unlink()
    run = report.read(folder)
    assert run.records["round"].max() == run.timings["round"].max() == 3


def test_a_run_without_a_finished_round_says_so(make, tmp_path):
    folder = make().save(tmp_path / "run")
    for name in ("records.parquet", "timings.parquet"):
        (folder / name).unlink()
    (folder / "cells").mkdir()
    with pytest.raises(
        InputError, match="has no finished round yet: wait for one, or continue the run with resume=True"
    ):
        report.read(folder)
