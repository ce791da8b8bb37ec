"""The ray engine gives the bits of the plain loop on one node and on several, whatever happens to them."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy
sys.path.insert(0, str(Path(__file__).parent))  # counting travels to nodes by name

import counting
import toy

from idiolect.core import tree
from idiolect.core.errors import InputError, Interrupted, RunError
from idiolect.core.method import Down
from idiolect.data.blocks import blocks_of
from idiolect.engines import Sequential
from idiolect.engines.ray import engine as engine_of_ray
from idiolect.engines.ray import host as hosting
from idiolect.engines.ray import messages, nodes
from idiolect.engines.ray import session as session_of_ray
from idiolect.engines.ray.engine import Ray
from idiolect.engines.ray.host import Host
from idiolect.engines.ray.nodes import NodeFailure
from idiolect.simulation import Job, Record, State, fit
from idiolect.simulation.client_runner import groups

if find_spec("ray") is None:  # imported by those alone that use it: it takes a second
    pytest.skip("Ray is not installed", allow_module_level=True)

DATA = toy.data()
BALLAST = 2000  # numbers beside the count: a state that is worth keeping
PATIENCE = {"health_check_timeout_ms": 60_000, "health_check_failure_threshold": 20}  # a busy machine loses no node


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, in a folder of their own."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("IDIOLECT_TEST", folder)
        size = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
        size |= {"no_monitor": True, "include_log_monitor": False}  # helpers of Ray that nothing here asks
        made = Cluster()
        try:
            made.add_node(**size, _system_config=PATIENCE)
            made.add_node(**size)
            made.size = size
            yield made
        finally:
            made.shutdown()
            _end(f"IDIOLECT_TEST={folder}")


@pytest.fixture(scope="module")
def runs_on(cluster: Any) -> Iterator[Ray]:
    with Ray(address=cluster.address) as made:
        yield made


def _job(**options: Any) -> Job:
    return Job("counting", partial(counting.build, **options), DATA, 3)


def _run(job: Job, engine: Any, rounds: int = 3, **how: Any) -> tuple[State, list[Record]]:
    records: list[Record] = []
    also = how.pop("on_round", lambda state: None)

    def on_round(state: State, new: list[Record], seconds: float) -> None:
        records.extend(new)
        also(state)

    return fit(job, engine, rounds=rounds, participation=0.7, on_round=on_round, **how), records


def _same(job: Job, got: tuple[State, list[Record]], rounds: int = 3) -> None:
    with Sequential() as loop:
        want, records = _run(job, loop, rounds)
    state, others = got
    for a, b in zip(
        tree.leaves((want.server, list(want.clients))), tree.leaves((state.server, list(state.clients))), strict=True
    ):
        assert torch.equal(a, b)
    assert others == records


def _marked(marker: str) -> list[int]:
    if not Path("/proc/self").exists():
        pytest.skip("processes are known by Linux's /proc")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _end(marker: str) -> None:
    for process in _marked(marker):
        os.kill(process, signal.SIGKILL)


# --- placement


@given(st.lists(st.integers(1, 90), min_size=1, max_size=60), st.data())
@settings(deadline=None, max_examples=25)
def test_a_node_makes_the_same_groups_again(sizes: list[int], draw: st.DataObject) -> None:
    """Of the clients of some groups, and of these alone: so what is measured together is the same on any node."""
    rows = tuple(torch.zeros(n, dtype=torch.int64) for n in sizes)
    data = replace(DATA, train=rows, test=rows)
    for phase in ("local", "evaluate"):
        made = groups(phase, data, list(range(len(sizes))))  # type: ignore[arg-type]
        part = draw.draw(st.lists(st.sampled_from(made), unique_by=tuple, min_size=1))
        places = sorted(k for group in part for k in group)
        again = groups(phase, data, places)  # type: ignore[arg-type]
        assert sorted(sorted(places[k] for k in group) for group in again) == sorted(map(sorted, part))


def _node(number: int, workers: int) -> nodes.Node:
    return nodes.Node(number, str(number), str(number), workers, 8, None, None, True, 0.0)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=80), st.lists(st.integers(1, 8), min_size=1, max_size=5))
@settings(deadline=None, max_examples=25)
def test_new_clients_spread_by_rows_for_each_worker(sizes: list[int], workers: list[int]) -> None:
    some = [_node(k, n) for k, n in enumerate(workers)]
    todo = nodes.Todo(lambda group: sizes[group[0]], 8)
    todo.plan([[k] for k in range(len(sizes))], some, lambda group: None)
    has = {n: [sizes[group[0]] for group in todo._queues.get(n, ())] for n in some}
    assert sorted(size for sizes in has.values() for size in sizes) == sorted(sizes)
    for a in some:
        for b in some:  # else the last client of a would have gone to b
            assert not has[a] or (sum(has[a]) - has[a][-1]) / a.workers <= sum(has[b]) / b.workers + 1e-9


def test_clients_come_back_to_their_node_unless_another_is_idle() -> None:
    a, b = some = [_node(0, 1), _node(1, 1)]
    todo = nodes.Todo(lambda group: 10, 8)
    todo.plan([[k] for k in range(6)], some, lambda group: a if group[0] < 4 else b)
    taken: dict[int, list[int]] = {0: [], 1: []}
    while todo:
        node = min(some, key=lambda n: len(taken[n.number]))
        taken[node.number] += [k for group in todo.take(node) for k in group]
    assert sorted(taken[0] + taken[1]) == list(range(6))
    assert set(taken[0]) <= {0, 1, 2, 3}
    assert {4, 5} <= set(taken[1])
    assert len(taken[1]) >= 3, "b took from a when it had nothing left"


def test_a_part_is_as_large_as_it_may_be() -> None:
    """Half of what is left, no more than 8 groups a worker or what memory allows, no less than one a worker."""
    for workers, most, sizes in ((1, 8, [8, 8, 7, 3, 2, 1, 1]), (1, 2, [2] * 14 + [1, 1]), (4, 8, [15, 7, 4, 4])):
        todo = nodes.Todo(lambda group: 1, most)
        node = _node(0, workers)
        todo.plan([[k] for k in range(30)], [node], lambda group: None)
        assert [len(todo.take(node)) for _ in sizes] == sizes
        assert not todo
        assert todo.take(node) == []


def test_a_first_node_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is not ready in time is left to come later, but not where no other is ready."""
    engine, asked = Ray(), []
    late = replace(_node(0, 1), starting=object(), until=time.monotonic() - 1)

    def settle() -> None:
        if len(asked) == 3:
            engine._nodes["0"] = replace(late, starting=None)

    def wait(refs: list[Any], **how: Any) -> None:
        asked.append(refs)

    monkeypatch.setattr(engine_of_ray, "import_ray", lambda: SimpleNamespace(wait=wait))
    monkeypatch.setattr(engine, "_refresh", lambda: None)
    monkeypatch.setattr(engine, "_settle", settle)
    engine._nodes = {"0": late, "1": _node(1, 1)}
    assert [n.number for n in engine.ready("in round 1", lambda: False)] == [1]
    assert not asked
    engine._nodes = {"0": late}
    assert [n.number for n in engine.ready("in round 1", lambda: False)] == [0]
    monkeypatch.setattr(engine_of_ray, "_FIRST_SECONDS", 0.0)
    engine._nodes = {"0": late}
    with pytest.raises(RunError, match="no node of the Ray cluster is left in round 1"):
        engine.ready("in round 1", lambda: False)


