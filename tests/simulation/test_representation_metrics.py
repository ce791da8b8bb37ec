"""What is observed in a run, against numpy and scipy on the representations themselves."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

import toy

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.method import Data, Down
from idiolect.core.network import watch, watching
from idiolect.data import FederatedData
from idiolect.engines import Processes, Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.simulation import Engine, Job, Record, State, fit
from idiolect.simulation.measures import calibration_error
from idiolect.simulation.representation_metrics import gaussianity, plane, standardise

SEED, ROUNDS = 5, 2
OPTIONS = {"fedcr": {"latent": 4, "samples": 2, "head_epochs": 1}}


@pytest.fixture(params=["sequential", "processes", "vectorised"], scope="module")
def runs_on(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Any = {"sequential": Sequential, "processes": partial(Processes, 1), "vectorised": Vectorised}
    with made[request.param]() as engine:
        yield engine


@cache
def _data() -> FederatedData:
    whole = toy.data()
    return replace(whole, shifts=("", "a", "", "b", "a", "")[: whole.clients])


def _run(name: str, engine: Engine, **settings: Any) -> tuple[Job, State, list[Any], list[Record]]:
    """The job, its end, the clients' states and what is on record."""
    records: list[Record] = []
    job = Job(
        name, partial(methods.build, name, methods.settle(name, OPTIONS.get(name, {})), toy.task()), _data(), SEED
    )
    end = fit(
        job, engine, rounds=ROUNDS, protocol=Protocol.model_validate(settings),
        on_round=lambda state, new, seconds: records.extend(new),
    )  # fmt: skip
    return job, end, list(end.clients), records


