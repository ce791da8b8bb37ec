"""Local SGD, a one-hidden-layer network with its gradients by hand, and LDA, in numpy float64; and a tiny federation.

N rows, B batch, d features, C classes. Parameters are a flat dict: W, b of the body, U, c of the head, and P, q of
FedCR's Gaussian layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax
from torch import nn

from idiolect.core import keys, tree
from idiolect.core.method import SGD, Data, Down, Method, Task, Training
from idiolect.core.network import Model, Network
from idiolect.core.reduction import reduced

INPUTS, WIDTH, CLASSES, BATCH, EPOCHS = 5, 6, 4, 6, 2
RULE = SGD(lr=0.07, momentum=0.6, weight_decay=2e-2)  # a decay that shows within one round
SIZES = (20, 15, 9, 13, 4)  # short last batches, one of a single row; client 4 is smaller than a batch
LACKS = {1: 3, 4: 0}  # client: the class that it has no row of
SLOPE = 0.01
IDS = (0, 1, 3, 4)  # the participants: client 2 stays away
TIGHT = {"rtol": 1e-9, "atol": 1e-10}

Params = dict[str, np.ndarray]


def make() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.LeakyReLU(SLOPE)), nn.Linear(WIDTH, CLASSES)


def federation(seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows (N, inputs) and labels of each client."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(CLASSES, INPUTS))
    out = []
    for client, n in enumerate(SIZES):
        has = [c for c in range(CLASSES) if c != LACKS.get(client)]
        y = rng.permutation(np.resize(has, n))
        out.append((centre[y] + 0.3 * client + rng.normal(size=(n, INPUTS)), y))
    return out


def task(**training: Any) -> Task:
    how: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "optimiser": RULE, "shuffle": False} | training
    return Task(Network(make, (INPUTS,)), CLASSES, len(SIZES), Training(**how))


def data(x: np.ndarray, y: np.ndarray) -> Data:
    n = len(y)
    return Data(torch.tensor(x), torch.tensor(y), torch.arange(n), torch.ones(n))


def key(*path: int | str) -> torch.Tensor:
    return keys.key(11, *path)


def weights(seed: int) -> Params:
    rng = np.random.default_rng(seed)
    shapes = {"W": (WIDTH, INPUTS), "b": (WIDTH,), "U": (CLASSES, WIDTH), "c": (CLASSES,)}
    return {k: 0.4 * rng.normal(size=s) for k, s in shapes.items()}


def body_of(p: Params) -> dict[str, torch.Tensor]:
    return {"0.weight": torch.tensor(p["W"]), "0.bias": torch.tensor(p["b"])}


def head_of(p: Params) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor(p["U"]), "bias": torch.tensor(p["c"])}


def model_of(p: Params) -> Model:
    return Model(body_of(p), head_of(p))


def one(method: Method, server: Any, client: int) -> Down:
    """What one client receives."""
    down = method.send(server, torch.tensor([client]))
    return Down(down.shared, tree.rows(down.own, 0))


def round_of(method: Method, server: Any, clients: dict[int, Any], rows: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """A round of these clients: the server after it, the clients, their stacked uploads, info of the aggregation."""
    ups, new, ids = [], {}, sorted(clients)
    for i in ids:
        new[i], up, _ = method.local(one(method, server, i), clients[i], data(*rows[i]), key(i))
        ups.append(up)
    stacked = tree.stack(ups)
    server, info = method.aggregate(server, reduced(method.reduce, stacked), torch.tensor(ids))
    return server, new, stacked, info


def close(got: Any, want: Any, **tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), **(tolerance or TIGHT))


# --- training -------------------------------------------------------------------------------------------------------


def batches(n: int, epochs: int = EPOCHS, size: int = BATCH, *, drop_last: bool = False) -> list[np.ndarray]:
    """Rows in stored order; a client smaller than a batch keeps the one batch it has."""
    epoch = [np.arange(n)[i : i + size] for i in range(0, n, size)]
    if drop_last and n >= size:
        epoch = [b for b in epoch if len(b) == size]
    return epoch * epochs


def descend(
    p: Params, moving: str, plan: Iterable[np.ndarray], gradient: Callable[[Params, np.ndarray], Params],
    lr: float = RULE.lr, momentum: float = RULE.momentum, decay: float = RULE.weight_decay, clip: float | None = None,
) -> Params:  # fmt: skip
    """v <- momentum v + g + decay w, w <- w - lr v, for the parameters named in ``moving``; v starts at 0."""
    p = {k: v.copy() for k, v in p.items()}
    v = {k: np.zeros_like(p[k]) for k in moving}
    for rows in plan:
        g = gradient(p, rows)
        if clip is not None:
            norm = np.sqrt(sum((g[k] ** 2).sum() for k in moving))
            g = {k: g[k] * min(1.0, clip / (norm + 1e-6)) for k in moving}
        for k in moving:
            v[k] = momentum * v[k] + g[k] + decay * p[k]
            p[k] = p[k] - lr * v[k]
    return p


def embed(p: Params, x: np.ndarray) -> np.ndarray:
    """z = leaky_relu(W x + b)."""
    a = x @ p["W"].T + p["b"]
    return np.where(a > 0, a, SLOPE * a)


def embed_back(p: Params, x: np.ndarray, dz: np.ndarray) -> Params:
    da = dz * np.where(x @ p["W"].T + p["b"] > 0, 1.0, SLOPE)
    return {"W": da.T @ x, "b": da.sum(0)}


def error_back(logit: np.ndarray, y: np.ndarray) -> np.ndarray:
    """d mean cross-entropy / d logits = (softmax - one hot) / B."""
    return (np.exp(log_softmax(logit, 1)) - np.eye(logit.shape[1])[y]) / len(y)


def errors(logit: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropy of each row, in nats."""
    return -log_softmax(logit, 1)[np.arange(len(y)), y]


