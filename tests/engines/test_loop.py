"""The round loop on toy methods whose every number is known."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy
sys.path.insert(0, str(Path(__file__).parent))  # counting travels to workers by name

import counting
import toy
import workers

from idiolect import engines, methods, models
from idiolect.core.errors import InputError, Interrupted, RunError
from idiolect.core.method import SGD, Method, Task, Training, Up
from idiolect.core.processor import cores
from idiolect.engines import Processes, Sequential, Vectorised, engine
from idiolect.engines.processes import pool
from idiolect.simulation import Engine, Job, Record, State, begin, fit
from idiolect.simulation.client_runner import ClientRunner
from idiolect.simulation.client_store import InMemory
from idiolect.simulation.sampling import participants
from idiolect.training import Preprocessing

ENGINES = {"sequential": Sequential, "processes": partial(Processes, 1)}


@pytest.fixture(params=ENGINES)
def runs_on(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ENGINES[request.param]() as made:
        yield made


def _job(**options: Any) -> Job:
    return Job("counting", partial(counting.build, **options), toy.shared(), 3)


def _children() -> set[int]:
    """Worker processes of this one."""
    return workers.alive()


# --- who takes part


@pytest.mark.parametrize(
    ("clients", "share", "count"), [(20, 1.0, 20), (20, 0.1, 2), (10, 0.25, 3), (10, 0.01, 1), (1, 0.5, 1), (7, 0.5, 4)]
)
def test_number_of_participants(clients: int, share: float, count: int) -> None:
    for round in range(1, 6):
        ids = participants(0, round, clients, share)
        assert len(ids) == count
        assert ids == sorted(set(ids))
        assert set(ids) <= set(range(clients))


def test_participants_are_uniform_and_fixed_by_seed_and_round() -> None:
    clients, rounds, count = 10, 2000, 3
    drawn = [participants(5, r, clients, 0.3) for r in range(rounds)]
    often = np.bincount(np.concatenate(drawn), minlength=clients)
    p = count / clients
    z = (often - rounds * p) / np.sqrt(rounds * p * (1 - p))
    assert np.abs(z).max() < 4, often
    pairs = np.zeros((clients, clients))
    for ids in drawn:
        pairs[np.ix_(ids, ids)] += 1
    both = count * (count - 1) / (clients * (clients - 1))
    z = (pairs[np.triu_indices(clients, 1)] - rounds * both) / np.sqrt(rounds * both * (1 - both))
    assert np.abs(z).max() < 4.5
    assert drawn == [participants(5, r, clients, 0.3) for r in range(rounds)]
    assert drawn[:50] != [participants(6, r, clients, 0.3) for r in range(50)]


# --- rounds


def test_what_a_round_does(runs_on: Engine) -> None:
    """counting: a client adds 1 to its own count and uploads client * round; the server sums what it gets."""
    seen: list[tuple[State, list[int], list[Record]]] = []

    def on_round(state: State, records: list[Record], seconds: float) -> None:
        assert seconds > 0
        seen.append((state, [int(c) for c in state.clients], records))

    end = fit(_job(), runs_on, rounds=4, participation=0.5, evaluate_every=3, on_round=on_round)
    drawn = {n: participants(3, n, 6, 0.5) for n in range(1, 5)}
    total = 0
    for n, (state, clients, records) in enumerate(seen, 1):
        total += sum(drawn[n])
        assert state.round == n
        assert state.server.tolist() == [n, total]
        assert clients == [sum(i in drawn[m] for m in range(1, n + 1)) for i in range(6)]
        by = {(r.stage, r.metric): {s.client for s in records if s[2:4] == r[2:4]} for r in records}
        assert all(r.round == n for r in records)
        assert by["local", "count"] == by["wire", "bytes_up"] == by["wire", "bytes_down"] == set(drawn[n])
        evaluated = n in (3, 4)
        assert by.get(("personalised", "accuracy"), set()) == (set(range(6)) if evaluated else set())
        assert by.get(("server", "uploaded"), set()) == (set(drawn[n]) if evaluated else set())
        values = {(r.client, r.metric): r.value for r in records}
        for i in drawn[n]:
            assert values[i, "bytes_up"] == 8
            assert values[i, "bytes_down"] == 16 + 8
            assert values[i, "count"] == clients[i]
            if evaluated:
                assert values[i, "uploaded"] == i
                pairs = {r.other: r.value for r in records if (r.client, r.metric) == (i, "pair")}
                assert pairs == {j: 10 * i + j for j in drawn[n]}
        assert all((r.other is not None) == (r.metric == "pair") for r in records)
    assert len(seen) == 4
    assert end is seen[-1][0]


def test_accuracy_and_loss(runs_on: Engine) -> None:
    """counting predicts class 0 with probability 1/2 and shares the rest."""
    records: list[Record] = []
    fit(_job(), runs_on, rounds=1, on_round=lambda s, r, t: records.extend(r))
    federation = toy.data()
    for client in range(6):
        y = federation.y_R[federation.test[client]].numpy()
        values = {r.metric: r.value for r in records if r.client == client and r.stage == "personalised"}
        assert values["accuracy"] == pytest.approx(np.mean(y == 0), abs=1e-12)
        assert values["loss"] == pytest.approx(-np.mean(np.log(np.where(y == 0, 0.5, 0.25))), abs=1e-6)


def test_nothing_left_to_do(runs_on: Engine) -> None:
    state = State(torch.tensor([9, 0]), InMemory(torch.tensor(0), 6), 3)
    assert fit(_job(), runs_on, rounds=3, state=state) is state


def test_no_more_workers_are_counted_than_there_are() -> None:
    whole = toy.data()
    two = replace(whole, train=whole.train[:2], test=whole.test[:2])
    with Processes(3) as workers:
        fit(Job("counting", counting.build, two, 0), workers, rounds=1)
        assert workers.workers == 2
        fit(_job(), workers, rounds=1)
        assert workers.workers == 3


def test_large_states_do_not_block() -> None:
    """Client states and answers far larger than a pipe's buffer, in both directions at once."""
    with Processes(2) as workers:
        end = fit(_job(ballast=500_000), workers, rounds=2)
    assert [int(c[0]) for c in end.clients] == [2] * 6


