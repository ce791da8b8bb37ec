"""What fails on the way: full disks, training that diverges, Ctrl-C, a reader that leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Command, refused, same_records

from idiolect import cli
from idiolect.core import files
from idiolect.studies import Study


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of six rounds that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "whole"
    with pytest.raises(SystemExit) as ended:
        cli.main([*SMALL.split(), "--rounds", "6", "--out", str(folder), "--quiet"])
    assert ended.value.code == 0
    return folder


@pytest.mark.thorough(but=["0", "4"])
@pytest.mark.parametrize("write", [0, 1, 2, 4, 8, 12, 14])
def test_full_disk(idiolect: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, write: int) -> None:
    left, real = write, os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        real(descriptor)

    line = f"{SMALL} --rounds 6 --out r"  # checkpoints after rounds 5 and 6
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", fsync)
        said = idiolect(line + " --quiet")
    refused(said, "cannot write r/", "No space left on device", "free some space")
    assert not list(tmp_path.rglob(".*")), "a draft is left behind"
    if write < 4:  # the folder itself could not be begun
        assert list(tmp_path.iterdir()) == []
    else:
        assert said.err.rstrip().endswith("continue with: idiolect run --resume --out r --engine sequential")
        assert idiolect("run --resume --out r --engine sequential --quiet").code == 0
        assert same_records(Path("r"), whole)


def test_all_diverge(idiolect: Command, caplog: pytest.LogCaptureFixture) -> None:
    said = idiolect(f"{SMALL} --methods local,fedavg --lr 1e6 --out r --json --quiet")
    assert said.code == 1
    found = json.loads(said.out)
    assert [(d["method"], d["seed"], d["round"]) for d in found["diverged"]] == [("local", 0, 1), ("fedavg", 0, 1)]
    assert [(m["accuracy"], m["diverged"]) for m in found["methods"]] == [(None, 1), (None, 1)]
    assert "local, seed 0: diverged in round 1 (local: client 0, round 1, local: training diverged (" in caplog.text
    assert "lower the learning rate" in caplog.text
    assert Path("r/report.html").exists()


@pytest.mark.thorough(but=["1"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_what_diverges_ends_alone(
    idiolect: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lanes: int
) -> None:
    """FedAvg's training becomes NaN in round 3; what runs beside it and after it comes to the end."""
    from idiolect.engines import sequential
    from idiolect.simulation import rounds

    real, seen, broken = rounds._Run.map, [], True
    monkeypatch.setattr(sequential.Sequential, "lanes", lanes)

    def run(self: rounds._Run, phase: Any, round: int, ids: Any, down: Any, clients: Any, *rest: Any) -> Any:
        seen.append((self.job.name, round))
        found = real(self, phase, round, ids, down, clients, *rest)
        if broken and (self.job.name, phase, round) == ("fedavg", "local", 3):
            found[1] = found[1]._replace(up=rounds.tree.map(lambda a: a * float("nan"), found[1].up))
        return found

    line = f"{SMALL} --methods local,fedavg,fedper --rounds 4 --quiet"
    monkeypatch.setattr(rounds._Run, "map", run)
    said = idiolect(f"{line} --out r")
    assert said.code == 1
    row = next(text for text in said.out.splitlines() if text.startswith("FedAvg"))
    assert "diverged in round 3" in row
    assert "fedavg, seed 0: diverged in round 3 (fedavg: server, round 3, aggregate: training diverged (" in caplog.text
    assert ("fedper", 4) in seen
    assert ("fedavg", 4) not in seen
    assert "FedAvg, seed 0: diverged in round 3, so the method has no final results (" in Path(
        "r/report.html"
    ).read_text(encoding="utf-8")
    refused(idiolect("report r --compare fedper,fedavg"), "fedavg diverged in round 3 with seed 0")

    del seen[:]
    again = "run --resume --out r --quiet --engine sequential"
    said = idiolect(again)
    assert (said.code, seen) == (1, [])
    assert "diverged in round 3" in said.out
    assert "it was not tried again: to do so, delete r/diverged.json and resume" in caplog.text

    note = Path("r/diverged.json")
    whole = note.read_bytes()
    note.write_bytes(whole.replace(b'"round": 3', b'"round": 2'))
    for command in (again, "report r"):
        refused(idiolect(command), "diverged.json cannot be read (its content has changed since it was written)")
    note.unlink()
    broken = False
    said = idiolect(again)
    assert (said.code, "diverged" in said.out) == (0, False)
    assert {round for _, round in seen} == {3, 4}, "it goes on after its last whole round"
    assert idiolect(f"{line} --out whole").code == 0
    assert same_records(Path("r"), Path("whole"))


def test_ctrl_c_before_the_run(idiolect: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Study) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Study, "federation", interrupted)
    said = idiolect(SMALL)
    assert said.code == 130
    assert said.err.strip() == "idiolect: stopped"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what a process has loaded")
def test_ctrl_c_while_importing(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = start(SMALL)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.005)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.strip() == "idiolect: stopped"
    assert list(tmp_path.iterdir()) == []


def test_limit_of_file_size(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))\n"
        "from idiolect.cli import main; main()"
    )
    process = start(f"{SMALL} --out r --quiet", code)
    _, said = process.communicate()
    assert process.returncode == 2
    assert said.startswith("idiolect: cannot write r/cells/01-fedavg-seed0/checkpoint.safetensors (File too large)")
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob(".*"))


def test_reader_that_leaves_early(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("list shifts --json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.wait()
