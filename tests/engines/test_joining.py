"""Clients that join after training: they never train, start fresh, and change nothing for those who did."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy
sys.path.insert(0, str(Path(__file__).parent))  # counting travels to workers by name

import counting
import toy

from idiolect import data, methods, models
from idiolect.core import keys, tree
from idiolect.core.errors import Interrupted, RunError
from idiolect.core.method import SGD, Data, Method, Task, Training
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData, Source
from idiolect.engines import Processes, Sequential
from idiolect.simulation import Engine, Job, Record, State, begin, fit
from idiolect.training import Preprocessing

ENGINES = {"sequential": Sequential, "processes": partial(Processes, 1)}
ROUNDS = 2


@pytest.fixture(params=ENGINES, scope="module")
def runs_on(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ENGINES[request.param]() as made:
        yield made


@cache
def federation(new_clients: int | None = 2, conditions: bool = True) -> FederatedData:
    """Four clients that train and two that join, these also inverted and turned."""
    draw = np.random.default_rng(0)
    y_R = np.arange(150) % 3
    x_R = (draw.integers(0, 120, (150, 1, 4, 4)) + 60 * y_R[:, None, None, None]).astype(np.uint8)
    source = Source(
        "toy", torch.from_numpy(x_R), torch.from_numpy(y_R), 3, tuple("abc"), (0.5,), (0.3,), 150
    )  # fmt: skip
    more = [Spec(name="invert"), Spec.parse("rotate:degrees=90")] if new_clients and conditions else []
    return data.build(source, Spec(name="iid"), [], 6, 1, new_clients=new_clients, new_shifts=more)


def only_trained(whole: FederatedData) -> FederatedData:
    """The same clients without those that join."""
    count = whole.trained
    return FederatedData(
        whole.name, whole.x_R, whole.y_R, whole.train[:count], whole.test[:count], whole.classes, whole.class_names,
        whole.mean, whole.std, whole.shifts[:count],
    )  # fmt: skip


def job(name: str, whole: FederatedData, **options: Any) -> Job:
    network = models.build("mlp", whole.shape, whole.classes)
    task = Task(network, whole.classes, whole.trained, Training(1, 8, SGD(0.05)), Preprocessing(whole.mean, whole.std))
    return Job(name, partial(methods.build, name, methods.settle(name, options), task), whole, 3)


def run(job: Job, engine: Engine, **more: Any) -> tuple[State, list[Record]]:
    records: list[Record] = []
    state = fit(job, engine, rounds=ROUNDS, evaluate_every=1, on_round=lambda s, r, t: records.extend(r), **more)
    return state, records


def joined(records: list[Record]) -> list[Record]:
    return [r for r in records if r.stage == "new"]


def by_hand(method: Method, server: Any, whole: FederatedData, seed: int, id: int) -> dict[str, float]:
    """A newcomer by the contract: init_client, send, personalise, predict."""
    client = method.init_client(keys.start(seed), torch.tensor(0))
    down = method.send(server, torch.tensor([id]))
    down = down._replace(own=tree.rows(down.own, 0))
    rows = Data(whole.x_R, whole.y_R, whole.train[id], torch.ones(len(whole.train[id])))
    client = method.personalise(down, client, rows, keys.key(seed, ROUNDS, id, "evaluate"))
    with torch.no_grad():
        logp_NC = method.predict(down, client, whole.x_R[whole.test[id]])
    y_N = whole.y_R[whole.test[id]]
    right = logp_NC.argmax(1) == y_N
    loss = -logp_NC.double()[torch.arange(len(y_N)), y_N].mean()
    truth_NC = torch.eye(whole.classes, dtype=torch.float64)[y_N]
    brier = (logp_NC.double().exp() - truth_NC).square().sum(1).mean()
    return {"accuracy": float(right.double().mean()), "loss": float(loss), "brier": float(brier)}


# --- with every method


@pytest.mark.kinds
@pytest.mark.parametrize("name", methods.names())
def test_joining_changes_nothing_and_is_what_the_contract_says(name: str) -> None:
    whole = federation()
    made = job(name, whole)
    with Sequential() as loop:
        state, records = run(made, loop)
        alone, before = run(made._replace(data=only_trained(whole)), loop)
    assert [r for r in records if r.stage != "new"] == before
    a, b = (tree.named({"server": s.server, "clients": list(s.clients)}) for s in (state, alone))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert len(state.clients) == 4
    found = {(r.client, r.metric): r.value for r in joined(records)}
    measured = ("accuracy", "loss", "calibration_error", "brier", "balanced_accuracy", "macro_f1")
    assert set(found) == {(id, metric) for id in range(4, 10) for metric in measured}
    assert {r.round for r in joined(records)} == {ROUNDS}
    for id in range(4, 10):
        want = by_hand(made.build(), state.server, whole, 3, id)
        assert found[id, "accuracy"] == pytest.approx(want["accuracy"], abs=1e-12)
        for metric in ("loss", "brier"):
            assert found[id, metric] == pytest.approx(want[metric], rel=1e-5, abs=1e-6)


def test_never_trained_and_never_counted_among_the_trained(runs_on: Engine) -> None:
    whole = federation()
    _, records = run(job("ditto", whole), runs_on)
    assert {r.client for r in records if r.stage != "new"} == {0, 1, 2, 3}
    assert {(r.client, r.round) for r in joined(records)} == {(id, ROUNDS) for id in range(4, 10)}
    assert len([r for r in records if r.stage == "personalised"]) == ROUNDS * 4 * 6


def test_engines_agree() -> None:
    """Also where the rows stand in no file that others map."""
    whole = federation()
    found = []
    for make in ENGINES.values():
        with make() as engine:
            found.append(run(job("fedavg_ft", whole), engine))
    (first, told), (second, others) = found
    assert told == others
    pairs = zip(
        tree.leaves((first.server, list(first.clients))),
        tree.leaves((second.server, list(second.clients))),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)
    with Processes(2) as engine:
        assert run(job("fedavg_ft", only_trained(whole)), engine)[1] == [r for r in told if r.stage != "new"]


def test_conditions_matter_and_the_plain_rows_come_first() -> None:
    whole = federation()
    with Sequential() as loop:
        _, records = run(job("fedavg", whole), loop)
        _, plain = run(job("fedavg", federation(conditions=False)), loop)
    with_others = [r for r in joined(records) if r.client < 6]
    assert [r[:4] for r in joined(plain)] == [r[:4] for r in with_others]
    # measured in other company, in one pass of another size: within rounding (docs/engines.md), not to the bit
    assert [r.value for r in joined(plain)] == pytest.approx([r.value for r in with_others], rel=1e-5, abs=1e-6)
    loss = {r.client: r.value for r in joined(records) if r.metric == "loss"}
    assert loss[6] > 2 * loss[4], "inverted rows are no harder"
    assert loss[7] > 1.5 * loss[5]


# --- with a method whose every number is known


def _counting(whole: FederatedData, **options: Any) -> Job:
    return Job("counting", partial(counting.build, **options), whole, 3)


def test_a_newcomers_state_is_fresh(runs_on: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client's count, which grows with each of its rounds, reaches a newcomer; the server's state does."""
    seen: list[tuple[str, list[int], list[int], list[int]]] = []
    opened = runs_on.open(_counting(federation()))
    opened.close()
    session = type(opened)
    real = session.map

    def spy(self: Any, phase: Any, round: int, ids: Any, down: Any, clients: Any, *rest: Any) -> Any:
        seen.append((phase, list(ids), [int(c) for c in clients], down.shared.tolist()))
        return real(self, phase, round, ids, down, clients, *rest)

    monkeypatch.setattr(session, "map", spy)
    state = fit(_counting(federation()), runs_on, rounds=3)
    total = 3 * sum(range(4))
    assert [int(c) for c in state.clients] == [3] * 4
    assert seen[-1] == ("evaluate", [4, 5, 6, 7, 8, 9], [0] * 6, [3, total])
    assert [ids for phase, ids, _, _ in seen if phase == "local"] == [[0, 1, 2, 3]] * 3
    assert seen[-2][1:3] == ([0, 1, 2, 3], [3] * 4)


