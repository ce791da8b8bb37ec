"""pFedFDA: a round by hand, beta by scipy on the written-out objective, its options and its traps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.methods import pfedfda
from idiolect.methods.pfedfda import Shared
from idiolect.statistics import covariance

ROWS = o.federation()
BODY = o.weights(2)
RNG = np.random.default_rng(8)
MEAN = RNG.uniform(size=(o.CLASSES, o.WIDTH))
ROOT = RNG.normal(size=(o.WIDTH, o.WIDTH))
COV = ROOT @ ROOT.T / o.WIDTH + 0.5 * np.eye(o.WIDTH)
TEST = RNG.normal(size=(7, o.INPUTS))
FOUND = {"rtol": 0, "atol": 2e-5}  # what depends on beta: the search is good to about 1e-7
GRID = np.linspace(0, 1, 101)
Repair = Callable[[np.ndarray], np.ndarray]


def state() -> Shared:
    return Shared(o.body_of(BODY), torch.tensor(MEAN), covariance.pack(torch.tensor(COV)))


def fold_of(y: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Deal the samples of each class out in turn, by number."""
    fold = np.zeros(len(y), int)
    for c in np.unique(y):
        of_class = np.unique(number[y == c])
        fold[y == c] = np.searchsorted(of_class, number[y == c]) % 2
    return fold


@pytest.fixture(autouse=True)
def _folds(monkeypatch: pytest.MonkeyPatch) -> None:
    def folds(y_N: Any, weight_N: Any, key: Any, *, sample_N: Any = None) -> Any:
        number = torch.arange(len(y_N)) if sample_N is None else sample_N
        return torch.tensor(fold_of(y_N.numpy(), number.numpy()))

    monkeypatch.setattr(pfedfda, "stratified_folds", folds)


class Local(NamedTuple):
    p: o.Params
    mean: np.ndarray
    cov: np.ndarray
    """Repaired."""
    risk: Callable[[float, float], float]
    loss: float


def estimate(z: np.ndarray, y: np.ndarray, number: np.ndarray, logprior: np.ndarray, repair: Repair, least: int) -> Any:
    own = o.class_means(z, y, MEAN)
    cov = repair(o.tied_covariance(z, y, own))
    return o.class_means(z, y, MEAN, least), cov, o.held_out_risk(z, y, fold_of(y, number), MEAN, COV, logprior, repair)


def train(k: int, repair: Repair, *, statistics: str = "training", folds_of: str = "rows", min_count: int = 1,
          drop_last: bool = True, **_: Any) -> Local:  # fmt: skip
    """A client's round from the equations."""
    x, y = ROWS[k]
    logprior = o.prior(y, o.CLASSES)
    w, b = o.lda(MEAN, COV, logprior)
    seen: list[np.ndarray] = []
    losses: list[float] = []

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        z = o.embed(p, x[rows])
        seen.append(z)
        losses.extend(o.errors(z @ w.T + b, y[rows]))
        return o.embed_back(p, x[rows], o.error_back(z @ w.T + b, y[rows]) @ w)

    plan = o.batches(len(y), drop_last=drop_last)
    p = o.descend(BODY, "Wb", plan, gradient)
    at = np.concatenate(plan)
    z = np.concatenate(seen)
    if statistics == "fresh":
        z, at = o.embed(p, x), np.arange(len(y))
    number = at if folds_of == "samples" else np.arange(len(at))
    return Local(p, *estimate(z, y[at], number, logprior, repair, min_count), float(np.mean(losses)))


