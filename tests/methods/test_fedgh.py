"""FedGH: recorded rounds, rounds by hand, and its traps.

Every array of the record (float32) is compared within 1e-5. "batches" is of a public version without the alias by which
the server's head is a client's own; "pairs" is the authors' program with a server that steps its own head. In the first
round of "pairs" clients train with heads of their own, which are given to the method as what they receive.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Down, Method, Model, Task
from idiolect.core.reduction import Reduced, reduced
from idiolect.training import Batch, batches_of_pairs, pairs, prototypes, train_model, trained, untrained, upload

ROWS = o.federation()
HEAD = o.weights(1)
BODIES = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
MOMENTUM = 0.9  # of the clients in "pairs"
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


def recorded(f: r.Files, own: bool) -> tuple[Method, Task]:
    epochs, lr, server_lr = f["options"].tolist()
    task = r.task(f, SGD(lr, MOMENTUM if own else 0.0, 0.0), int(epochs), drop_last=not own)
    options = {"preset": "official"} if own else {}
    return methods.build("fedgh", options | {"header_lr": server_lr}, task), task


@pytest.mark.parametrize("part", ["batches", "pairs"])
def test_recorded_rounds(part: str) -> None:
    f, own = r.read("fedgh"), part == "pairs"
    method, task = recorded(f, own)
    starts = [r.model(f, "init_clients", k) if own else r.model(f, "init") for k in r.clients(f)]
    server = r.head(f, "init_header/fc2.") if own else starts[0].head
    clients = [untrained(start.body) for start in starts]
    for number in range(r.count(f, part)):
        at, ups = f"{part}/round{number}", []
        ids = f[f"{at}/participants"].tolist()
        for k in ids:
            down = Down(starts[k].head) if own and number == 0 else o.one(method, server, k)
            model, _ = train_model(task, Model(clients[k].value, down.shared), r.training(f, k), o.key())
            r.same(model.head, r.head(f, f"{at}/client/{k}/fc2."))  # the method forgets it
            clients[k], up, _ = method.local(down, clients[k], r.training(f, k), o.key())
            r.same(clients[k].value, r.body(f, f"{at}/client/{k}/fc1"))
            want = f[f"{at}/client/{k}/prototypes"]
            close(up.weight.known_C, ~np.isnan(want[:, 0]))
            close(up.value, np.nan_to_num(want), **r.EXACT)
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.head(f, f"{at}/header/fc2."))
    for k, client in enumerate(clients):
        if f"{part}/final/logits/{k}" in f:
            logp = method.predict(o.one(method, server, k), client, torch.tensor(f[f"data/{k}/x_test"]))
            close(logp, log_softmax(f[f"{part}/final/logits/{k}"], 1), **r.EXACT)


# --- by hand ----------------------------------------------------------------------------------------------------------


def train(k: int) -> o.Params:
    x, y = ROWS[k]
    start = BODIES[k] | {n: HEAD[n] for n in "Uc"}
    return o.descend(start, "WbUc", o.batches(len(y)), o.whole_gradient(x, y))


def class_means(k: int, p: o.Params, over: str) -> dict[int, np.ndarray]:
    x, y = ROWS[k]
    z = o.embed(p, x)
    if over == "samples":
        return {c: z[y == c].mean(0) for c in sorted(set(y))}
    of_batches: dict[int, list[np.ndarray]] = {}
    for at in o.batches(len(y), 1):
        for c in sorted(set(y[at])):
            of_batches.setdefault(c, []).append(z[at][y[at] == c].mean(0))
    return {c: np.mean(of_batches[c], 0) for c in sorted(of_batches)}


def header(points: list[tuple[int, np.ndarray]], lr: float, epochs: int, size: int) -> o.Params:
    y, z = np.array([c for c, _ in points]), np.array([p for _, p in points])

    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        dl = o.error_back(z[at] @ p["U"].T + p["c"], y[at])
        return {"U": dl.T @ z[at], "c": dl.sum(0)}

    start = {n: HEAD[n] for n in "Uc"}
    return o.descend(start, "Uc", o.batches(len(y), epochs, size), gradient, lr=lr, momentum=0.0, decay=0.0)


def same_head(got: Any, p: o.Params) -> None:
    close(got["weight"], p["U"])
    close(got["bias"], p["c"])


def same_body(got: Any, p: o.Params) -> None:
    close(got["0.weight"], p["W"])
    close(got["0.bias"], p["b"])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"header_lr": 0.5, "header_epochs": 3},
    {"preset": "official", "header_lr": 0.1},
    {"pairs_per_step": 4, "header_lr": 0.3, "mean_over": "batches"},
    {"pairs_per_step": 1000, "header_lr": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round_by_hand(options: dict[str, Any]) -> None:
    """Pairs are in the order of the participants and then of the classes, because nothing is shuffled."""
    method = methods.build("fedgh", options, o.task())
    settled = methods.settle("fedgh", options)
    clients = {k: (untrained if k == 4 else trained)(o.body_of(BODIES[k])) for k in o.IDS}
    after, new, up, _ = o.round_of(method, o.head_of(HEAD), clients, ROWS)
    ends, points = {}, []
    for at, k in enumerate(o.IDS):
        ends[k] = train(k)
        same_body(new[k].value, ends[k])
        means = class_means(k, ends[k], settled["mean_over"])
        for c in range(o.CLASSES):
            close(up.value[at, c], means.get(c, np.zeros(o.WIDTH)))
            assert float(up.weight.known_C[at, c]) == (c in means)
        points += means.items()
    size = settled["pairs_per_step"] or o.BATCH
    want = header(points, settled["header_lr"], settled["header_epochs"], size)
    same_head(after, want)
    for k in o.IDS:
        down = o.one(method, after, k)
        mine = method.personalise(down, new[k], o.data(*ROWS[k]), o.key())
        p = {n: ends[k][n] for n in "Wb"} | want
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(p, TEST))


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [0.01, 0.1, 1.0])
def test_the_server_moves_its_head(lr: float) -> None:
    """The released server steps another network's weights."""
    method = methods.build("fedgh", {"header_lr": lr}, o.task())
    clients = {k: trained(o.body_of(BODIES[k])) for k in o.IDS}
    after = o.round_of(method, o.head_of(HEAD), clients, ROWS)[0]
    assert r.apart(after, o.head_of(HEAD)) > 1e-3 * lr