def _features(job: Job, end: State, client: Any, i: int, rows: Tensor, stage: str) -> np.ndarray:
    """Representations of rows by the method's own functions: fedper's body, or the mean of fedcr's Gaussian layer."""
    method = job.build()
    down = method.send(end.server, torch.tensor([i]))
    mine = Down(down.shared, tree.rows(down.own, 0))
    if stage == "personalised":
        train = job.data.train[i]
        data = Data(job.data.x_R, job.data.y_R, train, torch.ones(len(train)))
        client = method.personalise(mine, client, data, keys.key(SEED, ROUNDS, i, "evaluate"))
    task = toy.task()
    with torch.no_grad():
        x_B = task.inputs(job.data.x_R[rows])
        if job.name == "fedcr":
            encoder = mine.shared.encoder
            z_Bd = task.network.features(encoder.body, x_B)
            z_B2V = z_Bd @ encoder.code["weight"].T + encoder.code["bias"]
            return z_B2V[:, : z_B2V.shape[1] // 2].double().numpy()
        with watching() as seen:
            method.predict(mine, client, job.data.x_R[rows])
        (z_Bd,) = seen
        return z_Bd.double().numpy()


def _nats(z: np.ndarray, y: np.ndarray) -> float:
    """-log density by scipy, under the classes' means and the shrunk covariance about them."""
    mean = np.stack([z[y == c].mean(0) if (y == c).any() else np.zeros(z.shape[1]) for c in range(y.max() + 1)])
    apart = z - mean[y]
    cov = apart.T @ apart / (len(z) - 1)
    cov = (1 - 1e-4) * cov + 1e-4 * np.trace(cov) / len(cov) * np.eye(len(cov))
    normal = multivariate_normal(np.zeros(len(cov)), cov, allow_singular=True)
    return float(-normal.logpdf(apart).mean())


@pytest.mark.parametrize(("name", "stage"), [("fedper", "received"), ("fedcr", "personalised")])
def test_gaussianity_is_that_of_the_moments_model(name: str, stage: str, runs_on: Engine) -> None:
    job, end, clients, records = _run(
        name, runs_on, stage=stage, also=["trained"] * (name == "fedper"), observe="gaussianity"
    )
    found = {(r.round, r.client): r.value for r in records if r.metric == "gaussianity"}
    scaled = {(r.round, r.client): r.value for r in records if r.metric == "gaussianity_standardised"}
    assert {r.stage for r in records if r.metric.startswith("gaussianity")} == {stage}
    assert found.keys() == scaled.keys()
    assert {r for r, _ in found} == {1, 2}
    compared = 0
    for i in range(job.data.clients):
        rows = job.data.train[i]
        z, y = _features(job, end, clients[i], i, rows, stage), job.data.y_R[rows].numpy()
        if (ROUNDS, i) not in found:
            assert len(np.unique(z, axis=0)) <= len(set(y)), "nothing is left out but what has no spread"
            continue
        assert found[ROUNDS, i] == pytest.approx(_nats(z, y), rel=2e-3, abs=2e-3)
        std = z.std(0)
        assert scaled[ROUNDS, i] == pytest.approx(
            _nats((z - z.mean(0)) / np.where(std > 0, std, 1), y), rel=2e-3, abs=2e-3
        )
        compared += 1
    assert compared > job.data.clients / 2


def test_features_of_the_first_client_of_each_shift(runs_on: Engine) -> None:
    job, end, clients, records = _run("fedper", runs_on, observe="features")
    mine = [r for r in records if r.metric.startswith("feature")]
    assert {(r.round, r.stage) for r in mine} == {(ROUNDS, "personalised")}
    assert {r.client for r in mine} == {0, 1, 3}
    for i in (0, 1, 3):
        rows = job.data.test[i]
        values = {r.metric: r.value for r in mine if r.client == i}
        assert len(values) == 3 * len(rows)
        assert [values[f"feature_class[{k}]"] for k in range(len(rows))] == job.data.y_R[rows].tolist()
        got = np.array([[values[f"feature[{k},{axis}]"] for axis in (0, 1)] for k in range(len(rows))])
        z = _features(job, end, clients[i], i, rows, "personalised")
        z = z - z.mean(0)
        _, vectors = np.linalg.eigh(z.T @ z)
        for axis in (0, 1):
            want = z @ vectors[:, -1 - axis]
            assert min(abs(got[:, axis] - want).max(), abs(got[:, axis] + want).max()) < 1e-3 * max(1, abs(z).max())


def test_nothing_is_observed_unless_asked_for(runs_on: Engine) -> None:
    *_, end, _, records = _run("fedper", runs_on)
    _, again, _, observed = _run("fedper", runs_on, observe="gaussianity+features")
    beside = ("gaussianity", "feature")
    assert not any(r.metric.startswith(beside) for r in records)
    assert [r for r in observed if not r.metric.startswith(beside)] == records, "it changes no number"
    assert all(a.equal(b) for a, b in zip(tree.leaves(end.server), tree.leaves(again.server), strict=True))


def test_new_clients_are_observed_where_they_count() -> None:
    data = replace(_data(), conditions=("", ""))
    job = Job("fedper", partial(methods.build, "fedper", {}, toy.task()), data, SEED)
    records: list[Record] = []
    with Sequential() as engine:
        fit(
            job, engine, rounds=1, protocol=Protocol(clients="new", observe=("features",)),
            on_round=lambda state, new, seconds: records.extend(new),
        )  # fmt: skip
    assert {(r.stage, r.client) for r in records if r.metric.startswith("feature[")} == {("new", 4), ("new", 5)}


def test_the_sum_of_squared_distances_says_nothing() -> None:
    """Why a form without scale is recorded: rows a thousand times as large have d log 1000 more nats."""
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.integers(0, 3, 200))
    z = torch.tensor(rng.normal(size=(200, 5))) + y[:, None]
    assert gaussianity(1000 * z, y) - gaussianity(z, y) == pytest.approx(5 * np.log(1000))
    assert gaussianity(standardise(1000 * z), y) == pytest.approx(gaussianity(standardise(z), y))
    assert gaussianity(z, y) == pytest.approx(_nats(z.numpy(), y.numpy()), rel=1e-12)


