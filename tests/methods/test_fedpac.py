"""FedPAC: a round by hand, its quadratic programme by cvxpy, its options and its traps."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import oracle as o
import pytest
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import Up
from idiolect.core.reduction import reduced
from idiolect.methods.fedpac import Counts, Report, Server

ROWS = o.federation()
BODY = o.weights(2)
HEADS = [o.weights(10 + k) for k in range(len(o.SIZES))]
CENTROIDS = np.random.default_rng(3).normal(size=(o.CLASSES, o.WIDTH))
KNOWN = np.array([1.0, 1.0, 0.0, 1.0])  # nobody has ever seen class 2
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
SOLVER = {"rtol": 0, "atol": 1e-6}  # of cvxpy's interior point


def state(known: np.ndarray = KNOWN) -> Server:
    heads = tree.stack([o.head_of(h) for h in HEADS])
    start = o.head_of(o.weights(99))
    return Server(o.body_of(BODY), heads, start, torch.tensor(CENTROIDS * known[:, None]), torch.tensor(known))


def build(**options: Any) -> Any:
    return methods.build("fedpac", options, o.task())


def local(
    k: int, *, alignment: float = 1.0, known: np.ndarray = KNOWN, head_lr: float = 0.1, head_epochs: int = 1,
    align_first_round: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """A client's round from the equations."""
    x, y = ROWS[k]
    n = len(y)
    p = {"W": BODY["W"], "b": BODY["b"], "U": HEADS[k]["U"], "c": HEADS[k]["c"]}
    z = o.embed(p, x)
    counts = np.bincount(y, minlength=o.CLASSES)
    mean = o.class_means(z, y, np.zeros((o.CLASSES, o.WIDTH)))
    h = counts[:, None] / n * mean
    V = sum(
        counts[c] / n * (z[y == c] ** 2).sum(1).mean() - (counts[c] / n) ** 2 * (mean[c] ** 2).sum()
        for c in range(o.CLASSES) if counts[c]
    )  # fmt: skip
    p = o.descend(p, "Uc", o.batches(n, head_epochs), o.head_gradient(x, y), lr=head_lr)
    target = np.where(known[:, None] > 0, CENTROIDS, mean)
    pull = alignment if known.any() or align_first_round else 0.0
    losses: list[float] = []

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        z = o.embed(p, x[rows])
        losses.extend(o.errors(z @ p["U"].T + p["c"], y[rows]))
        dz = o.error_back(z @ p["U"].T + p["c"], y[rows]) @ p["U"]
        dz += pull * 2 * (z - target[y[rows]]) / (len(rows) * o.WIDTH)
        return o.embed_back(p, x[rows], dz)

    p = o.descend(p, "Wb", o.batches(n), gradient)
    new = o.class_means(o.embed(p, x), y, np.zeros((o.CLASSES, o.WIDTH)))
    return {"p": p, "h": h, "V/n": V / n, "centroid": new, "counts": counts, "n": n, "loss": np.mean(losses)}


