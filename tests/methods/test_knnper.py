"""kNN-Per: the authors' released code (omarfoq/knn-per, float32) within 1e-5, a round and a memory by hand, and traps.

Parity: every array of the file. Which rows a memory of part of the capacity keeps is recorded, and given to the method
in place of its draw. What the released script really does, mixing raw logits, is the preset "official": both accuracies
are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as rec
import torch
from oracle import close
from scipy.special import log_softmax, softmax

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.method import SGD, Data, Down, Method
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.methods import knnper

EXACT = {"rtol": 0, "atol": 1e-5}
ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- parity -----------------------------------------------------------------------------------------------------------


def test_recorded_rounds_and_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    f = rec.read("knnper")
    task = rec.task(f, SGD(0.1, 0.0, 5e-4), 2)

    def build(**options: Any) -> Method:
        return methods.build("knnper", {"k": int(f["k"]), **options}, task)

    everybody = rec.clients(f)
    rows = [rec.training(f, k) for k in everybody]
    method, server = build(), rec.model(f, "init")
    for r in range(rec.count(f)):
        ups = [method.local(o.one(method, server, k), (), rows[k], o.key(r, k))[1] for k in everybody]
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(everybody))
        rec.same(server, rec.model(f, f"round{r}/server"))

    down, shares = Down(server), f["lambda"].tolist()
    presets: dict[str, dict[str, Any]] = {"probabilities": {}, "logits": {"preset": "official"}}
    mixtures = {name: [build(knn_weight=share, **p) for share in shares] for name, p in presets.items()}
    ends = {share: build(knn_weight=share) for share in (0, 1)}
    partly = {capacity: build(capacity=capacity) for capacity in f["capacity"].tolist()}
    for k in everybody:
        who, x, y = f"client/{k}/", torch.tensor(f[f"data/{k}/x_test"]).double(), f[f"data/{k}/y_test"]
        n = len(rows[k].y_R)
        client = method.personalise(down, (), rows[k], o.key())
        close(ends[0].predict(down, client, x).exp(), f[who + "model_probabilities"], **EXACT)
        close(task.network.features(server.body, x), f[who + "features_test"], **EXACT)
        close(task.network(server, x), f[who + "model_logits"], **EXACT)
        for at, capacity in enumerate(partly):
            kept = f[who + "kept"].tolist() if capacity < 1 else list(range(n))
            assert len(kept) == int(capacity * n)
            order = torch.tensor(kept + [j for j in range(n) if j not in kept])
            with monkeypatch.context() as patch:
                patch.setattr(keys, "order", lambda key, real_N, order=order: order)
                client = partly[capacity].personalise(down, (), rows[k], o.key())
            assert sorted(kept) == client.kept_N.nonzero().flatten().tolist()
            close(client.z_Nd[kept], f[who + "features"][kept], **EXACT)
            close(ends[1].predict(down, client, x).exp(), f[f"{who}knn_{at}"], **EXACT)
            for name, every in mixtures.items():
                right = [(method.predict(down, client, x).argmax(1).numpy() == y).mean() for method in every]
                close(right, f[f"{who}accuracy_{name}"][at])


# --- by hand ----------------------------------------------------------------------------------------------------------


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


def by_vote(k: int, kept: list[int], x: np.ndarray, neighbours: int, scale: float) -> np.ndarray:
    """p_knn, row by row and neighbour by neighbour."""
    z, stored, y = o.embed(START, x), o.embed(START, ROWS[k][0])[kept], ROWS[k][1][kept]
    out = np.zeros((len(x), o.CLASSES))
    for row in range(len(x)):
        distance = ((stored - z[row]) ** 2).sum(1)
        for j in np.argsort(distance)[:neighbours]:
            out[row, y[j]] += np.exp(-distance[j] / (o.WIDTH * scale))
    return out / out.sum(1, keepdims=True)


def memory(of: int, **options: Any) -> tuple[Method, Down, knnper.Memory]:
    method = methods.build("knnper", options, o.task())
    down = o.one(method, o.model_of(START), of)
    return method, down, method.personalise(down, (), o.data(*ROWS[of]), o.key())


def test_round_is_the_mean_by_rows() -> None:
    method = methods.build("knnper", {}, o.task())
    server, clients, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    new = [o.descend(START, "WbUc", o.batches(o.SIZES[k]), o.whole_gradient(*ROWS[k])) for k in o.IDS]
    same(server, {n: o.average([p[n] for p in new], [o.SIZES[k] for k in o.IDS]) for n in START})
    close(up.weight, [o.SIZES[k] for k in o.IDS])
    assert not tree.leaves(clients)


@pytest.mark.parametrize("k", range(len(o.SIZES)))  # client 4 has fewer than k rows
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "scale": 0.2, "knn_weight": 0.8},
        {"mix": "logits", "knn_weight": 0.7},
        {"k": 500, "knn_weight": 0.3},
    ],
)
def test_mixture_by_hand(k: int, options: dict[str, Any]) -> None:
    method, down, client = memory(k, **options)
    knn = by_vote(k, list(range(o.SIZES[k])), TEST, options.get("k", 7), options.get("scale", 1.0))
    logit = o.embed(START, TEST) @ START["U"].T + START["c"]
    share, got = options.get("knn_weight", 0.5), method.predict(down, client, torch.tensor(TEST))
    if options.get("mix") == "logits":
        close(got, log_softmax(share * knn + (1 - share) * logit, 1))
    else:
        close(got.exp(), share * knn + (1 - share) * softmax(logit, 1))


@pytest.mark.parametrize(("capacity", "count"), [(0.4, 8), (0.29, 5), (0.01, 1)])
def test_capacity_draws_rows_at_random(capacity: float, count: int) -> None:
    method, down = methods.build("knnper", {"capacity": capacity, "knn_weight": 1}, o.task()), Down(o.model_of(START))
    data, draws = o.data(*ROWS[0]), 200
    clients = [method.personalise(down, (), data, o.key(s)) for s in range(draws)]
    kept = [client.kept_N.nonzero().flatten().tolist() for client in clients]
    assert {len(rows) for rows in kept} == {count}
    often = np.bincount(np.concatenate(kept), minlength=o.SIZES[0]) / draws
    assert len(often) == o.SIZES[0]
    assert np.abs(often - count / o.SIZES[0]).max() < 0.15
    close(method.predict(down, clients[3], torch.tensor(TEST)).exp(), by_vote(0, kept[3], TEST, 7, 1.0))


# --- traps ------------------------------------------------------------------------------------------------------------


def test_probabilities_are_mixed_and_not_logits() -> None:
    """The global model is sure of one class beyond any vote in logits; its probability is still at most one half."""
    sure = START | {"c": START["c"] + np.array([0.0, 40.0, 0.0, 0.0])}
    method = methods.build("knnper", {}, o.task())
    down = Down(o.model_of(sure))
    x, y = ROWS[1]  # a row is its own nearest neighbour
    client = method.personalise(down, (), o.data(x, y), o.key())
    p = method.predict(down, client, torch.tensor(x)).exp().numpy()
    assert p[y != 1].max(1).min() >= 0.5 - 1e-9
    assert (p[y != 1][:, 1] <= 1.0).all()
    close(p.sum(1), np.ones(len(y)))
    raw = methods.build("knnper", {"preset": "official"}, o.task()).predict(down, client, torch.tensor(x)).exp()
    assert raw[:, 1].min() > 0.99


def test_padding_is_never_a_neighbour() -> None:
    """Rows of padding lie on the very rows asked for."""
    x, y = ROWS[4]
    n, alien = len(y), len(TEST)
    every = torch.tensor(np.concatenate([x, TEST]))
    labels = torch.tensor(np.concatenate([y, np.full(alien, 0)]))  # a class that client 4 lacks
    data = Data(every, labels, torch.arange(n + alien), (torch.arange(n + alien) < n).double())
    method = methods.build("knnper", {"knn_weight": 1.0, "k": 50}, o.task())
    down = Down(o.model_of(START))
    client = method.personalise(down, (), data, o.key())
    got = method.predict(down, client, torch.tensor(np.concatenate([TEST, x]))).exp().numpy()
    close(got, by_vote(4, list(range(n)), np.concatenate([TEST, x]), 50, 1.0))
    assert o.LACKS[4] == 0
    assert not got[:, 0].round(12).any()


@pytest.mark.parametrize("capacity", [0.3, 1.0])
def test_padding_keeps_no_row_out_of_a_memory(capacity: float) -> None:
    x, y = ROWS[0]
    method = methods.build("knnper", {"capacity": capacity, "knn_weight": 1.0}, o.task())
    down, n = Down(o.model_of(START)), len(y)
    every, labels = torch.tensor(np.concatenate([x, TEST])), torch.tensor(np.concatenate([y, y[: len(TEST)]]))
    padded = Data(every, labels, torch.arange(len(labels)), (torch.arange(len(labels)) < n).double())
    a, b = (method.personalise(down, (), data, o.key()) for data in (o.data(x, y), padded))
    assert b.kept_N[:n].tolist() == a.kept_N.tolist()
    assert not b.kept_N[n:].any()
    close(*(method.predict(down, client, torch.tensor(TEST)) for client in (a, b)))


def test_far_rows_leave_numbers() -> None:
    """Where every kernel value underflows, the nearest rows decide; no class is at minus infinity."""
    method, down, client = memory(1, knn_weight=1.0)
    logp = method.predict(down, client, torch.tensor(1e4 * TEST))
    assert torch.isfinite(logp).all()
    close(logp.exp().sum(1), np.ones(len(TEST)))


def test_missing_class_has_no_vote() -> None:
    method, down, client = memory(1, knn_weight=1.0, k=50)
    p = method.predict(down, client, torch.tensor(TEST)).exp().numpy()
    assert not p[:, o.LACKS[1]].round(12).any()
    assert (p[:, [c for c in range(o.CLASSES) if c != o.LACKS[1]]] > 0).all()


def test_memory_follows_the_global_model() -> None:
    method = methods.build("knnper", {}, o.task())
    stores = [method.personalise(Down(o.model_of(o.weights(s))), (), o.data(*ROWS[0]), o.key()).z_Nd for s in (1, 2)]
    close(stores[0], o.embed(o.weights(1), ROWS[0][0]))
    close(stores[1], o.embed(o.weights(2), ROWS[0][0]))
