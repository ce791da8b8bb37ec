"""pFedLA: rounds by hand, with the hypernetworks' gradients in numpy, and its traps."""

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
from idiolect.methods.pfedla import Hyper, Linear, Server
from idiolect.training import trained, untrained

ROWS = o.federation()
K, E, H = len(o.SIZES), 3, 4
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
START = o.weights(1)
MODELS = {k: {n: START[n] + 0.5 * a for n, a in o.weights(20 + k).items()} for k in range(K)}
MODULES, TENSORS = {"W": 0, "b": 0, "U": 1, "c": 1}, {"W": 0, "b": 1, "U": 2, "c": 3}
NEW = 1000


def hyper(k: int, layers: int) -> o.Params:
    """A client's hypernetwork: v, hidden layers W0, b0 to W2, b2, and A, a (L, K, ...)."""
    rng = np.random.default_rng(40 + k)
    p = {"v": rng.normal(size=E), "A": rng.uniform(size=(layers, K, H)), "a": 0.2 * rng.normal(size=(layers, K))}
    for i in range(3):
        p |= {f"W{i}": 0.7 * rng.normal(size=(H, H if i else E)), f"b{i}": 0.3 + 0.2 * rng.normal(size=H)}
    return p


def server_of(hypers: list[o.Params]) -> Server:
    def one(p: o.Params) -> Hyper:
        t = {n: torch.tensor(a) for n, a in p.items()}
        return Hyper(t["v"], tuple(Linear(t[f"W{i}"], t[f"b{i}"]) for i in range(3)), Linear(t["A"], t["a"]))

    return Server(tree.stack([o.model_of(MODELS[k]) for k in range(K)]), tree.stack([one(p) for p in hypers]))


def forward(p: o.Params) -> tuple[list[np.ndarray], np.ndarray]:
    """The hidden layers, v first, and a (L, K)."""
    f = [p["v"]]
    for i in range(3):
        f.append(np.maximum(p[f"W{i}"] @ f[-1] + p[f"b{i}"], 0))
    return f, np.maximum(p["A"] @ f[-1] + p["a"], 0)


def weights(p: o.Params, k: int, retained: int = 0) -> tuple[np.ndarray, list[int]]:
    """alpha (L, K), and the layers that have a gradient."""
    a = forward(p)[1]
    alpha, moving = np.zeros_like(a), []
    for layer, row in enumerate(a):
        if row.sum() > 0:
            alpha[layer] = row / row.sum()
            moving.append(layer)
        else:
            alpha[layer, k] = 1
    for layer in np.argsort(-alpha[:, k], kind="stable")[:retained]:
        alpha[layer] = np.eye(K)[k]
        moving = [one for one in moving if one != layer]
    return alpha, moving


def mixed(alpha: np.ndarray, place: dict[str, int]) -> o.Params:
    return {n: sum(alpha[at, j] * MODELS[j][n] for j in range(K)) for n, at in place.items()}


def stepped(p: o.Params, k: int, delta: o.Params, place: dict[str, int], lr: float, retained: int) -> o.Params:
    """One step down the gradient of <w, delta>, by hand."""
    f, a = forward(p)
    alpha, moving = weights(p, k, retained)
    product = np.zeros_like(a)
    for n, at in place.items():
        product[at] += [(MODELS[j][n] * delta[n]).sum() for j in range(K)]
    da = np.zeros_like(a)
    for at in moving:
        da[at] = (product[at] - alpha[at] @ product[at]) / a[at].sum() * (a[at] > 0)
    g = {"A": da[:, :, None] * f[3], "a": da}
    df = np.einsum("lk,lkh->h", da, p["A"])
    for i in (2, 1, 0):
        du = df * (f[i + 1] > 0)
        g |= {f"W{i}": np.outer(du, f[i]), f"b{i}": du}
        df = p[f"W{i}"].T @ du
    g["v"] = df
    return {n: p[n] - lr * g[n] for n in p}


def trained_from(start: o.Params, k: int) -> o.Params:
    return o.descend(start, "WbUc", o.batches(o.SIZES[k]), o.whole_gradient(*ROWS[k]))


