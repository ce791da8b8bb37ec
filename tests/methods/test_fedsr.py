"""FedSR: three rounds of the released code, rounds by hand on the noise drawn, and its traps.

Every array of the file is compared, r_mu, r_sigma and the scale (C there) of each client included. Batches go on where
a client's last one ended, so a plan like that stands for the method's, and recorded noise for its draws; at the
prediction the recorded draws differ by row, so rows are predicted one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as rec
import torch
from oracle import close
from scipy.special import expit, log_softmax, logsumexp, softmax

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.method import SGD
from idiolect.core.reduction import reduced
from idiolect.methods import fedsr
from idiolect.methods.fedsr import Client, Reference, Server, Shared
from idiolect.training import Batch

EXACT = {"rtol": 0, "atol": 1e-5}
V = 3
ROWS = o.federation()
RNG = np.random.default_rng(8)
BASE = o.weights(2)
START = {
    "W": BASE["W"], "b": BASE["b"],
    "P": 0.4 * RNG.normal(size=(2 * V, o.WIDTH)), "q": 0.4 * RNG.normal(size=2 * V),
    "U": 0.4 * RNG.normal(size=(o.CLASSES, V)), "c": 0.4 * RNG.normal(size=o.CLASSES),
}  # fmt: skip
SCALE = (1.0, 0.7, 1.4, -0.9, 0.8)  # of each client: it may be negative
REFERENCES = [
    {"M": RNG.normal(size=(o.CLASSES, V)), "R": RNG.uniform(0.3, 1.5, size=(o.CLASSES, V)), "S": np.array(s)}
    for s in SCALE
]
SHARED, OWN = list("WbPqUc"), list("MRS")
TEST = RNG.normal(size=(7, o.INPUTS))
NORM, CONDITIONAL = 0.3, 0.05
BUILD = {"latent": V, "norm": NORM, "conditional": CONDITIONAL, "samples": 6}
RULE = (o.RULE.lr, o.RULE.momentum, o.RULE.weight_decay)


def shared_of(p: o.Params) -> Shared:
    code = {"weight": torch.tensor(p["P"]), "bias": torch.tensor(p["q"])}
    return Shared(o.body_of(p), code, o.head_of(p))


def reference_of(p: o.Params) -> Reference:
    return Reference(torch.tensor(p["M"]), torch.tensor(p["R"]), torch.tensor(p["S"]))


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


# --- the released code's rounds ---------------------------------------------------------------------------------------


def test_released_code(monkeypatch: pytest.MonkeyPatch) -> None:
    f = rec.read("fedsr")
    everybody = rec.clients(f)
    cursor, who = [0 for _ in everybody], 0

    def recorded(*_: Any, steps: int, **__: Any) -> list[Batch]:
        plan, n = [], len(f[f"data/{who}/y"])
        for step in range(steps):
            at = torch.arange(cursor[who], min(cursor[who] + 7, n))
            cursor[who] = 0 if cursor[who] + 7 >= n else cursor[who] + 7
            plan.append(Batch(at, torch.ones(len(at)), step))
        return plan

    def linear(at: str) -> dict[str, torch.Tensor]:
        return {kind: torch.tensor(f[f"{at}.{kind}"]) for kind in ("weight", "bias")}

    def shared(at: str) -> Shared:
        body = {f"0.{kind}": value for kind, value in linear(f"{at}/0.body").items()}
        return Shared(body, linear(f"{at}/0.fc"), linear(f"{at}/1"))

    def equal(got: Any, want: Any) -> None:
        tree.map(lambda a, b: close(a, b, **EXACT), got, want)

    monkeypatch.setattr(fedsr, "batches", recorded)
    task = rec.task(f, SGD(0.05, 0.9, 5e-4), 2, 0.01)
    options = {"latent": 5, "norm": 0.01, "conditional": 0.02, "samples": 6}
    method = methods.build("fedsr", {"preset": "official", **options}, task)
    clients = [method.init_client(o.key(), torch.tensor(0)) for _ in everybody]
    equal(clients[0].reference, Reference(torch.zeros(4, 5), torch.ones(4, 5), torch.ones(())))
    server = Server(shared("init"), ())
    for r in range(rec.count(f)):
        ups = []
        for who in everybody:
            noise_S = iter(f[f"round{r}/noise/{who}"])
            with monkeypatch.context() as patch:
                patch.setattr(
                    keys, "normal", lambda key, shape, noise_S=noise_S: torch.tensor(next(noise_S))[: shape[0]]
                )
                rows = rec.training(f, who)
                clients[who], up, _ = method.local(o.one(method, server, who), clients[who], rows, o.key())
            assert next(noise_S, None) is None, "a step without its noise"
            ups.append(up)
            at = f"round{r}/client/{who}"
            equal(tree.add(server.model, up.value.model), shared(at))
            equal(clients[who].reference, Reference(*(torch.tensor(f[f"{at}/{p}"]) for p in ("r_mu", "r_sigma", "C"))))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(everybody))
        equal(server.model, shared(f"round{r}/server"))
    for k in everybody:
        logp = []
        for row, x in enumerate(f[f"data/{k}/x_test"]):
            draws = torch.tensor(f[f"final/{k}/noise"][:, row])
            monkeypatch.setattr(keys, "normal", lambda key, shape, draws=draws: draws)
            logp.append(method.predict(o.one(method, server, k), clients[k], torch.tensor(x[None]))[0].numpy())
        close(logp, f[f"final/{k}/log_probability"], **EXACT)
        right = (np.argmax(logp, 1) == f[f"data/{k}/y_test"]).mean()
        assert right == pytest.approx(float(f[f"final/{k}/accuracy"]), abs=1e-6)


# --- rounds by hand ---------------------------------------------------------------------------------------------------


def encode(p: o.Params, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """mu, sigma = softplus(s), s."""
    out = o.embed(p, x) @ p["P"].T + p["q"]
    return out[:, :V], np.logaddexp(0, out[:, V:]), out[:, V:]


def gradient(p: o.Params, x: np.ndarray, y: np.ndarray, e: np.ndarray) -> tuple[o.Params, np.ndarray]:
    """Of the loss of a batch in everything, and each row's cross-entropy."""
    B = len(y)
    mu, sd, raw = encode(p, x)
    z = mu + sd * e
    logit = z @ p["U"].T + p["c"]
    dlogit = (softmax(logit, 1) - np.eye(o.CLASSES)[y]) / B
    dz = dlogit @ p["U"] + NORM * z / np.linalg.norm(z, axis=1, keepdims=True) / B
    # k = sum 1/2 [(C^2 sd^2 + (C mu - m)^2) / s^2 - 1] + log s - log |C| sd
    C, m, s = p["S"], p["M"][y], np.logaddexp(0, p["R"][y])
    gap, w = C * mu - m, CONDITIONAL / B
    dmu = dz + w * C * gap / s**2
    dsd = dz * e + w * (C**2 * sd / s**2 - 1 / sd)
    g = {"U": dlogit.T @ z, "c": dlogit.sum(0), "M": np.zeros_like(p["M"]), "R": np.zeros_like(p["R"])}
    np.add.at(g["M"], y, -w * gap / s**2)
    np.add.at(g["R"], y, w * (1 / s - (C**2 * sd**2 + gap**2) / s**3) * expit(p["R"][y]))
    g["S"] = w * ((C * sd**2 + gap * mu) / s**2 - 1 / C).sum()
    dout = np.hstack([dmu, dsd * expit(raw)])
    g |= {"P": dout.T @ o.embed(p, x), "q": dout.sum(0)} | o.embed_back(p, x, dout @ p["P"])
    return g, o.errors(logit, y)