def combination(h: list[np.ndarray], variance: list[float], threshold: float = 1e-3) -> np.ndarray:
    """min_a sum_j a_j^2 V_j / n_j + sum_jj' a_j a_j' sum_k <h_ik - h_jk, h_ik - h_j'k> over the simplex."""
    m, out = len(h), []
    for i in range(m):
        D = np.array([[((h[i] - h[j]) * (h[i] - h[l])).sum() for l in range(m)] for j in range(m)])
        a = cp.Variable(m, nonneg=True)
        form = cp.quad_form(a, cp.psd_wrap(np.diag(variance) + D))
        tight = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
        cp.Problem(cp.Minimize(form), [cp.sum(a) == 1]).solve(solver=cp.CLARABEL, **tight)
        kept = np.where(a.value < threshold, 0.0, a.value)
        out.append(kept / kept.sum())
    return np.array(out)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"alignment": 0.0},
    {"alignment": 7.5},
    {"head_lr": 0.3, "head_epochs": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round(options: dict[str, Any]) -> None:
    method = build(**options)
    server, _, up, info = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)
    want = [local(k, **options) for k in o.IDS]
    for at, w in enumerate(want):
        k, sent = o.IDS[at], tree.rows(up, at)
        train_loss = method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))[2]["train_loss"]
        close(train_loss, w["loss"])  # of the body's phase, cross-entropy alone
        close(sent.value.h_Cd, w["h"])
        close(sent.value.variance, w["V/n"])
        close(sent.value.head["weight"], w["p"]["U"])
        close(sent.value.head["bias"], w["p"]["c"])
        close(sent.value.body["0.weight"], w["p"]["W"] - BODY["W"])
        close(sent.value.body["0.bias"], w["p"]["b"] - BODY["b"])
        close(sent.value.sum_Cd, w["counts"][:, None] * w["centroid"])
        close(sent.weight.n, w["n"])
        close(sent.weight.n_C, w["counts"])
    n = [w["n"] for w in want]
    close(server.body["0.weight"], o.average([w["p"]["W"] for w in want], n))
    close(server.body["0.bias"], o.average([w["p"]["b"] for w in want], n))
    counts = np.array([w["counts"] for w in want])
    centroid = sum(w["counts"][:, None] * w["centroid"] for w in want) / counts.sum(0)[:, None]
    close(server.centroid_Cd, centroid)
    close(server.known_C, np.ones(o.CLASSES))

    share = combination([w["h"] for w in want], [w["V/n"] for w in want])
    assert ((share > 0.01) & (share < 0.99)).any(1).all(), "every client should combine"
    close(info["combination"], share, **SOLVER)
    for at, k in enumerate(o.IDS):
        U, c = (sum(a * w["p"][name] for a, w in zip(share[at], want, strict=True)) for name in "Uc")
        close(server.heads["weight"][k], U, **SOLVER)
        close(server.heads["bias"][k], c, **SOLVER)
        down = o.one(method, server, k)
        close(down.own["weight"], U, **SOLVER)
        client = method.personalise(down, (), o.data(*ROWS[k]), o.key())
        p = {"W": server.body["0.weight"].numpy(), "b": server.body["0.bias"].numpy(), "U": U, "c": c}
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(p, TEST), **SOLVER)
    close(server.heads["weight"][2], HEADS[2]["U"])  # the absent client keeps its own


@pytest.mark.parametrize("first", [False, True])
def test_first_round(first: bool) -> None:
    """Without any centroid: no alignment, or (paper) to the client's own means before training."""
    nobody = np.zeros(o.CLASSES)
    method = build(preset="paper" if first else "official")
    up = o.round_of(method, state(nobody), dict.fromkeys(o.IDS, ()), ROWS)[2]
    for at, k in enumerate(o.IDS):
        want = local(k, known=nobody, align_first_round=first)
        close(up.value.body["0.weight"][at], want["p"]["W"] - BODY["W"])
    on, off = (local(0, known=nobody, align_first_round=a)["p"]["W"] for a in (True, False))
    assert np.abs(on - off).max() > 1e-4


def test_without_collaboration_everyone_keeps_the_own_head() -> None:
    server, _, up, info = o.round_of(build(collaboration=False), state(), dict.fromkeys(o.IDS, ()), ROWS)
    close(info["combination"], np.eye(len(o.IDS)))
    for at, k in enumerate(o.IDS):
        close(server.heads["weight"][k], local(k)["p"]["U"])
        close(server.heads["bias"][k], up.value.head["bias"][at])


def test_threshold() -> None:
    want = [local(k) for k in o.IDS]
    free, cut = (combination([w["h"] for w in want], [w["V/n"] for w in want], t) for t in (0.0, 0.1))
    assert ((free > 1e-3) & (free < 0.1)).any(), "nothing to cut"
    info = o.round_of(build(threshold=0.1), state(), dict.fromkeys(o.IDS, ()), ROWS)[3]
    close(info["combination"], cut, **SOLVER)


@pytest.mark.parametrize("epochs", [1, 3])
def test_tuning(epochs: int) -> None:
    """Head-only, from the combined head, at the head phase's rate."""
    method = build(tuning_epochs=epochs)
    for k in (0, 4):
        x, y = ROWS[k]
        p = {"W": BODY["W"], "b": BODY["b"], "U": HEADS[k]["U"], "c": HEADS[k]["c"]}
        want = o.descend(p, "Uc", o.batches(len(y), epochs), o.head_gradient(x, y), lr=0.1)
        down = o.one(method, state(), k)
        client = method.personalise(down, (), o.data(x, y), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(want, TEST))


