"""HypCluster: a round by hand, what a collapse looks like, and three recorded rounds of FedJAX's HypCluster.

Parity: every array of parity/hypcluster.npz within 1e-5 (float32 there): the models after each round, the cluster that
each participant chose, the final training losses of all clients under all models, the choice by them and the accuracies
on the test rows. Nothing is left out: the quirk of filled-up last batches does not show in the file, whose clients have
whole batches.
"""

from __future__ import annotations

import numpy as np
import oracle as o
import pytest
import recorded as rec
import torch
from oracle import close, data, key, one

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.methods import hypcluster as module
from idiolect.training import row_losses

EXACT = {"rtol": 0, "atol": 1e-5}
ROWS = o.federation()
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def stacked(parts: list[o.Params]) -> module.Server:
    return module.Server(tree.stack([o.model_of(p) for p in parts]))


def fit_of(parts: list[o.Params], client: int) -> np.ndarray:
    """Mean cross-entropy of the client's rows under each model."""
    x, y = ROWS[client]
    return np.array([o.errors(o.embed(p, x) @ p["U"].T + p["c"], y).mean() for p in parts])


def same(models: Model, parts: list[o.Params]) -> None:
    for c, p in enumerate(parts):
        want = o.model_of(p)
        for got, leaf in zip(tree.leaves(tree.rows(models, c)), tree.leaves(want), strict=True):
            close(got, leaf)


@pytest.mark.parametrize("clusters", [1, 3, 5])
def test_round_is_a_mean_by_rows_within_each_cluster(clusters: int) -> None:
    parts = [o.weights(s) for s in (3, 1, 6, 2, 4)[:clusters]]
    method = methods.build("hypcluster", {"clusters": clusters}, o.task())
    server, clients, up, info = o.round_of(method, stacked(parts), dict.fromkeys(o.IDS, ()), ROWS)
    choice = {k: int(np.argmin(fit_of(parts, k))) for k in o.IDS}
    trained = {}
    for at, k in enumerate(o.IDS):
        x, y = ROWS[k]
        trained[k] = o.descend(parts[choice[k]], "WbUc", o.batches(len(y)), o.whole_gradient(x, y))
        close(up.weight[at], np.eye(clusters)[choice[k]] * o.SIZES[k])
    want = []
    for c, p in enumerate(parts):
        who = [k for k in o.IDS if choice[k] == c]
        mean = {n: o.average([trained[k][n] for k in who], [o.SIZES[k] for k in who]) for n in p} if who else p
        want.append(mean)
    same(server.models, want)
    close(info["cluster_size"], [list(choice.values()).count(choice[k]) for k in o.IDS])
    assert not tree.leaves(clients)
    if clusters > 1:
        assert 1 < len(set(choice.values())) < len(o.IDS), "the clients should share some models and not others"
    for k in range(len(o.SIZES)):  # the choice is made anew, absent clients and new ones included
        down = one(method, server, k if k in o.IDS else 1000)
        client = method.personalise(down, (), data(*ROWS[k]), key())
        best = want[int(np.argmin(fit_of(want, k)))]
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(best, TEST))


def test_a_model_that_nobody_chose_stays_to_the_bit() -> None:
    good, bad = o.weights(1), {n: 50 * w for n, w in o.weights(2).items()}
    server = stacked([bad, good, bad])
    method = methods.build("hypcluster", {}, o.task())
    new, _, _, info = o.round_of(method, server, dict.fromkeys(o.IDS, ()), ROWS)
    for c in (0, 2):
        for a, b in zip(tree.leaves(tree.rows(new, c)), tree.leaves(tree.rows(server, c)), strict=True):
            assert torch.equal(a, b)
    assert info["cluster_size"].tolist() == [4.0] * 4, "a collapse is to be seen"


def test_the_first_of_equal_models_is_chosen() -> None:
    method = methods.build("hypcluster", {}, o.task())
    down = one(method, stacked([o.weights(1)] * 3), 0)
    assert int(method.local(down, (), data(*ROWS[0]), key())[2]["cluster"]) == 0


def test_starts_differ() -> None:
    models = methods.build("hypcluster", {"clusters": 3}, o.task()).init_server(key()).models
    for leaf in tree.leaves(models):
        assert not any(torch.equal(leaf[a], leaf[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_no_clusters_is_refused() -> None:
    with pytest.raises(InputError, match="clusters=0"):
        methods.settle("hypcluster", {"clusters": 0})


def test_recorded_rounds() -> None:
    f = rec.read("hypcluster")
    clusters = range(len(f["init/fc1.weight"]))
    task = rec.task(f, SGD(lr=0.1, momentum=0, weight_decay=0), 2, 0.01)
    method = methods.build("hypcluster", {"clusters": len(clusters)}, task)
    server = module.Server(rec.model(f, "init"))
    for r in range(rec.count(f)):
        ids = f[f"round{r}/participants"].tolist()
        results = [method.local(one(method, server, k), (), rec.training(f, k), key(r, k)) for k in ids]
        assert [int(info["cluster"]) for _, _, info in results] == f[f"round{r}/cluster"].tolist()
        ups = tree.stack([up for _, up, _ in results])
        server, _ = method.aggregate(server, reduced(method.reduce, ups), torch.tensor(ids))
        rec.same(server.models, rec.model(f, f"round{r}/models"))
    for k in rec.clients(f):
        models, rows = [tree.rows(server.models, c) for c in clusters], rec.training(f, k)
        close([float(row_losses(task, m, rows).mean()) for m in models], f["final/train_loss"][k], **EXACT)
        down = one(method, server, k)
        client = method.personalise(down, (), rows, key())
        for got, want in zip(tree.leaves(client), tree.leaves(models[f["final/cluster"][k]]), strict=True):
            assert torch.equal(got, want)
        x, y = rec.rows(f, k, "_test")
        right = method.predict(down, client, torch.tensor(x)).argmax(1).numpy() == y
        close(right.mean(), f["final/accuracy"][k], rtol=1e-6)
