"""Whose models are measured and when, against each stage computed by hand from the method's own functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.method import Data, Down, Method
from idiolect.core.reduction import reduced
from idiolect.data import FederatedData
from idiolect.engines import Processes, Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.simulation import Engine, Job, Record, State, fit
from idiolect.simulation.measures import calibration_error
from idiolect.simulation.sampling import participants

ROUNDS, SEED = 3, 5
NAMES = ("fedavg_ft", "fedper", "fedpac", "pfedfda", "ditto")


@pytest.fixture(params=["sequential", "processes", "vectorised"], scope="module")
def runs_on(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Any = {"sequential": Sequential, "processes": partial(Processes, 1), "vectorised": Vectorised}
    with made[request.param]() as engine:
        yield engine


def _job(name: str, data: FederatedData | None = None) -> Job:
    data = data or toy.shared()
    return Job(name, partial(methods.build, name, {}, toy.task()), data, SEED)


def _run(job: Job, engine: Engine, **settings: Any) -> tuple[State, list[Record], list[list[Any]]]:
    records: list[Record] = []
    states: list[list[Any]] = []

    def on_round(state: State, new: list[Record], seconds: float) -> None:
        records.extend(new)
        states.append([tree.copy(c) for c in state.clients])

    protocol = Protocol.model_validate(settings)
    end = fit(
        job, engine, rounds=ROUNDS, participation=0.5, evaluate_every=ROUNDS, protocol=protocol, on_round=on_round
    )
    return end, records, states


def _accuracy(job: Job, down: Down, client: Any, i: int, method: Method) -> float:
    rows = job.data.test[i]
    with torch.no_grad():
        logp = method.predict(Down(down.shared, tree.rows(down.own, 0)), client, job.data.x_R[rows])
    return float((logp.argmax(1) == job.data.y_R[rows]).double().mean())


def _rows(job: Job, i: int) -> Data:
    rows = job.data.train[i]
    return Data(job.data.x_R, job.data.y_R, rows, torch.ones(len(rows)))


@pytest.mark.parametrize("name", NAMES)
def test_each_moment_is_what_it_says(name: str, runs_on: Engine) -> None:
    job = _job(name)
    end, records, states = _run(job, runs_on, stage="received", also=["trained", "personalised"])
    method = job.build()
    found = {(r.stage, r.client): r.value for r in records if r.metric == "accuracy"}
    assert {m for m, _ in found} == {"received", "trained", "personalised"}
    assert {c for _, c in found} == set(range(job.data.clients))
    gaps = []
    for i in range(job.data.clients):
        down, client = method.send(end.server, torch.tensor([i])), states[-1][i]
        mine = Down(down.shared, tree.rows(down.own, 0))
        received = _accuracy(job, down, client, i, method)
        key = keys.key(SEED, ROUNDS, i, "evaluate")
        personalised = _accuracy(job, down, method.personalise(mine, client, _rows(job, i), key), i, method)
        after, up, _ = method.local(mine, client, _rows(job, i), keys.key(SEED, ROUNDS + 1, i, "local"))
        server, _ = method.aggregate(
            end.server, reduced(method.reduce, tree.map(lambda a: torch.as_tensor(a)[None], up)), torch.tensor([i])
        )
        trained = _accuracy(job, method.send(server, torch.tensor([i])), after, i, method)
        for stage, value in (("received", received), ("personalised", personalised), ("trained", trained)):
            gaps.append(abs(found[stage, i] - value) * len(job.data.test[i]))
    assert max(gaps) < 1e-6 if not isinstance(runs_on, Vectorised) else np.mean(gaps) < 0.5  # near-ties round otherwise


def test_participants_alone(runs_on: Engine) -> None:
    job = _job("fedper")
    _, records, _ = _run(job, runs_on, clients="participants")
    measured = {r.client for r in records if r.stage == "personalised"}
    assert measured == set(participants(SEED, ROUNDS, job.data.clients, 0.5))


def test_everybody_in_the_last_round(runs_on: Engine) -> None:
    job = _job("fedper")
    _, records, _ = _run(job, runs_on, full_last_round=True)
    took_part = {
        n: {r.client for r in records if r.metric == "bytes_up" and r.round == n} for n in range(1, ROUNDS + 1)
    }
    assert took_part[ROUNDS] == set(range(job.data.clients))
    assert all(len(took_part[n]) == round(0.5 * job.data.clients) for n in range(1, ROUNDS))


def test_validation_rows_are_measured_apart(runs_on: Engine) -> None:
    whole = toy.data()
    held = tuple(r[: min(3, len(r) - 1)] for r in whole.train)  # a client with one row has none
    data = replace(whole, train=tuple(r[len(h) :] for r, h in zip(whole.train, held, strict=True)), validation=held)
    job = _job("fedavg_ft", data)
    end, records, _ = _run(job, runs_on, round="best_validation", validation=0.2)
    plain, without, _ = _run(_job("fedavg_ft", replace(data, validation=())), runs_on)
    assert tree.leaves(end.server)[0].equal(tree.leaves(plain.server)[0]), "validation rows are not trained on"
    test = {(r.client, r.metric): r.value for r in records if r.stage == "personalised"}
    alone = {(r.client, r.metric): r.value for r in without if r.stage == "personalised"}
    assert {k: v for k, v in test.items() if not k[1].startswith("validation")} == pytest.approx(alone, abs=1e-5)
    method = job.build()
    for i in (i for i in range(data.clients) if len(held[i])):
        down = method.send(end.server, torch.tensor([i]))
        client = method.personalise(down, (), _rows(job, i), keys.key(SEED, ROUNDS, i, "evaluate"))
        with torch.no_grad():
            logp = method.predict(down, client, data.x_R[held[i]])
        right = float((logp.argmax(1) == data.y_R[held[i]]).double().mean())
        assert test[i, "validation_accuracy"] == pytest.approx(right, abs=1e-9)
        loss = -float(logp.double().gather(1, data.y_R[held[i]][:, None]).mean())
        assert test[i, "validation_loss"] == pytest.approx(loss, rel=1e-4)


def _split(counts: list[int]) -> FederatedData:
    """So many training samples of each client are kept for validation."""
    whole = toy.data()
    held = tuple(r[:n] for r, n in zip(whole.train, counts, strict=True))
    return replace(whole, train=tuple(r[n:] for r, n in zip(whole.train, counts, strict=True)), validation=held)


@pytest.mark.parametrize("name", ["fedavg_ft", "fedper", "ditto"])
def test_without_test_samples_validation_alone_is_measured(name: str, runs_on: Engine) -> None:
    data = _split([min(3, n - 1) for n in toy.SIZES])
    protocol = {"stage": "received", "also": ["personalised"], "validation": 0.2}
    end, whole, _ = _run(_job(name, data), runs_on, **protocol)
    job = _job(name, data.without_test())._replace(measures=("auroc", "calibration"))
    blind, records, _ = _run(job, runs_on, **protocol)
    assert tree.same(end.server, blind.server)
    stages = ("received", "personalised", "new")
    alone = {(r.stage, r.client, r.metric): r.value for r in records if r.stage in stages}
    assert {metric for _, _, metric in alone} == {"validation_accuracy", "validation_loss"}
    assert not np.isnan(list(alone.values())).any()
    want = {(r.stage, r.client, r.metric): r.value for r in whole if r.metric.startswith("validation_")}
    assert alone == pytest.approx(want, abs=1e-5)
    assert {i for _, i, _ in alone} == {i for i in range(data.clients) if len(data.validation[i])}


@pytest.mark.parametrize("lacking", [[0], [1, 4], [2, 3, 5], range(6)])
def test_a_client_without_samples_to_measure_has_no_records(lacking: list[int], runs_on: Engine) -> None:
    whole = toy.data()
    few = tuple(r[:3] for r in whole.test)  # so that clients are measured together
    data = replace(whole, test=tuple(r[:0] if i in lacking else r for i, r in enumerate(few)))
    _, records, _ = _run(_job("fedavg_ft", data), runs_on)
    _, full, _ = _run(_job("fedavg_ft", replace(whole, test=few)), runs_on)
    got = {(r.client, r.metric): r.value for r in records if r.stage == "personalised"}
    want = {(r.client, r.metric): r.value for r in full if r.stage == "personalised" and r.client not in lacking}
    assert got == pytest.approx(want, abs=1e-5)


def test_brier_and_calibration() -> None:
    """Against their definitions, row by row."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(5, 0.5), 400)
    p[0] = [1, 0, 0, 0, 0]
    y = np.array([rng.choice(5, p=row) for row in p])
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (p.max(1) > low + 1e-12) & (p.max(1) <= low + 1 / 15 + 1e-12)
        if inside.any():
            total += abs((p.argmax(1) == y)[inside].mean() - p.max(1)[inside].mean()) * inside.sum() / len(y)
    assert calibration_error(torch.tensor(p), torch.tensor(y)) == pytest.approx(total, abs=1e-12)
    assert np.isnan(calibration_error(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)))
