"""SCAFFOLD: recorded rounds, a round by hand, its options and its traps.

``scaffold`` was computed (float32) from the paper's definition, option II, since its authors released no code: every
array is compared, within 1e-5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Data
from idiolect.core.reduction import reduced
from idiolect.methods.scaffold import Server

ROWS = o.federation()
START, CONTROL = o.weights(1), o.weights(2)
OWN = [o.weights(10 + k) for k in range(len(o.SIZES))]
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def test_recorded_rounds() -> None:
    f = r.read("scaffold")
    method = methods.build("scaffold", {"server_lr": 0.8}, r.task(f, SGD(0.05, 0.5, 0.0), 2))  # 0.5 does not hold here
    server = Server(r.model(f, "init"), tree.zeros(r.model(f, "init")))
    clients = [method.init_client(o.key(), torch.tensor(0)) for _ in r.clients(f)]
    for number in range(r.count(f)):
        at, ups, before = f"round{number}", [], list(clients)
        ids = r.below(f, f"{at}/client")
        for k in ids:
            clients[k], up, _ = method.local(o.one(method, server, k), before[k], r.training(f, k), o.key(k))
            r.same(tree.add(server.model, up.value.model), r.model(f, f"{at}/client/{k}"))
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server.model, r.model(f, at))
        r.same(server.control, r.model(f, f"{at}/c"))
        for k in r.clients(f):
            r.same(clients[k], r.model(f, f"{at}/c_clients", k))


def alone(k: int, momentum: float, plan: list[np.ndarray]) -> tuple[o.Params, o.Params]:
    """y and the new c_i of a client."""
    x, y = ROWS[k]

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        g = o.whole_gradient(x, y)(p, rows)
        return {name: g[name] - OWN[k][name] + CONTROL[name] for name in g}

    end = o.descend(START, "WbUc", plan, gradient, momentum=momentum)
    way, speed = 0.0, 0.0  # along a constant gradient of one
    for _ in plan:
        speed = momentum * speed + 1
        way += o.RULE.lr * speed
    return end, {name: OWN[k][name] - CONTROL[name] + (START[name] - end[name]) / way for name in end}


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


def started() -> tuple[Server, dict[int, Any]]:
    return Server(o.model_of(START), o.model_of(CONTROL)), {k: o.model_of(OWN[k]) for k in o.IDS}


@pytest.mark.parametrize(
    "options",
    [{}, {"server_lr": 0.7}, {"momentum": 0.6}, {"steps": 5}, {"steps": 1, "momentum": 0.3, "server_lr": 1.5}],
)
def test_a_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("scaffold", options, o.task())
    server, clients = started()
    after, new, up, _ = o.round_of(method, server, clients, ROWS)
    ends, controls = {}, {}
    for at, k in enumerate(o.IDS):
        plan = o.batches(o.SIZES[k])
        if "steps" in options:
            plan = o.batches(o.SIZES[k], 5)[: options["steps"]]
        ends[k], controls[k] = alone(k, options.get("momentum", 0.0), plan)
        same(new[k], controls[k])
        same(tree.rows(up.value.model, at), {name: ends[k][name] - START[name] for name in START})
    rate = options.get("server_lr", 1.0)
    mean = {n: START[n] + rate * np.mean([p[n] - START[n] for p in ends.values()], 0) for n in START}
    total = {n: CONTROL[n] + sum(controls[k][n] - OWN[k][n] for k in o.IDS) / len(o.SIZES) for n in START}
    same(after.model, mean)
    same(after.control, total)
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, after, k)
        client = method.personalise(
            down, new.get(k, method.init_client(o.key(), torch.tensor(0))), o.data(*ROWS[2]), o.key()
        )
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(mean, TEST))


def test_what_a_round_tells() -> None:
    method = methods.build("scaffold", {}, o.task(epochs=1))
    server, clients = started()
    x, y = ROWS[1]
    info = method.local(o.one(method, server, 1), clients[1], o.data(x, y), o.key())[2]
    plan, total = o.batches(len(y), 1), 0.0
    for at, rows in enumerate(plan):  # cross-entropy without the correction, each batch before its own step
        p = alone(1, 0.0, plan[:at])[0] if at else START
        total -= o.log_probability(p, x[rows])[np.arange(len(rows)), y[rows]].sum()
    close(info["train_loss"], total / len(y))
    close(info["correction"], np.sqrt(sum(((CONTROL[n] - OWN[1][n]) ** 2).sum() for n in START)))


def test_all_controls_start_at_zero() -> None:
    method = methods.build("scaffold", {}, o.task())
    server = method.init_server(o.key())
    assert not any(bool(a.any()) for a in tree.leaves((server.control, method.init_client(o.key(), torch.tensor(0)))))
    assert any(bool(a.any()) for a in tree.leaves(server.model))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("epochs", [1, 7])
def test_the_control_is_the_gradient_with_momentum_too(momentum: float, epochs: int) -> None:
    """Steps so small that the gradient of all rows, decay included, is one and the same."""
    rule = SGD(lr=1e-7, momentum=0.9, weight_decay=0.02)
    x, y = ROWS[0]
    method = methods.build("scaffold", {"momentum": momentum}, o.task(epochs=epochs, batch_size=len(y), optimiser=rule))
    server, clients = started()
    new = method.local(o.one(method, server, 0), clients[0], o.data(x, y), o.key())[0]
    g = o.whole_gradient(x, y)(START, np.arange(len(y)))
    for got, name in zip(tree.leaves(new), ("W", "b", "U", "c"), strict=True):
        close(got, g[name] + 0.02 * START[name], rtol=1e-4, atol=1e-5)


def test_steps_are_those_of_all_epochs_and_padding_is_none() -> None:
    """Mapped over a small client and a large one, the small one's empty batches do not count."""
    method = methods.build("scaffold", {"momentum": 0.5}, o.task())
    server, clients = started()
    small, large = 4, 0
    wide = max(o.SIZES[k] for k in (small, large))
    row = torch.stack([torch.arange(o.SIZES[k]).repeat(wide)[:wide] + at * wide for at, k in enumerate((small, large))])
    real = torch.stack([(torch.arange(wide) < o.SIZES[k]).to(torch.float64) for k in (small, large)])
    x_R = torch.zeros(2 * wide, o.INPUTS)
    y_R = torch.zeros(2 * wide, dtype=torch.int64)
    for at, k in enumerate((small, large)):
        x_R[at * wide : at * wide + o.SIZES[k]] = torch.tensor(ROWS[k][0])
        y_R[at * wide : at * wide + o.SIZES[k]] = torch.tensor(ROWS[k][1])
    many = tree.stack([clients[small], clients[large]])
    axes = (None, 0, Data(None, None, 0, 0, None, None, None), 0)
    got = torch.func.vmap(method.local, in_dims=axes)(
        method.send(server, torch.tensor([small, large])), many, Data(x_R, y_R, row, real), torch.zeros(2).long()
    )[0]
    for at, k in enumerate((small, large)):
        same(tree.rows(got, at), alone(k, 0.5, o.batches(o.SIZES[k]))[1])


def test_the_control_counts_absent_clients_and_the_model_does_not() -> None:
    """One participant of five: x takes its whole increment, c a fifth; rows weigh nothing."""
    method = methods.build("scaffold", {}, o.task())
    server, clients = started()
    for k in (0, 4):
        _, up, _ = method.local(o.one(method, server, k), clients[k], o.data(*ROWS[k]), o.key())
        after, _ = method.aggregate(server, reduced(method.reduce, tree.stack([up])), torch.tensor([k]))
        end, control = alone(k, 0.0, o.batches(o.SIZES[k]))
        same(after.model, end)
        same(after.control, {n: CONTROL[n] + (control[n] - OWN[k][n]) / 5 for n in START})
        assert float(up.weight) == 1.0


@pytest.mark.parametrize("options", [{"momentum": 1.0}, {"server_lr": 0}, {"steps": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("scaffold", options)
