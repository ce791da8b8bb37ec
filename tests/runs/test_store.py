"""A run's folder is taken before anything is written, and what has changed in it since is noticed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from idiolect import data, report
from idiolect.core import tree
from idiolect.core.errors import IdiolectError, InputError
from idiolect.runs import environment
from idiolect.runs.environment import starts
from idiolect.runs.store import Store
from idiolect.simulation import State, begin
from idiolect.simulation.client_store import OnDisk
from idiolect.studies import Study
from idiolect.studies.runner import run

STUDY = Study(clients=3, rounds=2, local_epochs=1, model="mlp", methods="fedavg,local", evaluate_every=1)
CELL = "cells/02-local-seed0"


@pytest.fixture(scope="module")
def federation() -> data.FederatedData:
    return STUDY.federation()


@pytest.fixture(scope="module")
def manifest(federation: data.FederatedData) -> dict[str, Any]:
    return data.manifest(federation) | {"methods": {}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(STUDY, tmp_path_factory.mktemp("store") / "r", engine="sequential").folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "r"))


@pytest.fixture
def resumed(federation: data.FederatedData, manifest: dict[str, Any]) -> Callable[[Path], list[Any]]:
    """What a resumed run would go on from: the records and the states of its cells."""
    jobs = [(job, job.build()) for _, job in STUDY.jobs(federation)]

    def resumed(folder: Path) -> list[Any]:
        store, found = Store(folder, STUDY, manifest, resume=True), []
        try:
            for job, method in jobs:
                cell = store.cell(job.name, job.seed)
                state = cell.load(begin(method, job.data.trained, job.seed, cell.folder / "clients"))
                states = [a.numpy().tobytes() for a in tree.leaves((state.server, list(state.clients)))]
                found += [state.round, states, cell._records, cell._timings]
            return found
        finally:
            store.close()

    return resumed


def content(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- two at once


@pytest.mark.skipif(os.name != "posix", reason="only there are folders kept for one process")
@pytest.mark.parametrize("there", ["empty", "begun"])
def test_the_second_of_two_writes_nothing(folder: Path, manifest: dict[str, Any], there: str) -> None:
    """At the moment where the first has taken the folder and written nothing yet, and later."""
    import fcntl

    if there == "empty":
        folder = folder.parent / "new"
        folder.mkdir()
    before = content(folder)
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    for resume in (False, True):
        with pytest.raises(InputError, match="another process uses"):
            Store(folder, STUDY.model_copy(update={"lr": 0.5}), manifest, resume=resume)
    os.close(held)
    assert content(folder) == before


@pytest.mark.parametrize("there", ["empty", "begun"])
def test_where_folders_cannot_be_locked_a_file_is(
    folder: Path, manifest: dict[str, Any], there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows. The lock of an ended process is no obstacle, and its file is not taken for a run."""
    monkeypatch.setattr("idiolect.runs.folder._FOLDERS_LOCK", False)
    if there == "empty":
        folder = folder.parent / "new"
    first = Store(folder, STUDY, manifest, resume=there == "begun")
    before = content(folder)
    for resume in (False, True):
        with pytest.raises(InputError, match="another process uses"):
            Store(folder, STUDY, manifest, resume=resume)
    assert content(folder) == before
    first.close()
    Store(folder, STUDY, manifest, resume=True).close()


def test_a_refused_run_lets_go_of_the_folder(folder: Path, manifest: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="exists"):
        Store(folder, STUDY, manifest, resume=False)
    Store(folder, STUDY, manifest, resume=True).close()


# --- damage


@pytest.mark.parametrize("name", ["study.yaml", "manifest.json", f"{CELL}/records.parquet", f"{CELL}/timings.parquet",
                                  f"{CELL}/checkpoint.safetensors"])  # fmt: skip
def test_one_bit(folder: Path, resumed: Callable[[Path], list[Any]], name: str) -> None:
    """Either it is said, or it makes no difference."""
    whole, path = resumed(folder), folder / name
    good, rng, refused = path.read_bytes(), random.Random(name), []
    for _ in range(12):
        bit = rng.randrange(8 * len(good))
        harmed = bytearray(good)
        harmed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(harmed)
        try:
            assert resumed(folder) == whole, bit
        except IdiolectError as error:
            refused.append(str(error))
    assert len(refused) > 8
    assert all("\n" not in said and (name in said or name == "study.yaml") for said in refused)