def test_more_workers_than_clients() -> None:
    whole = toy.data()
    two = replace(whole, train=whole.train[:2], test=whole.test[:2])
    with Processes(64) as workers:
        fit(Job("counting", counting.build, two, 0), workers, rounds=1)
        assert len(_children()) == 2
    assert not _children()


# --- stopping


@pytest.mark.parametrize("after", [0, 8])
def test_stop(runs_on: Engine, after: int) -> None:
    asked, rounds = 0, []

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    with pytest.raises(Interrupted):
        fit(_job(wait=0.01), runs_on, rounds=50, stop=stop, on_round=lambda s, r, t: rounds.append(s.round))
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) <= after
    assert fit(_job(), runs_on, rounds=1).round == 1, "the engine cannot be used again"


# --- failures


@pytest.mark.parametrize("phase", ["local", "personalise", "predict"])
def test_failing_client_is_named(runs_on: Engine, phase: str) -> None:
    shown = "local" if phase == "local" else "evaluate"
    words = rf"^counting: client 4, round 2, {shown}: ValueError: boom \(\w+\.py, line \d+\)$"
    with pytest.raises(RunError, match=words) as caught:
        fit(_job(fails=(phase, 2, 4)), runs_on, rounds=3)
    assert "\n" not in str(caught.value)
    assert fit(_job(), runs_on, rounds=1).round == 1, "the engine cannot be used again"


def _fedavg(**functions: Any) -> Job:
    def build(**how: Any) -> Method:
        return toy.builder("fedavg")(toy.task(), **how)._replace(**functions)

    return Job("mine", build, toy.data(), 3)


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"aggregate": lambda server, up, ids: server}, "round 1, aggregate: does not return a pair"),
        ({"aggregate": lambda server, up, ids: (server, up)}, "round 1, aggregate: does not return a pair"),
        ({"aggregate": lambda server, up, ids: (server, {"n": up.weight})}, "reports n, and a server that gets means"),
        ({"local": lambda down, client, data, key: (client, Up())}, "local: local does not return .client, Up"),
        (
            {"local": lambda down, client, data, key: (Up(), client, {})},
            r"local: local does not return .client, Up, info.: the second value is a (tuple|dict|Model)",
        ),
        (
            {"local": lambda down, client, data, key: (client, Up(), {"train_loss": 0.5})},
            r"local: local does not return .*: info\['train_loss'\] is a float, not a tensor",
        ),
    ],
)  # fmt: skip
def test_a_method_that_returns_something_else(functions: dict[str, Any], words: str) -> None:
    with Sequential() as engine, pytest.raises(RunError, match=words):
        fit(_fedavg(**functions), engine, rounds=1)


@pytest.mark.parametrize("phase", ["local", "predict"])
def test_diverged_client_is_named(runs_on: Engine, phase: str) -> None:
    shown = "local" if phase == "local" else "evaluate"
    with pytest.raises(
        RunError, match=rf"^counting: client 4, round 2, {shown}: training diverged .*lower the learning"
    ):
        fit(_job(diverges=(phase, 2, 4)), runs_on, rounds=3)


