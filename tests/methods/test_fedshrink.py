"""FedShrink: a round and a personal model by hand, the shares by scipy, and what the shrinking is for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.methods import fedshrink
from idiolect.statistics import covariance, mixture

ROWS = o.federation()
BODY = o.weights(2)
RNG = np.random.default_rng(8)
MEAN = RNG.normal(size=(o.CLASSES, o.WIDTH))
ROOT = RNG.normal(size=(o.WIDTH, o.WIDTH))
COV = ROOT @ ROOT.T / o.WIDTH + 0.2 * np.eye(o.WIDTH)
SPREAD = 0.3
SHARE = np.array([0.4, 0.3, 0.2, 0.1])
AGREEMENT = 0.45
LINEAR = 0.3 * RNG.normal(size=(o.CLASSES, o.WIDTH + 1))
TEST = RNG.normal(size=(7, o.INPUTS))
HEADS = [
    ("shrunk", 0.1),
    ("shrunk", 0.3),
    ("shrunk", 1.0),
    ("shrunk", 3.0),
    ("shrunk", 10.0),
    ("everyone", 1.0),
    ("own", 1.0),
]
"""Which means, and how many times the ridge."""
EXPERTS = len(HEADS) + 2
"""With everyone's linear head and the client's own."""


def build(options: dict[str, Any], task: Any = None) -> Any:
    return methods.build("fedshrink", options, task or o.task())


def option(options: dict[str, Any], name: str) -> Any:
    return options.get(name, {"ridge": 0.3, "alignment": 3.0, "head_ridge": 5.0}[name])


def total() -> float:
    """The variance of features of a sample of any class."""
    apart = MEAN - SHARE @ MEAN
    return float(np.trace(COV) + SHARE @ (apart**2).sum(1))


def of_heads(options: dict[str, Any]) -> float:
    """The ridge of personal heads, in squared feature units."""
    return float(option(options, "head_ridge") * total() / o.WIDTH)


def state() -> Any:
    packed = covariance.pack(torch.tensor(COV))
    return fedshrink.Shared(
        o.body_of(BODY), torch.tensor(MEAN), packed, torch.tensor(SPREAD), torch.tensor(SHARE),
        torch.tensor(AGREEMENT), torch.tensor(LINEAR), torch.tensor(1.0),
    )  # fmt: skip


def received(mean: np.ndarray, cov: np.ndarray, spread: float) -> Any:
    """What the server sends of features that are the inputs."""
    classes = len(mean)
    return fedshrink.Shared(
        {}, torch.tensor(mean), covariance.pack(torch.tensor(cov)), torch.tensor(spread),
        torch.full((classes,), 1 / classes), torch.tensor(1 / classes), torch.zeros(classes, 1 + mean.shape[1]),
        torch.tensor(1.0),
    )  # fmt: skip


def fold_of(y: np.ndarray, folds: int) -> np.ndarray:
    """Deal the samples of each class out in turn."""
    fold = np.zeros(len(y), int)
    for c in np.unique(y):
        fold[y == c] = np.arange((y == c).sum()) % folds
    return fold


@pytest.fixture(autouse=True)
def _folds(monkeypatch: pytest.MonkeyPatch) -> None:
    def folds(y_N: Any, weight_N: Any, key: Any, *, folds: int, sample_N: Any) -> Any:
        assert sample_N is None
        return torch.tensor(fold_of(y_N.numpy(), folds))

    monkeypatch.setattr(mixture, "stratified_folds", folds)


class PoolJob(NamedTuple):
    own_mean: np.ndarray
    scatter: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    q: float
    trust: np.ndarray


def pool(z: np.ndarray, y: np.ndarray, how: str, options: dict[str, Any]) -> PoolJob:
    """Equations [1] to [5], class by class."""
    n, a, b = len(y), options.get("spread_samples", 100), options.get("covariance_samples", 100)
    q = 0.0
    scatter = np.zeros_like(COV)
    for c in np.unique(y):
        of_class = z[y == c]
        apart = of_class.mean(0) - MEAN[c]
        q += len(of_class) * apart @ apart / np.trace(COV) - 1
        scatter += (of_class - of_class.mean(0)).T @ (of_class - of_class.mean(0))
    spread = (max(q, 0) + a * max(SPREAD, 0)) / (n + a)
    mean, trust = MEAN.copy(), np.zeros(o.CLASSES)
    for c in np.unique(y):
        count = (y == c).sum()
        trust[c] = {"shrunk": count * spread / (count * spread + 1), "everyone": 0.0, "own": 1.0}[how]
        mean[c] = trust[c] * z[y == c].mean(0) + (1 - trust[c]) * MEAN[c]
    own = o.class_means(z, y, MEAN)
    k = len(np.unique(y))
    return PoolJob(own, scatter, mean, (scatter + b * COV) / (n - k + b), q / n, trust)


def head(p: PoolJob, logprior: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    return o.lda(p.mean, p.cov + ridge * np.eye(o.WIDTH), logprior)


def frequencies(y: np.ndarray) -> np.ndarray:
    """Of the classes at a client with such samples, by a Dirichlet prior about everyone's."""
    concentration = (1 - AGREEMENT) / (AGREEMENT - (SHARE**2).sum())
    return (np.bincount(y, minlength=o.CLASSES) + concentration * SHARE) / (len(y) + concentration)