def train(
    p: o.Params, v: o.Params, k: int, plan: list[np.ndarray], noise: list[np.ndarray]
) -> tuple[o.Params, o.Params, float]:
    """SGD whose momentum starts at v."""
    x, y = ROWS[k]
    lr, momentum, decay = RULE
    seen: list[float] = []
    for rows, e in zip(plan, noise, strict=True):
        g, error = gradient(p, x[rows], y[rows], e)
        seen.extend(error)
        v = {name: momentum * v[name] + g[name] + decay * p[name] for name in p}
        p = {name: p[name] - lr * v[name] for name in p}
    return p, v, float(np.mean(seen))


def zeros(p: o.Params) -> o.Params:
    return {name: np.zeros_like(a) for name, a in p.items()}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"steps": 5},
    {"keep_momentum": True},
    {"share_reference": True},
    {"share_reference": True, "keep_momentum": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_two_rounds(options: dict[str, Any], drawn: list[np.ndarray]) -> None:
    method = methods.build("fedsr", BUILD | options, o.task())
    keep, common = options.get("keep_momentum", False), options.get("share_reference", False)
    p, own = dict(START), [dict(r) for r in REFERENCES]
    reference = dict(REFERENCES[3])
    v = [zeros(START | REFERENCES[0]) for _ in o.SIZES]
    still = tree.zeros((shared_of(START), reference_of(REFERENCES[0]))) if keep else ()
    clients = {k: Client(() if common else reference_of(own[k]), still) for k in range(len(o.SIZES))}
    server = Server(shared_of(p), reference_of(reference) if common else ())
    for ids in (o.IDS, (1, 2)):
        ends, ups = [], []
        for k in ids:
            drawn.clear()
            down = o.one(method, server, k)
            clients[k], up, info = method.local(down, clients[k], o.data(*ROWS[k]), o.key(k))
            begun = p | (reference if common else own[k])
            plan = o.batches(len(ROWS[k][1]), 9 if "steps" in options else o.EPOCHS)[: options.get("steps")]
            end, buffers, loss = train(begun, v[k], k, plan, drawn)
            if keep:
                v[k] = buffers
                tree.map(close, clients[k].momentum, (shared_of(buffers), reference_of(buffers)))
            else:
                assert clients[k].momentum == ()
            tree.map(close, tree.add(server.model, up.value.model), shared_of(end))
            if common:
                assert clients[k].reference == ()
            else:
                assert up.value.reference == ()
                own[k] = {name: end[name] for name in OWN}
                tree.map(close, clients[k].reference, reference_of(own[k]))
            close(info["train_loss"], loss)
            close(info["scale"], end["S"])
            close(up.weight, 1)
            ends.append(end)
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        p = {name: np.mean([end[name] for end in ends], 0) for name in SHARED}  # uniform, whatever the rows
        tree.map(close, server.model, shared_of(p))
        if common:
            reference = {name: np.mean([end[name] for end in ends], 0) for name in OWN}
            tree.map(close, server.reference, reference_of(reference))
        else:
            assert server.reference == ()


@pytest.mark.parametrize("head_epochs", [0, 3])
def test_personal_predictions(head_epochs: int, drawn: list[np.ndarray]) -> None:
    """Head-only tuning on the frozen encoder, by cross-entropy alone; then the draws' mean probability."""
    method = methods.build("fedsr", BUILD | {"head_epochs": head_epochs}, o.task())
    for k in range(len(o.SIZES)):
        x, y = ROWS[k]
        drawn.clear()
        down = o.one(method, Server(shared_of(START), ()), k)
        mine = Client(reference_of(REFERENCES[k]), ())
        client = method.personalise(down, mine, o.data(x, y), o.key(k))
        mu, sd, _ = encode(START, x)
        draws = iter([*drawn])

        def head(p: o.Params, rows: np.ndarray, mu: Any = mu, sd: Any = sd, y: Any = y, draws: Any = draws) -> o.Params:
            z = mu[rows] + sd[rows] * next(draws)
            dl = o.error_back(z @ p["U"].T + p["c"], y[rows])
            return {"U": dl.T @ z, "c": dl.sum(0)}

        p = o.descend(START, "Uc", o.batches(len(y), head_epochs), head, *RULE)
        assert next(draws, None) is None
        got = method.predict(down, client, torch.tensor(TEST))
        mu, sd, _ = encode(START, TEST)
        z = mu[:, None] + sd[:, None] * drawn[-1].reshape(1, 6, V)
        close(got, logsumexp(log_softmax(z @ p["U"].T + p["c"], -1), 1) - np.log(6))
        tree.map(close, client.reference, mine.reference)


# --- traps ------------------------------------------------------------------------------------------------------------


def test_reference_is_never_averaged() -> None:
    """What a client keeps depends on nobody else, and none of it is sent."""
    method = methods.build("fedsr", BUILD, o.task())
    ends = []
    for ids in ((0,), (0, 1, 3)):
        clients = {k: Client(reference_of(REFERENCES[k]), ()) for k in ids}
        new, up = o.round_of(method, Server(shared_of(START), ()), clients, ROWS)[1:3]
        assert up.value.reference == ()
        ends.append(new[0].reference)
    tree.map(lambda a, b: close(a, b, rtol=0, atol=0), *ends)
    assert (ends[0].mean_CV - torch.tensor(REFERENCES[0]["M"])).abs().max() > 1e-3


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-9])
def test_any_scale_is_finite(scale: float) -> None:
    """log(a sigma) is not a number for a < 0, and an a of 0 has no log."""
    method = methods.build("fedsr", BUILD | {"conditional": 1e-3}, o.task())
    client = Client(reference_of(REFERENCES[0] | {"S": np.array(scale)}), ())
    new, up, info = method.local(o.one(method, Server(shared_of(START), ()), 0), client, o.data(*ROWS[0]), o.key())
    assert tree.not_finite((new, up, info)) is None