def whole_gradient(x: np.ndarray, y: np.ndarray) -> Callable[[Params, np.ndarray], Params]:
    def gradient(p: Params, rows: np.ndarray) -> Params:
        z = embed(p, x[rows])
        dl = error_back(z @ p["U"].T + p["c"], y[rows])
        return {"U": dl.T @ z, "c": dl.sum(0)} | embed_back(p, x[rows], dl @ p["U"])

    return gradient


def head_gradient(x: np.ndarray, y: np.ndarray) -> Callable[[Params, np.ndarray], Params]:
    def gradient(p: Params, rows: np.ndarray) -> Params:
        g = whole_gradient(x, y)(p, rows)
        return {"U": g["U"], "c": g["c"]}

    return gradient


def log_probability(p: Params, x: np.ndarray) -> np.ndarray:
    return log_softmax(embed(p, x) @ p["U"].T + p["c"], 1)


def average(parts: Sequence[np.ndarray], weight: Sequence[float]) -> np.ndarray:
    return sum(w * a for w, a in zip(weight, parts, strict=True)) / sum(weight)


# --- Gaussian classifiers -------------------------------------------------------------------------------------------


def class_means(z: np.ndarray, y: np.ndarray, fallback: np.ndarray, at_least: int = 1) -> np.ndarray:
    return np.array([z[y == c].mean(0) if (y == c).sum() >= at_least else fallback[c] for c in range(len(fallback))])


def tied_covariance(z: np.ndarray, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Scatter about the class means over n - 1."""
    out = np.zeros((z.shape[1],) * 2)
    for row, label in zip(z, y, strict=True):
        out += np.outer(row - mean[label], row - mean[label])
    return out / max(len(z) - 1, 1)


def prior(y: np.ndarray, classes: int) -> np.ndarray:
    share = np.bincount(y, minlength=classes) / len(y) + 1e-4
    return np.log(share / share.sum())


def lda(mean: np.ndarray, cov: np.ndarray, logprior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """w_c = S^-1 mu_c, b_c = log pi_c - mu_c' w_c / 2, with S shrunk by 1e-4 towards its mean variance."""
    d = len(cov)
    S = (1 - 1e-4) * cov + 1e-4 * np.trace(cov) / d * np.eye(d)
    w = np.linalg.inv(S) @ mean.T
    return w.T, logprior - 0.5 * (mean * w.T).sum(1)


def held_out_risk(
    z: np.ndarray, y: np.ndarray, fold: np.ndarray, mean: np.ndarray, cov: np.ndarray, logprior: np.ndarray,
    repair: Callable[[np.ndarray], np.ndarray],
) -> Callable[[float, float], float]:  # fmt: skip
    """The sum over two folds of the mean cross-entropy of the other fold's classifier, mixed with (mean, cov)."""
    kept = np.bincount(y, minlength=len(mean))[y] >= 2
    z, y, fold = z[kept], y[kept], fold[kept]
    parts = []
    for k in (0, 1):
        own = class_means(z[fold != k], y[fold != k], mean)
        parts.append((own, repair(tied_covariance(z[fold != k], y[fold != k], own)), z[fold == k], y[fold == k]))

    def risk(on_mean: float, on_cov: float) -> float:
        total = 0.0
        for own, own_cov, zk, yk in parts:
            w, b = lda(on_mean * own + (1 - on_mean) * mean, on_cov * own_cov + (1 - on_cov) * cov, logprior)
            total -= log_softmax(zk @ w.T + b, 1)[np.arange(len(yk)), yk].mean()
        return total

    return risk