def long(z: np.ndarray) -> np.ndarray:
    """Features of a variance near 1, and a 1."""
    return np.column_stack([z * np.sqrt(o.WIDTH / total()), np.ones(len(z))])


def slope(u: np.ndarray, z: np.ndarray, y: np.ndarray, logprior: np.ndarray) -> np.ndarray:
    """Gradient of the sum of the log-probabilities, sample by sample."""
    out = np.zeros_like(u)
    for row, label in zip(long(z), y, strict=True):
        out += np.outer(np.eye(len(u))[label] - softmax(u @ row + logprior), row)
    return out


def own_linear(z: np.ndarray, y: np.ndarray, logprior: np.ndarray) -> np.ndarray:
    """Equation [16]."""
    u, samples = LINEAR, 15.0
    bound = 0.5 * sum(np.outer(row, row) for row in long(z)) + samples * np.eye(o.WIDTH + 1)
    for _ in range(20):
        u = u + np.linalg.solve(bound, (slope(u, z, y, logprior) - samples * (u - LINEAR)).T).T
    return u


def linear_logits(z: np.ndarray, of: np.ndarray, y: np.ndarray, logprior: np.ndarray) -> list[np.ndarray]:
    """Log-probabilities of ``of`` by both linear heads of a client with samples (z, y)."""
    everyones = log_softmax(long(of) @ LINEAR.T + smoothed(frequencies(y)), 1)
    return [everyones, log_softmax(long(of) @ own_linear(z, y, logprior).T + logprior, 1)]


def own_frequencies(y: np.ndarray) -> np.ndarray:
    """Good and Turing's, with everyone's among the classes that are not there."""
    n = np.bincount(y, minlength=o.CLASSES)
    unseen = SHARE * (n == 0)
    u = (n == 1).sum() / (len(y) + 1) if unseen.any() else 0.0
    return (1 - u) * n / len(y) + (u * unseen / unseen.sum() if u else 0)


