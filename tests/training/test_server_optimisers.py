"""The server's optimisers: rounds of three clients of unlike weights in numpy, and who can take one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy
sys.path.insert(0, str(Path(__file__).parent))  # tiny_bn

import tiny_bn
import toy

from idiolect import methods
from idiolect.core import reduce, tree
from idiolect.core.errors import InputError
from idiolect.core.method import Down, Method, Up, unchanged
from idiolect.core.option_spec import Spec, complete
from idiolect.core.reduce import Increment, spread
from idiolect.core.reduction import reduced
from idiolect.engines import Sequential
from idiolect.simulation import Job, begin, fit
from idiolect.training import add, stateless
from idiolect.training.server_optimisers import (
    AVERAGE,
    SERVER_OPTIMISERS,
    ServerAdam,
    ServerMomentum,
    ServerOptimiser,
    server_optimiser_of,
    with_server_optimiser,
)

pytestmark = pytest.mark.usefixtures("float64")

ROUNDS, CLIENTS, WEIGHTS = 5, 3, (7.0, 1.0, 4.0)
Shapes = {"w": (4, 3), "b": (4,)}
Params = dict[str, np.ndarray]


def plain() -> Method:
    """A method whose clients send what they are asked to."""

    def nothing(*_: Any) -> Any:
        raise AssertionError("not called")

    def init_server(key: Tensor) -> Any:
        return {k: torch.tensor(v) for k, v in start().items()}

    def send(server: Any, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Any, key: Tensor) -> Any:
        return client, Up(tree.zeros(down.shared), torch.tensor(1.0)), {}

    return Method(init_server, stateless, send, local, reduce.increment(), add, unchanged, nothing)


def start() -> Params:
    rng = np.random.default_rng(1)
    return {k: rng.normal(size=s) for k, s in Shapes.items()}


def increments(number: int) -> list[Params]:
    rng = np.random.default_rng(10 + number)
    return [{k: 0.1 * rng.normal(size=s) for k, s in Shapes.items()} for _ in range(CLIENTS)]


def rounds(rule: ServerOptimiser) -> list[Params]:
    """What the server sends after each round."""
    method = with_server_optimiser(plain(), "plain", rule, toy.task())
    server, sent = method.init_server(toy.key()), []
    for number in range(ROUNDS):
        value = {k: torch.tensor(np.stack([u[k] for u in increments(number)])) for k in Shapes}
        before = tree.copy(server)
        new, info = method.aggregate(
            server, reduced(method.reduce, Up(value, torch.tensor(WEIGHTS))), torch.arange(CLIENTS)
        )
        assert not info
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(server), tree.leaves(before), strict=True)), "in place"
        server = new
        sent.append({k: v.numpy() for k, v in method.send(server, torch.arange(CLIENTS)).shared.items()})
    return sent


def pseudo_gradients() -> list[Params]:
    """Delta_t = sum_i n_i u_i / sum_i n_i."""
    return [
        {k: sum(n * u[k] for n, u in zip(WEIGHTS, increments(t), strict=True)) / sum(WEIGHTS) for k in Shapes}
        for t in range(ROUNDS)
    ]


def close(got: list[Params], want: list[Params]) -> None:
    assert len(got) == len(want) == ROUNDS
    for mine, theirs in zip(got, want, strict=True):
        for k in Shapes:
            np.testing.assert_allclose(mine[k], theirs[k], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.9), (0.3, 0.5), (1.0, 0.0)])
def test_momentum_is_that_of_fedavgm(lr: float, momentum: float) -> None:
    x, want = start(), []
    m = {k: np.zeros(s) for k, s in Shapes.items()}
    for delta in pseudo_gradients():
        for k in Shapes:
            m[k] = momentum * m[k] + delta[k]
            x[k] = x[k] + lr * m[k]
        want.append({k: v.copy() for k, v in x.items()})
    close(rounds(ServerMomentum(lr=lr, momentum=momentum)), want)


@pytest.mark.parametrize(("lr", "beta1", "beta2", "tau"), [(0.01, 0.9, 0.99, 1e-3), (0.1, 0.0, 0.5, 0.1)])
def test_adam_is_that_of_fedopt(lr: float, beta1: float, beta2: float, tau: float) -> None:
    """Algorithm 2 of Reddi et al., line by line: m from 0, v from tau^2, no correction."""
    x, want = start(), []
    m, v = ({k: np.full(s, first) for k, s in Shapes.items()} for first in (0.0, tau**2))
    for delta in pseudo_gradients():
        for k in Shapes:
            m[k] = beta1 * m[k] + (1 - beta1) * delta[k]
            v[k] = beta2 * v[k] + (1 - beta2) * delta[k] ** 2
            x[k] = x[k] + lr * m[k] / (np.sqrt(v[k]) + tau)
        want.append({k: a.copy() for k, a in x.items()})
    close(rounds(ServerAdam(lr=lr, beta1=beta1, beta2=beta2, tau=tau)), want)


def test_the_average_is_the_method_itself() -> None:
    method = plain()
    assert with_server_optimiser(method, "plain", AVERAGE, toy.task()) is method


# --- who can take one


@pytest.mark.parametrize("spec", ["momentum", "adam"])
def test_a_server_without_increments_is_refused(spec: str) -> None:
    said = f"method fedproto cannot take server_optimiser={spec}, because nothing that it sends is an increment"
    with pytest.raises(InputError, match=said):
        methods.build("fedproto", {}, toy.task(), server=server_optimiser_of(Spec.parse(spec)))


@pytest.mark.parametrize("name", ["fedas", "ccvr"])
def test_what_a_declaration_says_of_its_parts_stays(name: str) -> None:
    """Measured weights, which count no samples, and parts that must come as they were sent."""
    stepped, usual = (methods.build(name, {}, toy.task(), server=by).reduce for by in (ServerMomentum(), AVERAGE))
    parts = [[(one.measured, one.exact) for one in reduce.rules(declared)] for declared in (stepped, usual)]  # type: ignore[union-attr]
    assert parts[0] == parts[1]
    assert any(any(one) for one in parts[1])


def test_a_method_without_a_server_stays_as_it_is() -> None:
    method = methods.build("local", {}, toy.task(), server=ServerAdam())
    assert method.init_server(toy.key()) == ()


@pytest.mark.parametrize("name", methods.names())
def test_every_method_takes_one_or_is_refused(name: str) -> None:
    """Half of each increment is stepped, where there is one; class means, covariances and sums are as they were."""
    usual = methods.build(name, {}, toy.task())
    if not any(isinstance(rule, Increment) for rule in tree.leaves(usual.reduce)) and name != "local":
        with pytest.raises(InputError, match=f"method {name} cannot take server_optimiser=momentum"):
            methods.build(name, {}, toy.task(), server=ServerMomentum(lr=0.5))
        return
    method = methods.build(name, {}, toy.task(), server=ServerMomentum(lr=0.5))
    server, client = usual.init_server(toy.key()), usual.init_client(toy.key(), torch.tensor(0))
    down = usual.send(server, torch.tensor([0]))
    up = usual.local(Down(down.shared, tree.rows(down.own, 0)), client, toy.rows(toy.data(), 0), toy.key())[1]
    whole = reduced(usual.reduce, tree.stack([up]))
    flat, build = tree.flatten(whole.value)
    half = [
        a / 2 if isinstance(r, Increment) else a for a, r in zip(flat, spread(usual.reduce, whole.value), strict=True)
    ]
    want, _ = usual.aggregate(server, whole._replace(value=build(half)), torch.tensor([0]))
    end, _ = method.aggregate(
        method.init_server(toy.key()), reduced(method.reduce, tree.stack([up])), torch.tensor([0])
    )
    for a, b in zip(tree.leaves(end.method if name != "local" else end), tree.leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "fedper"])
@pytest.mark.parametrize("policy", ["aggregate", "local"])
def test_statistics_of_batch_normalisation_are_averaged_as_before(name: str, policy: str) -> None:
    """With momentum 0 and rate 1 the optimiser's server is the average, statistics included."""
    task = replace(toy.task(), network=tiny_bn.network(policy))
    ends = []
    for rule in (AVERAGE, ServerMomentum(lr=1.0, momentum=0.0)):
        job = Job("x", lambda personal=True, rule=rule: methods.build(name, {}, task, personal=personal, server=rule),
                  toy.data(), 0)  # fmt: skip
        with Sequential() as engine:
            end = fit(job, engine, rounds=2, state=begin(job.build(), job.data.trained, 0))
        ends.append(job.build().send(end.server, torch.arange(2)))
    for a, b in zip(tree.leaves(ends[0]), tree.leaves(ends[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


# --- how it is written


def test_a_spec_is_completed() -> None:
    assert str(complete(Spec.parse("adam:lr=1"), server_optimiser_of)) == "adam:lr=1.0,beta1=0.9,beta2=0.99,tau=0.001"
    assert str(complete(Spec.parse("momentum"), server_optimiser_of)) == "momentum:lr=1.0,momentum=0.9"
    assert str(complete(Spec.parse("average"), server_optimiser_of)) == "average"
    for name in SERVER_OPTIMISERS:
        whole = complete(Spec(name=name), server_optimiser_of)
        assert complete(whole, server_optimiser_of) == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adamw", "unknown server_optimiser 'adamw'; did you mean 'adam'"),
        ("adam:beta=0.9", "server_optimiser adam has no option 'beta'"),
        ("adam:tau=0", "server_optimiser adam: tau=0 is not valid"),
        ("adam:lr=.nan", "server_optimiser adam: lr=nan is not valid"),
        ("momentum:momentum=1", "server_optimiser momentum: momentum=1 is not valid"),
        ("average:lr=1", "server_optimiser average has no option 'lr'"),
    ],
)
def test_a_bad_spec(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        complete(Spec.parse(text), server_optimiser_of)
