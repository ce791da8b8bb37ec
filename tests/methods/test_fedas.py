"""FedAS: recorded rounds, a round by hand, its options and its traps.

The record's set "copied" is PFLlib's program: every array of it is compared, within 1e-5. The record's set "released"
is the authors' program, whose clients align the server's body one after another and drop short batches. It is compared
from the aligned bodies on: training, traces, the server's mean, and the predictions.
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

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Method
from idiolect.core.network import Model
from idiolect.training import trained, untrained

ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
RULE, EPOCHS = SGD(0.05, 0.0, 0.0), 2  # of the record


def recorded(f: r.Files, drop_last: bool = False, **options: Any) -> Method:
    return methods.build("fedas", options, r.task(f, RULE, EPOCHS, drop_last=drop_last))


def test_recorded_rounds() -> None:
    f = r.read("fedas")
    method = recorded(f)
    server, clients = r.model(f, "init"), [untrained(r.model(f, "init")) for _ in r.clients(f)]
    for number in range(r.count(f, "copied")):
        at = f"copied/round{number}"
        ids = r.below(f, f"{at}/aligned")
        stays = recorded(f, alignment_epochs=0)
        for k in ids:  # from the recorded aligned body, training alone leads to the recorded client
            body = r.body(f, f"{at}/aligned/{k}/fc1")
            client = stays.local(o.one(stays, Model(body, server.head), k), clients[k], r.training(f, k), o.key())[0]
            r.same(client.value, r.model(f, f"{at}/clients", k))
        server, clients, ups = replay.round_of(method, server, clients, f, ids)
        for k in r.clients(f):
            r.same(clients[k].value, r.model(f, f"{at}/clients", k))
            close(trace(f, r.model(f, f"{at}/clients", k), k), f[f"{at}/fisher"][k], **r.EXACT)
        close([float(up.weight) for up in ups], f[f"{at}/fisher"][ids], **r.EXACT)
        r.same(server, r.model(f, f"{at}/server"))
    for k in r.clients(f):
        down = o.one(method, server, k)
        mine = method.personalise(down, clients[k], r.training(f, k), o.key())
        right = replay.logits_agree(method, down, mine, f, k, "copied/final/logits")
        assert right == f["copied/final/correct"][k]


def trace(f: r.Files, m: Model, k: int, size: int = 7, drop_last: bool = False) -> float:
    """From the equation, with gradients by hand (the record's network: a slope of 0)."""
    x, y = r.rows(f, k)
    total = 0.0
    for at in o.batches(len(y), 1, size, drop_last=drop_last):
        a = x[at] @ m.body["0.weight"].numpy().T + m.body["0.bias"].numpy()
        z = np.maximum(a, 0)
        dl = o.error_back(z @ m.head["weight"].numpy().T + m.head["bias"].numpy(), y[at])
        da = dl @ m.head["weight"].numpy() * (a > 0)
        total += sum(float((g**2).sum()) for g in (dl.T @ z, dl.sum(0), da.T @ x[at], da.sum(0)))
    return total


def test_the_released_program_from_its_aligned_bodies_on() -> None:
    f = r.read("fedas")
    method = recorded(f, drop_last=True, alignment_epochs=0)
    clients = [untrained(r.model(f, "init")) for _ in r.clients(f)]
    for number in range(r.count(f, "released")):
        at = f"released/round{number}"
        ids = r.below(f, f"{at}/aligned")
        models, weights = [], []
        for k in ids:
            body = r.body(f, f"{at}/aligned/{k}/fc1")
            down = o.one(method, Model(body, r.head(f, "init/fc2.")), k)
            clients[k], up, _ = method.local(down, clients[k], r.training(f, k), o.key())
            models.append(tree.add(down.shared, up.value))
            weights.append(up.weight)
        for k in r.clients(f):
            r.same(clients[k].value, r.model(f, f"{at}/clients", k))
            close(trace(f, clients[k].value, k, drop_last=True), f[f"{at}/fisher"][k], **r.EXACT)
        close(torch.stack(weights), f[f"{at}/fisher"][ids], **r.EXACT)
        r.same(tree.mean(tree.stack(models), torch.stack(weights)), r.model(f, f"{at}/server"))
    for k in r.clients(f):
        down = o.one(method, r.model(f, "init"), k)
        right = replay.logits_agree(method, down, clients[k], f, k, "released/final/logits")
        assert right == f["released/final/correct"][k]


# --- by hand --------------------------------------------------------------------------------------------------------


def gradient_of_alignment(x: np.ndarray, y: np.ndarray, mean: np.ndarray) -> Any:
    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        z, dz = o.embed(p, x[at]), np.zeros((len(at), o.WIDTH))
        for c in np.unique(y[at]):
            mine = y[at] == c
            dz[mine] = 2 * (z[mine] - mean[c]) / (mine.sum() * o.WIDTH)
        return o.embed_back(p, x[at], dz)

    return gradient


def by_hand(k: int, start: o.Params, own: o.Params, lr: float, epochs: int, size: int, fisher: int) -> Any:
    x, y = ROWS[k]
    mean = o.class_means(o.embed(own, x), y, np.zeros((o.CLASSES, o.WIDTH)))
    plan = o.batches(len(y), epochs, size)
    body = o.descend(start, "Wb", plan, gradient_of_alignment(x, y, mean), lr, 0.0, 0.0)
    model = o.descend(own | {n: body[n] for n in "Wb"}, "WbUc", o.batches(len(y)), o.whole_gradient(x, y))
    squares = [sum((g**2).sum() for g in o.whole_gradient(x, y)(model, at).values())
               for at in o.batches(len(y), 1, fisher)]  # fmt: skip
    return model, sum(squares)


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, "fisher"),
        ({"alignment_lr": 0.3, "alignment_epochs": 2, "alignment_batch": 5}, "fisher"),
        ({"fisher_batch": 1, "alignment_batch": 7}, "fisher"),
        ({"fisher_batch": 50}, "fisher"),
        ({"weighting": "samples", "alignment_lr": 0.1}, "samples"),
        ({"weighting": "uniform", "alignment_epochs": 0}, "uniform"),
    ],
)
def test_round_by_hand(options: dict[str, Any], weights: str) -> None:
    method = methods.build("fedas", options, o.task())
    states = {k: trained(o.model_of(OWN[k])) for k in o.IDS}
    server, clients, _, _ = o.round_of(method, o.model_of(START), states, ROWS)
    how = (options.get("alignment_lr", 0.01), options.get("alignment_epochs", 1), options.get("alignment_batch", 16))
    want = {k: by_hand(k, START, OWN[k], *how, options.get("fisher_batch", o.BATCH)) for k in o.IDS}
    for k in o.IDS:
        same(clients[k].value, want[k][0])
        down = o.one(method, o.model_of(OWN[0]), k)  # any other body as the received one
        kept = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, kept, torch.tensor(TEST)), o.log_probability(want[k][0], TEST))
    weight = {"fisher": [want[k][1] for k in o.IDS], "samples": [o.SIZES[k] for k in o.IDS]}
    mean = {n: o.average([want[k][0][n] for k in o.IDS], weight.get(weights, [1.0] * len(o.IDS))) for n in START}
    same(server, mean)