def smoothed(share: np.ndarray) -> np.ndarray:
    return np.log((share + 1e-4) / (share + 1e-4).sum())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"spread_samples": 3.0, "covariance_samples": 5.0},
        {"spread_samples": 0.0, "covariance_samples": 0.0},
        {"train_with": "everyone"},
        {"train_with": "own"},
        {"ridge": 1.5},
        {"alignment": 0.0},
        {"alignment": 20.0},
        {"memory": 0.8},
    ],
    ids=str,
)
def test_round(options: dict[str, Any]) -> None:
    method = build(options)
    infos = [method.local(o.one(method, state(), k), (), o.data(*ROWS[k]), o.key(k))[2] for k in o.IDS]
    server, _, up, _ = o.round_of(method, state(), dict.fromkeys(o.IDS, ()), ROWS)
    bodies, pooled, agreements, slopes = [], [], [], []
    for at, k in enumerate(o.IDS):
        x, y = ROWS[k]
        p = pool(o.embed(BODY, x), y, options.get("train_with", "shrunk"), options)
        w, b = head(p, o.prior(y, o.CLASSES), option(options, "ridge"))
        losses: list[float] = []

        def gradient(
            body: o.Params, rows: np.ndarray, x: Any = x, y: Any = y, w: Any = w, b: Any = b, seen: Any = losses,
            target: Any = p.mean,
        ) -> o.Params:  # fmt: skip
            z = o.embed(body, x[rows])
            seen.extend(o.errors(z @ w.T + b, y[rows]))
            pull = 2 * (z - target[y[rows]]) / o.WIDTH / len(rows)
            dz = o.error_back(z @ w.T + b, y[rows]) @ w + option(options, "alignment") * pull
            return o.embed_back(body, x[rows], dz)

        body = o.descend(BODY, "Wb", o.batches(len(y)), gradient)
        close(infos[at]["train_loss"], np.mean(losses))
        close(infos[at]["trust"], p.trust[y].mean())
        sent = tree.rows(up, at)
        close(sent.value.body["0.weight"], body["W"] - BODY["W"])
        close(sent.value.body["0.bias"], body["b"] - BODY["b"])
        count, size = np.bincount(y, minlength=o.CLASSES), fedshrink.SCALE
        close(sent.value.mean_Cd, size.mean_Cd * (count / len(y))[:, None] * (p.own_mean - MEAN) / total() ** 0.5)
        k = len(np.unique(y))
        change = (p.scatter - (len(y) - k) * COV) / len(y) / total()
        close(covariance.unpack(sent.value.cov, o.WIDTH), size.cov * change)
        squares = [((p.own_mean[c] - MEAN[c]) ** 2).sum() for c in y]
        close(sent.value.square, size.square * np.mean(squares) / total())
        close(sent.value.pairs, size.pairs * k / len(y))
        close(sent.value.one, size.one / len(y))
        close(sent.value.share_C, size.share_C * (count / len(y) - SHARE))
        pairs = [(a, b) for a in range(len(y)) for b in range(len(y)) if a != b]
        alike = np.mean([y[a] == y[b] for a, b in pairs])
        close(sent.value.agreement, size.agreement * (alike - AGREEMENT))
        steep = slope(LINEAR, o.embed(BODY, x), y, o.prior(y, o.CLASSES)) / len(y)
        close(sent.value.slope_CD, size.slope_CD * steep / o.WIDTH**0.5)
        slopes.append(steep)
        close(sent.weight, len(y))
        agreements.append(alike)
        bodies.append(body)
        pooled.append(p)
    n = [o.SIZES[k] for k in o.IDS]
    close(server.body["0.weight"], o.average([p["W"] for p in bodies], n))
    x, y = (np.concatenate([ROWS[k][part] for k in o.IDS]) for part in (0, 1))
    old = options.get("memory", 0.0)

    def blend(before: Any, now: Any) -> Any:
        return old * before + (1 - old) * now

    pairs = [(k, c) for k in o.IDS for c in np.unique(ROWS[k][1])]
    scatter = sum(p.scatter for p in pooled)
    close(covariance.unpack(server.cov, o.WIDTH), blend(COV, scatter / (sum(n) - len(pairs))))
    now = np.bincount(y, minlength=o.CLASSES) / len(y)
    close(server.share_C, blend(SHARE, now))
    close(server.agreement, blend(AGREEMENT, np.average(agreements, weights=n)))
    step = (1 - old) * now / blend(SHARE, now)  # without memory: to the means of all samples in one place
    close(server.mean_Cd, MEAN + step[:, None] * (o.class_means(o.embed(BODY, x), y, MEAN) - MEAN))
    centre = o.class_means(o.embed(BODY, x), y, MEAN)
    squares = [
        ((p.own_mean[c] - centre[c]) ** 2).sum() * (ROWS[k][1] == c).sum()
        for k, p in zip(o.IDS, pooled, strict=True)
        for c in np.unique(ROWS[k][1])
    ]
    beyond = sum(squares) / np.trace(covariance.unpack(server.cov, o.WIDTH).numpy()) - len(pairs) + len(np.unique(y))
    same = float(server.agreement) / (server.share_C.numpy() ** 2).sum() / len(o.IDS)
    moved = sum(((centre[c] - MEAN[c]) ** 2).sum() for c in y) / np.trace(
        covariance.unpack(server.cov, o.WIDTH).numpy()
    )
    close(server.spread, blend(SPREAD, beyond / sum(n) / (1 - same) + moved / len(y)))
    share, mean, cov = server.share_C.numpy(), server.mean_Cd.numpy(), covariance.unpack(server.cov, o.WIDTH).numpy()
    root = np.linalg.cholesky(cov)
    points = [m + side * np.sqrt(o.WIDTH) * v for m in mean for v in root.T for side in (-1, 1)]  # with that covariance
    rows = long(np.stack(points))
    outer = (rows * np.repeat(share / share.sum(), 2 * o.WIDTH)[:, None]).T @ rows / (2 * o.WIDTH)
    up = (1 - old) * (o.average(slopes, n) - 0.02 * LINEAR)
    linear = LINEAR + np.linalg.solve(0.5 * outer + 0.02 * np.eye(o.WIDTH + 1), up.T).T
    apart = mean - share @ mean
    now = np.trace(cov) + share @ (apart**2).sum(1)  # the head is the same one for features of the new variance
    close(server.linear_CD, linear * np.append(np.full(o.WIDTH, np.sqrt(now / total())), 1.0))


