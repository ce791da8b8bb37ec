"""FLUTE: recorded rounds, a round by hand, its options and its traps.

The record is of the authors' released code. Every array of it is compared, within 1e-5. Its scores of the rounds are of
the averaged body under the heads as they were trained, before the server's step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Adam, Data, Method
from idiolect.core.network import Model, Network
from idiolect.methods import flute

ROWS = o.federation()
START = o.weights(1)
HEADS = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
RULE = SGD(0.05, 0.5, 1e-4, decay_biases=False)  # of the record
RECORDED = {"preset": "official", "head_epochs": 2, "body_epochs": 1}


def scores(f: r.Files, models: list[Model]) -> tuple[float, float]:
    """Percent of all test rows that are right, and their mean cross-entropy."""
    losses, right, rows = 0.0, 0, 0
    for k, m in enumerate(models):
        x, y = r.rows(f, k, "_test")
        z = np.maximum(x @ m.body["0.weight"].numpy().T + m.body["0.bias"].numpy(), 0)
        logp = log_softmax(z @ m.head["weight"].numpy().T + m.head["bias"].numpy(), 1)
        losses -= logp[np.arange(len(y)), y].sum()
        right, rows = right + int((logp.argmax(1) == y).sum()), rows + len(y)
    return 100 * right / rows, losses / rows


def test_recorded_rounds() -> None:
    f = r.read("flute")
    method = methods.build("flute", RECORDED, r.task(f, RULE, 3))
    start = r.model(f, "init")
    server = begin(method, start, len(r.clients(f)))
    for number in range(r.count(f)):
        at = f"round{number}"
        ids = r.below(f, f"{at}/client")
        before = server
        server, _, ups = replay.round_of(method, server, [()] * len(r.clients(f)), f, ids)
        heads = [o.one(method, server, k).own for k in r.clients(f)]
        as_trained = dict(enumerate(heads))
        for k, up in zip(ids, ups, strict=True):
            r.same(Model(tree.add(before.body, up.value.body), up.value.head), r.model(f, f"{at}/client/{k}"))
            as_trained[k] = up.value.head
        r.same(server.body, r.body(f, f"{at}/server/fc1"))
        for k in r.clients(f):
            r.same(heads[k], r.head(f, f"{at}/heads/fc2.", k))
        got = scores(f, [Model(server.body, as_trained[k]) for k in r.clients(f)])
        close(got, [f[f"{at}/accuracy"], f[f"{at}/loss"]], rtol=1e-5)
    models = []
    for k in r.clients(f):
        down = o.one(method, server, k)
        mine = method.personalise(down, (), r.training(f, k), o.key())
        models.append(Model(server.body, mine))
        r.same(models[-1], r.model(f, f"final/client/{k}"))
        replay.logits_agree(method, down, mine, f, k, "final/logits")
    r.same(server.body, r.body(f, "final/server/fc1"))
    close(scores(f, models), [f["final/accuracy"], f["final/loss"]], rtol=1e-5)


def begin(method: Method, start: Model, count: int) -> Any:
    heads = tree.map(lambda w: w.expand(count, *w.shape).clone(), start.head)
    return method.init_server(o.key())._replace(body=start.body, heads=heads, common=start.head)


# --- by hand --------------------------------------------------------------------------------------------------------


def collapse_slope(W: np.ndarray, e: np.ndarray) -> np.ndarray:
    """dNC / dW, by the chain through P = W W' and |P|."""
    P = W @ W.T
    size, C = np.linalg.norm(P), len(e)
    R = P / size - (np.eye(C) - 1 / C) * np.outer(e, e) / np.sqrt(C - 1)
    by_ratio = R / np.linalg.norm(R)
    by_P = by_ratio / size - (by_ratio * P).sum() / size**3 * P
    return (by_P + by_P.T) @ W


def has(k: int) -> np.ndarray:
    return (np.bincount(ROWS[k][1], minlength=o.CLASSES) > 0).astype(float)


