"""FedGC: rounds by hand in numpy, its options and its traps. Its authors released no code."""

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
from idiolect.core.network import Network
from idiolect.methods import fedgc

ROWS = o.federation()
START = o.weights(1)
HEADS = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
FEW = {0: (0, 1), 1: (1, 2), 2: (0, 3), 3: (2,), 4: (1, 3)}  # classes of each client, so that others lack each


def rows(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a client with its few classes."""
    x, y = ROWS[k]
    return x, np.array(FEW[k])[y % len(FEW[k])]


def has(k: int) -> np.ndarray:
    return np.isin(np.arange(o.CLASSES), FEW[k])


def gradient(k: int) -> Any:
    """Of the cross-entropy over the client's own classes."""
    x, y = rows(k)

    def at_rows(p: o.Params, at: np.ndarray) -> o.Params:
        z = o.embed(p, x[at])
        logit = np.where(has(k), z @ p["U"].T + p["c"], -np.inf)
        dl = (softmax(logit, 1) - np.eye(o.CLASSES)[y[at]]) / len(at)
        return {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(p, x[at], dl @ p["U"])

    return at_rows


def slope(W: dict[int, np.ndarray], pulls: bool) -> dict[int, np.ndarray]:
    """dR / dW, pair by pair."""
    out = {k: np.zeros_like(w) for k, w in W.items()}
    for c in range(o.CLASSES):
        mine = [k for k in W if has(k)[c]]
        if not mine:
            continue
        e = np.mean([W[k][c] for k in mine], 0)
        others = [(z, j) for z in W if not has(z)[c] for j in np.flatnonzero(has(z))]
        for k in mine:
            own = (W[k][c] if pulls else e) @ e
            share = softmax(np.array([own] + [W[z][j] @ e for z, j in others]))
            if pulls:
                out[k][c] += (share[0] - 1) * e
            for (z, j), s in zip(others, share[1:], strict=True):
                out[z][j] += s * e
    return out


def begin(method: Any, known: tuple[int, ...] = ()) -> Any:
    heads = tree.stack([o.head_of(HEADS[k]) for k in HEADS])
    has_KC = torch.tensor(np.array([has(k) * (k in known) for k in range(5)], float))
    return method.init_server(o.key())._replace(
        body=o.body_of(START), heads=heads, has_KC=has_KC, start=o.head_of(START)
    )


def same_head(got: Any, p: o.Params) -> None:
    close(got["weight"], p["U"])
    close(got["bias"], p["c"])


@pytest.mark.parametrize(
    "options", [{}, {"correction": 8.0}, {"correction": 3.0, "own_term": "constant"}, {"correction": 0.0}]
)
def test_round_by_hand(options: dict[str, Any]) -> None:
    """Client 2 was there before and is away; client 3 comes for the first time."""
    method = methods.build("fedgc", options, o.task())
    server, ids = begin(method, known=(0, 1, 2, 4)), (0, 3, 4)
    after, _, _, _ = o.round_of(method, server, dict.fromkeys(ids, ()), {k: rows(k) for k in range(5)})
    new = {}
    for k in ids:
        head = START if k == 3 else HEADS[k]
        start = START | {n: head[n] for n in "Uc"}
        new[k] = o.descend(start, "WbUc", o.batches(o.SIZES[k]), gradient(k))
    W = {k: (new[k] if k in new else HEADS[k])["U"] for k in range(5)}
    moves = slope(W, options.get("own_term", "gradient") == "gradient")
    rate = options.get("correction", 1.0) * o.RULE.lr
    body = {n: o.average([new[k][n] for k in ids], [o.SIZES[k] for k in ids]) for n in "Wb"}
    close(after.body["0.weight"], body["W"])
    close(after.body["0.bias"], body["b"])
    for k in range(5):
        want = body | {"U": W[k] - rate * moves[k], "c": (new[k] if k in new else HEADS[k])["c"]}
        down = o.one(method, after, k)
        same_head(down.own.head, want)
        close(down.own.has_C, has(k))
        mine = method.personalise(down, (), o.data(*rows(k)), o.key())
        logp = method.predict(down, mine, torch.tensor(TEST))
        classes = list(FEW[k])
        logit = o.embed(want, TEST) @ want["U"].T + want["c"]
        close(logp[:, classes], log_softmax(logit[:, classes], 1))
        assert bool((logp[:, ~has(k)] < -700).all())


# --- traps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pulls", [True, False])
def test_the_overlap_and_its_slope(pulls: bool) -> None:
    W = {k: HEADS[k]["U"] for k in HEADS}
    every, flags = torch.tensor(np.array(list(W.values()))), torch.tensor(np.array([has(k) for k in W], float))
    got = torch.func.grad(fedgc.overlap)(every, flags, pulls)
    close(got, np.array(list(slope(W, pulls).values())))
    moved = np.abs(got.numpy()).sum(2) > 0
    assert not moved[~flags.bool().numpy()].any()  # rows of classes that a client does not have


def test_where_all_clients_have_all_classes_there_is_nothing_to_correct() -> None:
    every = torch.tensor(np.array([HEADS[k]["U"] for k in HEADS]))
    for pulls in (True, False):
        value = fedgc.overlap(every, torch.ones(5, o.CLASSES), pulls)
        close(value, 0.0, atol=1e-12)
        assert not torch.func.grad(fedgc.overlap)(every, torch.ones(5, o.CLASSES), pulls).any()


def test_before_anybody_has_sent_the_slope_is_finite() -> None:
    every = torch.tensor(np.array([1000 * HEADS[k]["U"] for k in HEADS]))
    for flags in (torch.zeros(5, o.CLASSES), torch.tensor(np.array([has(k) for k in HEADS], float))):
        assert torch.func.grad(fedgc.overlap)(every, flags, True).isfinite().all()


def test_a_new_client_trains_what_it_receives_for_its_classes() -> None:
    method = methods.build("fedgc", {}, o.task())
    down = o.one(method, begin(method, known=(0, 1)), 70)
    same_head(down.own.head, START)
    body, own = method.personalise(down, (), o.data(*rows(2)), o.key())
    want = o.descend(START, "WbUc", o.batches(o.SIZES[2]), gradient(2))
    close(body["0.weight"], want["W"])
    same_head(own.head, want)
    close(own.has_C, has(2))


def deep() -> tuple[torch.nn.Module, torch.nn.Module]:
    return torch.nn.Linear(o.INPUTS, 6), torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, o.CLASSES))


def test_what_it_needs_is_one_sentence() -> None:
    with pytest.raises(InputError, match="fedgc needs a head of one linear layer"):
        methods.build("fedgc", {}, replace(o.task(), network=Network(deep, (o.INPUTS,))))
    for kind in ("regression", "multilabel"):
        with pytest.raises(InputError, match=f"fedgc needs classes.*{kind}"):
            methods.build("fedgc", {}, replace(o.task(), kind=kind))
