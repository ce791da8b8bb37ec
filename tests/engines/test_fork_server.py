"""Workers are copies of one process: quick, and as if each were an interpreter that the program starts now."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
sys.path.insert(0, str(Path(__file__).parent))

import counting
import toy
import workers

from idiolect.engines import Processes, Sequential
from idiolect.engines.processes import pool
from idiolect.simulation import Job, fit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every worker is an interpreter of its own")


def _rounds(count: int = 1, *, workers: int = 2) -> list[float]:
    with Processes(workers) as engine:
        end = fit(Job("counting", partial(counting.build), toy.data(), 3), engine, rounds=count)
        assert engine.workers == workers
    return [float(c) for c in end.clients]


def test_one_process_serves_several_engines() -> None:
    first = _rounds()
    server = pool._SERVER
    assert server is not None
    assert _rounds() == first
    assert pool._SERVER is server
    assert not workers.alive(), "they end with their engine"


def test_another_takes_its_place_when_it_has_died() -> None:
    first = _rounds()
    server = pool._SERVER
    assert server is not None
    os.kill(server._process.pid, signal.SIGKILL)
    while server.usable:
        time.sleep(0.01)
    assert _rounds() == first
    assert pool._SERVER is not server


def test_it_may_die_while_its_workers_work() -> None:
    with Sequential() as engine:
        want = fit(Job("counting", partial(counting.build), toy.data(), 3), engine, rounds=4)

    def kill(*_: object) -> None:
        assert pool._SERVER is not None
        os.kill(pool._SERVER._process.pid, signal.SIGKILL)

    with Processes(2) as engine:
        end = fit(Job("counting", partial(counting.build), toy.data(), 3), engine, rounds=4, on_round=kill)
    assert [float(c) for c in end.clients] == [float(c) for c in want.clients]


def test_a_worker_has_what_the_program_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A module made after the server began, in a folder, an environment and with an output that it did not have."""
    _rounds()
    (tmp_path / "made_later.py").write_text(
        "import os\n"
        "import counting\n"
        "def build():\n"
        "    os.write(1, f'in {os.getcwd()}, {os.environ[\"IDIOLECT_TEST\"]}\\n'.encode())\n"
        "    return counting.build()\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IDIOLECT_TEST", "żółw")
    import made_later  # type: ignore[import-not-found]

    with Processes(1) as engine:
        fit(Job("later", made_later.build, toy.data(), 3), engine, rounds=1)
    said = capfd.readouterr().out.splitlines()
    assert said == 3 * [f"in {tmp_path.resolve()}, żółw"], "for the first state, for rounds, in the worker"


def test_a_program_that_was_forked_has_a_server_of_its_own() -> None:
    _rounds()
    server = pool._SERVER
    assert server is not None
    child = os.fork()
    if child == 0:
        os._exit(17 if not server.usable else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert server.usable