# --- what is kept on a node


def _host() -> Host:
    host = Host([])
    rest = messages.pack(replace(DATA, x_R=DATA.x_R[:0]))
    host.start("sequential", 1, DATA.x_R.numpy(), rest, torch.float32)
    return host


def _asked(host: Host, states: list[Any], kept: list[int]) -> Any:
    job = messages.pack(_job(ballast=BALLAST)._replace(data=None))  # type: ignore[arg-type]
    ids = torch.tensor([4, 1])
    down = Down(torch.tensor([0, 0]), ids)
    message = messages.pack(([4, 1], down.own, states, kept, None))
    error, answer = messages.unpack(host.run(1, job, "local", 1, 1, messages.pack(down.shared), message))
    assert error is None
    return answer


def test_a_node_keeps_states_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    host = _host()
    start = [torch.full((BALLAST + 1,), n) for n in (10, 20)]
    first = _asked(host, start, [0, 0])
    assert [int(t.client[0]) for t in first.results] == [11, 21]
    second = _asked(host, [None, start[1]], [first.versions[0], 0])
    assert [int(t.client[0]) for t in second.results] == [12, 21]
    third = _asked(host, [None, None], [first.versions[0], second.versions[1]])
    assert third.missing == [4], "it has a later state of client 4, and must not use it"
    assert third.results == []
    monkeypatch.setattr(hosting, "_ROOM", 12 * BALLAST)  # room for one
    fourth = _asked(host, start, [0, 0])
    assert _asked(host, [None, None], fourth.versions).missing == [4]
    host.close(1)
    assert host._bytes == 0
    assert not host._states