def gradient(k: int, lam: tuple[float, float, float], whole: bool) -> Any:
    x, y = ROWS[k]

    def at_rows(p: o.Params, at: np.ndarray) -> o.Params:
        z = o.embed(p, x[at])
        dl = o.error_back(z @ p["U"].T + p["c"], y[at])
        g = {"U": dl.T @ z + lam[0] * collapse_slope(p["U"], has(k)) + 2 * lam[1] * p["U"], "c": dl.sum(0)}
        return g | o.embed_back(p, x[at], dl @ p["U"] + 2 * lam[2] * z) if whole else g

    return at_rows


def by_hand(k: int, p: o.Params, lam: tuple[float, float, float], head_epochs: int, body_epochs: int) -> o.Params:
    """Both phases, with a momentum of the head that goes on."""
    speed: dict[str, Any] = dict.fromkeys("WbUc", 0.0)
    n = len(ROWS[k][1])
    for names, whole, epochs in (("Uc", False, head_epochs), ("WbUc", True, body_epochs)):
        for at in o.batches(n, epochs):
            g = gradient(k, lam, whole)(p, at)
            for name in names:
                speed[name] = o.RULE.momentum * speed[name] + g[name] + o.RULE.weight_decay * p[name]
            p = p | {name: p[name] - o.RULE.lr * speed[name] for name in names}
    return p


def same_head(got: Any, p: o.Params) -> None:
    close(got["weight"], p["U"])
    close(got["bias"], p["c"])


@pytest.mark.parametrize(
    ("options", "lam", "epochs"),
    [
        ({}, (0.25, 0.0025, 0.0005), (1, 1)),
        ({"collapse": 0.6, "head_decay": 0.05, "feature_decay": 0.01}, (0.6, 0.05, 0.01), (1, 1)),
        ({"head_epochs": 3, "body_epochs": 2, "weighting": "samples"}, (0.25, 0.0025, 0.0005), (3, 2)),
        ({"head_epochs": 0, "server_lr": 0.0, "collapse": 0.0}, (0.0, 0.0025, 0.0005), (0, 1)),
        ({"server_lr": 2.0, "newcomer_head": "average", "tuning_epochs": 3}, (0.25, 0.0025, 0.0005), (1, 1)),
    ],
)
def test_round_by_hand(options: dict[str, Any], lam: tuple[float, float, float], epochs: tuple[int, int]) -> None:
    """Client 3 has never taken part: it starts from the common head."""
    method = methods.build("flute", options, o.task())
    heads = tree.stack([o.head_of(HEADS[k]) for k in HEADS])
    trained_K = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
    server = method.init_server(o.key())._replace(
        body=o.body_of(START), heads=heads, common=o.head_of(START), trained_K=trained_K
    )
    after, _, _, _ = o.round_of(method, server, dict.fromkeys(o.IDS, ()), ROWS)
    new, rate = {}, options.get("server_lr", 0.5) / len(o.IDS)
    for k in o.IDS:
        head = START if k == 3 else HEADS[k]
        new[k] = by_hand(k, START | {n: head[n] for n in "Uc"}, lam, *epochs)
        stepped = new[k] | {"U": new[k]["U"] - rate * collapse_slope(new[k]["U"], has(k))}
        same_head(o.one(method, after, k).own, stepped)
    same_head(o.one(method, after, 2).own, HEADS[2])  # who was away
    weight = [o.SIZES[k] for k in o.IDS] if "weighting" in options else [1.0] * len(o.IDS)
    mean = {n: o.average([new[k][n] for k in o.IDS], weight) for n in START}
    close(after.body["0.weight"], mean["W"])
    close(after.body["0.bias"], mean["b"])
    common = mean if "newcomer_head" in options else START
    same_head(o.one(method, after, 77).own, common)
    down = o.one(method, after, 77)
    mine = method.personalise(down, (), o.data(*ROWS[2]), o.key())
    tuned = o.descend(
        mean | {n: common[n] for n in "Uc"}, "Uc", o.batches(len(ROWS[2][1]), options.get("tuning_epochs", 10)),
        gradient(2, lam, False),
    )  # fmt: skip
    same_head(mine, tuned)
    close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(tuned, TEST))


# --- traps ----------------------------------------------------------------------------------------------------------