def test_a_resume_that_finds_a_broken_cell_changes_nothing(folder: Path) -> None:
    """Not even a table of the run that is broken too, and that the cells would bring back."""
    (folder / CELL / "checkpoint.safetensors").write_bytes(b"x")
    pq.write_table(pq.read_table(folder / "timings.parquet")[:-1], folder / "timings.parquet")
    before = content(folder)
    with pytest.raises(InputError, match=r"local-seed0/checkpoint\.safetensors is not a readable checkpoint"):
        run(STUDY, folder, engine="sequential", resume=True)
    assert content(folder) == before


@pytest.mark.parametrize("name", ["records.parquet", "timings.parquet"])
def test_a_table_of_another_cell(folder: Path, resumed: Callable[[Path], list[Any]], name: str) -> None:
    """Whole and sealed, but not this method's."""
    shutil.copyfile(folder / "cells/01-fedavg-seed0" / name, folder / CELL / name)
    before = content(folder)
    with pytest.raises(InputError, match=rf"local-seed0/{name} is from another cell \(method fedavg\): restore it"):
        resumed(folder)
    assert content(folder) == before


@pytest.mark.parametrize("name", ["records.parquet", "timings.parquet"])
def test_one_bit_of_what_a_report_reads(folder: Path, name: str) -> None:
    path = folder / name
    harmed = bytearray(path.read_bytes())
    harmed[len(harmed) // 3] ^= 4
    path.write_bytes(harmed)
    with pytest.raises(InputError, match=rf"{name} cannot be read \(its content has changed since it was written\)"):
        report.read(folder)


def test_one_bit_of_a_client_on_disk(tmp_path: Path) -> None:
    import torch

    from idiolect.runs.checkpoint import load, save

    clients = OnDisk(torch.zeros(100), 4, tmp_path / "clients")
    clients.put([0, 2], [torch.ones(100), torch.full((100,), 2.0)])
    save(State((), clients, 1), tmp_path / "c")

    def again() -> OnDisk:
        state = load(tmp_path / "c", State((), OnDisk(torch.zeros(100), 4, tmp_path / "clients"), 0))
        assert isinstance(state.clients, OnDisk)
        return state.clients

    assert [float(c[0]) for c in again()] == [1, 0, 2, 0]
    (path,) = (tmp_path / "clients").iterdir()
    harmed = bytearray(path.read_bytes())
    harmed[2 * 2 * 400 + 7] ^= 16  # in the first row of client 2
    path.write_bytes(harmed)
    clients = again()
    assert float(clients[0][0]) == 1
    with pytest.raises(InputError, match=r"the state of client 2 in .*clients has changed .*: delete"):
        clients[2]
    clients.put([2], [torch.full((100,), 3.0)])
    assert float(clients[2][0]) == 3, "what is put anew is sound"


def test_the_merged_records_outlive_those_of_a_cell(folder: Path) -> None:
    """They may be the last copy."""
    before = (folder / "records.parquet").read_bytes()
    (folder / CELL / "records.parquet").unlink()
    with pytest.raises(InputError, match=r"local-seed0/records.parquet is not readable \(.*No such file"):
        run(STUDY, folder, resume=True, engine="sequential")
    assert (folder / "records.parquet").read_bytes() == before


@pytest.mark.parametrize(
    "note",
    [
        "{}",
        '{"a": 1}',
        "[1]",
        "3",
        "[" * 50_000,
        '[{"versions": []}]',
        "null",
        '[{"engine": "sequential", "workers": 1}]',
    ],
)
def test_a_note_of_another_shape(folder: Path, note: str) -> None:
    (folder / "engine.json").write_text(note)
    with pytest.raises(InputError, match=r"engine.json cannot be read \(.*\): restore it, or delete it"):
        starts(folder)
    before = content(folder)
    with pytest.raises(InputError, match=r"engine.json cannot be read"):
        run(STUDY, folder, engine="sequential", resume=True)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: pd.concat([r, r.iloc[3:5]]), r"records.parquet has 2 duplicate rows \(the first: method fedavg, "),
        (lambda r: r.assign(value=r.value.where(r.metric != "accuracy", float("inf"))), "an accuracy of inf, "),
        (lambda r: r.assign(value=r.value.where(r.metric != "accuracy", 1.5)), "an accuracy of 1.5, "),
        (lambda r: r.assign(seed=float("inf")), "a column of the wrong type"),
        (lambda r: r.assign(round=[[1]] * len(r)), "a column of the wrong type"),
    ],
)
def test_records_that_cannot_be(folder: Path, change: Callable[[Any], Any], said: str) -> None:
    change(pd.read_parquet(folder / "records.parquet")).to_parquet(folder / "records.parquet")
    with pytest.raises(InputError, match=said):
        report.read(folder)


