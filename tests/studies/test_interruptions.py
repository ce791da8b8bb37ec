"""A run that is killed, stopped or loses a worker goes on from its last checkpoint, and ends with the same bits."""

from __future__ import annotations

import importlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

import workers

import idiolect as idl
from idiolect.core import files
from idiolect.core.errors import CodeError, InputError, Interrupted, RunError, blame
from idiolect.simulation import client_store, rounds
from idiolect.studies import Study, use
from idiolect.studies.progress import Watcher

STUDY = Study(
    methods="fedavg,fedpac,local", clients=5, rounds=6, participation=0.6, local_epochs=1, model="mlp", lr=0.05,
    evaluate_every=1, checkpoint_every=2,
)  # fmt: skip

# A process that has imported everything and forks a run for each line it reads: real runs, without seconds of imports.
SERVER = """
import os, shlex, sys
import pyarrow.dataset, sklearn.datasets
import idiolect.report.page
from idiolect import methods
from idiolect.cli import main
from idiolect.studies import run, watcher
methods.names()  # reads the metadata of all installed packages
for line in sys.stdin:
    if line == "wait\\n":
        print("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    out, err, *arguments = shlex.split(line)
    pid = os.fork()
    if pid == 0:
        for number, name in enumerate((os.devnull, out, err)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        main(arguments)
    os.setpgid(pid, pid)  # a signal goes to the whole group, as from a terminal
    print("pid", pid, flush=True)
"""


class Run:
    """A run under way."""

    def __init__(self, server: subprocess.Popen[str], line: str, err: Path) -> None:
        self._server, self._err = server, err
        self.pid = self._ask(line, "pid")
        self.code: int | None = None

    def _ask(self, line: str, what: str) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{line}\n")
        self._server.stdin.flush()
        kind, number = self._server.stdout.readline().split()
        assert kind == what
        return int(number)

    def kill(self, number: int) -> None:
        """Send it a signal; until ``wait`` its number is not given to another process."""
        assert self.pid > 1
        assert self.code is None
        os.killpg(self.pid, number)

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def wait(self) -> int:
        """Its exit code; minus the signal that ended it."""
        if self.code is None:
            self.code = self._ask("wait", "code")
        return self.code

    @property
    def said(self) -> str:
        """What it has written on standard error."""
        return self._err.read_text() if self._err.exists() else ""


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("marker"))


