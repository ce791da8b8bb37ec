"""FedDBE: recorded rounds of the authors' released code, rounds by hand, and its traps.

Every array of the record (float32) is compared within 1e-5. What comes before its first round is the first round here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Method
from idiolect.core.reduction import reduced
from idiolect.methods.feddbe import Server

ROWS = o.federation()
START = o.weights(1)
DRAW = np.random.default_rng(3)
MEAN = DRAW.normal(size=o.WIDTH)
BIAS = {k: DRAW.normal(size=o.WIDTH) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


def play(f: r.Files, method: Method, server: Any, clients: list[Any], ids: list[int]) -> tuple[Any, Any]:
    """The server after a round, and the uploads; the clients change in place."""
    ups = []
    for k in ids:
        clients[k], up, _ = method.local(o.one(method, server, k), clients[k], r.training(f, k), o.key(k))
        ups.append(up)
    stacked = tree.stack(ups)
    return method.aggregate(server, reduced(method.reduce, stacked), torch.tensor(ids))[0], stacked


def logits(f: r.Files, method: Method, server: Any, clients: list[Any], at: str) -> None:
    for k, client in enumerate(clients):
        down = o.one(method, server, k)
        mine = method.personalise(down, client, r.training(f, k), o.key())
        logp = method.predict(down, mine, torch.tensor(f[f"data/{k}/x_test"]))
        close(logp, log_softmax(f[f"{at}/{k}"], 1), **r.EXACT)


def test_recorded_rounds() -> None:
    f = r.read("feddbe")
    mu, kappa, epochs, lr = f["options"].tolist()
    task = r.task(f, SGD(lr, 0.0, 0.0), int(epochs), drop_last=True)
    method = methods.build("feddbe", {"momentum": mu, "kappa": kappa}, task)
    assert method.full_rounds == (1,)
    server = method.init_server(o.key())._replace(model=r.model(f, "init"))
    clients = [method.init_client(o.key(), torch.tensor(k)) for k in r.clients(f)]
    server, ups = play(f, method, server, clients, r.clients(f))
    close(ups.value.mean_d, f["start/means"], **r.EXACT)
    close(server.mean_d, f["global_mean"], **r.EXACT)
    r.same(server.model, r.model(f, "init"))
    logits(f, method, server, clients, "start/logits")
    for number in range(r.count(f)):
        at, before = f"round{number}", server
        server, ups = play(f, method, server, clients, f[f"{at}/participants"].tolist())
        for place in range(len(f[f"{at}/participants"])):
            trained = tree.add(before.model, tree.rows(ups.value.model, place))
            r.same(trained, r.model(f, f"{at}/trained", place))
        assert float(ups.value.mean_d.abs().max()) == 0  # the trained weights show the running means
        close(torch.stack(clients), f[f"{at}/bias_vectors"], **r.EXACT)
        close(server.mean_d, f["global_mean"], **r.EXACT)
        r.same(server.model, r.model(f, f"{at}/server"))
        logits(f, method, server, clients, f"{at}/logits")
    logits(f, method, server, clients, "final/logits")


# --- by hand ----------------------------------------------------------------------------------------------------------


def train(k: int, mu: float, kappa: float) -> tuple[o.Params, np.ndarray]:
    """Body, head and bias (under "v") after a round of SGD with momentum and decay, and m after the last batch."""
    x, y = ROWS[k]
    m = np.zeros(o.WIDTH)

    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        nonlocal m
        z = o.embed(p, x[at])
        m = (1 - mu) * m + mu * z.mean(0)
        dl = o.error_back((z + p["v"]) @ p["U"].T + p["c"], y[at])
        dz = dl @ p["U"] + kappa * mu * (m - MEAN) / o.WIDTH / len(at)
        return {"U": dl.T @ (z + p["v"]), "c": dl.sum(0), "v": (dl @ p["U"]).sum(0)} | o.embed_back(p, x[at], dz)

    return o.descend(START | {"v": BIAS[k]}, "WbUcv", o.batches(len(y)), gradient), m


def same(got: Any, p: o.Params) -> None:
    for leaf, name in zip(tree.leaves(got), ("W", "b", "U", "c"), strict=True):
        close(leaf, p[name])


@pytest.mark.parametrize(("mu", "kappa"), [(0.1, 1.0), (0.7, 8.0), (1.0, 50.0), (0.3, 0.0)])
def test_round_by_hand(mu: float, kappa: float) -> None:
    method = methods.build("feddbe", {"momentum": mu, "kappa": kappa}, o.task())
    server = Server(o.model_of(START), torch.tensor(MEAN), torch.ones(()))
    clients = {k: torch.tensor(BIAS[k]) for k in o.IDS}
    after, new, up, _ = o.round_of(method, server, clients, ROWS)
    ends = {}
    for at, k in enumerate(o.IDS):
        ends[k], _ = train(k, mu, kappa)
        close(new[k], ends[k]["v"])
        assert float(up.value.mean_d[at].abs().max()) == 0  # the server would not use it
        same(tree.rows(up.value.model, at), {n: ends[k][n] - START[n] for n in START})
    weight = [o.SIZES[k] for k in o.IDS]
    close(up.weight, weight)
    same(after.model, {n: o.average([p[n] for p in ends.values()], weight) for n in START})
    close(after.mean_d, MEAN)
    p = {n: o.average([p[n] for p in ends.values()], weight) for n in START}
    for k, bias in (new | {2: torch.tensor(BIAS[2]), 99: torch.zeros(o.WIDTH)}).items():
        down = o.one(method, after, k)
        mine = method.personalise(down, bias, o.data(*ROWS[0]), o.key())
        want = log_softmax((o.embed(p, TEST) + bias.numpy()) @ p["U"].T + p["c"], 1)
        close(method.predict(down, mine, torch.tensor(TEST)), want)


@pytest.mark.parametrize("mu", [0.1, 0.6, 1.0])
def test_the_first_round_makes_the_mean_and_moves_nothing(mu: float) -> None:
    """Its training has no b, and no second term."""
    method = methods.build("feddbe", {"momentum": mu, "kappa": 9.0}, o.task())
    server = method.init_server(o.key())._replace(model=o.model_of(START))
    zero = torch.zeros(o.WIDTH)
    after, new, _, _ = o.round_of(method, server, dict.fromkeys(range(5), zero), ROWS)
    means = []
    for x, y in ROWS:
        m = np.zeros(o.WIDTH)

        def gradient(p: o.Params, at: np.ndarray, x: np.ndarray = x, y: np.ndarray = y) -> o.Params:
            nonlocal m
            m = (1 - mu) * m + mu * o.embed(p, x[at]).mean(0)
            return o.whole_gradient(x, y)(p, at)

        o.descend(START, "WbUc", o.batches(len(y)), gradient)
        means.append(m)
    close(after.mean_d, o.average(means, o.SIZES))
    assert float(after.known) == 1
    assert all(torch.equal(b, zero) for b in new.values())
    assert tree.same(after.model, server.model)


# --- traps ------------------------------------------------------------------------------------------------------------


def test_the_mean_stays_that_of_the_first_round() -> None:
    method = methods.build("feddbe", {}, o.task())
    server = Server(o.model_of(START), torch.tensor(MEAN), torch.ones(()))
    clients = {k: torch.tensor(BIAS[k]) for k in range(5)}
    for ids in ((0, 1), (2, 3, 4), (0, 4)):
        server, new, _, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        close(server.mean_d, MEAN)


def test_a_bias_is_no_weight_of_the_server() -> None:
    """It travels neither up nor down, and goes on from where it was."""
    method = methods.build("feddbe", {}, o.task())
    server = method.init_server(o.key())
    down = method.send(server, torch.tensor([0]))
    shapes = [tuple(a.shape) for a in tree.leaves(server.model)]
    assert [tuple(a.shape) for a in tree.leaves(down)] == [*shapes, (o.WIDTH,), ()]


@pytest.mark.parametrize("options", [{"momentum": 0.0}, {"momentum": 1.5}, {"kappa": -1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("feddbe", options)
