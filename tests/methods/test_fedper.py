"""FedPer: recorded rounds, a round by hand, its options and its traps.

``fedper`` is the FedPer of FedRep's repository (float32), preset "fedrep": every array is compared, within 1e-5. Its
clients that were never drawn hold the mean of the others' heads, by an alias of the server's tensors; the numbers that
their own heads give stand beside it. It exempts biases from decay, which is the task's rule.
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
from idiolect.core.method import SGD, Data
from idiolect.core.network import Model
from idiolect.training import Personal, trained, untrained

ROWS = o.federation()
START = o.weights(1)
HEADS = [o.weights(10 + k) for k in range(len(o.SIZES))]
AVERAGE = o.weights(3)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
RULE = SGD(0.05, 0.5, 1e-4, decay_biases=False)


def test_recorded_rounds() -> None:
    f = r.read("fedper")
    task = r.task(f, RULE, 5)
    tuned, plain = (methods.build("fedper", {"preset": "fedrep"} | more, task) for more in ({}, {"tuning_epochs": 0}))
    for number, (server, clients) in enumerate(r.rounds(f, tuned, r.model(f, "init"))):
        at = f"round{number}/"
        r.same(server.body, r.body(f, f"{at}body/fc1"))
        for k in r.clients(f):
            client = plain.personalise(o.one(plain, server, k), clients[k], r.training(f, k), o.key())
            r.same(client.value, r.head(f, f"{at}heads/", k))
        close(100 * r.hits(plain, server, f, clients) / r.test_rows(f), f[at + "accuracy"], rtol=1e-6)
    final = [tuned.personalise(o.one(tuned, server, k), clients[k], r.training(f, k), o.key()) for k in r.clients(f)]
    for k in r.clients(f):
        r.same(final[k].value, r.head(f, "final/heads/", k))
    close(100 * r.hits(tuned, server, f, clients) / r.test_rows(f), f["final/accuracy"], rtol=1e-6)


def test_recorded_rounds_with_heads_of_their_own() -> None:
    """What the record has by its alias, and what the clients' own heads give."""
    f = r.read("fedper")
    method = methods.build("fedper", {"weighting": "uniform"}, r.task(f, RULE, 5))
    server, clients = next(r.rounds(f, method, r.model(f, "init")._replace(head={})))
    r.same(server.body, r.body(f, "round0/body/fc1"))
    ids = r.drawn(f)[0]
    for k in ids:
        r.same(clients[k].value, r.head(f, "round0/heads/", k))
    for k in set(r.clients(f)) - set(ids):
        r.same(clients[k].value, r.head(f, "init/fc2."))
        assert r.apart(clients[k].value, r.head(f, "round0/heads/", k)) > r.APART
    body, first = r.body(f, "round0/body/fc1"), r.head(f, "init/fc2.")
    own = [r.Model(body, r.head(f, "round0/heads/", k) if k in ids else first) for k in r.clients(f)]
    assert r.hits(method, server, f, clients, personalise=False) == sum(r.right(f, k, m) for k, m in enumerate(own))


def train(body: o.Params, head: o.Params, k: int, part: str = "WbUc", epochs: int = o.EPOCHS) -> o.Params:
    x, y = ROWS[k]
    start = {"W": body["W"], "b": body["b"], "U": head["U"], "c": head["c"]}
    return o.descend(start, part, o.batches(len(y), epochs), o.whole_gradient(x, y))


def same_body(got: Any, p: o.Params) -> None:
    close(got["0.weight"], p["W"])
    close(got["0.bias"], p["b"])


def same_head(got: Any, p: o.Params) -> None:
    close(got["weight"], p["U"])
    close(got["bias"], p["c"])


@pytest.mark.parametrize("weighting", [None, "samples", "uniform"])
@pytest.mark.parametrize("newcomer_head", ["own", "average"])
@pytest.mark.parametrize("tuning_epochs", [0, 3])
def test_a_round_by_hand(weighting: str | None, newcomer_head: str, tuning_epochs: int) -> None:
    """Clients 0 and 1 have trained before, 3 and 4 have not, 2 stays away."""
    options = {"newcomer_head": newcomer_head, "tuning_epochs": tuning_epochs}
    method = methods.build("fedper", options | ({"weighting": weighting} if weighting else {}), o.task())
    shared = newcomer_head == "average"
    server = Model(o.body_of(START), o.head_of(AVERAGE) if shared else {})
    clients = {k: (trained if k < 3 else untrained)(o.head_of(HEADS[k])) for k in range(5)}

    def begins(k: int, average: o.Params) -> o.Params:
        return average if shared and k >= 3 else HEADS[k]

    want = {k: train(START, begins(k, AVERAGE), k) for k in o.IDS}
    after, new, up, _ = o.round_of(method, server, {k: clients[k] for k in o.IDS}, ROWS)
    weight = [1.0] * 4 if weighting == "uniform" else [o.SIZES[k] for k in o.IDS]
    close(up.weight, weight)
    for at, k in enumerate(o.IDS):
        same_head(new[k].value, want[k])
        assert float(new[k].trained) == 1
        same_body(tree.rows(up.value.body, at), {n: want[k][n] - START[n] for n in "Wb"})
    mean = {n: o.average([p[n] for p in want.values()], weight) for n in "WbUc"}
    same_body(after.body, mean)
    if shared:
        same_head(after.head, mean)
    else:
        assert not up.value.head, "a head of one's own travels"

    clients |= new
    clients[99] = untrained(o.head_of(HEADS[3]))  # new: it has client 3's rows
    for k, client in clients.items():
        rows = 3 if k == 99 else k
        down = o.one(method, after, k)
        mine = method.personalise(down, client, o.data(*ROWS[rows]), o.key())
        head = want[k] if k in o.IDS else HEADS[rows]
        if k == 99:
            head = mean if shared else train(mean, HEADS[rows], rows)
            assert float(mine.trained) == (0 if shared else 1)
        tuned = train(mean, head, rows, "Uc", tuning_epochs)
        same_head(mine.value, tuned)
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(tuned, TEST))