def test_the_state_that_newcomers_share_is_not_theirs_to_change() -> None:
    """``ballast`` makes states large; each newcomer gets a copy."""
    made = _counting(federation(), ballast=3)
    method = made.build()

    def personalise(down: Any, client: Any, data: Data, key: torch.Tensor) -> Any:
        assert client.sum() == 0 or int(down.own) < 4
        client += 1
        return client

    with Sequential() as loop:
        fit(made._replace(build=lambda: method._replace(personalise=personalise)), loop, rounds=2)


@pytest.mark.parametrize("phase", ["personalise", "predict"])
def test_a_newcomer_that_fails_is_named(runs_on: Engine, phase: str) -> None:
    kept: list[int] = []
    with pytest.raises(RunError, match=r"^counting: client 7, round 2, evaluate: ValueError: boom"):
        fit(
            _counting(federation(), fails=(phase, 2, 7)), runs_on, rounds=2,
            on_round=lambda s, r, t: kept.append(s.round),
        )  # fmt: skip
    assert kept == [1], "a round without its newcomers was kept"


@pytest.mark.parametrize("before_end", [7, 3, 2, 1])
def test_interrupted_anywhere_the_records_are_the_same(before_end: int) -> None:
    """A round asks once for each who trains, and then for each group that is measured together."""
    made = job("fedper", federation())
    with Sequential() as loop:
        asks: list[None] = []
        want, whole = run(made, loop, stop=lambda: asks.append(None) or False)
        after = len(asks) - before_end
        asked, kept, records = 0, [begin(made.build(), 4, 3)], list[Record]()

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return asked > after

        def keep(state: State, more: list[Record], seconds: float) -> None:
            kept.append(state)
            records.extend(more)

        with pytest.raises(Interrupted):
            fit(made, loop, rounds=ROUNDS, evaluate_every=1, on_round=keep, stop=stop)
        assert not joined(records)
        end = fit(made, loop, rounds=ROUNDS, evaluate_every=1, on_round=keep, state=kept[-1])
    assert records == whole
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves(list(end.clients)), tree.leaves(list(want.clients)), strict=True)
    )  # fmt: skip


def test_more_newcomers_than_trained() -> None:
    with Sequential() as loop:
        _, records = run(job("local", federation(new_clients=5)), loop)
    assert [r.client for r in joined(records) if r.metric == "loss"] == list(range(1, 16))


def test_participation_is_of_those_who_train() -> None:
    with Sequential() as loop:
        _, records = run(job("fedavg", federation()), loop, participation=0.5)
    assert len({r.client for r in records if r.stage == "wire" and r.round == 1}) == 2
    assert {r.client for r in joined(records)} == set(range(4, 10))


def test_toy_data_without_newcomers_has_no_such_record() -> None:
    with Sequential() as loop:
        _, records = run(_counting(toy.data()), loop)
    assert not joined(records)


def test_rows_that_were_replaced_reach_the_workers() -> None:
    """Rows of the caller's own making, in a federation whose file holds others."""
    whole = federation()
    other = replace(whole, x_R=255 - whole.x_R)
    found = []
    for make in ENGINES.values():
        with make() as engine:
            found.append(run(job("fedavg", other), engine)[1])
    assert found[0] == found[1]
