"""Folders that do not fit, are damaged, or cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import SMALL, Command, refused


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --out r", ["r exists", "--resume"]),
        ("run --resume --out r --rounds 9 --clients 3", ["clients: 4 there, 3 here"]),
        ("run --resume --out r --rounds 9", ["rounds: 1 there, 9 here"]),
        ("run --resume --out r --methods fedavg", ["methods: fedavg, fedavg_ft there, fedavg here"]),
        (
            "run --resume --out r --set fedavg_ft.epochs=3",
            ["methods: fedavg, fedavg_ft there, fedavg, fedavg_ft:epochs=3 here"],
        ),
        ("run --resume --out r --partition dirichlet:alpha=0.7", ["alpha=0.3", "alpha=0.7", "another folder"]),
        ("run --resume --out r --shift invert:clients=1", ["shifts: none there, invert:clients=1 here"]),
        ("run --resume --out r/cells", ["has no run to resume", "--out"]),
        ("run --resume --out nowhere", ["nowhere has no run to resume"]),
        (f"{SMALL} --resume --out r/cells", ["r/cells has no run", "another folder"]),
        (f"{SMALL} --out r/study.yaml", ["cannot use r/study.yaml as a folder", "another folder"]),
        (f"{SMALL} --resume --out r/study.yaml", ["cannot use r/study.yaml as a folder", "another folder"]),
        ("report nowhere", ["no run folder nowhere"]),
        ("report r/cells", ["study.yaml is missing"]),
        ("report r --out r/cells", ["r/cells is a folder"]),
        ("bundle nowhere --method fedavg --out b", ["no run folder nowhere"]),
        ("bundle r/cells --method fedavg --out b", ["r/cells/study.yaml", "No such file"]),
        ("predict r --data x.csv --out p.csv", ["r is the folder of a run", "idiolect bundle"]),
    ],
)
def test_folder_that_does_not_fit(idiolect: Command, finished: Path, line: str, words: list[str]) -> None:
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    refused(idiolect(line), *words)
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("command", ["report {}", "bundle {} --method fedavg --out new", "diff {} {}"])
@pytest.mark.parametrize(
    ("file", "words"), [("bundle.json", ["b is a bundle"]), ("search.yaml", ["b is the folder of a search", "refit"])]
)
def test_a_folder_of_another_kind(
    idiolect: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, file: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b").mkdir()
    Path("b", file).touch()
    refused(idiolect(command.format("b", "b")), *words)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("manifest.json", "{", ["manifest.json is missing or broken", "another folder"]),
        ("manifest.json", "{}", ["manifest.json is missing or broken"]),
        ("manifest.json", '{"hash": "0"}', ["manifest.json is missing or broken", "another folder"]),
        ("study.yaml", "nonsense", ["is not a study"]),
        ("cells/01-fedavg-seed0/checkpoint.safetensors", "x", ["not a readable checkpoint", "delete it"]),
        ("cells/01-fedavg-seed0/records.parquet", "x", ["records.parquet is not readable", "delete its folder"]),
    ],
)
def test_run_that_is_damaged(idiolect: Command, finished: Path, name: str, content: str, words: list[str]) -> None:
    (finished / name).write_text(content)
    refused(idiolect("run --resume --out r --quiet"), *words)


def test_the_mend_of_a_damaged_run_works(idiolect: Command, finished: Path) -> None:
    before = (finished / "records.parquet").read_bytes()
    (finished / "cells/01-fedavg-seed0/checkpoint.safetensors").unlink()
    assert idiolect("run --resume --out r --quiet").code == 0
    assert (finished / "records.parquet").read_bytes() == before


def test_out_that_cannot_be_made(idiolect: Command) -> None:
    Path("file").write_text("")
    refused(idiolect(f"{SMALL} --out file/r"), "file/r", "Not a directory", "another")
    Path("runs").write_text("")
    refused(idiolect(SMALL), "runs/study", "--out")