def same(got: Any, p: o.Params) -> None:
    for leaf, name in zip(tree.leaves(got), ("W", "b", "U", "c"), strict=True):
        close(leaf, p[name])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"preset": "public"},
    {"server_lr": 0.7},
    {"server_lr": 0.7, "layer": "tensor"},
    {"server_lr": 0.4, "retained": 1},
    {"server_lr": 0.4, "retained": 3, "layer": "tensor"},
    {"server_lr": 0.4, "retained": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rounds_by_hand(options: dict[str, Any]) -> None:
    """Client 2 stays away, and all weights of client 3's first layer are 0."""
    method = methods.build("pfedla", {"embedding": E, "hidden": H, **options}, o.task())
    place = TENSORS if methods.settle("pfedla", options)["layer"] == "tensor" else MODULES
    lr, retained = methods.settle("pfedla", options)["server_lr"], options.get("retained", 0)
    hypers = [hyper(k, max(place.values()) + 1) for k in range(K)]
    hypers[3]["A"][0], hypers[3]["a"][0] = -1, -0.1
    server = server_of(hypers)
    assert [a.shape for a in tree.leaves(method.init_server(o.key()))] == [a.shape for a in tree.leaves(server)]
    alphas = [weights(hypers[k], k, retained)[0] for k in range(K)]
    received = [mixed(alphas[k], place) for k in range(K)]
    for k in range(K):
        same(o.one(method, server, k).own, received[k])
    after, new, up, info = o.round_of(method, server, {k: untrained(()) for k in o.IDS}, ROWS)
    ends = {k: trained_from(received[k], k) for k in o.IDS}
    moved = list(hypers)
    for at, k in enumerate(o.IDS):
        delta = {n: received[k][n] - ends[k][n] for n in START}
        same(tree.rows(up.value, at), delta)
        moved[k] = stepped(hypers[k], k, delta, place, lr, retained)
    tree.map(close, after.hyper, server_of(moved).hyper)
    for k in range(K):
        same(tree.rows(after.models, k), ends.get(k, MODELS[k]))
    close(info["alpha"], np.array([alphas[k].mean(0)[list(o.IDS)] for k in o.IDS]))
    assert all(bool(client.trained) for client in new.values())


@pytest.mark.parametrize("layer", ["module", "tensor"])
@pytest.mark.parametrize("k", [0, 1, 4])
def test_the_step_leads_towards_what_the_client_has_learnt(layer: str, k: int) -> None:
    """Public versions take the step with the other sign, away from it."""
    method = methods.build("pfedla", {"embedding": E, "hidden": H, "server_lr": 1e-2, "layer": layer}, o.task())
    place = TENSORS if layer == "tensor" else MODULES
    server = server_of([hyper(j, max(place.values()) + 1) for j in range(K)])
    after, _, up, _ = o.round_of(method, server, {k: trained(())}, ROWS)
    before, later = (o.one(method, server._replace(hyper=s.hyper), k).own for s in (server, after))
    assert float(tree.dot(tree.sub(later, before), tree.rows(up.value, 0))) < 0


@pytest.mark.parametrize("k", range(K))
def test_at_the_start_all_give_and_the_model_is_the_common_one(k: int) -> None:
    method = methods.build("pfedla", {}, o.task())
    server = method.init_server(o.key())
    heads = server.hyper.heads.weight
    assert heads.min() >= 0
    assert heads.max() <= 1
    assert heads.std() == pytest.approx(12**-0.5, rel=0.05)
    tree.map(lambda got, want: close(got, want), o.one(method, server, k).own, o.task().network.init(o.key()))
    assert not torch.equal(server.hyper.embedding_Ke[k], server.hyper.embedding_Ke[k - 1])


@pytest.mark.parametrize("tuning", ["newcomers", "all", "nobody"])
@pytest.mark.parametrize(("k", "client"), [(NEW, untrained(())), (2, untrained(())), (1, trained(()))])
def test_who_tunes(tuning: str, k: int, client: Any) -> None:
    """A new client gets the mean of all models."""
    method = methods.build("pfedla", {"embedding": E, "hidden": H, "tuning": tuning}, o.task())
    hypers = [hyper(j, 2) for j in range(K)]
    down = o.one(method, server_of(hypers), k)
    alpha = np.full((2, K), 1 / K) if k == NEW else weights(hypers[k], k)[0]
    want = mixed(alpha, MODULES)
    tunes = tuning == "all" or (tuning == "newcomers" and not bool(client.trained))
    row = 4 if k == NEW else k
    want = trained_from(want, row) if tunes else want
    mine = method.personalise(down, client, o.data(*ROWS[row]), o.key())
    close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(want, TEST))


@pytest.mark.parametrize(("retained", "layer"), [(3, "module"), (5, "tensor"), (99, "module")])
def test_more_layers_than_there_are_cannot_be_retained(retained: int, layer: str) -> None:
    with pytest.raises(InputError, match=f"is to retain {retained} layers, and the network has [24]: give retained"):
        methods.build("pfedla", {"retained": retained, "layer": layer}, o.task())


@pytest.mark.parametrize("options", [{"server_lr": 0}, {"layer": "block"}, {"retained": -1}, {"hidden": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("pfedla", options)
