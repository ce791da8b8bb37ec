"""FedCR: a round by hand on the noise it drew, its options and its traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close
from scipy.special import expit, log_softmax, logsumexp, softmax

from idiolect import methods, models
from idiolect.core import keys, tree
from idiolect.core.method import Task, Up
from idiolect.core.reduction import reduced
from idiolect.methods.fedcr import Client, Encoder, Report, Server
from idiolect.statistics.experts import Experts

V, S = 3, 4
ROWS = o.federation()
RNG = np.random.default_rng(8)
BASE = o.weights(2)
START = {
    "W": BASE["W"], "b": BASE["b"],
    "P": 0.4 * RNG.normal(size=(2 * V, o.WIDTH)), "q": 0.4 * RNG.normal(size=2 * V),
}  # fmt: skip
HEADS = [{"U": 0.4 * RNG.normal(size=(o.CLASSES, V)), "c": 0.4 * RNG.normal(size=o.CLASSES)} for _ in o.SIZES]
MEAN, STD = RNG.normal(size=(o.CLASSES, V)), RNG.uniform(0.5, 1.5, size=(o.CLASSES, V))
TEST = RNG.normal(size=(7, o.INPUTS))
RULE = {"lr": 0.08, "momentum": 0.6, "weight_decay": 2e-2}
BUILD = {"latent": V, "samples": S, "beta": 0.05, "head_epochs": 3, **RULE}


def encoder_of(p: o.Params) -> Encoder:
    return Encoder(o.body_of(p), {"weight": torch.tensor(p["P"]), "bias": torch.tensor(p["q"])})


def server(shared: bool = True) -> Server:
    return Server(encoder_of(START) if shared else (), torch.tensor(MEAN), torch.tensor(STD))


def client(k: int, shared: bool = True) -> Client:
    return Client(o.head_of(HEADS[k]), () if shared else encoder_of(own(k)))


def own(k: int) -> o.Params:
    """A start that differs by client, for the run in which no encoder is shared."""
    return {name: a * (1 + 0.1 * k) for name, a in START.items()}


def encode(p: o.Params, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """mu, sigma = softplus(s), s."""
    out = o.embed(p, x) @ p["P"].T + p["q"]
    return out[:, :V], np.logaddexp(0, out[:, V:]), out[:, V:]


def error_back(p: o.Params, mu: np.ndarray, sd: np.ndarray, y: np.ndarray, noise: np.ndarray, objective: str) -> Any:
    """Gradients of the Monte Carlo cross-entropy in head, mu and sigma; noise is (B, draws, V)."""
    B, draws = noise.shape[:2]
    z = mu[:, None] + sd[:, None] * noise
    logit = z @ p["U"].T + p["c"]
    share = np.full((B, draws), 1 / draws)
    if objective == "log_mean":  # d log mean_s p_s(y) = sum_s p_s(y) / sum p(y) d log p_s(y)
        share = softmax(log_softmax(logit, -1)[np.arange(B), :, y], 1)
    dlogit = share[..., None] * (softmax(logit, -1) - np.eye(o.CLASSES)[y][:, None]) / B
    dz = dlogit @ p["U"]
    head = {"U": np.einsum("bsc,bsv->cv", dlogit, z), "c": dlogit.sum((0, 1))}
    return head, dz.sum(1), (dz * noise).sum(1)


def train(k: int, noise: list[np.ndarray], *, shared: bool = True, objective: str = "mean_log", beta: float = 0.05,
          clip: float = 10.0) -> dict[str, Any]:  # fmt: skip
    """A client's round from the equations."""
    x, y = ROWS[k]
    draws, seen, losses = iter(noise), [], []

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        xb, yb = x[rows], y[rows]
        mu, sd, raw = encode(p, xb)
        seen.append((mu, sd, yb))
        noise_b = next(draws)
        z = mu[:, None] + sd[:, None] * noise_b
        logp = log_softmax(z @ p["U"].T + p["c"], -1)[np.arange(len(rows)), :, yb]
        losses.extend(-logp.mean(1) if objective == "mean_log" else np.log(S) - logsumexp(logp, 1))
        g, dmu, dsd = error_back(p, mu, sd, yb, noise_b, objective)
        # KL(N(m, t^2) || N(mu, sd^2)) = sum 1/2 [(t^2 + (m - mu)^2) / sd^2 - 1] + log sd - log t
        m, t = MEAN[yb], STD[yb]
        dmu = dmu + beta * (mu - m) / sd**2 / len(rows)
        dsd = dsd + beta * (1 / sd - (t**2 + (m - mu) ** 2) / sd**3) / len(rows)
        dout = np.hstack([dmu, dsd * expit(raw)])
        z = o.embed(p, xb)
        return g | {"P": dout.T @ z, "q": dout.sum(0)} | o.embed_back(p, xb, dout @ p["P"])

    plan = o.batches(len(y))
    p = (START if shared else own(k)) | HEADS[k]
    p = o.descend(p, "WbPqUc", plan, gradient, RULE["lr"], RULE["momentum"], RULE["weight_decay"], clip)
    precision, weighted = np.zeros((o.CLASSES, V)), np.zeros((o.CLASSES, V))
    for mu, sd, yb in seen[-len(plan) // o.EPOCHS :]:  # the last epoch
        for row, spread, c in zip(mu, sd, yb, strict=True):
            precision[c] += 1 / spread**2
            weighted[c] += row / spread**2
    return {"p": p, "precision": precision, "weighted": weighted, "loss": np.mean(losses)}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Every draw that the method takes, as it takes it."""
    out: list[np.ndarray] = []
    real = keys.normal

    def normal(*args: Any) -> Any:
        value = real(*args)
        out.append(value.numpy())
        return value

    monkeypatch.setattr(keys, "normal", normal)
    return out


OPTIONS: list[dict[str, Any]] = [
    {},
    {"objective": "log_mean"},
    {"beta": 0.0},
    {"beta": 1.0},
    {"beta": 1.0, "clip": 0.4},
    {"server_rate": 0.3},
    {"share_encoder": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round(options: dict[str, Any], drawn: list[np.ndarray]) -> None:
    method = methods.build("fedcr", BUILD | options, o.task())
    shared = options.get("share_encoder", True)
    how = {k: v for k, v in options.items() if k in ("objective", "beta", "clip")}
    start, ups, want = server(shared), [], []
    for k in o.IDS:
        drawn.clear()
        new, up, info = method.local(o.one(method, start, k), client(k, shared), o.data(*ROWS[k]), o.key(k))
        w = train(k, drawn, shared=shared, **how)
        close(new.head["weight"], w["p"]["U"])
        close(new.head["bias"], w["p"]["c"])
        got = tree.add(start.encoder, up.value.encoder) if shared else new.encoder
        close(got.body["0.weight"], w["p"]["W"])
        close(got.body["0.bias"], w["p"]["b"])
        close(got.code["weight"], w["p"]["P"])
        close(got.code["bias"], w["p"]["q"])
        assert bool(tree.leaves(up.value.encoder)) == shared
        assert bool(tree.leaves(new.encoder)) != shared
        close(up.value.experts.precision_CV, w["precision"])
        close(up.value.experts.weighted_CV, w["weighted"])
        close(up.weight, 1)
        close(info["train_loss"], w["loss"])
        ups.append(up)
        want.append(w)
    end, _ = method.aggregate(start, reduced(method.reduce, tree.stack(ups)), torch.tensor(o.IDS))
    variance = 1 / (1 + sum(w["precision"] for w in want))  # the prior N(0, I) once
    mean = variance * sum(w["weighted"] for w in want)
    rate = options.get("server_rate", 1.0)
    close(end.mean_CV, rate * mean + (1 - rate) * MEAN)
    close(end.std_CV, rate * np.sqrt(variance) + (1 - rate) * STD)
    if shared:  # the mean is uniform, whatever the rows
        close(end.encoder.body["0.weight"], np.mean([w["p"]["W"] for w in want], 0))
        close(end.encoder.code["bias"], np.mean([w["p"]["q"] for w in want], 0))
    else:
        assert end.encoder == ()


def test_options_matter(drawn: list[np.ndarray]) -> None:
    """The bound that OPTIONS sets is met, and the two objectives are two."""
    method = methods.build("fedcr", BUILD, o.task())
    method.local(o.one(method, server(), 0), client(0), o.data(*ROWS[0]), o.key(0))
    weights = [train(0, drawn, **how)["p"]["P"] for how in ({"beta": 1.0}, {"beta": 1.0, "clip": 0.4})]
    weights += [train(0, drawn, objective=how)["p"]["P"] for how in ("mean_log", "log_mean")]
    assert np.abs(weights[0] - weights[1]).max() > 1e-3
    assert np.abs(weights[2] - weights[3]).max() > 1e-4


@pytest.mark.parametrize("objective", ["mean_log", "log_mean"])
@pytest.mark.parametrize("predict_with", ["probabilities", "logits"])
def test_personal_predictions(objective: str, predict_with: str, drawn: list[np.ndarray]) -> None:
    """Head-only tuning on the frozen encoder, without the KL term; then the draws' mean probabilities or logits."""
    method = methods.build("fedcr", BUILD | {"objective": objective, "predict_with": predict_with}, o.task())
    for k in range(len(o.SIZES)):
        x, y = ROWS[k]
        drawn.clear()
        down = o.one(method, server(), k)
        new = method.personalise(down, client(k), o.data(x, y), o.key(k))
        draws = iter([*drawn])
        mu, sd, _ = encode(START, x)

        def gradient(p: o.Params, rows: np.ndarray, y: Any = y, mu: Any = mu, sd: Any = sd, draws: Any = draws) -> Any:
            return error_back(p, mu[rows], sd[rows], y[rows], next(draws), objective)[0]

        p = o.descend(
            START | HEADS[k], "Uc", o.batches(len(y), 3), gradient,
            RULE["lr"], RULE["momentum"], RULE["weight_decay"], 10.0,
        )  # fmt: skip
        assert next(draws, None) is None
        close(new.head["weight"], p["U"])
        close(new.head["bias"], p["c"])
        got = method.predict(down, new, torch.tensor(TEST))
        mu, sd, _ = encode(START, TEST)
        logit = (mu[:, None] + sd[:, None] * drawn[-1].reshape(1, S, V)) @ p["U"].T + p["c"]
        if predict_with == "logits":
            close(got, log_softmax(logit.mean(1), -1))
        else:
            close(got, logsumexp(log_softmax(logit, -1), 1) - np.log(S))


def test_personal_predictions_with_an_own_encoder(drawn: list[np.ndarray]) -> None:
    method = methods.build("fedcr", BUILD | {"share_encoder": False, "head_epochs": 0}, o.task())
    down = o.one(method, server(False), 2)
    new = method.personalise(down, client(2, False), o.data(*ROWS[2]), o.key())
    got = method.predict(down, new, torch.tensor(TEST))
    mu, sd, _ = encode(own(2), TEST)
    logit = (mu[:, None] + sd[:, None] * drawn[-1].reshape(1, S, V)) @ HEADS[2]["U"].T + HEADS[2]["c"]
    close(got, logsumexp(log_softmax(logit, -1), 1) - np.log(S))


def products(precision: np.ndarray, weighted: np.ndarray) -> Up:
    """Uploads of participants that left the encoder alone."""
    m = len(precision)
    still = tree.map(lambda a: torch.zeros(m, *a.shape), encoder_of(START))
    return Up(Report(still, Experts(torch.tensor(precision), torch.tensor(weighted))), torch.ones(m))


def test_the_prior_enters_once_and_absent_classes_stay() -> None:
    method = methods.build("fedcr", BUILD, o.task())
    precision = RNG.uniform(1, 5, size=(3, o.CLASSES, V))
    weighted = RNG.normal(size=(3, o.CLASSES, V))
    precision[:, 2] = weighted[:, 2] = 0  # nobody has class 2
    precision[:2, 0] = weighted[:2, 0] = 0  # one has class 0
    end, _ = method.aggregate(server(), reduced(method.reduce, products(precision, weighted)), torch.tensor([0, 2, 4]))
    for c in (0, 1, 3):
        close(end.std_CV[c], (1 + precision[:, c].sum(0)) ** -0.5)
        close(end.mean_CV[c], weighted[:, c].sum(0) / (1 + precision[:, c].sum(0)))
    close(end.mean_CV[2], MEAN[2])
    close(end.std_CV[2], STD[2])
    tree.map(close, end.encoder, server().encoder)


def test_a_class_that_the_participants_lack_is_sent_as_nothing() -> None:
    method = methods.build("fedcr", BUILD, o.task())
    for k, c in o.LACKS.items():
        end, _, up, _ = o.round_of(method, server(), {k: client(k)}, ROWS)
        assert not up.value.experts.precision_CV[0, c].any()
        close(end.mean_CV[c], MEAN[c])
        close(end.std_CV[c], STD[c])
        assert (end.mean_CV - server().mean_CV).abs().amax(1)[[i for i in range(o.CLASSES) if i != c]].min() > 1e-3


def test_start() -> None:
    method = methods.build("fedcr", {"latent": V}, o.task())
    start = method.init_server(o.key())
    close(start.mean_CV, np.zeros((o.CLASSES, V)))
    close(start.std_CV, np.ones((o.CLASSES, V)))


PUBLISHED = [
    ("fedcr_mlp", (1, 28, 28), 10, 256, 2_380_810),
    ("fedcr_fmnist_cnn", (1, 28, 28), 10, 512, 2_303_278),
    ("fedcr_cifar_cnn", (3, 32, 32), 10, 256, 3_323_722),
    ("fedcr_cifar_cnn", (3, 32, 32), 100, 512, 3_897_252),
]


@pytest.mark.parametrize(("name", "shape", "classes", "latent", "total"), PUBLISHED)
def test_parameters(name: str, shape: tuple[int, ...], classes: int, latent: int, total: int) -> None:
    """Body, a layer of 2 V and the head: the sizes of the published networks."""
    method = methods.build("fedcr", {"latent": latent}, Task(models.build(name, shape, classes), classes, 1))
    parts = (method.init_server(o.key()).encoder, method.init_client(o.key(), torch.tensor(0)).head)
    assert sum(a.numel() for a in tree.leaves(parts)) == total