def test_probabilities_are_averaged_over_fixed_draws(drawn: list[np.ndarray]) -> None:
    method = methods.build("fedsr", BUILD, o.task())
    down = o.one(method, Server(shared_of(START), ()), 0)
    client = Client(reference_of(REFERENCES[0]), ())
    first = method.predict(down, client, torch.tensor(TEST))
    close(method.predict(down, client, torch.tensor(TEST)), first, rtol=0, atol=0)
    mu, sd, _ = encode(START, TEST)
    logit = (mu[:, None] + sd[:, None] * drawn[-1].reshape(1, 6, V)) @ START["U"].T + START["c"]
    assert np.abs(log_softmax(logit.mean(1), -1) - first.numpy()).max() > 1e-3, "logits were averaged"


def test_a_newcomer_needs_nothing_of_its_own() -> None:
    method = methods.build("fedsr", BUILD, o.task())
    down = o.one(method, Server(shared_of(START), ()), 1000)
    fresh, old = method.init_client(o.key(), torch.tensor(0)), Client(reference_of(REFERENCES[2]), ())
    a, b = (
        method.predict(down, method.personalise(down, c, o.data(*ROWS[0]), o.key()), torch.tensor(TEST))
        for c in (fresh, old)
    )
    close(a, b)


def test_start() -> None:
    method = methods.build("fedsr", {"latent": V, "share_reference": True}, o.task())
    server, client = method.init_server(o.key()), method.init_client(o.key(), torch.tensor(0))
    assert client.reference == ()
    close(server.reference.mean_CV, np.zeros((o.CLASSES, V)))
    close(server.reference.raw_CV, np.ones((o.CLASSES, V)))
    close(server.reference.scale, 1)
    assert server.model.code["weight"].shape == (2 * V, o.WIDTH)
    assert server.model.head["weight"].shape == (o.CLASSES, V)