def test_a_method_may_report_a_number_called_accuracy(folder: Path) -> None:
    before = pd.read_parquet(folder / "records.parquet")
    more = before[before.metric == "accuracy"].assign(stage="local", value=2.0)
    pd.concat([before, more]).to_parquet(folder / "records.parquet")
    assert len(report.read(folder).records) == len(before) + len(more)


@pytest.mark.parametrize("about", [b"{", b"[]", b'{"index_columns": 3, "columns": 4}', b"\xff"])
def test_odd_metadata_do_not_matter(folder: Path, about: bytes) -> None:
    table = pq.read_table(folder / "records.parquet")
    pq.write_table(table.replace_schema_metadata({b"pandas": about}), folder / "records.parquet")
    assert len(report.read(folder).records) == len(table)


# --- edits, other versions


def test_an_edited_study(folder: Path, manifest: dict[str, Any], resumed: Callable[[Path], list[Any]]) -> None:
    path, whole = folder / "study.yaml", resumed(folder)
    written = path.read_text()
    path.write_text(written.replace("lr: 0.01", "lr: 0.5"))
    said = r"study.yaml has changed since the run began \(lr: 0.01 then, 0.5 now\): undo this change"
    with pytest.raises(InputError, match=said):
        Store(folder, Study.read(path), manifest, resume=True)
    with pytest.raises(InputError, match=said):
        report.read(folder)
    path.write_text(f"# mine\n{written.replace('checkpoint_every: 5', 'checkpoint_every: 1')}")
    assert resumed(folder) == whole, "what changes no number may change"


def test_other_versions_are_said(
    folder: Path,
    resumed: Callable[[Path], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    resumed(folder)
    assert not caplog.records
    now = environment.versions()
    monkeypatch.setattr(environment, "versions", lambda: now | {"torch": "9.9"})
    resumed(folder)
    (said,) = caplog.messages
    assert f"was started with torch {now['torch']}, now 9.9: its other rounds may differ in rounding" in said


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"stage": "moment"}, "records.parquet has no column 'stage'"),
        ({"other": "second"}, "records.parquet has no column 'other'"),
        ({"client": "site"}, "records.parquet has no column 'client'"),
    ],
)
def test_a_table_with_other_columns(folder: Path, columns: dict[str, str], said: str) -> None:
    for path in (folder / "records.parquet", folder / CELL / "records.parquet"):
        pd.read_parquet(path).rename(columns=columns).to_parquet(path)
    with pytest.raises(InputError, match=said):
        report.read(folder)
    before = content(folder)
    with pytest.raises(InputError, match=rf"local-seed0/records.parquet is not readable \(.*{next(iter(columns))}"):
        run(STUDY, folder, engine="sequential", resume=True)
    assert content(folder) == before


@pytest.mark.parametrize("entry", ["study", "versions", "machine", "methods", "hash", "code"])
def test_a_manifest_that_lacks_an_entry(folder: Path, entry: str) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["seal"]
    del (manifest["methods"]["local"] if entry == "code" else manifest)[entry]
    path.write_text(json.dumps(manifest))
    before = content(folder)
    with pytest.raises(InputError, match=r"manifest.json is missing or broken: restore it, or run the study into"):
        run(STUDY, folder, engine="sequential", resume=True)
    assert content(folder) == before


def test_other_data(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["seal"]
    path.write_text(json.dumps(manifest | {"hash": "0"}))
    before = content(folder)
    with pytest.raises(InputError, match=r"the data have changed since the run in .* began: choose another folder"):
        run(STUDY, folder, engine="sequential", resume=True)
    assert content(folder) == before


@pytest.mark.parametrize("setting", ["protocol", "precision", "rounds"])
def test_a_written_study_that_lacks_a_setting(folder: Path, setting: str) -> None:
    study = yaml.safe_load((folder / "study.yaml").read_text())
    del study[setting]
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.raises(InputError, match=f"study.yaml has no '{setting}': restore the file"):
        report.read(folder)
