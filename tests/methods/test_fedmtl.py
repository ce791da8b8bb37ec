"""FedMTL: rounds by hand, and its traps. Nothing is recorded: the authors' code is for convex models, in another form.

The penalty's slope is checked against tr(W Omega W') itself, with Omega as the paper writes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import complex_step as c
import numpy as np
import oracle as o
import pytest
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import Method, Task
from idiolect.core.reduce import needs_each
from idiolect.core.reduction import reduced
from idiolect.methods.fedmtl import Server
from idiolect.training import trained, untrained

ROWS = o.federation()
K = len(o.SIZES)
OWN = {k: o.weights(20 + k) for k in range(K)}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def vector(p: Any) -> Any:
    return np.concatenate([p[n].ravel() for n in "WbUc"])


def mean_of(models: dict[int, o.Params]) -> o.Params:
    return {n: np.mean([p[n] for p in models.values()], 0) for n in "WbUc"}


def penalty(models: dict[int, o.Params]) -> Any:
    """tr(W Omega W'), a column of W for each client."""
    columns = np.stack([vector(p) for p in models.values()], 1)
    centre = np.eye(len(models)) - 1 / len(models)
    return np.trace(columns @ (centre @ centre) @ columns.T)


def server_of(mean: o.Params) -> Server:
    """With this mean: the start is another one."""
    start = o.weights(55)
    return Server(o.model_of(start), o.model_of({n: K * (mean[n] - start[n]) for n in start}))


def received(method: Method, server: Server) -> Any:
    return o.one(method, server, 0).shared


def train(k: int, pull: float, models: dict[int, o.Params], start: o.Params | None = None) -> o.Params:
    """SGD on CE + pull tr(W Omega W') in one client's model, the others as they are."""
    error = o.whole_gradient(*ROWS[k])
    slope = c.gradient_of(lambda p, at: penalty(models | {k: p}), "WbUc")

    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        whole = slope(p, at)
        return {n: g + pull * whole[n] for n, g in error(p, at).items()}

    return o.descend(start or models[k], "WbUc", o.batches(o.SIZES[k]), gradient)


def same(got: Any, p: o.Params) -> None:
    for leaf, name in zip(tree.leaves(got), "WbUc", strict=True):
        close(leaf, p[name])


@pytest.mark.parametrize("pull", [0.1, 0.0, 1.5])
def test_round_by_hand(pull: float) -> None:
    """Clients 0 to 3 have trained, 4 has not: it begins at the mean. Client 2 stays away, and the mean counts it."""
    method = methods.build("fedmtl", {"pull": pull}, o.task())
    models = dict(OWN)
    mean = mean_of(models)
    clients = {k: (untrained if k == 4 else trained)(o.model_of(OWN[k])) for k in o.IDS}
    after, new, up, info = o.round_of(method, server_of(mean), clients, ROWS)
    sent = {n: sum(train(k, pull, OWN, mean if k == 4 else None)[n] - OWN[k][n] for k in o.IDS) for n in "WbUc"}
    same(reduced(method.reduce, up).value, sent)
    for k in o.IDS:
        models[k] = train(k, pull, OWN, mean if k == 4 else None)
        same(new[k].value, models[k])
        down = o.one(method, after, k)
        mine = method.personalise(down, new[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(models[k], TEST))
    same(received(method, after), mean_of(models))
    assert info == {}
    assert not needs_each(method.reduce)


def test_the_mean_is_that_of_all_clients_models_in_every_round() -> None:
    """With some absent in each, one for the first time in the last."""
    method = methods.build("fedmtl", {"pull": 0.4}, o.task())
    server = method.init_server(o.key())
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in range(K)}
    for ids in ((0, 1), (1, 2, 3), (0,), (3, 4)):
        server, new, _, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        whole = tree.mean(tree.stack([client.value for client in clients.values()]), torch.ones(K))
        for a, b in zip(tree.leaves(received(method, server)), tree.leaves(whole), strict=True):
            close(a, b)


@pytest.mark.parametrize("k", [99, 5, 1000])
def test_a_new_client_is_pulled_to_the_mean_of_all(k: int) -> None:
    """m counts no model of its own."""
    method = methods.build("fedmtl", {"pull": 0.7}, o.task())
    mean = mean_of(OWN)
    new = untrained(o.model_of(o.weights(77)))
    mine = method.personalise(o.one(method, server_of(mean), k), new, o.data(*ROWS[3]), o.key())
    error = o.whole_gradient(*ROWS[3])

    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        return {n: g + 2 * 0.7 * (1 - 1 / K) * (p[n] - mean[n]) for n, g in error(p, at).items()}

    same(mine.value, o.descend(mean, "WbUc", o.batches(o.SIZES[3]), gradient))


def test_the_pull_brings_clients_together() -> None:
    """A public version penalises the sum of the models in place of their spread."""
    spread = []
    for pull in (0.0, 0.5, 3.0):
        method = methods.build("fedmtl", {"pull": pull}, o.task())
        server = method.init_server(o.key())
        clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in range(K)}
        for _ in range(3):
            server, clients, _, _ = o.round_of(method, server, clients, ROWS)
        mean = received(method, server)
        spread.append(sum(float(tree.square_distance(client.value, mean)) for client in clients.values()))
    assert spread[0] > 2 * spread[1] > 4 * spread[2]


def test_clients_that_are_added_are_counted_from_the_start() -> None:
    """The server's state goes on with more clients: they have the start until they train."""
    few, more = (methods.build("fedmtl", {}, replace(o.task(), clients=count)) for count in (3, 5))
    server = few.init_server(o.key())
    clients = {k: few.init_client(o.key(), torch.tensor(k)) for k in range(5)}
    server, new, _, _ = o.round_of(few, server, {k: clients[k] for k in range(3)}, ROWS)
    clients |= new
    whole = tree.mean(tree.stack([client.value for client in clients.values()]), torch.ones(5))
    for a, b in zip(tree.leaves(received(more, server)), tree.leaves(whole), strict=True):
        close(a, b)


def alone() -> Task:
    return replace(o.task(), clients=1)


@pytest.mark.parametrize("pull", [0.0, 5.0])
def test_a_single_client_is_not_pulled(pull: float) -> None:
    method = methods.build("fedmtl", {"pull": pull}, alone())
    start = trained(o.model_of(OWN[0]))
    new, _, _ = method.local(
        o.one(method, Server(start.value, tree.zeros(start.value)), 0), start, o.data(*ROWS[0]), o.key()
    )
    same(new.value, o.descend(OWN[0], "WbUc", o.batches(o.SIZES[0]), o.whole_gradient(*ROWS[0])))


@pytest.mark.parametrize("pull", [-1, "none", None])
def test_options_out_of_range_are_refused(pull: Any) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedmtl", {"pull": pull})
