"""FedKD: recorded rounds, a round by hand, its options and its traps.

The record's set "authors" is what the released code computes where it can run, its set "pfllib" PFLlib's program. Every
array of both is compared, within 1e-5, and the ranks exactly. In "pfllib" the maps of the clients start apart.
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
from scipy.special import log_softmax, softmax
from torch import Tensor

from idiolect import methods, models
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Adam, Method
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.methods import fedkd
from idiolect.training import trained, untrained

ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
MAPS = {k: 0.5 * np.random.default_rng(k).normal(size=(o.WIDTH, o.WIDTH)) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
ENERGY = {"energy_start": 0.85, "energy_end": 0.97}  # of the record


def ranks(model: Model) -> list[int]:
    """Of the matrices of body and head."""
    return [int(torch.linalg.matrix_rank(w)) for w in (model.body["0.weight"], model.head["weight"])]


@pytest.mark.parametrize(
    ("part", "options"), [("authors", {"preset": "official"}), ("pfllib", {"preset": "pfllib", "mentee_lr": 0.03})]
)
def test_recorded_rounds(part: str, options: dict[str, Any]) -> None:
    f = r.read("fedkd")
    method = methods.build("fedkd", ENERGY | options, r.task(f, SGD(0.05, 0.0, 0.0), 2))
    server, authors = r.model(f, "init"), part == "authors"
    maps = [() if authors else torch.tensor(f["init/W_h"][k]) for k in r.clients(f)]
    clients = [untrained(fedkd.Own(server, W)) for W in maps]
    rounds = r.count(f, part)
    for number in range(rounds):
        at = f"{part}/round{number}"
        if not authors:
            for k in r.clients(f):
                r.same(o.one(method, server, k).shared, r.model(f, f"{at}/received", k))
        before, old = server, f[f"{part}/round{number - 1}/mentor/fc1.weight"] if number else f["init/fc1.weight"][None]
        ids = r.changed(f[f"{at}/mentor/fc1.weight"], old)
        server, clients, ups = replay.round_of(method, server, clients, f, ids, number=number + 1, rounds=rounds)
        for row, (k, up) in enumerate(zip(ids, ups, strict=True)):
            close(up.weight.energy, f[f"{at}/energy"], rtol=1e-6)
            mentee = r.model(f, f"{at}/mentee", row)
            step = tree.sub(mentee, before) if authors else mentee
            r.same(up.value, fedkd.compressed(step, up.weight.energy)[0])
            assert ranks(up.value) == f[f"{at}/rank_up"][row].tolist()
            r.same(clients[k].value.mentor, r.model(f, f"{at}/mentor", k))
        mean = reduced(method.reduce, tree.stack(ups)).value
        if authors:
            r.same(tree.sub(server, before), r.model(f, f"{at}/aggregated_update"))
            r.same(server, r.model(f, f"{at}/received_next"))
        else:
            r.same(mean, r.model(f, f"{at}/server"))
            assert ranks(server) == f[f"{at}/rank_down"].tolist()
            for k in r.clients(f):
                close(clients[k].value.projection, f[f"{at}/W_h"][k], **r.EXACT)
                r.same(clients[k].value.mentor, r.model(f, f"{at}/mentor", k))
    for k in r.clients(f):
        replay.logits_agree(method, o.one(method, server, k), clients[k], f, k, f"{part}/final/logits")


# --- by hand --------------------------------------------------------------------------------------------------------


def gradient(x: np.ndarray, y: np.ndarray, mean: bool, learned: bool) -> Any:
    """Of the one loss, in mentor t, mentee s and map M."""

    def at_rows(t: o.Params, s: o.Params, M: np.ndarray, at: np.ndarray) -> tuple[o.Params, o.Params, np.ndarray]:
        n, c = len(at), 1 / o.CLASSES if mean else 1.0
        zt, zs = o.embed(t, x[at]), o.embed(s, x[at])
        ot, os = zt @ t["U"].T + t["c"], zs @ s["U"].T + s["c"]
        pt, ps, gap = softmax(ot, 1), softmax(os, 1), log_softmax(ot, 1) - log_softmax(os, 1)
        apart = zt - zs @ M.T
        errors = o.errors(ot, y[at]).mean() + o.errors(os, y[at]).mean()
        extra = c * ((pt - ps) * gap).sum(1).mean() + 2 * (apart**2).mean()
        scale, share = 1 - extra / errors**2, 1 / errors

        def logit_slope(p: np.ndarray, q: np.ndarray, own: np.ndarray, logit: np.ndarray) -> np.ndarray:
            by_kl = c * (p * (own - (p * own).sum(1, keepdims=True)) + p - q) / n
            return scale * o.error_back(logit, y[at]) + share * by_kl

        dt, ds = logit_slope(pt, ps, gap, ot), logit_slope(ps, pt, -gap, os)
        hidden = share * 2 * 2 * apart / apart.size
        gt = {"U": dt.T @ zt, "c": dt.sum(0)} | o.embed_back(t, x[at], dt @ t["U"] + hidden)
        gs = {"U": ds.T @ zs, "c": ds.sum(0)} | o.embed_back(s, x[at], ds @ s["U"] - hidden @ M)
        return gt, gs, -hidden.T @ zs if learned else np.zeros_like(M)

    return at_rows


def by_hand(
    k: int, t: o.Params, s: o.Params, M: np.ndarray, mean: bool = False, learned: bool = True, slower: float = 1.0
) -> tuple[o.Params, o.Params, np.ndarray]:
    x, y = ROWS[k]
    slope, speed = gradient(x, y, mean, learned), dict[str, Any]()

    def step(name: str, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        speed[name] = o.RULE.momentum * speed.get(name, 0.0) + g + o.RULE.weight_decay * w
        return w - o.RULE.lr * speed[name]

    for at in o.batches(len(y)):
        gt, gs, gM = slope(t, s, M, at)
        t = {n: step(f"t{n}", t[n], gt[n]) for n in t}
        s = {n: step(f"s{n}", s[n], slower * gs[n]) for n in s}
        M = step("M", M, gM) if learned else M
    return t, s, M


def low(a: np.ndarray, energy: float) -> np.ndarray:
    if a.ndim < 2:
        return a
    u, s, v = np.linalg.svd(a, full_matrices=False)
    rank = next((q for q in range(1, len(s)) if (s[:q] ** 2).sum() > energy * (s**2).sum()), len(s))
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


@pytest.mark.parametrize(
    ("options", "energy"),
    [
        ({}, 0.95 + 0.4 * 0.03),
        ({"divergence": "mean", "energy_start": 0.5, "energy_end": 0.9}, 0.5 + 0.4 * 0.4),
        ({"projection": "identity", "energy_start": 0.9, "energy_end": 0.7}, 0.9 - 0.4 * 0.2),
        ({"compress": "weights", "energy_start": 0.8, "energy_end": 0.9}, 0.8 + 0.2 * 0.1),
        ({"mentee_lr": 0.02, "energy_start": 1.0, "energy_end": 1.0}, 1.0),
    ],
)
def test_round_by_hand(options: dict[str, Any], energy: float) -> None:
    """The second of five rounds."""
    method, learned = methods.build("fedkd", options, o.task()), options.get("projection") != "identity"
    how = (options.get("divergence") == "mean", learned, options.get("mentee_lr", o.RULE.lr) / o.RULE.lr)
    clients, ups, steps = {}, [], []
    for k in o.IDS:
        own = fedkd.Own(o.model_of(OWN[k]), torch.tensor(MAPS[k]) if learned else ())
        data = replay.at(o.data(*ROWS[k]), 2, 5)
        clients[k], up, _ = method.local(o.one(method, o.model_of(START), k), trained(own), data, o.key())
        ups.append(up)
        mentor, s, M = by_hand(k, OWN[k], START, MAPS[k] if learned else np.eye(o.WIDTH), *how)
        same(clients[k].value.mentor, mentor)
        if learned:
            close(clients[k].value.projection, M)
        updates = options.get("compress") != "weights"
        steps.append({n: low(s[n] - START[n] if updates else s[n], energy) for n in s})
        same(up.value, steps[-1])
        close(up.weight.energy, energy)
        down = o.one(method, o.model_of(OWN[0]), k)
        kept = method.personalise(down, clients[k], data, o.key())
        close(method.predict(down, kept, torch.tensor(TEST)), o.log_probability(mentor, TEST))
    server, _ = method.aggregate(o.model_of(START), reduced(method.reduce, tree.stack(ups)), torch.tensor(o.IDS))
    mean = {n: low(np.mean([s[n] for s in steps], 0), energy) for n in START}
    same(server, {n: START[n] + mean[n] if updates else mean[n] for n in START})


# --- low rank -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("energy", "rank"), [(0.3, 1), (0.49, 1), (0.51, 2), (0.81, 2), (0.83, 3), (1.0, 3)])
def test_the_least_rank_that_is_more_than_the_share(energy: float, rank: int) -> None:
    """The squares are 6.25, 4 and 2.25, so that shares are 0.5, 0.82 and 1; a matrix of 30 numbers is the most."""
    u, v = (np.linalg.qr(np.random.default_rng(k).normal(size=(n, 3)))[0] for k, n in ((0, 5), (1, 6)))
    got, numbers = fedkd.low_rank(torch.tensor((u * [2.5, 2.0, 1.5]) @ v.T), torch.tensor(energy))
    close(got, (u[:, :rank] * [2.5, 2.0, 1.5][:rank]) @ v[:, :rank].T, atol=1e-12)
    close(numbers, min(rank * (5 + 6 + 1), 30))


def test_nothing_that_moved_is_sent_as_nothing() -> None:
    low_0, _ = fedkd.low_rank(torch.zeros(4, 3), torch.tensor(0.9))
    close(low_0, np.zeros((4, 3)))


@pytest.mark.parametrize("bad", [[0.0, float("nan")], [float("inf"), 1.0], [float("-inf"), float("inf")]])
def test_numbers_that_are_not_finite_stay_so(bad: list[float]) -> None:
    """So that the engine says who diverged; the decomposition itself would stop with words of its own."""
    a = torch.tensor([bad, [1.0, 2.0], [3.0, 4.0]])
    got, _ = fedkd.low_rank(a, torch.tensor(0.9))
    assert not bool(got.isfinite().all())
    many, _ = torch.func.vmap(fedkd.low_rank, in_dims=(0, None))(torch.stack([a, torch.ones(3, 2)]), torch.tensor(0.9))
    assert not bool(many[0].isfinite().all())
    close(many[1], np.ones((3, 2)), atol=1e-12)


def test_a_rate_that_is_too_high_is_seen_in_the_upload() -> None:
    method = methods.build("fedkd", {}, o.task(epochs=9, optimiser=SGD(1e9, 0.0, 0.0)))
    down, data = o.one(method, o.model_of(START), 0), replay.at(o.data(*ROWS[0]), 1, 5)
    _, up, _ = method.local(down, method.init_client(o.key(), torch.tensor(0)), data, o.key())
    assert tree.not_finite(up) is not None


def test_a_kernel_is_one_matrix() -> None:
    a = np.random.default_rng(3).normal(size=(4, 3, 2, 2))
    got, _ = fedkd.low_rank(torch.tensor(a), torch.tensor(0.7))
    close(got, low(a.reshape(4, 12), 0.7).reshape(a.shape))


# --- traps ----------------------------------------------------------------------------------------------------------


def test_absent_client_keeps_its_mentor_and_a_new_one_starts_at_the_mentee() -> None:
    method = methods.build("fedkd", {}, o.task())
    down, data = o.one(method, o.model_of(START), 2), o.data(*ROWS[2])
    own = fedkd.Own(o.model_of(OWN[2]), torch.tensor(MAPS[2]))
    same(method.personalise(down, trained(own), data, o.key()).value.mentor, OWN[2])
    same(method.personalise(down, untrained(own), data, o.key()).value.mentor, by_hand(2, START, START, MAPS[2])[0])


def second(**options: Any) -> Method:
    network = models.build("mlp:hidden=9", (o.INPUTS,), o.CLASSES)
    return methods.build("fedkd", options, replace(o.task(), network=network))


@pytest.mark.parametrize("width", [3, 9, 14])
def test_the_mentee_may_be_another_network(width: int) -> None:
    method = second(shared_model=f"mlp:hidden={width}")
    server, client = method.init_server(o.key()), method.init_client(o.key(), torch.tensor(0))
    assert server.head["weight"].shape == (o.CLASSES, width)
    assert client.value.projection.shape == (9, width)
    x, y = ROWS[0]
    down, data = o.one(method, server, 0), replay.at(o.data(x, y), 1, 5)
    after, up, info = method.local(down, client, data, o.key())
    assert tree.same_form(up.value, server)
    assert 0 < float(info["sent_share"]) <= 1
    assert error(method.predict(down, after, torch.tensor(x)), y) < error(
        method.predict(down, client, torch.tensor(x)), y
    )


def error(logp: Tensor, y: np.ndarray) -> float:
    return -float(logp[torch.arange(len(y)), torch.tensor(y)].mean())


def test_what_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"features of 9 and of 3 dimensions.*choose a shared_model"):
        second(shared_model="mlp:hidden=3", projection="identity")
    with pytest.raises(InputError, match="fedkd needs SGD"):
        methods.build("fedkd", {"mentee_lr": 0.1}, o.task(optimiser=Adam()))
    for kind in ("regression", "multilabel"):
        with pytest.raises(InputError, match=f"fedkd needs classes.*{kind}"):
            methods.build("fedkd", {}, replace(o.task(), kind=kind))