def test_a_version_is_of_every_bit() -> None:
    state = {"a": torch.zeros(3), "b": torch.tensor([True, False])}
    versions = {messages.version_of(state), messages.version_of(tree.copy(state))}
    assert len(versions) == 1
    for other in (
        {"a": torch.tensor([0.0, -0.0, 0.0]), "b": state["b"]}, {"a": torch.zeros(3), "b": torch.tensor([True, True])},
        {"a": torch.zeros(3, 1), "b": state["b"]}, {"a": torch.zeros(3, dtype=torch.int32), "b": state["b"]},
    ):  # fmt: skip
        versions.add(messages.version_of(other))
    assert len(versions) == 5


@pytest.mark.thorough
def test_a_state_is_sent_once(runs_on: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first round all states are sent; later only those that a node has not, or no longer has to have."""
    sent: list[tuple[list[int], list[int]]] = []
    pack = messages.pack

    def spy(message: Any) -> Any:
        if type(message) is tuple and len(message) == 5:
            ids, _, states, kept, _ = message
            assert [state is None for state in states] == [version > 0 for version in kept]
            sent.append((ids, kept))
        return pack(message)

    monkeypatch.setattr(session_of_ray, "pack", spy)
    job = _job(ballast=BALLAST)
    session = runs_on.open(job)
    ids = list(range(6))
    down = Down(torch.tensor([0, 0]), torch.tensor(ids))
    states = [torch.zeros(BALLAST + 1, dtype=torch.int64)] * 6
    try:
        first: Any = session.map("local", 1, ids, down, states, lambda: False)
        assert all(version == 0 for _, kept in sent for version in kept)
        sent.clear()
        found = [tree.copy(t.client) for t in first]  # equal, but not the same tensors, as they come from a disk
        found[3] = found[3] + 6  # not what the node has
        homes = session._home_K.copy()
        second: Any = session.map("local", 2, ids, down, found, lambda: False)
        assert [int(t.client[0]) for t in second] == [2, 2, 2, 8, 2, 2]
        kept = {id: version for ids, versions in sent for id, version in zip(ids, versions, strict=True)}
        assert kept[3] == 0
        assert {i for i, version in kept.items() if version} == {
            i for i in ids if i != 3 and session._home_K[i] == homes[i]
        }
        assert sum(version > 0 for version in kept.values()) >= 2
        sent.clear()
        session._version_K[:] = messages.version_of(states[0])  # a node that no longer has what it should
        third: Any = session.map("local", 3, ids, down, states, lambda: False)
        assert [int(t.client[0]) for t in third] == [1] * 6
        assert any(version > 0 for _, kept in sent for version in kept)
    finally:
        session.close()


# --- the bits of the plain loop


@pytest.mark.thorough(but=["fedpac", "ditto", "scaffold"])
@pytest.mark.parametrize("name", ["fedavg", "fedpac", "ditto", "pfedfda", "scaffold", "apfl"])
def test_the_bits_of_sequential(runs_on: Ray, name: str) -> None:
    job = Job(name, partial(toy.builder(name), toy.task()), DATA, 3)
    _same(job, _run(job, runs_on))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "kind"), [("pfedfda", "groups"), ("fedshrink", "blocks")])
def test_the_bits_of_sequential_with_groups(runs_on: Ray, name: str, kind: str) -> None:
    rows = len(DATA.y_R)
    if kind == "groups":
        data = replace(DATA, group_R=torch.arange(rows) // 3)
    else:
        data = replace(DATA, blocks=blocks_of([*DATA.train], np.arange(rows), 1))
    job = Job(name, partial(toy.builder(name), toy.task()), data, 3)
    got = _run(job, runs_on)
    _same(job, got)
    with Sequential() as loop:
        alone = _run(job._replace(data=DATA), loop)
    assert [r.value for r in alone[1]] != [r.value for r in got[1]]  # groups change what these methods do


def test_what_it_says_of_itself(runs_on: Ray) -> None:
    before = runs_on.seconds
    job = _job(wait=0.02)
    _run(job, runs_on, 2)
    assert runs_on.workers == 2
    assert runs_on.seconds - before >= 2 * 4 * 0.02
    assert runs_on.failures == []


# --- stopping and failures


def test_stop(runs_on: Ray) -> None:
    _run(_job(), runs_on, 1)
    asked: list[float] = []

    def stop() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 5

    with pytest.raises(Interrupted):
        fit(_job(wait=0.6), runs_on, rounds=50, stop=stop)
    assert np.median(np.diff(asked)) < 0.5, "asked while clients are at work"
    start = time.monotonic()
    _same(_job(), _run(_job(), runs_on))
    assert time.monotonic() - start < 60, "the rest of 50 rounds, two minutes, is not waited for"


@pytest.mark.parametrize("phase", ["local", "personalise", "predict"])
def test_failing_client_is_named(runs_on: Ray, phase: str) -> None:
    shown = "local" if phase == "local" else "evaluate"
    with pytest.raises(
        RunError, match=rf"^counting: client 4, round 2, {shown}: ValueError: boom \(\w+\.py, line \d+\)$"
    ):
        fit(_job(fails=(phase, 2, 4)), runs_on, rounds=3)
    assert runs_on.failures == []
    assert fit(_job(), runs_on, rounds=1).round == 1, "the engine cannot be used again"


def test_worker_process_that_dies(runs_on: Ray) -> None:
    with pytest.raises(RunError, match=r"^a worker process died in round 2 \(local\)"):
        fit(_job(fails=("exit", 2, 4)), runs_on, rounds=3)
    assert fit(_job(), runs_on, rounds=1).round == 1, "the engine cannot be used again"


def test_jobs_side_by_side(runs_on: Ray) -> None:
    jobs = [_job(wait=0.01, ballast=BALLAST)._replace(seed=seed) for seed in (1, 2)]
    with ThreadPoolExecutor(3) as threads:
        good = [threads.submit(_run, job, runs_on, 4) for job in jobs]
        with pytest.raises(RunError, match="client 4, round 2"):
            threads.submit(fit, _job(fails=("local", 2, 4)), runs_on, rounds=4).result()
        for run, job in zip(good, jobs, strict=True):
            _same(job, run.result(), 4)


def test_jobs_side_by_side_are_on_the_same_data(runs_on: Ray) -> None:
    open = runs_on.open(_job())
    with pytest.raises(InputError, match="counting has other data than the job that is open: close that job first"):
        runs_on.open(_job()._replace(data=toy.data()))
    open.close()


def test_method_that_nodes_cannot_import(runs_on: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gone", counting)
    monkeypatch.setattr(counting.build, "__module__", "gone")
    with pytest.raises(RunError, match=r"No module named 'gone'.*use the sequential engine$"):
        fit(Job("gone", counting.build, DATA, 0), runs_on, rounds=1)


def test_what_no_node_can_be_told(runs_on: Ray) -> None:
    with pytest.raises(RunError, match=r"lambda.*put the method in a module that can be imported"):
        fit(Job("lambda", lambda: counting.build(), DATA, 0), runs_on, rounds=1)


# --- losing nodes


def _family(process: int) -> set[int]:
    """A process and all that it has started."""
    if not Path("/proc/self").exists():
        pytest.skip("processes are known by Linux's /proc")
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def test_a_node_joins_and_is_lost(cluster: Any, runs_on: Ray, capfd: pytest.CaptureFixture[str]) -> None:
    """One node comes after the first round; in the middle of the third all its processes are killed at once."""
    import ray

    job = _job(wait=0.1, ballast=BALLAST)
    came: list[Any] = []
    done: list[int] = []
    known: set[str] = set()

    def on_round(state: State) -> None:
        done.append(state.round)
        if state.round == 1:
            known.update(node.id for node in runs_on._nodes.values())
            came.append(cluster.add_node(**cluster.size))
        if state.round == 2:  # which did not wait for it
            (coming,) = (node.starting for node in runs_on._nodes.values() if node.id not in known)
            ray.wait([coming], timeout=60)

    def stop() -> bool:
        if done[-1:] == [2] and came[0] is not None:
            family = _family(came[0].all_processes["raylet"][0].process.pid)
            came[0] = None
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in family:
                    os.kill(process, number)
        return False

    got = _run(job, runs_on, 4, on_round=on_round, stop=stop)
    _same(job, got, 4)
    (lost,) = runs_on.failures
    assert isinstance(lost, NodeFailure)
    assert lost.round == 3
    assert lost.clients
    assert not any(lost.node.endswith(f"({id[:8]})") for id in known)
    assert f"idiolect: the node {lost.node} was lost in round 3" in capfd.readouterr().err


@pytest.mark.thorough
def test_no_node_is_left(cluster: Any, runs_on: Ray, capfd: pytest.CaptureFixture[str]) -> None:
    """Both nodes lose what runs on them: the run ends at a whole round, and goes on from there on the same nodes."""
    import ray

    rounds: list[State] = []

    def stop() -> bool:
        if len(rounds) == 1:
            for node in list(engine._nodes.values()):
                ray.kill(node.actor)
        return False

    runs_on._stop()  # its actors have the cores
    job = _job(wait=0.2, ballast=BALLAST)
    with Ray(address=cluster.address, inner="sequential") as engine:
        with pytest.raises(RunError, match=r"^no node of the Ray cluster is left in round 2 \(local\) \(.* was lost"):
            fit(job, engine, rounds=3, participation=0.7, on_round=lambda s, r, t: rounds.append(s), stop=stop)
        assert [lost.round for lost in engine.failures] == [2, 2]
        assert "was lost in round 2" in capfd.readouterr().err
        state, records = _run(job, engine, state=rounds[0])
        assert engine.workers == 2
        with Sequential() as loop:
            want, others = _run(job, loop)
        assert torch.equal(state.server, want.server)
        assert all(torch.equal(a, b) for a, b in zip(state.clients, want.clients, strict=True))
        assert records == [r for r in others if r.round > 1]


# --- choice


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers=0 is not possible"),
        ({"inner": "thread"}, "inner='thread' is not an engine for a node: choose processes, sequential, vectorised"),
        ({"address": "ray://a:1"}, "address='ray://a:1' is not the address of a Ray cluster: give auto, or host:port"),
        ({"address": "somewhere"}, "give auto, or host:port"),
    ],
)
def test_engine_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Ray(**options)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_of_ray, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'^the ray engine needs Ray: pip install "idiolect\[ray\]"$'):
        Ray()


def test_on_this_machine_alone(tmp_path: Path) -> None:
    """Ray starts and ends without a word, listens on loopback alone and leaves no process; SIGTERM is the caller's."""
    code = (
        "import json, os, signal, sys; sys.path[:0] = sys.argv[1:]\n"
        "from functools import partial\n"
        "import counting, listening, toy\n"
        "from idiolect.simulation import Job, fit\n"
        "from idiolect.engines.ray import Ray, cluster\n"
        "from idiolect.core.errors import InputError\n"
        "mine = signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "cluster._PATIENCE = 1\n"
        "try:\n"
        "    with Ray(address='127.0.0.1:9'): pass\n"
        "except InputError as error: print(error)\n"
        "with Ray(1) as engine:\n"
        "    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN\n"
        "    end = fit(Job('counting', counting.build, toy.data(), 3), engine, rounds=2)\n"
        "    print(json.dumps(listening.addresses(os.environ['IDIOLECT_TEST'])))\n"
        "print(end.server.tolist(), engine.workers)\n"
    )
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        environment = os.environ | {"RAY_TMPDIR": folder, "IDIOLECT_TEST": str(tmp_path)}
        try:
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", code, str(here), str(here.parent / "contract")],
                env=environment, capture_output=True, text=True, timeout=100,
            )  # fmt: skip
            assert done.stderr == ""
            first, listened, second = done.stdout.splitlines()
            places = json.loads(listened)
            assert len(places) >= 4, "the driver, Ray's two servers and a worker listen"
            assert all(ipaddress.ip_address(place).is_loopback for place in places), places
            assert first.startswith("no Ray cluster answers at 127.0.0.1:9: ")
            assert second == "[2, 30] 1"
            deadline = time.monotonic() + 10
            while left := _marked(f"IDIOLECT_TEST={tmp_path}"):
                assert time.monotonic() < deadline, f"still alive: {left}"
                time.sleep(0.1)
        finally:
            _end(f"IDIOLECT_TEST={tmp_path}")