# --- traps ----------------------------------------------------------------------------------------------------------


def test_prototypes_are_those_of_the_own_body_over_all_rows() -> None:
    """With the received body equal to the own one, alignment still moves it: towards the class means of all rows."""
    method = methods.build("fedas", {"alignment_lr": 0.3}, o.task(epochs=0))
    client, up, _ = method.local(
        o.one(method, o.model_of(OWN[0]), 0), trained(o.model_of(OWN[0])), o.data(*ROWS[0]), o.key()
    )
    want = by_hand_aligned(OWN[0], OWN[0], 0.3)
    close(client.value.body["0.weight"], want["W"])
    assert float(up.value.body["0.weight"].abs().max()) > 1e-3


def by_hand_aligned(start: o.Params, own: o.Params, lr: float) -> o.Params:
    x, y = ROWS[0]
    mean = o.class_means(o.embed(own, x), y, np.zeros((o.CLASSES, o.WIDTH)))
    return o.descend(start, "Wb", o.batches(len(y), 1, 16), gradient_of_alignment(x, y, mean), lr, 0.0, 0.0)


def test_a_single_sample_is_its_own_prototype() -> None:
    """From its own body it is at the minimum: nothing moves."""
    method = methods.build("fedas", {"alignment_lr": 0.3}, o.task(epochs=0))
    one = o.data(ROWS[0][0][:1], ROWS[0][1][:1])
    down = o.one(method, o.model_of(OWN[0]), 0)
    client = method.local(down, trained(o.model_of(OWN[0])), one, o.key())[0]
    same(client.value, OWN[0])


def test_traces_of_zero_weigh_alike() -> None:
    """Samples that are predicted with certainty have no gradient: the mean is then the plain one."""
    sure = START | {"U": np.zeros_like(START["U"]), "c": np.array([0.0, 2000.0, 0.0, 0.0])}
    method = methods.build("fedas", {}, o.task(epochs=1, optimiser=SGD(0.1, 0.0, 0.0)))
    rows = {k: (ROWS[k][0], np.ones(len(ROWS[k][1]), int)) for k in (0, 1)}
    states = {k: trained(o.model_of(OWN[k] | {n: sure[n] for n in "Uc"})) for k in rows}
    server, clients, ups, _ = o.round_of(method, o.model_of(START), states, rows)
    assert float(ups.weight.max()) < 1e-20
    r.same(server, tree.map(lambda a, b: (a + b) / 2, clients[0].value, clients[1].value))


def test_absent_client_keeps_its_model_and_a_new_one_trains_what_it_receives() -> None:
    method = methods.build("fedas", {}, o.task())
    down = o.one(method, o.model_of(START), 2)
    absent = method.personalise(down, trained(o.model_of(OWN[2])), o.data(*ROWS[2]), o.key())
    same(absent.value, OWN[2])
    new = method.personalise(down, untrained(o.model_of(OWN[2])), o.data(*ROWS[2]), o.key())
    x, y = ROWS[2]
    same(new.value, o.descend(START, "WbUc", o.batches(len(y)), o.whole_gradient(x, y)))


def test_heads_may_stay() -> None:
    """Then a new client's head is the common initial one, and nothing else changes."""
    method, usual = (methods.build("fedas", {"newcomer_head": how}, o.task()) for how in ("own", "average"))
    start, states = o.model_of(START)._replace(head={}), {k: trained(o.model_of(OWN[k])) for k in o.IDS}
    server, clients, ups, _ = o.round_of(method, start, states, ROWS)
    other, others, _, _ = o.round_of(usual, o.model_of(START), states, ROWS)
    assert not ups.value.head
    r.same(server.body, other.body)
    assert tree.same([clients[k].value for k in o.IDS], [others[k].value for k in o.IDS])
    new = method.personalise(o.one(method, start, 2), untrained(o.model_of(OWN[2])), o.data(*ROWS[2]), o.key())
    x, y = ROWS[2]
    head = START | {n: OWN[2][n] for n in "Uc"}
    same(new.value, o.descend(head, "WbUc", o.batches(len(y)), o.whole_gradient(x, y)))


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_it_needs_classes(kind: Any) -> None:
    with pytest.raises(InputError, match=f"fedas needs classes.*{kind}"):
        methods.build("fedas", {}, replace(o.task(), kind=kind))
