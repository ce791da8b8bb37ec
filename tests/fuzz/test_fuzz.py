"""Cases of odd settings, broken files and damaged run folders: none ends in anything but a result or a
sentence. See ``run.py`` for more of them, or for one again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.py"


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_cases(pytestconfig: pytest.Config) -> None:
    cases = 300 if pytestconfig.getoption("thorough") else 60
    said = _run("--seed", "1", "--cases", str(cases), "--jobs", "2")
    assert f"{cases} cases, 0 failed" in said
    for family in ("settings", "files", "run folders"):
        counted = next(line for line in said.splitlines() if line.startswith(f"{family}: "))
        assert "accepted" in counted
        assert "refused" in counted


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_broken_commands_are_caught() -> None:
    said = _run("--specimens")
    assert "MISSED" not in said
    assert said.count("caught") == 17