def reports(rng: np.random.Generator, counts: np.ndarray) -> Any:
    """Uploads by hand: client j's head is filled with j."""
    m = len(counts)
    body = tree.map(lambda a: torch.zeros(m, *a.shape), o.body_of(BODY))
    head = {"weight": torch.arange(m, dtype=torch.float64).view(-1, 1, 1).expand(m, o.CLASSES, o.WIDTH)}
    head["bias"] = torch.zeros(m, o.CLASSES)
    sums = torch.tensor(rng.normal(size=(m, o.CLASSES, o.WIDTH))) * torch.tensor(counts > 0)[..., None]
    h = torch.tensor(rng.normal(size=(m, o.CLASSES, o.WIDTH)))
    value = Report(body, head, sums, h, torch.full((m,), 0.2))
    return Up(value, Counts(torch.tensor(counts.sum(1)), torch.tensor(counts)))


def test_heads_go_to_their_own_clients() -> None:
    """Participants that resemble nobody keep the own head, whatever their place among the ids."""
    up = reports(np.random.default_rng(0), np.full((3, o.CLASSES), 2.0))
    up = up._replace(value=up.value._replace(h_Cd=1e4 * up.value.h_Cd))
    server, info = build().aggregate(state(), reduced(build().reduce, up), torch.tensor([1, 3, 4]))
    close(info["combination"], np.eye(3), rtol=0, atol=1e-9)
    for at, client in enumerate((1, 3, 4)):
        close(server.heads["weight"][client], np.full((o.CLASSES, o.WIDTH), float(at)), rtol=0, atol=1e-9)
    for client in (0, 2):
        close(server.heads["weight"][client], HEADS[client]["U"])


def test_combination_is_by_row() -> None:
    """Row i is what client i gets. Clients 0 and 1 lie e apart, 2 is far: a_00 / a_01 = (V_1 + e^2) / V_0."""
    up = reports(np.random.default_rng(1), np.full((3, o.CLASSES), 2.0))
    h = torch.zeros_like(up.value.h_Cd)
    h[1, 0, 0], h[2, 1, 1] = 0.5, 1e4
    V0, V1, e2 = 0.1, 0.3, 0.25
    up = up._replace(value=up.value._replace(h_Cd=h, variance=torch.tensor([V0, V1, 0.2])))
    server, info = build().aggregate(state(), reduced(build().reduce, up), torch.tensor([0, 1, 2]))
    both = V0 + V1 + e2
    want = np.array([[(V1 + e2) / both, V0 / both, 0], [V1 / both, (V0 + e2) / both, 0], [0, 0, 1]])
    close(info["combination"], want, rtol=0, atol=1e-6)
    close(server.heads["weight"][:3, 0, 0], want @ np.arange(3.0), rtol=0, atol=1e-5)


def test_centroids_weigh_by_class_counts_and_absent_classes_stay() -> None:
    counts = np.array([[1.0, 5.0, 0.0, 0.0], [9.0, 1.0, 0.0, 2.0]])
    up = reports(np.random.default_rng(2), counts)
    server, _ = build().aggregate(state(), reduced(build().reduce, up), torch.tensor([0, 1]))
    sums = up.value.sum_Cd.sum(0).numpy()
    for c, n in enumerate(counts.sum(0)):
        close(server.centroid_Cd[c], sums[c] / n if n else (CENTROIDS * KNOWN[:, None])[c])
    close(server.known_C, KNOWN)  # class 2 remains unknown
    known = np.ones(o.CLASSES)
    server, _ = build().aggregate(state(known), reduced(build().reduce, up), torch.tensor([0, 1]))
    close(server.centroid_Cd[2], CENTROIDS[2])
    close(server.known_C, known)


def test_each_phase_moves_one_part() -> None:
    """A strong decay and momentum shrink what trains, and nothing else."""
    rule = o.SGD(0.01, 0.9, 1.0)
    method = methods.build("fedpac", {}, o.task(optimiser=rule))
    x, y = ROWS[0]
    up = method.local(o.one(method, state(), 0), (), o.data(x, y), o.key())[1]
    p = {"W": BODY["W"], "b": BODY["b"], "U": HEADS[0]["U"], "c": HEADS[0]["c"]}
    head = o.descend(p, "Uc", o.batches(len(y), 1), o.head_gradient(x, y), lr=0.1, momentum=0.9, decay=1.0)
    close(up.value.head["weight"], head["U"])  # one head epoch and no more: unmoved by the body phase
    tuned = methods.build("fedpac", {"tuning_epochs": 2}, o.task(optimiser=rule))
    down = o.one(tuned, state(), 0)
    client = tuned.personalise(down, (), o.data(x, y), o.key())
    want = o.descend(p, "Uc", o.batches(len(y), 2), o.head_gradient(x, y), lr=0.1, momentum=0.9, decay=1.0)
    close(tuned.predict(down, client, torch.tensor(TEST)), o.log_probability(want, TEST))
