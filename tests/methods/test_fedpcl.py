"""FedPCL: rounds by hand in numpy, its options and its traps. There is no record of the released code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close
from scipy.special import log_softmax, softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import Down, Method
from idiolect.core.reduction import reduced
from idiolect.methods.fedpcl import Client, Prototypes
from idiolect.training import trained, untrained

ROWS = o.federation()
BODIES = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def unit(p: o.Params, x: np.ndarray) -> np.ndarray:
    z = o.embed(p, x)
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def has(k: int) -> np.ndarray:
    return np.bincount(ROWS[k][1], minlength=o.CLASSES) > 0


def prototypes(p: o.Params, k: int) -> np.ndarray:
    x, y = ROWS[k]
    return np.array([unit(p, x)[y == c].mean(0) if has(k)[c] else np.full(o.WIDTH, np.nan) for c in range(o.CLASSES)])


def gradient(k: int, sets: list[tuple[float, np.ndarray]], known: np.ndarray, tau: float, over: str = "all") -> Any:
    """Of the weighted sum of contrasts with these sets of prototypes, NaN where one is not known."""
    x, y = ROWS[k]

    def at_rows(p: o.Params, at: np.ndarray) -> o.Params:
        z, label, counts = o.embed(p, x[at]), y[at], known[y[at]]
        length = np.linalg.norm(z, axis=1, keepdims=True)
        u, du = z / length, np.zeros_like(z)
        for weight, P in sets:
            P = np.where(known[:, None], P, 0.0)
            own = np.eye(o.CLASSES, dtype=bool)[label]
            logit = np.where(known & ~own if over == "others" else known, u @ P.T / tau, -np.inf)
            dl = (softmax(logit, 1) - own) * counts[:, None] / len(at)
            du += weight * np.where(known, dl, 0.0) @ P / tau
        dz = (du - (du * u).sum(1, keepdims=True) * u) / length
        return o.embed_back(p, x[at], dz)

    return at_rows


def same_body(got: Any, p: o.Params) -> None:
    close(got["0.weight"], p["W"])
    close(got["0.bias"], p["b"])


def state(k: int, known: bool = True) -> Any:
    P = prototypes(BODIES[k], k)
    own = Prototypes(torch.tensor(np.nan_to_num(P)), torch.tensor(has(k).astype(float)))
    return (trained if known else untrained)(Client(o.body_of(BODIES[k]), own))


@pytest.mark.parametrize("over", ["others", "all"])
@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
def test_rounds_by_hand(tau: float, over: str) -> None:
    """The first round only sends; client 2 comes late, and classes are missing here and there."""
    options = {"temperature": tau} | ({} if over == "all" else {"sum_over": over})
    method = methods.build("fedpcl", options, o.task())
    server, clients = method.init_server(o.key()), {k: state(k, known=False) for k in range(5)}
    bodies, common = dict(BODIES), np.full((o.CLASSES, o.WIDTH), np.nan)
    kept: dict[int, np.ndarray] = {}
    for ids in ((1, 4), (0, 1, 3), (2, 3, 4)):
        known = ~np.isnan(common[:, 0])
        for k in ids:
            if kept:
                sets = [(1.0, common)]
                sets += [(1 / len(kept), np.where(np.isnan(P), common, P)) for P in kept.values()]
                plan = o.batches(len(ROWS[k][1]))
                bodies[k] = o.descend(bodies[k], "Wb", plan, gradient(k, sets, known, tau, over))
        server, new, _, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        kept |= {k: prototypes(bodies[k], k) for k in ids}
        for c in range(o.CLASSES):
            mine = [kept[k][c] for k in ids if has(k)[c]]
            common[c] = np.mean(mine, 0) if mine else common[c]
        for k in ids:
            same_body(new[k].value.body, bodies[k])
            close(new[k].value.own.mean_Cd, np.nan_to_num(kept[k]))
        close(server.common.mean_Cd, np.nan_to_num(common))
        close(server.common.known_C, ~np.isnan(common[:, 0]))
    for k in range(5):
        mine = method.personalise(o.one(method, server, k), clients[k], o.data(*ROWS[k]), o.key())
        logp = method.predict(Down(), mine, torch.tensor(TEST))
        classes = np.flatnonzero(has(k))
        want = log_softmax(unit(bodies[k], TEST) @ kept[k][classes].T / tau, 1)
        close(logp[:, classes], want)
        assert bool((logp[:, np.flatnonzero(~has(k))] < -700).all())


# --- traps ----------------------------------------------------------------------------------------------------------


def test_a_new_client_trains_with_the_prototypes_of_others() -> None:
    method = methods.build("fedpcl", {"temperature": 0.5}, o.task())
    server, _, _, _ = o.round_of(method, method.init_server(o.key()), {k: state(k) for k in (0, 3)}, ROWS)
    down, start = o.one(method, server, 9), state(2, known=False)
    mine = method.personalise(down, start, o.data(*ROWS[2]), o.key())
    common = np.nanmean([prototypes(BODIES[k], k) for k in (0, 3)], 0)
    sets = [(1.0, common)] + [(0.5, np.where(has(k)[:, None], prototypes(BODIES[k], k), common)) for k in (0, 3)]
    known = np.ones(o.CLASSES, bool)
    same_body(mine.value.body, o.descend(BODIES[2], "Wb", o.batches(9), gradient(2, sets, known, 0.5)))


def test_a_class_that_no_participant_has_keeps_its_prototype() -> None:
    method = methods.build("fedpcl", {}, o.task())
    server, _, _, _ = o.round_of(method, method.init_server(o.key()), {0: state(0)}, ROWS)
    lacks = o.LACKS[1]
    before = server.common.mean_Cd[lacks].clone()
    server, _, _, _ = o.round_of(method, server, {1: state(1)}, ROWS)
    close(server.common.mean_Cd[lacks], before)
    close(server.common.known_C, np.ones(o.CLASSES))


def test_samples_of_an_unknown_class_add_nothing() -> None:
    """Client 1 has no row of one class and is the only one that has sent: rows of it leave the body to the decay."""
    method = methods.build("fedpcl", {}, o.task(epochs=1, batch_size=50))
    server, _, _, _ = o.round_of(method, method.init_server(o.key()), {1: state(1)}, ROWS)
    rows = o.data(ROWS[0][0][:6], np.full(6, o.LACKS[1]))
    new, _, info = method.local(o.one(method, server, 0), state(0), rows, o.key())
    close(info["train_loss"], 0.0)
    decay = o.descend(BODIES[0], "Wb", [np.arange(6)], lambda p, rows: {n: np.zeros_like(p[n]) for n in "Wb"})
    same_body(new.value.body, decay)


@pytest.mark.parametrize("over", ["others", "all"])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_one_class_has_nothing_to_be_told_from(over: str, k: int) -> None:
    """Where the rows of all who have sent are of one class, the loss is 0, and the body moves by the decay alone."""
    method = methods.build("fedpcl", {"sum_over": over}, o.task(epochs=1, batch_size=50))
    x = ROWS[k][0]
    rows = o.data(x, np.full(len(x), 2))
    own = Prototypes(torch.zeros(o.CLASSES, o.WIDTH), torch.zeros(o.CLASSES))
    client = untrained(Client(o.body_of(BODIES[k]), own))
    server = method.init_server(o.key())
    client, up, _ = method.local(o.one(method, server, k), client, rows, o.key())
    server, _ = method.aggregate(server, reduced(method.reduce, tree.stack([up])), torch.tensor([k]))
    new, _, info = method.local(o.one(method, server, k), client, rows, o.key())
    close(info["train_loss"], 0.0)
    still = o.descend(BODIES[k], "Wb", [np.arange(len(x))], lambda p, rows: {n: np.zeros_like(p[n]) for n in "Wb"})
    same_body(new.value.body, still)


def test_the_message_does_not_depend_on_the_numbers_of_clients() -> None:
    method = build()
    server, _, _, _ = o.round_of(method, method.init_server(o.key()), {k: state(k) for k in (0, 3, 4)}, ROWS)
    sets = method.send(server, torch.tensor([0])).shared
    close(sets.sent_K, [1, 1, 1, 0, 0])
    for row, k in enumerate((0, 3, 4)):  # by samples: 20, 13, 4
        want = np.where(has(k)[:, None], prototypes(BODIES[k], k), server.common.mean_Cd.numpy())
        close(sets.sets_KCd[row], want)


def build() -> Method:
    return methods.build("fedpcl", {}, o.task())


def test_before_any_round_predictions_are_even() -> None:
    method = build()
    client = method.init_client(o.key(), torch.tensor(0))
    close(method.predict(Down(), client, torch.tensor(TEST)).exp(), np.full((7, o.CLASSES), 0.25))
    assert not tree.leaves(client.value.own)[0].any()


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_it_needs_classes(kind: Any) -> None:
    with pytest.raises(InputError, match=f"fedpcl needs classes.*{kind}"):
        methods.build("fedpcl", {}, replace(o.task(), kind=kind))
