"""Clients that are measured together fare as each would alone."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

import toy

from idiolect import methods
from idiolect.core.method import Down, Method, Task
from idiolect.core.network import Network
from idiolect.data import FederatedData
from idiolect.engines import Sequential
from idiolect.simulation import Job, begin, fit
from idiolect.simulation.client_runner import ClientRunner, EvaluationResult, groups


@pytest.fixture(autouse=True)
def _double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _data() -> FederatedData:
    """The toy's, with one to six test rows each."""
    whole = toy.data()
    return replace(whole, test=tuple(rows[: i + 1] for i, rows in enumerate(whole.test)))


def _job(name: str) -> Job:
    return Job(name, partial(toy.builder(name), toy.task()), _data(), 3)


def _watched(method: Method, mapped: list[bool]) -> Method:
    """The method, which notes at every prediction whether the rows are those of many clients."""

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        mapped.append(torch._C._functorch.is_batchedtensor(x_B))
        return method.predict(down, client, x_B)

    return method._replace(predict=predict)


def _both(job: Job) -> tuple[list[EvaluationResult], list[EvaluationResult], list[bool]]:
    """Everybody after a round, measured together and one by one; and in which calls rows were those of many."""
    with Sequential() as loop:
        state = fit(job, loop, rounds=1)
    site, mapped = ClientRunner(job), list[bool]()
    site.method = _watched(site.method, mapped)
    ids = list(range(job.data.clients))
    down = site.method.send(state.server, torch.tensor(ids))
    together: Any = site.run("evaluate", 1, ids, down, list(state.clients))
    kinds, alone = list(mapped), []
    for i in ids:
        one = Down(down.shared, site.method.send(state.server, torch.tensor([i])).own)
        alone += site.run("evaluate", 1, [i], one, [state.clients[i]])
    return together, alone, kinds


@pytest.mark.kinds
@pytest.mark.parametrize("name", [n for n in methods.names() if n != "pfedhn"])
def test_together_is_alone(name: str) -> None:
    together, alone, _ = _both(_job(name))
    for a, b in zip(together, alone, strict=True):
        assert a.accuracy == b.accuracy
        assert a.loss == pytest.approx(b.loss, rel=1e-10)


def _wide(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 200), nn.ReLU(), nn.Linear(200, 8), nn.ReLU()
    ), nn.Linear(8, classes)


class Asks(nn.Module):
    """An operation that no map can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() < 1e9) else -x


def _asking(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    body, head = _wide(shape, classes)
    return nn.Sequential(body, Asks()), head


def _with(network: Any, name: str) -> Job:
    task = toy.task()
    made = Network(partial(network, task.network.shape, task.classes), task.network.shape)
    wide = Task(made, task.classes, task.clients, task.training, task.inputs)
    return Job(name, partial(methods.build, name, methods.settle(name, {}), wide), _data(), 3)


@pytest.mark.parametrize(("name", "many"), [("fedavg", True), ("fedrep", True), ("fedpac", True), ("ditto", False)])
def test_a_shared_body_is_passed_once(name: str, many: bool) -> None:
    """And personal bodies one after another, which is less work on a processor."""
    together, alone, kinds = _both(_with(_wide, name))
    assert kinds == ([True] if many else [False] * len(alone))
    assert [m.accuracy for m in together] == [m.accuracy for m in alone]


def test_a_network_that_does_not_map() -> None:
    together, alone, kinds = _both(_with(_asking, "fedavg"))
    assert kinds == [True] + [False] * len(alone)
    assert together == alone


def test_states_of_unlike_sizes_leave_the_others_together() -> None:
    """kNN-Per's memory is as long as the client's rows: a group either stacks or does not, whatever came before."""
    job = _with(_wide, "knnper")
    site = ClientRunner(job)
    state = begin(site.method, 6, 3)
    even = replace(job.data, train=tuple(rows[:1] for rows in job.data.train))
    found = []
    for data, ids in ((job.data, [0, 1]), (even, [0, 1])):
        site.job = job._replace(data=data)
        seen: list[bool] = []
        site.method = _watched(job.build(), seen)
        site.run("evaluate", 1, ids, site.method.send(state.server, torch.tensor(ids)), [state.clients[i] for i in ids])
        found.append(seen)
    assert found == [[False, False], [True]]


def test_groups_cover_everybody_once_and_hold_few_rows() -> None:
    data = _data()
    ids = [5, 0, 3, 1]
    for phase in ("local", "evaluate"):
        found = groups(phase, data, ids)  # type: ignore[arg-type]
        assert sorted(k for g in found for k in g) == [0, 1, 2, 3]
        rows = [len(data.train[i] if phase == "local" else data.test[i]) for i in ids]
        most = [max(rows[k] for k in g) for g in found]
        assert most == sorted(most, reverse=True), "the most work goes first"
        assert all(len(g) == 1 or len(g) * m <= 32 for g, m in zip(found, most, strict=True))
    assert groups("local", data, []) == groups("evaluate", data, []) == []


def test_a_state_before_any_round_is_measured() -> None:
    job = _job("fedavg")
    state = begin(job.build(), 6, 3)
    site = ClientRunner(job)
    down = site.method.send(state.server, torch.arange(6))
    assert len(site.run("evaluate", 0, list(range(6)), down, list(state.clients))) == 6
