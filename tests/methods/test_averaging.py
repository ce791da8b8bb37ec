"""Local, FedAvg and FedAvg-FT: a round by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.training import untrained

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def alone(p: o.Params, client: int, epochs: int = o.EPOCHS, part: str = "WbUc", **rule: Any) -> o.Params:
    """SGD on a client's own rows."""
    x, y = ROWS[client]
    return o.descend(p, part, o.batches(len(y), epochs), o.whole_gradient(x, y), **rule)


def averaged() -> o.Params:
    """The oracle's server after a round: weighted by rows."""
    clients = [alone(START, k) for k in o.IDS]
    return {name: o.average([c[name] for c in clients], [o.SIZES[k] for k in o.IDS]) for name in START}


def same(model: Any, p: o.Params) -> None:
    close(model.body["0.weight"], p["W"])
    close(model.body["0.bias"], p["b"])
    close(model.head["weight"], p["U"])
    close(model.head["bias"], p["c"])


def test_local_trains_its_own_model_and_sends_nothing() -> None:
    method = methods.build("local", {}, o.task())
    server, clients, up, _ = o.round_of(method, (), {k: untrained(o.model_of(o.weights(k))) for k in o.IDS}, ROWS)
    assert not tree.leaves((server, up))
    for k in o.IDS:
        want = alone(o.weights(k), k)
        same(clients[k].value, want)
        down = o.one(method, server, k)
        client = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(want, TEST))


@pytest.mark.parametrize("name", ["fedavg", "fedavg_ft"])
def test_round_is_the_mean_by_rows(name: str) -> None:
    method = methods.build(name, {}, o.task())
    server, _, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    same(server, averaged())
    close(up.weight, [o.SIZES[k] for k in o.IDS])
    for at, k in enumerate(o.IDS):
        want = alone(START, k)
        same(tree.rows(up.value, at), {name: want[name] - START[name] for name in START})


def test_training_loss_is_the_mean_over_rows_as_seen() -> None:
    method = methods.build("fedavg", {}, o.task(epochs=1))
    x, y = ROWS[1]
    p, total, plan = START, 0.0, o.batches(len(y), 1)
    for at, rows in enumerate(plan):  # each batch is seen before its own step
        p = o.descend(START, "WbUc", plan[:at], o.whole_gradient(x, y))
        total -= o.log_probability(p, x[rows])[np.arange(len(rows)), y[rows]].sum()
    info = method.local(o.one(method, o.model_of(START), 1), (), o.data(x, y), o.key())[2]
    close(info["train_loss"], total / len(y))


def test_shuffled_rows_are_those_of_the_key() -> None:
    method = methods.build("fedavg", {}, o.task(shuffle=True))
    x, y = ROWS[0]
    orders = [keys.order(keys.fold(o.key(3), e), torch.ones(len(y))).numpy() for e in range(o.EPOCHS)]
    plan = [order[i : i + o.BATCH] for order in orders for i in range(0, len(y), o.BATCH)]
    want = o.descend(START, "WbUc", plan, o.whole_gradient(x, y))
    up = method.local(o.one(method, o.model_of(START), 0), (), o.data(x, y), o.key(3))[1]
    same(tree.add(o.model_of(START), up.value), want)


def test_fedavg_predicts_with_the_global_model() -> None:
    method = methods.build("fedavg", {}, o.task())
    down = o.one(method, o.model_of(START), 0)
    client = method.personalise(down, (), o.data(*ROWS[0]), o.key())
    close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(START, TEST))


@pytest.mark.parametrize(("epochs", "part"), [(None, "model"), (3, "model"), (3, "head"), (None, "head")])
def test_fedavg_ft_tunes_the_global_model(epochs: int | None, part: str) -> None:
    method = methods.build("fedavg_ft", {"epochs": epochs, "part": part}, o.task())
    for k in range(len(o.SIZES)):
        down = o.one(method, o.model_of(START), k)
        client = method.personalise(down, (), o.data(*ROWS[k]), o.key())
        want = alone(START, k, epochs or o.EPOCHS, "WbUc" if part == "model" else "Uc")
        same(client, want)  # with part=head the body is the received one, decay and momentum or not
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(want, TEST))


def test_a_clipped_round() -> None:
    rule = o.SGD(o.RULE.lr, o.RULE.momentum, o.RULE.weight_decay, clip=0.3)
    method = methods.build("fedavg", {}, o.task(optimiser=rule))
    up = method.local(o.one(method, o.model_of(START), 0), (), o.data(*ROWS[0]), o.key())[1]
    same(tree.add(o.model_of(START), up.value), alone(START, 0, clip=0.3))
    free, bound = alone(START, 0), alone(START, 0, clip=0.3)
    assert np.abs(free["W"] - bound["W"]).max() > 1e-3, "the bound is never reached"