@pytest.fixture(scope="module")
def server(marker: str) -> Iterator[subprocess.Popen[str]]:
    if not Path("/proc/self").exists():
        pytest.skip("processes are known by Linux's /proc")
    environment = os.environ | {"IDIOLECT_TEST": marker, "TMPDIR": marker}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def start(server: subprocess.Popen[str], tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    begun: list[Run] = []

    def start(line: str) -> Run:
        begun.append(Run(server, f"{tmp_path / 'out'} {tmp_path / 'err'} {line}", tmp_path / "err"))
        return begun[-1]

    yield start
    for run in begun:
        if run.code is None:
            run.kill(signal.SIGKILL)
            run.wait()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The records of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    idl.run(STUDY, out, engine="sequential")
    return (out / "records.parquet").read_bytes()


def _workers(marker: str) -> list[int]:
    """The worker processes that carry the mark, and the one that starts them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"IDIOLECT_TEST={marker}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if marked and b"idiolect.engines.processes.fork_server" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _checkpoints(out: Path) -> dict[str, int]:
    """Rounds on disk, per cell; every file must be whole."""
    rounds = {}
    for cell in sorted(out.glob("cells/*")):
        for table in cell.glob("*.parquet"):
            pq.read_table(table)
        if (cell / "checkpoint.safetensors").exists():
            with safe_open(cell / "checkpoint.safetensors", "pt") as file:
                rounds[cell.name] = int(file.metadata()["round"])
    return rounds


def _seconds_to_checkpoint(start: Callable[[str], Run], line: str, out: Path) -> float:
    """How long a run takes on this machine until its first checkpoint is there."""
    run, begin = start(line), time.monotonic()
    while run.alive and not _checkpoints(out):
        time.sleep(0.005)
    seconds = time.monotonic() - begin
    assert run.wait() == 0, run.said
    return seconds


def test_killed_again_and_again(
    start: Callable[[str], Run], marker: str, whole: bytes, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """SIGKILL at random times, four times into each folder: at the start, in the rounds, while it ends."""
    (tmp_path / "study.yaml").write_text(STUDY.to_yaml())
    line = f"run {tmp_path / 'study.yaml'} --out {tmp_path / 'first'} --engine sequential"
    first = _seconds_to_checkpoint(start, line, tmp_path / "first")
    # what a run has said when a kill becomes due, and how many seconds may pass until it comes
    moments = [("", first), ("round 1,", 0.3), ("round ", 0.5), ("local: seed 0, round 6|local: 6 of 6", 0.6)]
    draw, kills, number, seen = random.Random(0), 0, 0, set[str]()
    least = 20 if pytestconfig.getoption("thorough") else 8
    while kills < least or (len(seen) < 3 and number < 20):
        number += 1
        out = tmp_path / str(number)
        engine = "sequential" if number % 3 else "processes --workers 2"
        line = f"run {tmp_path / 'study.yaml'} --resume --out {out} --engine {engine}"
        for said, seconds in moments:
            before = _checkpoints(out)
            run = start(line)
            while not re.search(said, run.said) and run.alive:
                time.sleep(0.005)
            time.sleep(draw.uniform(0, seconds))
            run.kill(signal.SIGKILL)
            if run.wait() == 0:
                continue  # it was quicker
            kills += 1
            after = _checkpoints(out)
            seen.add("start" if not after else "rounds" if sum(after.values()) < 3 * STUDY.rounds else "end")
            assert all(after[cell] >= before[cell] for cell in before), "a checkpoint was lost"
            for label, round in re.findall(r"^(\w+): seed 0, round (\d+)", run.said, re.MULTILINE):
                saved = next((n for cell, n in after.items() if f"-{label}-" in cell), 0)
                assert int(round) - saved < STUDY.checkpoint_every, "more rounds were lost than since the checkpoint"
            deadline = time.monotonic() + 60
            while left := _workers(marker):
                assert time.monotonic() < deadline, f"workers outlive the run: {left}"
                time.sleep(0.02)
        run = start(line)
        assert run.wait() == 0, run.said
        assert (out / "records.parquet").read_bytes() == whole
        assert (out / "report.html").exists()
        assert not list(out.rglob(".*")), "drafts of killed writers are left"
    assert not list(Path(marker).iterdir()), "temporary files of killed runs are left"
    assert seen == {"start", "rounds", "end"}, "the kills were not spread"


@pytest.mark.thorough(but=["2-*"])
@pytest.mark.parametrize(
    ("number", "engine"), [(signal.SIGINT, "processes --workers 2"), (signal.SIGTERM, "sequential")]
)
def test_stopped(
    start: Callable[[str], Run], marker: str, whole: bytes, tmp_path: Path, number: int, engine: str
) -> None:
    """The message says where the run stopped and holds the command that goes on from there."""
    (tmp_path / "study.yaml").write_text(STUDY.to_yaml())
    out = tmp_path / "a run's folder"
    run = start(f"run {tmp_path / 'study.yaml'} --out {shlex.quote(str(out))} --engine {engine}")
    while "fedpac: seed 0, round 1" not in run.said:
        time.sleep(0.005)
    run.kill(number)
    assert run.wait() == 128 + number
    last = run.said.splitlines()[-1]
    one = r"round \d of 6 of \w+, seed 0"
    found = re.fullmatch(rf"idiolect: stopped after ({one}(?: and {one})*); continue with: (.*)", last)
    assert found, run.said
    assert "Traceback" not in run.said
    assert not _workers(marker)
    stood = {label: int(n) for n, label in re.findall(r"round (\d) of 6 of (\w+)", found[1])}
    assert set(stood) in ({"fedpac"}, {"fedavg", "fedpac"}, {"fedpac", "local"}), "two side by side at most"
    rounds = {"fedavg": 6} | stood
    assert {cell[3:-6]: n for cell, n in _checkpoints(out).items()} == {label: n for label, n in rounds.items() if n}
    records = pq.read_table(out / "records.parquet").to_pandas()
    assert records.groupby("method")["round"].max().to_dict() == {m: n for m, n in rounds.items() if n}, "not merged"

    program, *arguments = shlex.split(found[2])
    assert program == "idiolect"
    assert arguments == ["run", "--resume", "--out", str(out), *shlex.split(f"--engine {engine}")]
    again = start(shlex.join(arguments))
    assert again.wait() == 0
    assert f"fedpac: {rounds['fedpac']} of 6 rounds done" in again.said
    assert (out / "records.parquet").read_bytes() == whole


class Disturbs(Watcher):
    """Does something after a round of a method."""

    def __init__(self, label: str, round: int, do: Callable[[], object]) -> None:
        self._when, self._do = (label, round), do

    def advance(self, label: str, seed: int, round: int, accuracy: float | None) -> None:
        if (label, round) == self._when:
            self._do()


def test_worker_dies(whole: bytes, tmp_path: Path) -> None:
    kill = Disturbs("fedpac", 3, lambda: os.kill(min(workers.alive()), signal.SIGKILL))
    with pytest.raises(RunError) as caught:
        idl.run(STUDY, tmp_path / "r", engine="processes", workers=2, watcher=kill)
    assert re.fullmatch(
        r"a worker process died (between two rounds|in round \d \(\w+\)), perhaps because memory was full: "
        r"try fewer workers; what was done is kept, continue with: "
        rf"idl\.run\(study, out='{tmp_path / 'r'}', resume=True, engine='processes', workers=2\)",
        str(caught.value),
    )
    assert not workers.alive()
    assert _checkpoints(tmp_path / "r")["02-fedpac-seed0"] == 3
    idl.run(STUDY, tmp_path / "r", resume=True, engine="processes", workers=1)
    assert (tmp_path / "r" / "records.parquet").read_bytes() == whole


def test_stopped_from_python(whole: bytes, tmp_path: Path) -> None:
    """A second Ctrl-C stops at once; the handlers of the caller are back afterwards."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"^stopped after round 2 of 6 of fedpac, seed 0; continue") as once:
        idl.run(
            STUDY,
            tmp_path / "r",
            engine="sequential",
            watcher=Disturbs("fedpac", 2, lambda: signal.raise_signal(signal.SIGTERM)),
        )
    assert once.value.signal == signal.SIGTERM
    with pytest.raises(Interrupted, match=r"^stopped at once; continue") as again:
        idl.run(STUDY, tmp_path / "r", resume=True, engine="sequential", watcher=Disturbs("local", 3, twice))
    assert again.value.signal == signal.SIGINT
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert _checkpoints(tmp_path / "r")["03-local-seed0"] == 2
    idl.run(STUDY, tmp_path / "r", resume=True, engine="sequential")
    assert (tmp_path / "r" / "records.parquet").read_bytes() == whole


@pytest.mark.thorough(but=["sequential"])
@pytest.mark.parametrize("engine", ["sequential", "processes --workers 2"])
def test_stopped_with_states_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Ditto's and FedRep's clients keep a model or a head: on disk they are what they are in memory."""
    study = STUDY.model_copy(update={"methods": tuple(map(use, ("ditto", "fedrep"))), "participation": 0.5})
    name, *more = engine.split()
    how: dict[str, Any] = {"engine": name} | ({"workers": int(more[1])} if more else {})
    idl.run(study, tmp_path / "memory", engine="sequential")
    monkeypatch.setattr(client_store, "_LARGE", -1)

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)  # beside another method this is no thread that takes signals

    stop = Disturbs("fedrep", 4, interrupt)
    with pytest.raises(Interrupted):
        idl.run(study, tmp_path / "disk", watcher=stop, **how)
    kept = sorted(p.name for p in (tmp_path / "disk/cells").glob("*ditto*/clients/*"))
    assert len(kept) > 2, kept
    idl.run(study, tmp_path / "disk", resume=True, **how)
    assert (tmp_path / "disk/records.parquet").read_bytes() == (tmp_path / "memory/records.parquet").read_bytes()


def test_a_failure_beside_another_method(whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs beside it stops at a whole round, and both go on from there."""
    real = rounds._Run.aggregate

    def aggregate(self: Any, server: Any, up: Any, ids: Any, number: int) -> Any:
        if (self.job.name, number) == ("fedavg", 3):
            raise RunError("boom")
        return real(self, server, up, ids, number)

    with monkeypatch.context() as patched:
        patched.setattr(rounds._Run, "aggregate", aggregate)
        with pytest.raises(RunError, match=r"^boom; what was done is kept, continue with: "):
            idl.run(STUDY, tmp_path / "r", engine="processes", workers=2)
    stood = _checkpoints(tmp_path / "r")
    assert stood["01-fedavg-seed0"] == 2
    assert "03-local-seed0" not in stood, "nothing is begun after a failure"
    idl.run(STUDY, tmp_path / "r", resume=True, engine="processes", workers=2)
    assert (tmp_path / "r" / "records.parquet").read_bytes() == whole


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_only_what_can_help_is_offered(
    number: int, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a method's code comes again unless somebody mends it; before the first round nothing is kept."""
    real = rounds._Run.send

    def send(self: Any, server: Any, ids: Any, round: int) -> Any:
        if round == number:
            raise CodeError("boom")
        return real(self, server, ids, round)

    with monkeypatch.context() as patched:
        patched.setattr(rounds._Run, "send", send)
        with pytest.raises(CodeError) as caught:
            idl.run(STUDY, tmp_path / "r", engine=engine, workers=1 if engine == "processes" else None)
    said = str(caught.value)
    if number == 1:
        assert said.startswith("boom; no round is done yet: fix this, then start again with: idl.run(study, out='")
    else:
        assert said.startswith(
            f"boom; what was done is kept: fix this, then continue with: idl.run(study, out='{tmp_path}"
        )


def test_a_run_without_a_round_starts_again_as_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The mended code is that of the whole run, so that no warning speaks of two versions, now or later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = "from idiolect.methods.fedavg import fedavg\n\ndef mended(task):\n    return fedavg(task){}\n"
    study = {"methods": "mended_method.mended", "clients": 3, "rounds": 3, "local_epochs": 1, "model": "mlp"}

    def attempt(more: str, folder: str, **how: Any) -> Any:
        Path("mended_method.py").write_text(source.format(more))
        sys.modules.pop("mended_method", None)
        importlib.invalidate_caches()
        return idl.run(Study(**study), folder, engine="sequential", **how)

    with pytest.raises(CodeError, match=r"no round is done yet: fix this, then start again with: .*resume=True"):
        attempt("._replace(send=lambda server, ids: 1 / 0)", "r")
    attempt("", "r", resume=True)
    attempt("", "r", resume=True)
    attempt("", "whole")
    assert Path("r/records.parquet").read_bytes() == Path("whole/records.parquet").read_bytes()
    assert "changed" not in caplog.text
    attempt("  # another version", "r", resume=True)
    assert "the code of mended_method.mended has changed since r began" in caplog.text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ZeroDivisionError("division by zero"), CodeError),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), CodeError),
        (KeyError("memory"), CodeError),
        (MemoryError(), RunError),
        (OSError(28, "No space left on device"), RunError),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), RunError),
    ],
)
def test_whose_fault_an_error_is(error: Exception, kind: type[RunError]) -> None:
    with (
        pytest.raises(RunError, match=r"^fedmine: client 3, round 1, local: ") as caught,
        blame("fedmine: client 3, round 1, local"),
    ):
        raise error
    assert type(caught.value) is kind


def test_stop_before_the_first_round(tmp_path: Path) -> None:
    class Early(Watcher):
        def start(self, label: str, total: int, done: int) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"^stopped after round 0 of 6 of fedavg, seed 0; continue with: idl.run"):
        idl.run(STUDY, tmp_path / "r", engine="sequential", watcher=Early())


@pytest.mark.skipif(os.name != "posix", reason="only there are folders kept for one process")
def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    """The second neither trains there nor takes the first one's drafts away."""
    study = Study(dataset="digits", clients=3, rounds=1, model="mlp", methods=["local"])
    idl.run(study, tmp_path / "run", engine="sequential")
    draft = tmp_path / "run" / files.DRAFT.replace("*", "0")
    draft.touch()
    first = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", first, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(InputError, match=r"another process uses .*run: wait for it"):
            idl.run(study, tmp_path / "run", engine="sequential", resume=True)
        assert draft.exists()
        other.communicate(b"\n")
    idl.run(study, tmp_path / "run", engine="sequential", resume=True)
    assert not draft.exists()
    idl.run(study, tmp_path / "run", engine="sequential", resume=True)