def test_training_loss_is_the_mean_over_rows_as_seen() -> None:
    method = methods.build("fedper", {}, o.task(epochs=1))
    x, y = ROWS[4]
    down = o.one(method, Model(o.body_of(START), {}), 4)
    info = method.local(down, untrained(o.head_of(START)), o.data(x, y), o.key())[2]
    close(info["train_loss"], o.errors(o.embed(START, x) @ START["U"].T + START["c"], y).mean())  # one batch


@pytest.mark.parametrize("newcomer_head", ["own", "average"])
def test_heads_are_nobody_elses_tensors(newcomer_head: str) -> None:
    """A head that a client keeps is not the server's, nor another client's, and stays when the server moves on."""
    method = methods.build("fedper", {"newcomer_head": newcomer_head}, o.task())
    server = method.init_server(o.key())
    after, new, _, _ = o.round_of(
        method, server, {k: method.init_client(o.key(), torch.tensor(0)) for k in o.IDS}, ROWS
    )
    heads = [new[k].value["weight"] for k in o.IDS]
    places = {a.data_ptr() for a in [*heads, *(s.head["weight"] for s in (server, after) if s.head)]}
    assert len(places) == len(heads) + (2 if newcomer_head == "average" else 0)
    assert min(float((a - b).abs().max()) for i, a in enumerate(heads) for b in heads[:i]) > 1e-3
    if newcomer_head == "average":
        assert min(float((a - after.head["weight"]).abs().max()) for a in heads) > 1e-3


@pytest.mark.parametrize("newcomer_head", ["own", "average"])
def test_mapped_over_clients(newcomer_head: str) -> None:
    """Trained and untrained clients at once, tuning included, as one by one."""
    method = methods.build("fedper", {"newcomer_head": newcomer_head, "tuning_epochs": 2}, o.task())
    server = Model(o.body_of(START), o.head_of(AVERAGE) if newcomer_head == "average" else {})
    x, y = (torch.tensor(np.concatenate([ROWS[k][part] for k in (0, 4)])) for part in (0, 1))
    first, second = o.SIZES[0], o.SIZES[4]
    row = torch.stack([torch.arange(first), torch.arange(first).clamp(max=second - 1) + first])
    real = torch.stack([torch.ones(first), (torch.arange(first) < second).to(torch.float64)])
    clients = [trained(o.head_of(HEADS[0])), untrained(o.head_of(HEADS[4]))]
    axes = (None, 0, Data(None, None, 0, 0, None, None, None), 0)
    key = torch.stack([o.key(0), o.key(4)])
    down = method.send(server, torch.tensor([0, 4]))
    for function in (lambda *a: method.local(*a)[:2], method.personalise):
        got = torch.func.vmap(function, in_dims=axes)(down, tree.stack(clients), Data(x, y, row, real), key)
        for at, k in enumerate((0, 4)):
            alone = function(down, clients[at], o.data(*ROWS[k]), key[at])
            for a, b in zip(tree.leaves(alone), tree.leaves(tree.rows(got, at)), strict=True):
                close(a, b)


def test_tuning_leaves_the_body_where_it_is() -> None:
    method = methods.build("fedper", {"tuning_epochs": 4}, o.task())
    server = Model(o.body_of(START), {})
    client = method.personalise(o.one(method, server, 0), trained(o.head_of(HEADS[0])), o.data(*ROWS[0]), o.key())
    assert isinstance(client, Personal)
    assert set(client.value) == {"weight", "bias"}
    same_head(client.value, train(START, HEADS[0], 0, "Uc", 4))


@pytest.mark.parametrize("options", [{"weighting": "size"}, {"newcomer_head": "mean"}, {"tuning_epochs": -1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedper", options)
