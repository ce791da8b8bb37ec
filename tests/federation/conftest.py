from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("h11", reason="needs the extra federation")
sys.path.insert(0, str(Path(__file__).parent))  # for sites.py
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # for rehearsal.py

import machines as machines_
import sites


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites of one process may connect as often as a test wants it."""
    monkeypatch.setattr("idiolect.federation.link.server_end._APART", 0.0)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sites.tables(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="session")
def launcher() -> Iterator[machines_.Launcher]:
    launcher = machines_.Launcher()
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, launcher: machines_.Launcher) -> Iterator[machines_.Machines]:
    """Five sites that run, and no server yet."""
    machines = machines_.Machines(tmp_path_factory.mktemp("federation"), launcher)
    try:
        for name in sites.NAMES:
            machines.site(name)
        yield machines
    finally:
        machines.close()
