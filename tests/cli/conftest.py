"""The command in an empty folder, with a finished run, with a table, or in a process of its own."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from idiolect import cli
from idiolect.report import page

sys.path.insert(0, str(Path(__file__).parent))  # commands

from commands import SMALL, Command, Said


@pytest.fixture
def idiolect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    page._bundle()  # seconds in a cache that is empty
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / f"{tmp_path.name}-cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def call(line: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(shlex.split(line))
        out, err = capsys.readouterr()
        return Said(ended.value.code, out, err)  # type: ignore[arg-type]

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "r"
    line = f"{SMALL} --methods fedavg,fedavg_ft --rounds 1 --quiet --out {shlex.quote(str(folder))}"
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(line))
    assert ended.value.code == 0
    return folder


@pytest.fixture
def finished(idiolect: Command, trained: Path) -> Path:
    """A run of its own for each test, in ``r``."""
    return Path(shutil.copytree(trained, "r"))


@pytest.fixture
def patients() -> Path:
    """A table of two hospitals in the current folder."""
    rng = np.random.default_rng(0)
    lines = ["age,hospital,outcome"]
    for i, age in enumerate(rng.normal(55, 12, 120)):
        lines.append(f"{age:.2f},{('Mercy', 'North')[i % 2]},{'sick' if age > 55 else 'well'}")
    Path("p.csv").write_text("\n".join(lines))
    return Path("p.csv")


@pytest.fixture
def called(idiolect: Command, patients: Path) -> Command:
    """The command, in a folder with a table."""
    return idiolect


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []

    def start(line: str, code: str = "from idiolect.cli import main; main()") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *shlex.split(line)],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