@pytest.mark.parametrize(("option", "words"), [("fails", "ValueError: boom"), ("diverges", "training diverged")])
def test_failing_server_is_named(option: str, words: str) -> None:
    with Sequential() as loop, pytest.raises(RunError, match=rf"^counting: server, round 2, aggregate: {words}"):
        fit(_job(**{option: ("aggregate", 2, 0)}), loop, rounds=3)


def test_probabilities_that_are_none_are_said_so() -> None:
    site = ClientRunner(_job())
    state = begin(site.method, site.job.data.clients, 0)
    down = site.method.send(state.server, torch.tensor([0]))
    site.run("evaluate", 1, [0], down, [state.clients[0]])
    predict = site.method.predict
    site.method = site.method._replace(predict=lambda down, client, x: predict(down, client, x).exp())
    with pytest.raises(
        RunError,
        match=r"evaluate: ValueError: predict does not return log-probabilities \(a sample's probabilities sum to",
    ):
        site.run("evaluate", 1, [0], down, [state.clients[0]])


def test_worker_that_dies() -> None:
    def kill(state: State, records: list[Record], seconds: float) -> None:
        if state.round == 2:
            os.kill(min(_children()), 9)

    with Processes(2) as workers:
        when = r"(between two rounds|in round 3 \(local\))"  # as the pool learns of it before or after it has new work
        with pytest.raises(RunError, match=rf"^a worker process died {when}.*try fewer workers$"):
            fit(_job(), workers, rounds=5, on_round=kill)
        assert fit(_job(), workers, rounds=1).round == 1, "the next job starts afresh"
    assert not _children()


def test_worker_that_dies_in_a_client() -> None:
    with Processes(2) as workers, pytest.raises(RunError, match=r"a worker process died in round 2 \(local\)"):
        fit(_job(fails=("exit", 2, 4)), workers, rounds=3)


def test_method_that_workers_cannot_import() -> None:
    build = partial(counting.build)
    counting.build.__module__ = "gone"
    try:
        sys.modules["gone"] = counting
        with (
            Processes(1) as workers,
            pytest.raises(RunError, match=r"No module named 'gone'.*use the sequential engine$"),
        ):
            fit(Job("gone", build, toy.data(), 0), workers, rounds=1)
    finally:
        counting.build.__module__ = "counting"
        del sys.modules["gone"]


def test_no_room_for_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with Processes(1) as workers, pytest.raises(RunError, match=r"No space left on device.*set TMPDIR"):
        fit(_job(), workers, rounds=1)
    assert not _children()


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    for make in ENGINES.values():
        torch.set_num_threads(2)
        with make():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


# --- jobs side by side


def test_jobs_share_the_workers() -> None:
    """Two at once give what each gives alone; one that fails leaves the other be."""
    with Sequential() as loop:
        want = [fit(_job()._replace(seed=seed), loop, rounds=4, participation=0.5) for seed in (1, 2)]
    with Processes(2) as workers, ThreadPoolExecutor(3) as threads:
        job = _job(wait=0.01)
        good = [threads.submit(fit, job._replace(seed=seed), workers, rounds=4, participation=0.5) for seed in (1, 2)]
        bad = threads.submit(fit, _job(fails=("local", 2, 4))._replace(data=job.data), workers, rounds=4)
        with pytest.raises(RunError, match="client 4, round 2"):
            bad.result()
        for run, alone in zip(good, want, strict=True):
            assert torch.equal(run.result().server, alone.server)
            assert [int(c) for c in run.result().clients] == [int(c) for c in alone.clients]
        assert len(_children()) == 2
        assert workers.seconds >= 2 * 4 * 3 * 0.01, "each of the two trained three clients a round, for 10 ms at least"
    assert not _children()


def test_a_dying_worker_ends_all_jobs() -> None:
    with Processes(2) as workers, ThreadPoolExecutor(2) as threads:
        job = _job(wait=0.05)
        other = threads.submit(fit, job, workers, rounds=200)
        with pytest.raises(RunError, match="a worker process died"):
            fit(_job(fails=("exit", 2, 4))._replace(data=job.data), workers, rounds=3)
        with pytest.raises(RunError, match="a worker process died"):
            other.result()


def test_jobs_side_by_side_are_on_the_same_data() -> None:
    with Processes(1) as workers:
        open = workers.open(_job())
        other = _job()._replace(data=toy.data())
        with pytest.raises(InputError, match="counting has other data than the job that is open: close that job first"):
            workers.open(other)
        open.close()
        workers.open(other)