def best(risk: Callable[[float, float], float]) -> float:
    """The global minimiser on [0, 1]: brute force, then Brent's method."""
    at = min(GRID, key=lambda w: risk(w, w))
    low, high = max(at - 0.01, 0), min(at + 0.01, 1)
    fine = minimize_scalar(lambda w: risk(w, w), bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    return min([(fine.fun, float(fine.x)), *((risk(w, w), w) for w in (0.0, 1.0))])[1]


def mixed(own: np.ndarray, other: np.ndarray, weight: float) -> np.ndarray:
    return weight * own + (1 - weight) * other


def repair_of(ridge: float = 1.0, ridge_everywhere: float = 0.0) -> Repair:
    return lambda s: s + ridge * np.eye(len(s)) + ridge_everywhere


OPTIONS: list[dict[str, Any]] = [
    {},
    {"ridge": 0.05},
    {"ridge": 1.0, "ridge_everywhere": 0.02},
    {"statistics": "fresh", "ridge": 0.3},
    {"folds_of": "samples", "ridge": 0.3},
    {"min_count": 3, "min_count_adapt": 1, "ridge": 0.3},
    {"drop_last": False, "ridge": 0.3},
    {"class_weighted_means": True, "folds_of": "samples"},
    {"beta": "local", "ridge": 0.3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round(options: dict[str, Any]) -> None:
    method = methods.build("pfedfda", options, o.task())
    repair = repair_of(**{k: v for k, v in options.items() if k.startswith("ridge")})
    infos = [method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))[2] for k in o.IDS]
    server, _, up, _ = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)
    want, means, covs, betas = [], [], [], []
    for at, k in enumerate(o.IDS):
        w = train(k, repair, **{n: v for n, v in options.items() if not n.startswith("ridge")})
        beta = 1.0 if options.get("beta") == "local" else best(w.risk)
        close(infos[at]["beta"], beta, rtol=0, atol=1e-5)
        close(infos[at]["train_loss"], w.loss)
        want.append(w)
        betas.append(beta)
        means.append(mixed(w.mean, MEAN, beta))
        covs.append(mixed(w.cov, COV, beta))
        sent = tree.rows(up, at)
        close(sent.value.body["0.weight"], w.p["W"] - BODY["W"])
        close(sent.value.body["0.bias"], w.p["b"] - BODY["b"])
        for weight, how in ((float(infos[at]["beta"]), o.TIGHT), (beta, FOUND)):
            close(sent.value.mean_Cd, mixed(w.mean, MEAN, weight) - MEAN, **how)
            close(covariance.unpack(sent.value.cov, o.WIDTH), mixed(w.cov, COV, weight) - COV, **how)
        close(sent.weight.n, len(ROWS[k][1]))
        close(sent.weight.n_C, np.bincount(ROWS[k][1], minlength=o.CLASSES))
    n = [o.SIZES[k] for k in o.IDS]
    close(server.body["0.weight"], o.average([w.p["W"] for w in want], n))
    close(server.body["0.bias"], o.average([w.p["b"] for w in want], n))
    close(covariance.unpack(server.cov, o.WIDTH), o.average(covs, n), **FOUND)
    if options.get("class_weighted_means"):
        counts = np.array([np.bincount(ROWS[k][1], minlength=o.CLASSES) for k in o.IDS])
        by_class = [o.average([m[c] for m in means], list(counts[:, c])) for c in range(o.CLASSES)]
        close(server.mean_Cd, by_class, **FOUND)
    else:
        close(server.mean_Cd, o.average(means, n), **FOUND)
    if options == {"folds_of": "samples", "ridge": 0.3}:  # elsewhere copies of a row lie in both folds: near 1
        assert sum(0.2 < b < 0.6 for b in betas) == 3


def personal(k: int, repair: Repair, least: int = 3, rows: int | None = None) -> Any:
    """Estimates and objective of forward passes through the received body."""
    x, y = ROWS[k]
    at = np.arange(len(y) if rows is None else rows)
    return estimate(o.embed(BODY, x[at]), y[at], at, o.prior(y, o.CLASSES), repair, least)


ADAPT: list[dict[str, Any]] = [
    {},
    {"ridge": 0.1},
    {"ridge": 0.1, "min_count_adapt": 1},
    {"ridge": 0.1, "drop_last_adapt": True},
    {"ridge": 0.1, "beta": "local"},
]


@pytest.mark.parametrize("options", ADAPT, ids=str)
def test_personal_predictions(options: dict[str, Any]) -> None:
    method = methods.build("pfedfda", options, o.task())
    repair = repair_of(options.get("ridge", 1.0))
    for k in range(len(o.SIZES)):
        x, y = ROWS[k]
        whole = len(y) // o.BATCH * o.BATCH or len(y)  # a client of one short batch keeps it
        rows = whole if options.get("drop_last_adapt") else len(y)
        mean, cov, risk = personal(k, repair, options.get("min_count_adapt", 3), rows)
        beta = 1.0 if options.get("beta") == "local" else best(risk)
        down = o.one(method, state(), k)
        client = method.personalise(down, (), o.data(x, y), o.key())
        close(client.beta, beta, rtol=0, atol=1e-5)
        w, b = o.lda(mixed(mean, MEAN, beta), mixed(cov, COV, beta), o.prior(y, o.CLASSES))
        logp = log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)
        close(method.predict(down, client, torch.tensor(TEST)), logp, rtol=0, atol=1e-4)


def test_separate_weights() -> None:
    """Two weights: no worse than scipy's best of many starts by more than the search's stated 1e-3 nats."""
    method = methods.build("pfedfda", {"beta": "separate", "ridge": 0.3}, o.task())
    starts = [(a, b) for a in (0.1, 0.5, 0.9) for b in (0.1, 0.5, 0.9)]
    apart = 0.0
    for k in o.IDS:
        want = train(k, repair_of(0.3))
        _, up, info = method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))
        on_mean, on_cov = float(info["beta_mean"]), float(info["beta_cov"])
        apart = max(apart, abs(on_mean - on_cov))
        runs = [minimize(lambda w, r=want.risk: r(*w), s, bounds=[(0, 1)] * 2, method="L-BFGS-B") for s in starts]
        assert want.risk(on_mean, on_cov) <= min(r.fun for r in runs) + 1e-3
        close(up.value.mean_Cd, mixed(want.mean, MEAN, on_mean) - MEAN)
        close(covariance.unpack(up.value.cov, o.WIDTH), mixed(want.cov, COV, on_cov) - COV)
    assert apart > 0.05, "the two weights never differ"


