"""pFedSim: rounds by hand in numpy, its options and its traps. There is no record of the released code."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Down
from idiolect.core.network import Model
from idiolect.methods import pfedsim
from idiolect.training import trained, untrained

ROWS = o.federation()
START = o.weights(1)
CLIENTS = len(o.SIZES)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    cos = [u @ v / (np.linalg.norm(u) * np.linalg.norm(v)) for u, v in zip(a, b, strict=True)]
    return max(0.0, float(np.mean(cos)))


def train(p: o.Params, k: int) -> o.Params:
    x, y = ROWS[k]
    return o.descend(p, "WbUc", o.batches(len(y)), o.whole_gradient(x, y))


class Hand:
    """The method in numpy."""

    def __init__(self, warm: int) -> None:
        self.warm, self.t = warm, 0
        self.w = dict.fromkeys(range(CLIENTS), START)
        self.s = np.eye(CLIENTS)
        self.own: dict[int, o.Params] = {}

    def start(self, k: int) -> o.Params:
        weight = np.array([-np.log(1 - (0.9999 if j == k else self.s[k, j])) for j in range(CLIENTS)])
        body = {n: sum(a * self.w[j][n] for j, a in enumerate(weight / weight.sum())) for n in "Wb"}
        return self.w[k] | body

    def round(self, ids: tuple[int, ...]) -> None:
        new = {k: train(self.start(k), k) for k in ids}
        if self.t < self.warm:
            mean = {n: o.average([new[k][n] for k in ids], [o.SIZES[k] for k in ids]) for n in START}
            self.w = dict.fromkeys(range(CLIENTS), mean)
        else:
            self.w |= new
            self.own |= new
            for i in ids:
                for j in ids:
                    if i != j:
                        self.s[i, j] = similarity(new[i]["U"], new[j]["U"])
        self.t += 1


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


@pytest.mark.parametrize(("warm_up", "warm"), [(0.5, 2), (0.0, 0), (0.3, 1), (1.0, 5)])
def test_rounds_by_hand(warm_up: float, warm: int) -> None:
    """Five rounds; client 2 never takes part, and some pairs meet once."""
    method, hand = methods.build("pfedsim", {"warm_up": warm_up}, o.task()), Hand(warm)
    server = method.init_server(o.key())
    server = server._replace(models=tree.map(lambda w, old: w.expand_as(old).clone(), o.model_of(START), server.models))
    clients: list[Any] = [untrained(o.model_of(START))] * CLIENTS
    for number, ids in enumerate([(0, 1, 3), (1, 3, 4), (0, 1, 4), (0, 3, 4), (1, 3)]):
        for k in ids:
            same(o.one(method, server, k).own.model, hand.start(k))
        ups = []
        for k in ids:
            data = replay.at(o.data(*ROWS[k]), number + 1, 5)
            clients[k], up, _ = method.local(o.one(method, server, k), clients[k], data, o.key())
            ups.append(up)
        server, info = method.aggregate(server, replay.reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        hand.round(ids)
        close(info["similarity"], hand.s[np.ix_(ids, ids)])
        for k in range(CLIENTS):
            want = hand.own.get(k, hand.start(k))
            down = o.one(method, server, k)
            mine = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
            close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(want, TEST))
    mean = {n: np.mean([p[n] for p in hand.w.values()], 0) for n in START}
    down = o.one(method, server, 80)
    same(down.own.model, mean)
    new = method.personalise(down, untrained(o.model_of(START)), o.data(*ROWS[2]), o.key())
    same(new.value, train(mean, 2))


# --- traps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.3, 0.9]])
def test_shares_are_finite_and_sum_to_1(others: list[float]) -> None:
    """A client of the same head counts as much as oneself; one that is like no other is alone."""
    similar = torch.eye(3)
    similar[0] = torch.tensor(others)
    got = pfedsim.shares(similar)
    close(got.sum(1), np.ones(3))
    want = np.array([-np.log(1 - min(s, 0.9999)) for s in others])
    close(got[0], want / want.sum(), rtol=1e-9)
    close(got[1], [0, 1, 0])


def test_likeness_is_of_rows_and_not_of_the_whole_matrix() -> None:
    """Rows of very different length count alike, and what points apart counts nothing."""
    a = np.array([[[1.0, 0.0], [0.0, 100.0]], [[1.0, 0.0], [100.0, 0.0]], [[-1.0, 0.0], [0.0, -2.0]]])
    got = pfedsim.likeness({"weight": torch.tensor(a), "bias": torch.ones(3, 2)})
    close(got, [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])


def test_heads_of_several_matrices_are_compared_by_all_their_rows() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 2, 4))
    got = pfedsim.likeness({"0.weight": torch.tensor(a), "0.bias": torch.zeros(3, 4), "2.weight": torch.tensor(b)})
    unit = [w / np.linalg.norm(w, axis=2, keepdims=True) for w in (a, b)]
    cos = np.array([[np.mean([u[i, q] @ u[j, q] for u in unit for q in range(u.shape[1])]) for j in range(3)]
                    for i in range(3)])  # fmt: skip
    close(got, np.maximum(cos, 0))


def test_a_client_keeps_its_model_as_it_trained_it() -> None:
    """Not the mixture that it would start from next."""
    method = methods.build("pfedsim", {}, o.task())
    own = trained(o.model_of(o.weights(7)))
    down = o.one(method, method.init_server(o.key()), 1)
    r.same(method.personalise(down, own, o.data(*ROWS[1]), o.key()).value, own.value)
    close(method.predict(Down(), own, torch.tensor(TEST)), o.log_probability(o.weights(7), TEST))


@pytest.mark.parametrize(
    ("after", "averages"), [([0, 0, 0], True), ([0, 1, 0], True), ([1, 0, 1], False), ([1, 1, 1], False)]
)
def test_most_participants_say_whether_the_warm_up_is_over(after: list[int], averages: bool) -> None:
    method = methods.build("pfedsim", {}, o.task())
    server, ids = method.init_server(o.key()), [0, 2, 3]
    ups = [
        method.local(o.one(method, server, k), untrained(o.model_of(START)), o.data(*ROWS[k]), o.key())[1] for k in ids
    ]
    ups = [
        up._replace(weight=up.weight._replace(after=torch.tensor(float(a)))) for up, a in zip(ups, after, strict=True)
    ]
    new, _ = method.aggregate(server, replay.reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
    bodies = new.models.body["0.weight"]
    assert torch.equal(bodies[0], bodies[2]) is averages