@pytest.mark.parametrize(("scale", "spread"), [(50, SPREAD), (0.2, -0.05), (50, -0.05)])
def test_a_spread_below_0_counts_as_0_in_fedshrink(
    scale: float, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the covariance is larger than the samples', their means seem nearer to everyone's than noise lets them."""
    monkeypatch.setitem(globals(), "COV", scale * COV)
    monkeypatch.setitem(globals(), "SPREAD", spread)
    q = [pool(o.embed(BODY, x), y, "shrunk", {}).q for x, y in ROWS]
    assert (min(q) < 0) == (scale > 1)
    test_round({})


def test_a_covariance_that_is_none_gives_no_number() -> None:
    packed = covariance.pack(-2 * torch.eye(o.WIDTH, dtype=torch.float64))
    down = o.Down(shared=state()._replace(cov=packed))
    options = {"covariance_samples": 1e6}
    assert build(options).local(down, (), o.data(*ROWS[0]), o.key())[1].value.body["0.weight"].isnan().all()


def held_out(z: np.ndarray, y: np.ndarray, ridge: float, options: dict[str, Any]) -> np.ndarray:
    """Log-probabilities (N, K) of the labels, each by heads that have not seen its fold."""
    folds = options.get("folds", 5)
    fold = fold_of(y, folds)
    out = np.zeros((len(y), EXPERTS))
    for f in range(folds):
        there, here = fold != f, fold == f
        logprior = smoothed(own_frequencies(y[there]))
        for k, (how, times) in enumerate(HEADS):
            prior = smoothed(frequencies(y[there])) if how == "everyone" else logprior
            w, b = head(pool(z[there], y[there], how, options), prior, times * ridge)
            out[here, k] = -o.errors(z[here] @ w.T + b, y[here])
        for k, logp in enumerate(linear_logits(z[there], z[here], y[there], logprior), len(HEADS)):
            out[here, k] = logp[np.arange(here.sum()), y[here]]
    return out


@pytest.mark.parametrize(
    "options", [{}, {"share_samples": 2.0}, {"folds": 3}, {"head_ridge": 0.6}, {"ridge": 1.5}], ids=str
)
def test_personal_predictions(options: dict[str, Any]) -> None:
    method = build(options)
    ridge, even = of_heads(options), options.get("share_samples", 20.0) / EXPERTS
    for k in range(len(o.SIZES) - 1):  # the last has too few samples of a class for each fold to see it
        x, y = ROWS[k]
        z = o.embed(BODY, x)
        down = o.one(method, state(), k)
        client = method.personalise(down, (), o.data(x, y), o.key())
        held = np.exp(held_out(z, y, ridge, options))

        def cost(free: np.ndarray, held: Any = held) -> float:
            a = np.exp(log_softmax(free))
            return -float(np.log(held @ a).sum() + even * np.log(a).sum())

        best = minimize(cost, np.zeros(EXPERTS), tol=1e-10)
        share = client.share_K.numpy()
        close(share.sum(), 1.0)
        close(share, np.exp(log_softmax(best.x)), rtol=0, atol=5e-3)
        p = sum(
            a * np.exp(log_softmax(o.embed(BODY, TEST) @ w.T + b, 1))
            for a, (how, times) in zip(share[: len(HEADS)], HEADS, strict=True)
            for prior in [smoothed((frequencies if how == "everyone" else own_frequencies)(y))]
            for w, b in [head(pool(z, y, how, options), prior, times * ridge)]
        )
        linear = linear_logits(z, o.embed(BODY, TEST), y, smoothed(own_frequencies(y)))
        p += sum(a * np.exp(logp) for a, logp in zip(share[len(HEADS) :], linear, strict=True))
        close(method.predict(down, client, torch.tensor(TEST)), np.log(p))


@pytest.mark.parametrize("how", ["shrunk", "everyone", "own"])
def test_one_head(how: str) -> None:
    method = build({"personal": how})
    x, y = ROWS[0]
    down = o.one(method, state(), 0)
    client = method.personalise(down, (), o.data(x, y), o.key())
    prior = smoothed(frequencies(y)) if how == "everyone" else o.prior(y, o.CLASSES)
    w, b = head(pool(o.embed(BODY, x), y, how, {}), prior, of_heads({}))
    logp = log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)
    close(method.predict(down, client, torch.tensor(TEST)), logp)


def test_a_client_without_a_model_gets_everyones_head() -> None:
    method = build({})
    w, b = o.lda(MEAN, COV + of_heads({}) * np.eye(o.WIDTH), smoothed(SHARE))
    logp = log_softmax(o.embed(BODY, TEST) @ w.T + b, 1)
    close(method.predict(o.one(method, state(), 0), (), torch.tensor(TEST)), logp)


def test_shrunk_means_are_nearer_to_the_truth_than_both() -> None:
    """Clients whose class means lie about everyone's as the methods assume: it is the mean of the posterior."""
    d, clients, spread = 40, 60, 0.25
    rng = np.random.default_rng(3)
    network = o.Network(lambda: (torch.nn.Identity(), torch.nn.Linear(d, 3)), (d,))
    task = o.Task(network, 3, clients, o.task().training)
    method = build({"personal": "shrunk", "head_ridge": 1e-9}, task)
    mean = rng.normal(size=(3, d))
    down = o.Down(shared=received(mean, np.eye(d), spread))
    errors = np.zeros(3)
    for client in range(clients):
        true = mean + np.sqrt(spread) * rng.normal(size=(3, d))
        y = np.repeat([0, 1, 2], [2, 4, 12])
        x = true[y] + rng.normal(size=(len(y), d))
        heads = method.personalise(down, (), o.data(x, y), o.key(client)).heads
        own = o.class_means(x, y, mean)
        centred = x - own[y]
        cov = (centred.T @ centred + 100 * np.eye(d)) / (len(y) + 100)
        cov = (1 - 1e-4) * cov + 1e-4 * np.trace(cov) / d * np.eye(d)
        pooled = heads.weight_Cd[0].numpy() @ cov  # w_c = S_i^-1 mu_ic
        errors += [((guess - true) ** 2).mean() for guess in (pooled, mean, own)]
    errors /= clients
    ideal = np.mean([spread / (n * spread + 1) for n in (2, 4, 12)])  # the variance of the posterior
    close(errors[0], ideal, rtol=0.03)
    assert errors[0] < 0.75 * min(errors[1:])


@pytest.mark.parametrize(("spread", "memory"), [(0.0, 0.0), (0.5, 0.0), (0.5, 0.9)])
def test_one_round_tells_the_true_spread_and_covariance(spread: float, memory: float) -> None:
    """Whatever the server began with, on features that stay as they are."""
    d, clients, classes = 30, 12, 3
    network = o.Network(lambda: (torch.nn.Identity(), torch.nn.Linear(d, classes)), (d,))
    task = o.Task(network, classes, clients, o.task().training)
    method = methods.build("fedshrink", {"memory": memory}, task)
    seen, traces = [], []
    for repeat in range(60):
        rng = np.random.default_rng(repeat)
        root = rng.normal(size=(d, d)) / np.sqrt(d)
        cov, mean = root @ root.T + 0.1 * np.eye(d), 3 * rng.normal(size=(classes, d))
        draw, data = np.linalg.cholesky(cov), []
        for _ in range(clients):
            true = mean + np.sqrt(spread) * rng.normal(size=(classes, d)) @ draw.T
            y = np.repeat(np.arange(classes), [3, 6, 12])
            data.append((true[y] + rng.normal(size=(len(y), d)) @ draw.T, y))
        server, *_ = o.round_of(method, method.init_server(o.key()), dict.fromkeys(range(clients), ()), data)
        seen.append(float(server.spread))
        traces.append(float(covariance.unpack(server.cov, d).trace()) / np.trace(cov))
    assert abs(np.mean(seen) - spread) < 4 * np.std(seen) / np.sqrt(len(seen))
    assert abs(np.mean(traces) - 1) < 4 * np.std(traces) / np.sqrt(len(traces))
    assert np.std(seen) < 0.2


def test_one_sample_of_a_class_at_each_client_tells_the_true_size_of_the_covariance() -> None:
    """No client has a scatter within a class then; clients are alike, and nothing is known before."""
    d, clients, classes = 10, 8, 12
    network = o.Network(lambda: (torch.nn.Identity(), torch.nn.Linear(d, classes)), (d,))
    method = methods.build("fedshrink", {}, o.Task(network, classes, clients, o.task().training))
    traces, spreads = [], []
    for repeat in range(40):
        rng = np.random.default_rng(repeat)
        mean, y = 3 * rng.normal(size=(classes, d)), np.arange(classes)
        data = [(mean + 0.2 * rng.normal(size=(classes, d)), y) for _ in range(clients)]
        server, *_ = o.round_of(method, method.init_server(o.key()), dict.fromkeys(range(clients), ()), data)
        traces.append(float(covariance.unpack(server.cov, d).trace()) / (d * 0.2**2))
        spreads.append(float(server.spread))
    assert abs(np.mean(traces) - 1) < 4 * np.std(traces) / np.sqrt(len(traces))
    assert np.abs(spreads).max() < 1e-6