def test_repair_is_ridge_then_clip_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair reaches the estimate and the folds alike, seen by a stand-in that does not commute with the ridge."""
    monkeypatch.setattr(covariance, "clip_correlation", lambda s: s * s)
    method = methods.build("pfedfda", {"ridge": 0.4, "clip_correlation": True}, o.task())
    for k in o.IDS:
        want = train(k, lambda s: (s + 0.4 * np.eye(len(s))) ** 2)
        _, up, info = method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))
        beta = best(want.risk)
        close(info["beta"], beta, rtol=0, atol=1e-5)
        close(covariance.unpack(up.value.cov, o.WIDTH), mixed(want.cov, COV, beta) - COV, **FOUND)


def clipped(cov: np.ndarray) -> np.ndarray:
    """Eigenvalues of the correlation matrix raised to 1e-15, the variances kept."""
    std = np.sqrt(np.diag(cov))
    value, vector = np.linalg.eigh(cov / np.outer(std, std))
    fixed = (vector * value.clip(1e-15)) @ vector.T
    unit = np.sqrt(np.diag(fixed))
    return fixed / np.outer(unit, unit) * np.outer(std, std)


def test_no_ridge_but_clipping() -> None:
    method = methods.build("pfedfda", {"ridge": 0.0, "clip_correlation": True, "beta": "local"}, o.task())
    for k in o.IDS:
        want = train(k, clipped)
        up = method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))[1]
        close(covariance.unpack(up.value.cov, o.WIDTH), want.cov - COV)


def test_presets() -> None:
    paper, official = (methods.settle("pfedfda", {"preset": p}) for p in ("paper", "official"))
    assert (paper["ridge"], paper["clip_correlation"], paper["initial_means"]) == (1e-4, True, "normal")
    assert (official["ridge"], official["ridge_everywhere"], official["initial_means"]) == (1.0, 1e-4, "uniform")


@pytest.mark.parametrize("draw", ["uniform", "normal"])
def test_start(draw: str) -> None:
    start = methods.build("pfedfda", {"initial_means": draw}, o.task()).init_server(o.key("init"))
    mean = start.mean_Cd.numpy()
    assert mean.shape == (o.CLASSES, o.WIDTH)
    assert len(np.unique(mean)) == mean.size
    assert (mean.min() >= 0 and mean.max() < 1 and mean.max() > 0.8) == (draw == "uniform")
    close(covariance.unpack(start.cov, o.WIDTH), np.eye(o.WIDTH))
    close(start.body["0.weight"], o.task().network.init(o.key("init")).body["0.weight"])


def test_global_means_move_in_the_first_round() -> None:
    method = methods.build("pfedfda", {}, o.task())
    start = method.init_server(o.key("init"))
    end = o.round_of(method, start, dict.fromkeys(o.IDS, ()), ROWS)[0]
    assert (end.mean_Cd - start.mean_Cd).abs().amax(1).min() > 0.01, "a class kept its draw"
    assert (end.cov - start.cov).abs().max() > 0.01


def test_an_absent_class_draws_its_mean_from_the_global_one() -> None:
    up = methods.build("pfedfda", {"beta": "local"}, o.task())
    for k, c in o.LACKS.items():
        sent = up.local(o.one(up, state(), k), (), o.data(*ROWS[k]), o.key(k))[1]
        close(sent.value.mean_Cd[c], np.zeros(o.WIDTH))
        assert (sent.value.mean_Cd.abs().amax(1) > 1e-3).sum() == o.CLASSES - 1


@pytest.mark.parametrize("labels", [[1], [0, 1, 2]])
def test_too_few_rows_for_two_folds_trust_the_global_estimate(labels: list[int]) -> None:
    y = np.array(labels)
    x = RNG.normal(size=(len(y), o.INPUTS))
    method = methods.build("pfedfda", {}, o.task(epochs=1))
    down = o.one(method, state(), 0)
    _, up, info = method.local(down, (), o.data(x, y), o.key())
    assert info["beta"] == 0
    close(up.value.mean_Cd, np.zeros((o.CLASSES, o.WIDTH)))
    close(up.value.cov, np.zeros(len(up.value.cov)))
    w, b = o.lda(MEAN, COV, o.prior(y, o.CLASSES))
    client = method.personalise(down, (), o.data(x, y), o.key())
    logp = log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)
    close(method.predict(down, client, torch.tensor(TEST)), logp)


def test_without_adapting_the_prior_is_even() -> None:
    method = methods.build("pfedfda", {}, o.task())
    w, b = o.lda(MEAN, COV, np.full(o.CLASSES, -np.log(o.CLASSES)))
    logp = log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)
    close(method.predict(o.one(method, state(), 0), (), torch.tensor(TEST)), logp)