def test_the_feature_term_is_a_sum_and_the_body_learns() -> None:
    """A public version detaches the features, so that its body stays. Twice the samples pull twice as hard."""
    moved = []
    for times in (1, 2):
        task = o.task(epochs=1, batch_size=100, optimiser=SGD(0.1, 0.0, 0.0))
        method = methods.build("flute", {"feature_decay": 1.0, "head_epochs": 0}, task)
        x, y = (np.concatenate([a] * times) for a in ROWS[0])
        up = method.local(o.one(method, begin(method, o.model_of(START), 5), 0), (), o.data(x, y), o.key())[1]
        moved.append(up.value.body["0.weight"].numpy())
    p = START
    z = o.embed(p, ROWS[0][0])
    dl = o.error_back(z @ p["U"].T + p["c"], ROWS[0][1])
    ce, size = (o.embed_back(p, ROWS[0][0], dz)["W"] for dz in (dl @ p["U"], 2 * z))
    close(moved[0], -0.1 * (ce + size))
    close(moved[1], -0.1 * (ce + 2 * size))


@pytest.mark.parametrize("has_C", [[1, 1, 1, 1], [1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
def test_geometry_and_its_slope(has_C: list[int]) -> None:
    W, e = START["U"], np.array(has_C, float)
    P = W @ W.T
    want = np.linalg.norm(P / np.linalg.norm(P) - (np.eye(4) - 0.25) / np.sqrt(3) * np.outer(e, e))
    close(flute.geometry(torch.tensor(W), torch.tensor(e)), want)
    close(torch.func.grad(flute.geometry)(torch.tensor(W), torch.tensor(e)), collapse_slope(W, e))


def test_at_a_head_of_zeros_and_at_neural_collapse_there_is_no_slope() -> None:
    exact = np.eye(4) - 0.25
    for W in (np.zeros((4, 4)), exact):
        slope = torch.func.grad(flute.geometry)(torch.tensor(W), torch.ones(4))
        assert bool(slope.isfinite().all())
    close(flute.geometry(torch.tensor(exact), torch.ones(4)), 0.0, atol=1e-12)


def test_with_adam_it_trains() -> None:
    method = methods.build("flute", {"head_epochs": 2}, o.task(optimiser=Adam(lr=0.01)))
    server = begin(method, o.model_of(START), 5)
    up = method.local(o.one(method, server, 0), (), o.data(*ROWS[0]), o.key())[1]
    assert float(up.value.body["0.weight"].abs().max()) > 1e-3


def deep() -> tuple[torch.nn.Module, torch.nn.Module]:
    return torch.nn.Linear(o.INPUTS, 6), torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, o.CLASSES))


def test_what_it_needs_is_one_sentence() -> None:
    with pytest.raises(InputError, match="flute needs a head of one linear layer"):
        methods.build("flute", {}, replace(o.task(), network=Network(deep, (o.INPUTS,))))
    for kind in ("regression", "multilabel"):
        with pytest.raises(InputError, match=f"flute needs classes.*{kind}"):
            methods.build("flute", {}, replace(o.task(), kind=kind))


def test_padding_steps_change_nothing() -> None:
    """Mapped with a longer client, a short one has steps without a row; the momentum of its head waits."""
    method, ids = methods.build("flute", {"head_epochs": 2}, o.task()), (4, 0)
    n = max(o.SIZES[k] for k in ids)
    x, y = (torch.cat([torch.tensor(ROWS[k][part]) for k in ids]) for part in (0, 1))
    row = torch.stack([torch.arange(n) % o.SIZES[4], torch.arange(n) + o.SIZES[4]])
    real = torch.stack([(torch.arange(n) < o.SIZES[k]).double() for k in ids])
    down = method.send(begin(method, o.model_of(START), 5), torch.tensor(ids))
    axes = (down.__class__(None, 0), None, Data(None, None, 0, 0, None, None, None), 0)
    _, up, _ = torch.func.vmap(method.local, in_dims=axes)(
        down, (), Data(x, y, row, real), torch.stack([o.key(k) for k in ids])
    )
    for at, k in enumerate(ids):
        want = by_hand(k, START, (0.25, 0.0025, 0.0005), 2, 1)
        same_head(tree.rows(up.value.head, at), want)
        close(up.value.body["0.weight"][at], want["W"] - START["W"])
