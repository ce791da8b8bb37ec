"""FedAMP: recorded rounds, rounds by hand, and its traps.

The record (float32) is of a public version with its pull put right, since the authors released no code. Every array is
compared within 1e-5: "all" has all clients in each round, "some" has the models of the last round's participants alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax, softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD
from idiolect.core.reduction import reduced
from idiolect.methods.fedamp import Server
from idiolect.training import trained, untrained

ROWS = o.federation()
START = o.weights(1)
OWN = {k: {n: START[n] + 0.3 * a for n, a in o.weights(20 + k).items()} for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["all", "some"])
def test_recorded_rounds(part: str) -> None:
    f = r.read("fedamp")
    epochs, lr, alpha, sigma, pull = f["options"].tolist()
    task = r.task(f, SGD(lr, 0.0, 0.0), int(epochs), drop_last=True)
    options = {"preset": "pfllib", "alpha": alpha, "sigma": sigma, "pull": pull}
    method = methods.build("fedamp", options, task)
    start = r.model(f, "init")
    clients = [untrained(start) for _ in r.clients(f)]
    server = Server(tree.stack([start for _ in clients]), start, torch.zeros(len(clients)))
    for number in range(r.count(f, part)):
        at, ups = f"{part}/round{number}", []
        ids = f[f"{at}/participants"].tolist()
        down = method.send(server, torch.tensor(ids))
        for place, k in enumerate(ids):
            one = down._replace(own=tree.rows(down.own, place))
            r.same(one.own, r.model(f, f"{at}/cloud", place))
            clients[k], up, _ = method.local(one, clients[k], r.training(f, k), o.key())
            r.same(clients[k].value, r.model(f, f"{at}/trained", place))
            ups.append(up)
        server, info = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        if f"{at}/coefficients" in f:
            close(info["coefficient"], f[f"{at}/coefficients"][:, ids], **r.EXACT)
    for k, client in enumerate(clients):
        down = o.one(method, server, k)
        mine = method.personalise(down, client, r.training(f, k), o.key())
        logp = method.predict(down, mine, torch.tensor(f[f"data/{k}/x_test"]))
        close(logp, log_softmax(f[f"{part}/final/logits/{k}"], 1), **r.EXACT)


# --- by hand ----------------------------------------------------------------------------------------------------------


def vector(p: o.Params) -> np.ndarray:
    return np.concatenate([p[n].ravel() for n in "WbUc"])


def coefficients(k: int, others: list[int], models: dict[int, o.Params], options: dict[str, Any]) -> np.ndarray:
    """Row k: the shares of all five models, its own too."""
    alpha, sigma = options.get("alpha", 1.0), options.get("sigma", 1.0)
    share, others = np.zeros(len(o.SIZES)), [j for j in others if j != k]
    v = {j: vector(p) for j, p in models.items()}
    if options.get("similarity") == "cosine":
        own = options.get("own_share", 1 / len(o.SIZES))
        cosine = [v[k] @ v[j] / np.linalg.norm(v[k]) / np.linalg.norm(v[j]) for j in others]
        share[others] = (1 - own) * softmax(sigma * np.array(cosine))
    else:
        share[others] = [alpha / sigma * np.exp(-((v[k] - v[j]) ** 2).sum() / sigma) for j in others]
        share /= max(1.0, share.sum())
    share[k] = 1 - share.sum()
    return share


def train(k: int, start: o.Params, cloud: o.Params, strength: float) -> o.Params:
    error = o.whole_gradient(*ROWS[k])

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        return {n: g + strength * (p[n] - cloud[n]) for n, g in error(p, rows).items()}

    return o.descend(start, "WbUc", o.batches(o.SIZES[k]), gradient)


def same(got: Any, p: o.Params) -> None:
    for leaf, name in zip(tree.leaves(got), ("W", "b", "U", "c"), strict=True):
        close(leaf, p[name])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"alpha": 0.3, "sigma": 5.0, "pull": 0.2},
    {"alpha": 4.0, "sigma": 9.0, "start": "cloud"},
    {"models_of": "last_round", "alpha": 2.0, "sigma": 20.0},
    {"similarity": "cosine", "sigma": 3.0},
    {"similarity": "cosine", "sigma": 8.0, "own_share": 0.5, "models_of": "last_round"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rounds_by_hand(options: dict[str, Any]) -> None:
    """Clients 0 to 3 have trained, 1 to 3 in the round before; client 4 has not, and 2 stays away."""
    method = methods.build("fedamp", options, o.task())
    models = OWN | {4: START}
    last = options.get("models_of") == "last_round"
    giving = [1, 2, 3] if last else [0, 1, 2, 3]
    mask = torch.tensor([float(k in giving) for k in range(5)])
    server = Server(tree.stack([o.model_of(models[k]) for k in range(5)]), o.model_of(START), mask)
    ids = [0, 1, 3, 4]
    clients = {k: (untrained if k == 4 else trained)(o.model_of(models[k])) for k in ids}
    after, new, up, info = o.round_of(method, server, clients, ROWS)
    share = {k: coefficients(k, giving, models, options) for k in range(5)}
    strength, before = options.get("pull", 1.0) / options.get("alpha", 1.0), dict(models)
    for k in ids:
        cloud = {n: sum(share[k][j] * before[j][n] for j in range(5)) for n in START}
        same(o.one(method, server, k).own, cloud)
        models[k] = train(k, cloud if options.get("start") == "cloud" else models[k], cloud, strength)
        same(new[k].value, models[k])
        down = o.one(method, after, k)
        mine = method.personalise(down, new[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(models[k], TEST))
    close(info["coefficient"], np.array([share[k][ids] for k in ids]))
    close(up.weight, np.ones(len(ids)))
    for k in range(5):
        same(tree.rows(after.models, k), models[k])
        down = o.one(method, after, k)
        others = ids if last else [0, 1, 2, 3, 4]
        later = coefficients(k, others, models, options)
        same(down.own, {n: sum(later[j] * models[j][n] for j in range(5)) for n in START})


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"alpha": 50.0}, {"similarity": "cosine"}, {"sigma": 1e-3}], ids=str)
def test_a_cloud_model_lies_between_models(options: dict[str, Any]) -> None:
    """No share is negative, and they add up to 1; also where the models are the same."""
    method = methods.build("fedamp", options, o.task())
    near = {k: {n: START[n] + 1e-3 * k for n in START} for k in range(5)}
    server = Server(tree.stack([o.model_of(near[k]) for k in range(5)]), o.model_of(START), torch.ones(5))
    _, info = method.aggregate(
        server,
        reduced(method.reduce, tree.stack([r_up(method, server, k, near[k]) for k in range(5)])),
        torch.arange(5),
    )
    assert (info["coefficient"] >= 0).all()
    close(info["coefficient"].sum(1), np.ones(5))


def r_up(method: Any, server: Server, k: int, p: o.Params) -> Any:
    return method.local(o.one(method, server, k), trained(o.model_of(p)), o.data(*ROWS[k]), o.key())[1]


@pytest.mark.parametrize("options", [{}, {"similarity": "cosine"}, {"models_of": "last_round"}], ids=str)
@pytest.mark.parametrize("k", [0, 4, 99])
def test_before_the_first_round_the_cloud_model_is_the_start(options: dict[str, Any], k: int) -> None:
    method = methods.build("fedamp", options, o.task())
    server = method.init_server(o.key())
    assert tree.same(o.one(method, server, k).own, server.start)


@pytest.mark.parametrize("models_of", ["all", "last_round"])
@pytest.mark.parametrize("ids", [[0, 2], [1], [0, 3, 4]], ids=str)
def test_a_client_that_has_never_trained_pulls_nobody(models_of: str, ids: list[int]) -> None:
    """Two rounds of the same clients: the others have the start as their model, and no share of any cloud model."""
    method = methods.build("fedamp", {"models_of": models_of, "sigma": 4.0}, o.task())
    server = method.init_server(o.key())
    for _ in range(2):
        clients = {k: trained(o.model_of(OWN[k])) for k in ids}
        server, new, _, _ = o.round_of(method, server, clients, ROWS)
    models = {k: params(new[k].value) if k in ids else params(server.start) for k in range(5)}
    for k in range(5):
        share = coefficients(k, ids, models, {"sigma": 4.0})
        same(o.one(method, server, k).own, {n: sum(share[j] * models[j][n] for j in range(5)) for n in START})


def params(model: Any) -> o.Params:
    return {name: leaf.numpy() for name, leaf in zip(("W", "b", "U", "c"), tree.leaves(model), strict=True)}


def test_the_pull_reaches_the_weights() -> None:
    """A public version computes it from detached weights, so that it is local training."""
    server = Server(tree.stack([o.model_of(OWN[k]) for k in range(5)]), o.model_of(START), torch.ones(5))
    ends = []
    for pull in (0.0, 1.0):
        method = methods.build("fedamp", {"pull": pull}, o.task())
        start = trained(o.model_of(OWN[0]))
        ends.append(method.local(o.one(method, server, 0), start, o.data(*ROWS[0]), o.key())[0])
    near, far = ends
    same(near.value, train(0, OWN[0], START, 0.0))
    assert r.apart(near.value, far.value) > 0.01


@pytest.mark.parametrize("k", [4, 99])
def test_a_new_client_is_pulled_like_one_that_has_the_start(k: int) -> None:
    method = methods.build("fedamp", {}, o.task())
    server = Server(
        tree.stack([o.model_of(p) for p in [*(OWN[j] for j in range(4)), START]]),
        o.model_of(START),
        torch.tensor([1.0, 1, 1, 1, 0]),
    )
    down = o.one(method, server, k)
    share = coefficients(4, [0, 1, 2, 3], OWN | {4: START}, {})
    cloud = {n: sum(share[j] * (OWN | {4: START})[j][n] for j in range(5)) for n in START}
    same(down.own, cloud)
    mine = method.personalise(down, untrained(o.model_of(START)), o.data(*ROWS[4]), o.key())
    same(mine.value, train(4, START, cloud, 1.0))
    kept = trained(o.model_of(OWN[0]))
    assert tree.same(method.personalise(down, kept, o.data(*ROWS[4]), o.key()), kept)


@pytest.mark.parametrize("options", [{"alpha": 0}, {"sigma": 0.0}, {"pull": -1}, {"own_share": 1.0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedamp", options)
