"""FedBABU: recorded rounds, a round by hand, its options and its traps.

The record (float32) is of the authors' released code, preset "official" with its tuning at 0.02. Every array is
compared, within 1e-5. Three things are not the method's own, and stand in the test: the learning rate that falls from
round to round, the tuning without decay, and the choice of the round that was best on test rows.
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
from idiolect.core.method import SGD, Method
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.training import batches, cross_entropy_mean, rows, sgd

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def recorded(f: r.Files, lr: float, decay: float = 1e-3, **options: Any) -> Method:
    return methods.build("fedbabu", {"preset": "official"} | options, r.task(f, SGD(lr, 0.9, decay), 2))


def test_recorded_rounds() -> None:
    f = r.read("fedbabu")
    server, after, none = r.model(f, "init"), [], [() for _ in r.clients(f)]
    for number, ids in enumerate(r.drawn(f)):
        past = number / r.count(f)  # a tenth of the rate after half of the rounds, and again after three quarters
        method = recorded(f, 0.05 * 0.1 ** ((past >= 0.5) + (past >= 0.75)), tuning_epochs=0)
        ups = [method.local(o.one(method, server, k), (), r.training(f, k), o.key(number, k))[1] for k in ids]
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        after.append(server)
        r.same(server.body, r.body(f, f"round{number}/body/fc1"))
        close(100 * r.hits(method, server, f, none) / r.test_rows(f), f[f"round{number}/accuracy"], rtol=1e-6)
    for name, start in r.head(f, "init/fc2.").items():
        assert torch.equal(server.head[name], start), "the head moved"

    accuracy = [r.by_rows(f, [m for _ in none]) for m in after]
    assert int(np.argmax(accuracy)) == f["best_round"]
    best = after[int(f["best_round"])]
    method = recorded(f, 0.05, decay=0.0, tuning_lr=0.02)
    for k in r.clients(f):
        x, y = r.rows(f, k, "_test")
        down = o.one(method, best, k)
        mine = method.personalise(down, (), r.training(f, k), o.key())
        r.same(mine, r.model(f, "final", k))
        before, tuned = (
            100 * (method.predict(down, client, torch.tensor(x)).argmax(1).numpy() == y).mean() for client in ((), mine)
        )
        close(before, f["final/accuracy_before"][k], rtol=1e-6)
        close(tuned, f["final/accuracy_after"][k], rtol=1e-6)


# --- by hand --------------------------------------------------------------------------------------------------------


def alone(p: o.Params, k: int, part: str, epochs: int = o.EPOCHS, **rule: Any) -> o.Params:
    x, y = ROWS[k]
    return o.descend(p, part, o.batches(len(y), epochs), o.whole_gradient(x, y), **rule)


def same(model: Any, p: o.Params) -> None:
    close(model.body["0.weight"], p["W"])
    close(model.body["0.bias"], p["b"])
    close(model.head["weight"], p["U"])
    close(model.head["bias"], p["c"])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weighting": "uniform"},
    {"tuning_epochs": 3, "tuning_lr": 0.013},
    {"tuning_part": "model"},
    {"tuning_epochs": 1, "tuning_part": "model", "tuning_lr": 0.2},
    {"tuning_epochs": 0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round(options: dict[str, Any]) -> None:
    method = methods.build("fedbabu", options, o.task())
    server, clients, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    want = {k: alone(START, k, "Wb") for k in o.IDS}
    weight = [1.0] * len(o.IDS) if options.get("weighting") == "uniform" else [o.SIZES[k] for k in o.IDS]
    close(up.weight, weight)
    assert set(up.value.body) == {"0.weight", "0.bias"}
    assert not up.value.head, "more than the body travels"
    assert clients == dict.fromkeys(o.IDS, ())
    for at, k in enumerate(o.IDS):
        close(up.value.body["0.weight"][at], want[k]["W"] - START["W"])
        close(up.value.body["0.bias"][at], want[k]["b"] - START["b"])
    mean = START | {n: o.average([p[n] for p in want.values()], weight) for n in "Wb"}
    same(server, mean)

    part = "WbUc" if options.get("tuning_part") == "model" else "Uc"
    for k in (*range(len(o.SIZES)), 99):  # the absent client and a new one with client 3's rows do as the others
        of = 3 if k == 99 else k
        down = o.one(method, server, k)
        mine = method.personalise(down, (), o.data(*ROWS[of]), o.key())
        tuned = alone(mean, of, part, options.get("tuning_epochs", 5), lr=options.get("tuning_lr") or o.RULE.lr)
        same(mine, tuned)
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(tuned, TEST))
        close(method.predict(down, (), torch.tensor(TEST)), o.log_probability(mean, TEST))


def test_training_loss_is_the_mean_over_rows_as_seen() -> None:
    method = methods.build("fedbabu", {}, o.task(epochs=1))
    x, y = ROWS[4]  # one batch: the loss is that before its step
    info = method.local(o.one(method, o.model_of(START), 4), (), o.data(x, y), o.key())[2]
    close(info["train_loss"], -o.log_probability(START, x)[np.arange(len(y)), y].mean())


# --- traps ----------------------------------------------------------------------------------------------------------


def test_the_head_keeps_its_bits() -> None:
    """Three rounds with momentum and decay. A head whose gradient is zero, and not absent, does move."""
    task = o.task()
    method = methods.build("fedbabu", {}, task)
    start = o.model_of(START)
    server = start
    for _ in range(3):
        server = o.round_of(method, server, dict.fromkeys(o.IDS, ()), ROWS)[0]
    assert all(torch.equal(a, b) for a, b in zip(server.head.values(), start.head.values(), strict=True))
    assert (server.body["0.weight"] - start.body["0.weight"]).abs().max() > 1e-2

    data = o.data(*ROWS[0])

    def zeroed(model: Model, batch: Any) -> Any:
        x_B, y_B = rows(task, data, batch)
        return cross_entropy_mean(task.network(Model(model.body, tree.detach(model.head)), x_B), y_B, batch.used_B), ()

    model, _ = sgd(zeroed, start, batches(data, task.training, o.key()), task.training.optimiser)
    assert (model.head["weight"] - start.head["weight"]).abs().max() > 1e-3


def test_all_clients_have_one_head() -> None:
    """It is the server's: what a client enrols with can be no other."""
    method = methods.build("fedbabu", {}, o.task())
    server = method.init_server(o.key("init"))
    downs = [o.one(method, server, k) for k in (0, 3, 1000)]
    for down in downs[1:]:
        assert torch.equal(down.shared.head["weight"], downs[0].shared.head["weight"])
    assert method.init_client(o.key("init"), torch.tensor(0)) == ()
    assert downs[0].shared.head["weight"].std() > 0, "the head should be random"


def test_tuning_the_head_leaves_the_body() -> None:
    method = methods.build("fedbabu", {}, o.task())
    down = o.one(method, o.model_of(START), 0)
    mine = method.personalise(down, (), o.data(*ROWS[0]), o.key())
    assert torch.equal(mine.body["0.weight"], down.shared.body["0.weight"])
    assert (mine.head["weight"] - down.shared.head["weight"]).abs().max() > 1e-2