def test_fewer_rows_than_dimensions_and_no_spread() -> None:
    rng = np.random.default_rng(1)
    y = torch.tensor([0, 1, 0, 1])
    z = torch.tensor(rng.normal(size=(4, 30)))
    assert gaussianity(z, y) == pytest.approx(_nats(z.numpy(), y.numpy()), rel=1e-9)
    assert np.isnan(gaussianity(z[:2], y[:2]))
    constant = torch.cat([z[:, :2], torch.full((4, 1), 0.1, dtype=torch.float64)], 1)
    assert standardise(constant)[:, 2].tolist() == [0.0] * 4


def test_a_plane() -> None:
    rng = np.random.default_rng(2)
    two = torch.tensor(rng.normal(size=(7, 2)))
    assert plane(two).equal(two)
    assert plane(two[:1].repeat(1, 3)).tolist() == [[0.0, 0.0]]
    assert plane(two[:, :1])[:, 1].tolist() == [0.0] * 7
    z = torch.tensor(rng.normal(size=(50, 6)) * [9, 5, 1, 1, 1, 1])
    assert plane(z).var(0, correction=1).tolist() == pytest.approx(
        np.linalg.eigvalsh(np.cov(z.numpy().T))[::-1][:2].tolist()
    )
    assert plane(-z).equal(-plane(z)), "the direction stays, the points turn"


def test_watching_is_of_a_thread_and_of_the_last_pass() -> None:
    a, b = torch.zeros(1, 2), torch.ones(1, 2)
    assert watch(a) is a, "outside, nothing happens"
    with watching() as seen:
        watch(a)
        with watching() as inner:
            watch(a)
        other = threading.Thread(target=watch, args=(a,))
        other.start()
        other.join()
        watch(b)
    assert seen == [b]
    assert inner == [a]


def test_a_method_that_notes_nothing_is_told() -> None:
    job = Job("toy", partial(_blind, toy.task()), _data(), SEED)
    with (
        Sequential() as engine,
        pytest.raises(InputError, match=r"toy records no representation .*watch.*leave observe"),
    ):
        fit(job, engine, rounds=1, protocol=Protocol(observe=("gaussianity",)))


def _blind(task: Any, personal: bool = True) -> Any:
    method = methods.build("fedavg", {}, task)

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        with watching():
            return method.predict(down, client, x_B)

    return method._replace(predict=predict)


@pytest.mark.parametrize("classes", [2, 10])
def test_calibration_error_is_torchmetrics(classes: int) -> None:
    """Its definition (norm l1, 15 bins), where no probability lies on an edge: there it has [k/15, (k+1)/15)."""
    rng = np.random.default_rng(classes)
    p = rng.dirichlet(np.full(classes, 0.6), 500)
    y = rng.integers(0, classes, 500)
    confidence, right = p.max(1), (p.argmax(1) == y).astype(float)
    bins = np.digitize(confidence, np.linspace(0, 1, 16)) - 1
    share, accuracy, sure = (
        np.array([f(bins == b) for b in range(15)])
        for f in (
            lambda inside: inside.mean(),
            lambda inside: right[inside].mean() if inside.any() else 0.0,
            lambda inside: confidence[inside].mean() if inside.any() else 0.0,
        )
    )
    want = (np.abs(accuracy - sure) * share).sum()
    assert calibration_error(torch.tensor(p), torch.tensor(y)) == pytest.approx(want, abs=1e-12)


def test_what_a_protocol_observes_is_written() -> None:
    assert Protocol(stage="received").model_dump(mode="json")["observe"] == []
    both = Protocol.model_validate("stage=received,observe=gaussianity+features")
    assert both.observe == ("gaussianity", "features")
    assert Protocol.model_validate(both.model_dump(mode="json")) == Protocol.model_validate(both.written()) == both
    assert str(both) == str(Protocol(stage="received")), "it changes no number"


def test_metrics_are_named_as_the_report_reads_them() -> None:
    with Sequential() as engine:
        *_, records = _run("fedper", engine, observe="features")
    names = {r.metric for r in records if r.metric.startswith("feature")}
    assert all(re.fullmatch(r"feature\[\d+,[01]\]|feature_class\[\d+\]", n) for n in names)
