"""FedADMM: rounds by hand, written from the paper's Lagrangian, its invariant and its traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD
from idiolect.methods.fedadmm import Client

ROWS = o.federation()
START = o.weights(1)
OWN, DUAL = ([o.weights(at + k) for k in range(len(o.SIZES))] for at in (10, 20))  # w_i and y_i
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def alone(k: int, rho: float, start: str, plan: list[np.ndarray] | None = None) -> o.Params:
    """The gradient of the augmented Lagrangian: that of the loss, y, and rho (w - theta)."""
    x, y = ROWS[k]

    def gradient(w: o.Params, rows: np.ndarray) -> o.Params:
        g = o.whole_gradient(x, y)(w, rows)
        return {n: g[n] + DUAL[k][n] + rho * (w[n] - START[n]) for n in g}

    first = START if start == "server" else OWN[k]
    return o.descend(first, "WbUc", o.batches(len(y)) if plan is None else plan, gradient)


def same(model: Any, p: o.Params, **tolerance: float) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name], **tolerance)


def started(rho: float) -> dict[int, Any]:
    """Clients after some rounds; they keep y / rho."""
    return {k: Client(o.model_of(OWN[k]), o.model_of({n: a / rho for n, a in DUAL[k].items()})) for k in o.IDS}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rho": 0.5, "server_lr": 0.7},
        {"rho": 0.2, "average": "clients"},
        {"rho": 0.3, "start": "server", "server_lr": 1.5},
        {"previous": "received", "start": "server"},
        {"rho": 0.4, "previous": "received", "server_lr": 0.5},
        {"rho": 0.1, "previous": "received", "start": "own", "average": "clients"},
    ],
)
def test_a_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("fedadmm", options, o.task())
    rho, start = options.get("rho", 0.01), options.get("start", "own")
    loose = {"rtol": 1e-8, "atol": 1e-8}  # y / rho is large with a small rho
    server, new, up, _ = o.round_of(method, o.model_of(START), started(rho), ROWS)
    delta = {}
    for at, k in enumerate(o.IDS):
        end = alone(k, rho, start)
        dual = {n: DUAL[k][n] + rho * (end[n] - START[n]) for n in end}
        before = START if options.get("previous") == "received" else OWN[k]
        delta[k] = {n: end[n] + dual[n] / rho - before[n] - DUAL[k][n] / rho for n in end}
        same(new[k].model, end, **loose)
        same(new[k].dual, {n: a / rho for n, a in dual.items()}, **loose)
        same(tree.rows(up.value, at), delta[k], **loose)
    count = len(o.SIZES) if options.get("average") == "clients" else len(o.IDS)
    rate = options.get("server_lr", 1.0) / count
    want = {n: START[n] + rate * sum(d[n] for d in delta.values()) for n in START}
    same(server, want, **loose)
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, server, k)
        client = method.personalise(down, Client(o.model_of(OWN[2]), o.model_of(DUAL[2])), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(want, TEST), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("start", ["server", "own"])
@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_the_server_is_the_mean_of_all_clients_models_and_duals(rho: float, start: str) -> None:
    """Over rounds of some clients, with the paper's eta of m / K: what a client sent before is taken back."""
    method = methods.build("fedadmm", {"rho": rho, "average": "clients", "start": start}, o.task())
    server = method.init_server(o.key())
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in range(len(o.SIZES))}
    for ids in ((0, 1, 3), (2,), (0, 4), (1, 2, 3)):
        server, new, _, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        every = tree.stack([tree.add(c.model, c.dual) for c in clients.values()])
        for got, want in zip(tree.leaves(server), tree.leaves(tree.mean(every, torch.ones(5))), strict=True):
            close(got, want)