@pytest.mark.parametrize("k", [2, 4, 99])
def test_a_client_that_has_not_trained_trains_its_body_under_the_head(k: int) -> None:
    method = methods.build("fedgh", {}, o.task())
    down = o.one(method, o.head_of(HEAD), k)
    mine = method.personalise(down, untrained(o.body_of(BODIES[2])), o.data(*ROWS[2]), o.key())
    same_body(mine.value, train(2))
    kept = trained(o.body_of(BODIES[2]))
    assert tree.same(method.personalise(down, kept, o.data(*ROWS[2]), o.key()), kept)


def test_messages_know_nothing_of_the_body() -> None:
    method = methods.build("fedgh", {}, o.task())
    down = method.send(method.init_server(o.key()), torch.tensor([0]))
    assert [tuple(a.shape) for a in tree.leaves(down)] == [(o.CLASSES, o.WIDTH), (o.CLASSES,)]
    up = method.local(o.one(method, o.head_of(HEAD), 0), trained(o.body_of(BODIES[0])), o.data(*ROWS[0]), o.key())[1]
    assert tuple(up.value.shape) == (o.CLASSES, o.WIDTH)


# --- pairs ------------------------------------------------------------------------------------------------------------


def uploads(ids: list[int]) -> Reduced:
    draw = np.random.default_rng(1)
    every = [upload(torch.tensor(draw.normal(size=(4, 2))), torch.tensor(draw.permutation([1.0, 1, 1, 0])), o.key(k))
             for k in range(6)]  # fmt: skip
    chosen = tree.stack([every[k] for k in ids])
    return Reduced(chosen.value, (), chosen.weight)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3], [5, 2], [4]])
def test_shuffled_pairs_do_not_depend_on_the_numbers_of_the_clients(ids: list[int]) -> None:
    p, y = pairs(uploads(ids), shuffle=True)
    q, z = pairs(uploads(ids[::-1]), shuffle=True)
    assert torch.equal(p, q)
    assert torch.equal(y, z)
    ordered, classes = pairs(uploads(ids), shuffle=False)
    assert len(ids) == 1 or not torch.equal(p, ordered)
    assert sorted(map(tuple, p.tolist())) == sorted(map(tuple, ordered.tolist()))
    assert classes.tolist() == [c for k in ids for c in np.flatnonzero(uploads([k]).weight_m.known_C[0])]


def test_places_differ_between_rounds_and_classes() -> None:
    known = torch.ones(50)
    places = [upload(torch.zeros(50, 2), known, o.key(k)).weight.place_C for k in range(3)]
    assert len(set(torch.cat(places).tolist())) == 150
    assert float(torch.cat(places).min()) >= 0
    assert float(torch.cat(places).max()) < 1


@pytest.mark.parametrize(("count", "size", "passes"), [(7, 3, 2), (4, 4, 1), (5, 100, 3), (1, 1, 1)])
def test_batches_of_pairs(count: int, size: int, passes: int) -> None:
    plan = batches_of_pairs(count, size, passes)
    assert [b.at_B.tolist() for b in plan] == [a.tolist() for a in o.batches(count, passes, size)]
    assert len({b.step for b in plan}) == len(plan)


@pytest.mark.parametrize("over", ["samples", "batches"])
def test_samples_that_do_not_train_are_in_no_prototype(over: Any) -> None:
    z, y = torch.tensor([[1.0], [3.0], [8.0], [torch.nan]]), torch.tensor([0, 0, 1, 1])
    plan = [Batch(torch.tensor([0, 2]), torch.ones(2), 0), Batch(torch.tensor([1, 2]), torch.tensor([1.0, 0.0]), 1)]
    mean, known = prototypes(z, y, plan, 3, over)
    assert mean.tolist() == [[2.0], [8.0], [0.0]]
    assert known.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("options", [{"header_lr": 0}, {"header_epochs": 0}, {"pairs_per_step": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedgh", options)


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_other_tasks_are_refused(kind: Any) -> None:
    with pytest.raises(InputError, match="method fedgh needs classes"):
        methods.build("fedgh", {}, replace(o.task(), kind=kind))
