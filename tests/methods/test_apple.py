"""APPLE: recorded rounds, a round by hand, its options and its traps.

The record is of the authors' released code. Every array of it is compared, within 1e-5. Everybody knows the numbers of
samples before the first round there, so the server starts with them here. In its set "limited" a client goes on with
older copies of the core models that it does not download, which the method does not offer: there the copies are kept
by the test, and the client's part is compared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.method import SGD, Adam, Down, Method
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.core.schedules import Exponential
from idiolect.methods import apple
from idiolect.training import trained, untrained

ROWS = o.federation()
CLIENTS = len(o.SIZES)
CORES = [o.weights(20 + k) for k in range(CLIENTS)]
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
P0 = np.array(o.SIZES) / sum(o.SIZES)


def recorded(f: r.Files) -> Method:
    task = r.task(f, SGD(0.05, 0.9, 0.0), 2, schedule=Exponential(factor=0.9))
    how = {"relation_lr": 0.02, "pull": 0.5, "pull_rounds": 1.0, "pull_decay": "cosine"}
    return methods.build("apple", how, task)


@pytest.mark.parametrize("part", ["full", "limited"])
def test_recorded_rounds(part: str) -> None:
    f = r.read("apple")
    method, ids = recorded(f), r.clients(f)
    n_K = torch.tensor([float(len(r.rows(f, k)[1])) for k in ids])
    server = method.init_server(o.key())._replace(cores=r.model(f, "init"), n_K=n_K)
    copies = [server.cores] * len(ids)
    clients, rounds = [untrained(r.model(f, "init", 0))] * len(ids), r.count(f, part)
    for number in range(rounds):
        at, ups = f"{part}/round{number}", []
        for k in ids:
            down = o.one(method, server, k)
            if part == "limited":  # in the order of the clients, with older copies of what is not downloaded
                chosen = torch.tensor(f.get(f"{at}/downloaded", np.ones((len(ids),) * 2, bool))[k])
                copies[k] = tree.map(
                    lambda new, old, c=chosen: torch.where(over(c, new), new, old), server.cores, copies[k]
                )
                down = Down(apple.Shared(copies[k], n_K), apple.Relations(torch.eye(len(ids))[k], server.shift_KK[k]))
            data = replay.at(r.training(f, k), number + 1, rounds)
            clients[k], up, _ = method.local(down, clients[k], data, o.key())
            ups.append(up)
            r.same(up.value.core, r.model(f, f"{at}/core", k))
            r.same(clients[k].value, r.model(f, f"{at}/personal", k))
        ups = tree.stack(ups)
        if part == "limited":
            server = server._replace(cores=ups.value.core, shift_KK=ups.value.shift_K)
        else:
            server, info = method.aggregate(server, reduced(method.reduce, ups), torch.tensor(ids))
            close(info["relation"], f[f"{at}/p"], **r.EXACT)
        close(n_K / n_K.sum() + server.shift_KK, f[f"{at}/p"], **r.EXACT)
        close(coefficient(0.5, number, rounds, 1.0, "cosine"), f[f"{at}/reg_coefficient"], **r.EXACT)
    right = rows = 0
    for k in ids:
        down = o.one(method, server, k)
        mine = method.personalise(down, clients[k], r.training(f, k), o.key())
        hits, n = replay.logits_agree(method, down, mine, f, k, f"{part}/final/logits"), len(r.rows(f, k, "_test")[1])
        close(hits / n, f[f"{part}/final/accuracy"][k], rtol=1e-6)
        right, rows = right + hits, rows + n
    close(right / rows, f[f"{part}/final/accuracy_pooled"], rtol=1e-6)


def over(flag_K: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return flag_K.reshape(-1, *(1,) * (weight.ndim - 1))


# --- by hand --------------------------------------------------------------------------------------------------------


def coefficient(pull: float, number: int, rounds: int, share: float, how: str) -> float:
    last = int(rounds * share)
    if number >= last:
        return 0.0
    return pull * ((math.cos(math.pi * number / last) + 1) / 2 if how == "cosine" else 0.001 ** (number / last))


def mixed(cores: list[o.Params], p: np.ndarray) -> o.Params:
    return {n: sum(share * c[n] for share, c in zip(p, cores, strict=True)) for n in "WbUc"}


def by_hand(
    k: int, cores: list[o.Params], p0: np.ndarray, shift: np.ndarray, force: float, relation_lr: float,
    rule: SGD = o.RULE,
) -> tuple[o.Params, np.ndarray]:  # fmt: skip
    """The own core model and p - p_0 after a round; both step on the gradients at the same place."""
    x, y = ROWS[k]
    cores, ratio = [dict(c) for c in cores], relation_lr / rule.lr
    speed: dict[str, Any] = dict.fromkeys("WbUcp", 0.0)
    for at in o.batches(len(y)):
        p = p0 + shift
        g = o.whole_gradient(x, y)(mixed(cores, p), at)
        by_p = np.array([sum((g[n] * c[n]).sum() for n in g) for c in cores]) + 2 * force * shift
        for n in g:
            speed[n] = rule.momentum * speed[n] + p[k] * g[n] + rule.weight_decay * cores[k][n]
        speed["p"] = rule.momentum * speed["p"] + ratio * by_p + rule.weight_decay * shift
        for n in g:
            cores[k][n] = cores[k][n] - rule.lr * speed[n]
        shift = shift - rule.lr * speed["p"]
    return cores[k], shift


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


def server_of(method: Method, cores: list[o.Params] = CORES, n: Any = o.SIZES) -> Any:
    whole = tree.stack([o.model_of(c) for c in cores])
    return method.init_server(o.key())._replace(cores=whole, n_K=torch.tensor([float(a) for a in n]))


@pytest.mark.parametrize("how", ["cosine", "exponential"])
@pytest.mark.parametrize(("number", "share"), [(0, 1.0), (1, 0.6), (4, 0.5), (2, 0.0)])
def test_round_by_hand(how: str, number: int, share: float) -> None:
    options = {"relation_lr": 0.02, "pull": 0.7, "pull_rounds": share, "pull_decay": how}
    method, rounds = methods.build("apple", options, o.task()), 5
    shift = {k: 0.2 * np.random.default_rng(k).normal(size=CLIENTS) for k in range(CLIENTS)}
    server = server_of(method)._replace(shift_KK=torch.tensor(np.array(list(shift.values()))))
    clients, ups = {}, []
    for k in o.IDS:
        start = trained(o.model_of(CORES[0]))
        data = replay.at(o.data(*ROWS[k]), number + 1, rounds)
        clients[k], up, _ = method.local(o.one(method, server, k), start, data, o.key())
        ups.append(up)
        core, moved = by_hand(k, CORES, P0, shift[k], coefficient(0.7, number, rounds, share, how), 0.02)
        same(up.value.core, core)
        personal = mixed([core if j == k else c for j, c in enumerate(CORES)], P0 + moved)
        same(clients[k].value, personal)
        kept = method.personalise(o.one(method, server_of(method, CORES[::-1]), k), clients[k], data, o.key())
        close(method.predict(Down(), kept, torch.tensor(TEST)), o.log_probability(personal, TEST))
    after, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(o.IDS))
    for k in range(CLIENTS):
        core, moved = CORES[k], shift[k]
        if k in o.IDS:
            core, moved = by_hand(k, CORES, P0, shift[k], coefficient(0.7, number, rounds, share, how), 0.02)
        same(tree.rows(after.cores, k), core)
        close(after.shift_KK[k], moved)


def test_with_adam_the_relations_have_a_rate_of_their_own() -> None:
    """A first step of Adam is as long as the rate, whatever the gradient."""
    task = o.task(optimiser=Adam(lr=0.01, eps=1e-12), epochs=1, batch_size=50)
    method = methods.build("apple", {"relation_lr": 0.003, "pull": 0.0}, task)
    down = o.one(method, server_of(method), 0)
    _, up, _ = method.local(down, method.init_client(o.key(), torch.tensor(0)), o.data(*ROWS[0]), o.key())
    close(up.value.shift_K.abs(), np.full(CLIENTS, 0.003), rtol=1e-6)
    moved = up.value.core.head["bias"] - o.model_of(CORES[0]).head["bias"]
    close(moved.abs(), np.full(o.CLASSES, 0.01), rtol=1e-6)


# --- who knows what -------------------------------------------------------------------------------------------------


def shares(method: Method, server: Any, k: int) -> np.ndarray:
    """p_0 as the client has it: read off the model of an untrained client, where the cores are unit vectors."""
    client = method.local(
        o.one(method, server, k), method.init_client(o.key(), torch.tensor(k)), o.data(*ROWS[k % CLIENTS]), o.key()
    )[0]
    return client.value.body["0.weight"].numpy().ravel()[:CLIENTS]


def still(**options: Any) -> Method:
    """With rates at which nothing moves."""
    return methods.build("apple", {"relation_lr": 1e-30} | options, o.task(optimiser=SGD(1e-30, 0.0, 0.0)))


def units() -> list[o.Params]:
    return [{n: np.eye(1, a.size, j).reshape(a.shape) for n, a in CORES[0].items()} for j in range(CLIENTS)]


@pytest.mark.parametrize(
    ("known", "k", "want"),
    [
        ((0, 0, 0, 0, 0), 1, (1, 1, 1, 1, 1)),
        ((20, 15, 9, 13, 4), 1, (20, 15, 9, 13, 4)),
        ((20, 0, 9, 0, 0), 3, (20, 0, 9, 13, 0)),
        ((20, 0, 9, 0, 0), 0, (20, 0, 9, 0, 0)),
    ],
)
def test_the_first_shares_are_of_the_samples_that_are_known(known: Any, k: int, want: Any) -> None:
    method = still()
    close(shares(method, server_of(method, units(), known), k), np.array(want) / sum(want))


def test_the_server_learns_numbers_of_samples_from_uploads_and_relations_to_known_clients_are_learned() -> None:
    method = methods.build("apple", {}, o.task())
    server = method.init_server(o.key())
    client = method.init_client(o.key(), torch.tensor(0))
    server, _, _, _ = o.round_of(method, server, {0: client, 3: client}, ROWS)
    close(server.n_K, [20, 0, 0, 13, 0])
    close(server.shift_KK, np.zeros((5, 5)))
    server, _, _, _ = o.round_of(method, server, {3: client, 4: client}, ROWS)
    close(server.n_K, [20, 0, 0, 13, 4])
    assert ((server.shift_KK != 0).int().tolist() == np.outer([0, 0, 0, 1, 1], [1, 0, 0, 1, 0])).all()


def test_a_new_client_trains_a_model_beside_the_mixture() -> None:
    method = methods.build("apple", {"relation_lr": 0.02}, o.task())
    down, start = o.one(method, server_of(method), 99), method.init_client(o.key(), torch.tensor(99))
    new = method.personalise(down, start, o.data(*ROWS[2]), o.key())
    zero = {n: np.zeros_like(a) for n, a in CORES[0].items()}
    x, y = ROWS[2]
    own, shift, speed = zero, np.zeros(CLIENTS), dict.fromkeys("WbUcp", 0.0)
    for at in o.batches(len(y)):
        base = mixed(CORES, P0 + shift)
        g = o.whole_gradient(x, y)({n: base[n] + own[n] for n in own}, at)
        by_p = np.array([sum((g[n] * c[n]).sum() for n in g) for c in CORES])
        for n in g:
            speed[n] = o.RULE.momentum * speed[n] + g[n] + o.RULE.weight_decay * own[n]
        speed["p"] = o.RULE.momentum * speed["p"] + 0.02 / o.RULE.lr * by_p + o.RULE.weight_decay * shift
        own = {n: own[n] - o.RULE.lr * speed[n] for n in own}
        shift = shift - o.RULE.lr * speed["p"]
    base = mixed(CORES, P0 + shift)
    same(new.value, {n: base[n] + own[n] for n in own})


def test_the_message_does_not_depend_on_the_numbers_of_clients() -> None:
    """The core models of clients with many samples come first, and each client finds its own."""
    method = still()
    server = server_of(method)._replace(shift_KK=torch.arange(25.0).view(5, 5))
    down = method.send(server, torch.tensor([0, 3, 7]))
    order = np.argsort(o.SIZES)[::-1]
    close(down.shared.n_K, np.array(o.SIZES)[order])
    close(down.own.own_K, np.array([np.eye(5)[0][order], np.eye(5)[3][order], np.zeros(5)]))
    close(down.own.shift_K, np.array([np.arange(5)[order], np.arange(15, 20)[order], np.zeros(5)]))
    for j, k in enumerate(order):
        same(tree.rows(down.shared.cores, j), CORES[k])


def test_core_models_start_apart() -> None:
    server = methods.build("apple", {}, o.task()).init_server(o.key())
    for k, key in enumerate(keys.members(o.key(), CLIENTS)):
        r.same(tree.rows(server.cores, k), o.task().network.init(key))
    assert r.apart(tree.rows(server.cores, 0), tree.rows(server.cores, 1)) > 0.1