def test_with_all_clients_it_is_feddyn() -> None:
    """Two papers' algorithms, which are one where nobody stays away and the steps start from the received model."""
    admm, dyn = (
        methods.build("fedadmm", {"rho": 0.2, "start": "server"}, o.task()),
        methods.build("feddyn", {"alpha": 0.2}, o.task()),
    )
    every = [torch.tensor(k) for k in range(len(o.SIZES))]
    servers = [m.init_server(o.key()) for m in (admm, dyn)]
    clients = [{k: m.init_client(o.key(), id) for k, id in enumerate(every)} for m in (admm, dyn)]
    for _ in range(4):
        for at, m in enumerate((admm, dyn)):
            servers[at], clients[at], _, _ = o.round_of(m, servers[at], clients[at], ROWS)
        for a, b in zip(tree.leaves(servers[0]), tree.leaves(servers[1].model), strict=True):
            close(a, b)


def test_the_released_code_moves_the_server_by_twice_the_mean_step() -> None:
    """What it takes for w_i is theta: the rate of 1 is then one of 2 on the mean of the clients' steps."""
    options = methods.settle("fedadmm", {"preset": "official", "rho": 0.2})
    method = methods.build("fedadmm", options, o.task())
    server, new, _, _ = o.round_of(method, o.model_of(START), started(0.2), ROWS)
    mean = tree.mean(tree.stack([new[k].model for k in o.IDS]), torch.ones(len(o.IDS)))
    same(server, {n: 2 * a.numpy() - START[n] for n, a in zip(("W", "b", "U", "c"), tree.leaves(mean), strict=True)})


@pytest.mark.parametrize("steps", [(0, 1), (1, 2, 3), (4,)])
def test_a_client_that_comes_back_adds_nothing_that_the_server_has(steps: tuple[int, ...]) -> None:
    """Without training (a rate of next to 0) nobody moves: what others have moved in between is not sent again."""
    method = methods.build("fedadmm", {}, o.task(optimiser=SGD(1e-12, 0.0, 0.0)))
    moved = {n: a + 0.5 for n, a in START.items()}
    rest = Client(o.model_of(moved), tree.zeros(o.model_of(moved)))
    server, _, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(steps, rest), ROWS)
    for at in range(len(steps)):  # w_i' - theta, and not w_i' - w_i + w_i' - theta from theta
        same(tree.rows(up.value, at), {n: moved[n] - START[n] for n in START}, atol=1e-9)
    same(server, moved, atol=1e-9)


def test_what_a_round_tells() -> None:
    method = methods.build("fedadmm", {"rho": 0.3}, o.task(epochs=1))
    x, y = ROWS[1]
    info = method.local(o.one(method, o.model_of(START), 1), started(0.3)[1], o.data(x, y), o.key())[2]
    plan, total = o.batches(len(y), 1), 0.0
    for at, rows in enumerate(plan):  # cross-entropy without the other terms, each batch before its own step
        p = alone(1, 0.3, "own", plan[:at]) if at else OWN[1]
        total -= o.log_probability(p, x[rows])[np.arange(len(rows)), y[rows]].sum()
    close(info["train_loss"], total / len(y))
    end = alone(1, 0.3, "own", plan)
    close(info["distance"], np.sqrt(sum(((end[n] - START[n]) ** 2).sum() for n in START)))


def test_dual_variables_start_at_zero_and_models_at_the_server_s() -> None:
    method = methods.build("fedadmm", {}, o.task())
    client = method.init_client(o.key(), torch.tensor(3))
    assert not any(bool(a.any()) for a in tree.leaves(client.dual))
    assert tree.same(client.model, method.init_server(o.key()))


@pytest.mark.parametrize("pattern", ["head", "body", "*.bias"])
def test_weights_that_stay_at_a_client_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match=r"method fedadmm cannot take personal=.*leave out this method"):
        methods.build("fedadmm", {}, o.task(), personal_weights=pattern)


@pytest.mark.parametrize("options", [{"rho": 0}, {"server_lr": -1}, {"average": "some"}, {"start": "zero"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedadmm", options)
