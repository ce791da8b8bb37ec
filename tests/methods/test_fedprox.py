"""FedProx: recorded rounds, a round by hand, its traps.

``fedprox`` is the authors' server loop and update rule, plain SGD and a mean by rows: every array is compared.
``fedprox_sgdm`` is the variant of FedRep's repository, with momentum, decay, a uniform mean (weights of one) and a last
tuning with the pull, which is ``train_model``'s: every array is compared. Its accuracy by round is of each client's
last local model, and of the averaged one for clients never drawn; the number that ``predict`` gives stands beside it.
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
from idiolect.core.method import SGD, Up
from idiolect.core.reduction import reduced
from idiolect.training import train_model

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
MU = 0.3


def test_recorded_rounds_of_the_authors() -> None:
    f = r.read("fedprox")
    method = methods.build("fedprox", {"mu": MU}, r.task(f, SGD(0.05, 0.0, 0.0), 2))
    server = r.model(f, "init")
    for number, ids in enumerate(r.drawn(f)):
        ups = [method.local(o.one(method, server, k), (), r.training(f, k), o.key(k))[1] for k in ids]
        for row, up in enumerate(ups):
            r.same(tree.add(server, up.value), r.model(f, f"round{number}/participants", row))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.model(f, f"round{number}"))
    close(100 * r.hits(method, server, f, [() for _ in r.clients(f)]) / r.test_rows(f), f["final/accuracy"], rtol=1e-6)


def test_recorded_rounds_with_momentum() -> None:
    f = r.read("fedprox_sgdm")
    task = r.task(f, SGD(0.05, 0.5, 1e-4), 5)
    method = methods.build("fedprox", {"mu": MU}, task)
    server, last, everybody = r.model(f, "init"), {}, r.clients(f)
    for number, ids in enumerate(r.drawn(f)):
        ups = [method.local(o.one(method, server, k), (), r.training(f, k), o.key(k))[1] for k in ids]
        last |= {k: tree.add(server, up.value) for k, up in zip(ids, ups, strict=True)}
        value = tree.stack(ups).value
        server, _ = method.aggregate(server, reduced(method.reduce, Up(value, torch.ones(len(ids)))), torch.tensor(ids))
        at = f"round{number}/"
        want = r.Model(r.body(f, f"{at}body/fc1"), r.head(f, f"{at}head/fc2."))
        r.same(server, want)
        close(r.by_rows(f, [last.get(k, server) for k in everybody]), f[at + "accuracy"], rtol=1e-6)
        assert r.hits(method, server, f, [() for _ in everybody]) == sum(r.right(f, k, want) for k in everybody)
    tuned = [train_model(task, server, r.training(f, k), o.key(k), epochs=10, pull=(MU, server))[0] for k in everybody]
    for k in everybody:
        r.same(tuned[k], r.model(f, "final/clients", k))
    close(r.by_rows(f, tuned), f["final/accuracy"], rtol=1e-6)


def alone(p: o.Params, client: int, mu: float, plan: list[np.ndarray] | None = None) -> o.Params:
    """SGD on a client's own rows with the pull towards p in the gradient."""
    x, y = ROWS[client]

    def gradient(w: o.Params, rows: np.ndarray) -> o.Params:
        g = o.whole_gradient(x, y)(w, rows)
        return {name: g[name] + mu * (w[name] - p[name]) for name in g}

    return o.descend(p, "WbUc", o.batches(len(y)) if plan is None else plan, gradient)


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


@pytest.mark.parametrize("mu", [None, 0.0, 0.7])
def test_a_round_by_hand(mu: float | None) -> None:
    method = methods.build("fedprox", {} if mu is None else {"mu": mu}, o.task())
    pull = 0.1 if mu is None else mu
    trained = {k: alone(START, k, pull) for k in o.IDS}
    server, _, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    close(up.weight, [o.SIZES[k] for k in o.IDS])
    for at, k in enumerate(o.IDS):
        same(tree.rows(up.value, at), {name: trained[k][name] - START[name] for name in START})
    mean = {name: o.average([p[name] for p in trained.values()], [o.SIZES[k] for k in o.IDS]) for name in START}
    same(server, mean)
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, server, k)
        client = method.personalise(down, (), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(mean, TEST))


def test_what_a_round_tells() -> None:
    method = methods.build("fedprox", {"mu": 0.7}, o.task(epochs=1))
    x, y = ROWS[1]
    info = method.local(o.one(method, o.model_of(START), 1), (), o.data(x, y), o.key())[2]
    plan, total = o.batches(len(y), 1), 0.0
    for at, rows in enumerate(plan):  # cross-entropy without the pull, each batch before its own step
        total -= o.log_probability(alone(START, 1, 0.7, plan[:at]), x[rows])[np.arange(len(rows)), y[rows]].sum()
    close(info["train_loss"], total / len(y))
    end = alone(START, 1, 0.7, plan)
    close(info["drift"], np.sqrt(sum(((end[name] - START[name]) ** 2).sum() for name in START)))


def test_without_the_pull_it_is_fedavg() -> None:
    ups = [
        methods.build(name, options, o.task()).local(
            o.one(methods.build("fedavg", {}, o.task()), o.model_of(START), 0), (), o.data(*ROWS[0]), o.key()
        )[1]
        for name, options in (("fedavg", {}), ("fedprox", {"mu": 0.0}))
    ]
    for a, b in zip(tree.leaves(ups[0]), tree.leaves(ups[1]), strict=True):
        assert torch.equal(a, b)


def test_a_stronger_pull_holds_a_client_nearer_to_what_it_received() -> None:
    drift = []
    for mu in (0.0, 0.5, 5.0):
        method = methods.build("fedprox", {"mu": mu}, o.task(epochs=10))
        down = o.one(method, o.model_of(START), 0)
        drift.append(float(method.local(down, (), o.data(*ROWS[0]), o.key())[2]["drift"]))
    assert drift[0] > 1.2 * drift[1] > 1.44 * drift[2]


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(InputError, match="mu=-1 is not valid"):
        methods.settle("fedprox", {"mu": -1})