def test_what_no_worker_can_be_told() -> None:
    """A lambda does not travel: said at once, and the workers are still there."""
    with Processes(1) as workers:
        with pytest.raises(RunError, match=r"lambda.*put the method in a module that can be imported"):
            fit(Job("lambda", lambda: counting.build(), toy.data(), 0), workers, rounds=1)
        assert fit(_job(), workers, rounds=1).round == 1


# --- choice


def test_engine_by_name() -> None:
    assert isinstance(engine("auto", 1), Sequential)
    assert isinstance(engine("auto", 2), Processes)
    assert isinstance(engine("auto"), Processes if cores() > 1 else Sequential)
    assert engine("processes").workers == cores()


@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize("available", [1, 2, 16])
@pytest.mark.parametrize("workers", [None, 1, 2])
def test_auto_takes_no_gpu(monkeypatch: pytest.MonkeyPatch, gpus: int, available: int, workers: int | None) -> None:
    """The same engine as without GPUs: the one for them has not been measured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(engines, "cores", lambda: available)
    several = (workers or available) > 1 and os.name == "posix"
    assert isinstance(engine("auto", workers), Processes if several else Sequential)


def test_vectorised_is_taken_where_it_is_asked_for() -> None:
    assert isinstance(engine("vectorised:device=cpu"), Vectorised)


@pytest.mark.parametrize(
    ("name", "workers", "words"),
    [
        ("proceses", None, "did you mean 'processes'"),
        ("processes", 0, "workers=0"),
        ("auto", 0, "workers=0"),
        ("auto", -2, "workers=-2"),
        ("sequential", 0, "workers=0"),
        ("sequential", 2, "workers=2"),
    ],
)
def test_engine_that_cannot_be(name: str, workers: int | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        engine(name, workers)


def test_worker_imports_no_more_than_it_needs() -> None:
    code = "import sys, idiolect.engines.processes.worker; print(*{m.partition('.')[0] for m in sys.modules})"
    found = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert "torch" in found
    assert not found & {"pandas", "datasets", "sklearn", "rich", "typer", "jinja2", "vl_convert"}


def _faults(process: int) -> int:
    """Pages that the system has given to a process since it began."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_workers_keep_their_memory() -> None:
    """Where every step's buffers came from the system anew, a step of this network would cost up to 500 pages."""
    clients, rows, batch = 2, 200, 50
    numbers = torch.arange(clients * rows)
    data = replace(
        toy.data(), x_R=torch.randint(256, (len(numbers), 1, 28, 28), dtype=torch.uint8), y_R=numbers % toy.CLASSES,
        train=numbers.split(rows), test=(numbers[:1],) * clients, shifts=("",) * clients,
    )  # fmt: skip
    network = models.build("fmnist_cnn", (1, 28, 28), toy.CLASSES)
    task = Task(network, toy.CLASSES, clients, Training(1, batch, SGD(lr=0.01)), Preprocessing((0.5,), (0.3,)))
    found: list[int] = []

    def count(*_: Any) -> None:
        found.extend(map(_faults, _children()))

    with Processes(1) as workers:
        fit(Job("fedavg", partial(methods.build, "fedavg", {}, task), data, 0), workers, rounds=6, on_round=count)
    steps = 2 * clients * rows // batch
    assert found[4] - found[2] < 20 * steps


def test_the_callers_tunables_count_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    ours = pool._environment()["GLIBC_TUNABLES"]
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert pool._environment()["GLIBC_TUNABLES"] == f"{ours}:glibc.malloc.hugetlb=0", "the last one holds"


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    """A worker in the middle of a long client notices, too."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from functools import partial\n"
        "import counting, toy\n"
        "from idiolect.engines import Processes\n"
        "from idiolect.simulation import Job, fit\n"
        "with Processes(2) as workers:\n"
        "    job = Job('counting', partial(counting.build, wait=60), toy.data(), 0)\n"
        "    fit(job, workers, rounds=1, on_round=print, stop=lambda: print('busy', flush=True) or False)\n"
    )
    marker = f"IDIOLECT_TEST={tmp_path}"
    here = Path(__file__).parent
    command = [sys.executable, "-c", code, str(here), str(here.parent / "contract")]
    environment = os.environ | {"IDIOLECT_TEST": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"busy\n"
            time.sleep(0.3)
        finally:
            process.kill()
    deadline = time.monotonic() + 10
    while alive := _marked(marker):
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.05)


def _marked(marker: str) -> list[str]:
    if not Path("/proc/self").exists():
        pytest.skip("processes are known by Linux's /proc")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue
    return found
