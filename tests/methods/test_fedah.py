"""FedAH: recorded rounds, a round by hand, its options and its traps.

The record is of the authors' released code: its set "keep" with every sample, its set "drop" without the samples that
do not fill a batch. Every array of both is compared, within 1e-5. No client has less than a batch in the record.
"""

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
from idiolect.core.method import SGD, Down, Method
from idiolect.methods.fedah import Client

ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
HEAD_EPOCHS, RULE = 2, SGD(0.05, 0.0, 0.0)  # of the record


def recorded(f: r.Files, drop_last: bool) -> Method:
    return methods.build("fedah", {"head_epochs": HEAD_EPOCHS}, r.task(f, RULE, 1, drop_last=drop_last))


@pytest.mark.parametrize("part", ["keep", "drop"])
def test_recorded_rounds(part: str) -> None:
    f = r.read("fedah")
    method = recorded(f, part == "drop")
    server = r.model(f, "init")
    clients = [Client(server.head, tree.map(torch.ones_like, server.head)) for _ in r.clients(f)]
    for number in range(r.count(f, part)):
        at = f"{part}/round{number}"
        received(f, at, method, server, clients)
        ids = r.below(f, f"{at}/client")
        down = method.send(server, torch.tensor(ids))
        clients = [c if k in ids else method.stand_by(down, c, r.training(f, k), o.key())
                   for k, c in enumerate(clients)]  # fmt: skip
        before = server
        server, clients, ups = replay.round_of(method, server, clients, f, ids)
        for k, up in zip(ids, ups, strict=True):
            r.same(tree.add(before, up.value), r.model(f, f"{at}/client/{k}"))
        r.same(server, r.model(f, f"{at}/server"))
    received(f, f"{part}/final", method, server, clients)


def received(f: r.Files, at: str, method: Method, server: Any, clients: list[Client]) -> None:
    for k, client in enumerate(clients):
        down = o.one(method, server, k)
        mine = method.personalise(down, client, r.training(f, k), o.key())
        r.same(mine.head, r.head(f, f"{at}/heads_received/fc2.", k))
        r.same(mine.share, r.head(f, f"{at}/head_weights/fc2.", k))
        if f"{at}/logits/{k}" in f:
            replay.logits_agree(method, down, mine, f, k, f"{at}/logits")
        x, y = r.rows(f, k, "_test")
        assert int((method.predict(down, mine, torch.tensor(x)).argmax(1).numpy() == y).sum()) == f[f"{at}/correct"][k]


# --- by hand --------------------------------------------------------------------------------------------------------


def mixed(
    k: int, server: o.Params, own: o.Params, share: o.Params, lr: float, epochs: int
) -> tuple[o.Params, o.Params]:
    """The head and the weights after mixing."""
    x, y = ROWS[k]
    gap, share = {n: server[n] - own[n] for n in "Uc"}, dict(share)

    def head() -> o.Params:
        return server | {n: own[n] + share[n] * gap[n] for n in "Uc"}

    for at in o.batches(len(y), epochs):
        g = o.head_gradient(x, y)(head(), at)
        for n in "Uc":
            share[n] = np.clip(share[n] - lr * g[n] * gap[n], 0, 1)
    return head(), share


def shares(seed: int) -> o.Params:
    rng = np.random.default_rng(seed)
    return {n: rng.uniform(size=START[n].shape) for n in "Uc"}


def state(k: int) -> Client:
    return Client(o.head_of(OWN[k]), o.head_of(shares(k)))


def same_head(got: Any, p: o.Params) -> None:
    close(got["weight"], p["U"])
    close(got["bias"], p["c"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head_epochs": 3, "body_epochs": 1},
        {"mixing_epochs": 4, "mixing_lr": 3.0},
        {"mixing_epochs": 1, "mixing_lr": 0.2, "head_epochs": 2},
    ],
)
def test_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("fedah", options, o.task())
    head_epochs = options.get("head_epochs", 1)
    how = (options.get("mixing_lr", 1.0), options.get("mixing_epochs", head_epochs))
    server, clients, _, _ = o.round_of(method, o.model_of(START), {k: state(k) for k in o.IDS}, ROWS)
    new = {}
    for k in o.IDS:
        x, y = ROWS[k]
        start, share = mixed(k, START, OWN[k], shares(k), *how)
        head = o.descend(start, "Uc", o.batches(len(y), head_epochs), o.head_gradient(x, y))
        body_epochs = options.get("body_epochs", o.EPOCHS)
        new[k] = o.descend(head, "Wb", o.batches(len(y), body_epochs), o.whole_gradient(x, y))
        same_head(clients[k].head, new[k])
        same_head(clients[k].share, share)
        assert any((share[n] != shares(k)[n]).any() for n in "Uc")
        down = o.one(method, o.model_of(OWN[0]), k)  # any other model as the received one
        kept = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
        want, _ = mixed(k, OWN[0], new[k], share, *how)
        same_head(kept.head, want)
        close(method.predict(down, kept, torch.tensor(TEST)), o.log_probability(want, TEST))
    mean = {n: o.average([new[k][n] for k in o.IDS], [o.SIZES[k] for k in o.IDS]) for n in START}
    close(server.body["0.weight"], mean["W"])
    close(server.body["0.bias"], mean["b"])
    same_head(server.head, mean)
    absent = method.stand_by(Down(o.model_of(START)), state(2), o.data(*ROWS[2]), o.key())
    head, share = mixed(2, START, OWN[2], shares(2), *how)
    same_head(absent.head, head)
    same_head(absent.share, share)


# --- traps ----------------------------------------------------------------------------------------------------------


def test_weights_stay_between_0_and_1() -> None:
    method = methods.build("fedah", {"mixing_lr": 50.0}, o.task())
    client = method.stand_by(Down(o.model_of(START)), state(0), o.data(*ROWS[0]), o.key())
    every = torch.cat([a.flatten() for a in tree.leaves(client.share)])
    assert float(every.min()) == 0
    assert float(every.max()) == 1


def test_a_new_client_starts_from_the_received_head() -> None:
    """At a rate of almost nothing it takes the received head as it is."""
    method = methods.build("fedah", {"mixing_lr": 1e-12}, o.task())
    new = method.personalise(
        Down(o.model_of(START)), method.init_client(o.key(), torch.tensor(9)), o.data(*ROWS[1]), o.key()
    )
    close(new.head["weight"], START["U"], atol=1e-9)


def test_equal_heads_are_left_alone() -> None:
    """As in the first round: there is nothing to mix, and the weights stay at 1."""
    method = methods.build("fedah", {"mixing_lr": 5.0}, o.task())
    start = Client(o.head_of(START), tree.map(torch.ones_like, o.head_of(START)))
    client = method.stand_by(Down(o.model_of(START)), start, o.data(*ROWS[0]), o.key())
    same_head(client.head, START)
    assert all(bool((a == 1).all()) for a in tree.leaves(client.share))
