"""MOON: rounds of the authors' released code (QinbinLi/MOON, float32) within 1e-5, by hand, and its traps.

Parity: every array of the file, without and with a projection. There each client starts from a model of its own, and
the first round has no contrast; here both follow from a state in which the model before is the received one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax
from torch import Tensor
from torch.func import grad

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Model
from idiolect.core.reduction import reduced

ROWS = o.federation()
START = o.weights(1)
OWN = [o.weights(10 + k) for k in range(len(o.SIZES))]
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
LAYERS = {"hidden": "l1", "projection": "l2", "output": "fc2"}  # our names and the record's


# --- recorded rounds --------------------------------------------------------------------------------------------------


def model(f: r.Files, at: str, row: Any = ...) -> Model:
    if f"{at}/l1.weight" not in f:
        return r.model(f, at, row)
    parts = {(ours, p): f[f"{at}/{theirs}.{p}"][row] for ours, theirs in LAYERS.items() for p in ("weight", "bias")}
    return Model(r.body(f, f"{at}/fc1", row), {f"{name}.{p}": torch.tensor(a) for (name, p), a in parts.items()})


@pytest.mark.parametrize("form", ["plain", "head"])
def test_recorded_rounds(form: str) -> None:
    f = r.read("moon")
    rule = SGD(*(float(f[f"options/{name}"]) for name in ("lr", "momentum", "weight_decay")))
    wide = f[f"{form}/init/global/l2.bias"].size if form == "head" else 0
    options = {"mu": float(f["options/mu"]), "temperature": float(f["options/temperature"]), "projection": wide}
    method = methods.build("moon", options, r.task(f, rule, int(f["options/epochs"])))
    server = model(f, f"{form}/init/global")
    clients = [model(f, f"{form}/init/clients", k) for k in r.clients(f)]
    for number in range(r.count(f, form)):
        at, ups = f"{form}/round{number}", []
        old = f[f"{form}/round{number - 1}/clients/fc1.weight" if number else f"{form}/init/clients/fc1.weight"]
        ids = r.changed(f[f"{at}/clients/fc1.weight"], old)
        for k in ids:
            before = clients[k] if number else server  # a contrast without a gradient
            clients[k], up, _ = method.local(o.one(method, server, k), before, r.training(f, k), o.key(k))
            ups.append(up)
        for k in r.clients(f):
            r.same(clients[k], model(f, f"{at}/clients", k))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, model(f, f"{at}/global"))
    right = []
    for k in r.clients(f):
        r.same(clients[k], model(f, f"{form}/final/previous", k))
        x, y = r.rows(f, k, "_test")
        logp = method.predict(o.one(method, server, k), clients[k], torch.tensor(x)).numpy()
        close(np.exp(logp), np.exp(log_softmax(f[f"{form}/final/logits/{k}"], 1)), **r.EXACT)
        right.extend(logp.argmax(1) == y)
    close(np.mean(right), f[f"{form}/final/test_accuracy"], **r.EXACT)


# --- a round by hand --------------------------------------------------------------------------------------------------


def contrast(z: np.ndarray, near: np.ndarray, far: np.ndarray, temperature: float) -> np.ndarray:
    """Each row's -log(e_near / (e_near + e_far))."""
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (z, near, far)]
    score = np.stack([(unit[0] * other).sum(1) / temperature for other in unit[1:]], 1)
    return -log_softmax(score, 1)[:, 0]


def contrast_back(z: np.ndarray, near: np.ndarray, far: np.ndarray, temperature: float) -> np.ndarray:
    """Its mean's gradient by z, by the quotient rule: d cos(z, a) / dz = (a' - cos z') / |z|, with unit a', z'."""
    length = np.linalg.norm(z, axis=1, keepdims=True)
    unit, to, off = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (z, near, far))
    cos_to, cos_off = ((unit * a).sum(1, keepdims=True) for a in (to, off))
    share = 1 / (1 + np.exp((cos_to - cos_off) / temperature))  # of the model before
    return share * ((off - cos_off * unit) - (to - cos_to * unit)) / length / temperature / len(z)


def alone(k: int, mu: float, temperature: float, plan: list[np.ndarray] | None = None) -> o.Params:
    x, y = ROWS[k]

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        z, near, far = (o.embed(w, x[rows]) for w in (p, START, OWN[k]))
        dl = o.error_back(z @ p["U"].T + p["c"], y[rows])
        dz = dl @ p["U"] + mu * contrast_back(z, near, far, temperature)
        return {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(p, x[rows], dz)

    return o.descend(START, "WbUc", o.batches(len(y)) if plan is None else plan, gradient)


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


@pytest.mark.parametrize("options", [{}, {"mu": 3.0, "temperature": 0.2}, {"mu": 0.4, "temperature": 1.5}, {"mu": 0}])
def test_a_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("moon", options, o.task())
    how = options.get("mu", 1.0), options.get("temperature", 0.5)
    server, new, up, _ = o.round_of(method, o.model_of(START), {k: o.model_of(OWN[k]) for k in o.IDS}, ROWS)
    ends = {k: alone(k, *how) for k in o.IDS}
    for at, k in enumerate(o.IDS):
        same(new[k], ends[k])
        same(tree.rows(up.value, at), {n: ends[k][n] - START[n] for n in START})
    average = {n: o.average([p[n] for p in ends.values()], [o.SIZES[k] for k in o.IDS]) for n in START}
    same(server, average)
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, server, k)
        client = method.personalise(down, o.model_of(OWN[2]), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(average, TEST))


def test_what_a_round_tells() -> None:
    method = methods.build("moon", {"mu": 2.0}, o.task(epochs=1))
    x, y = ROWS[1]
    info = method.local(o.one(method, o.model_of(START), 1), o.model_of(OWN[1]), o.data(x, y), o.key())[2]
    plan, loss, other = o.batches(len(y), 1), 0.0, 0.0
    for at, rows in enumerate(plan):  # each batch before its own step
        p = alone(1, 2.0, 0.5, plan[:at]) if at else START
        loss -= o.log_probability(p, x[rows])[np.arange(len(rows)), y[rows]].sum()
        other += contrast(*(o.embed(w, x[rows]) for w in (p, START, OWN[1])), 0.5).sum()
    close(info["train_loss"], loss / len(y))
    close(info["contrast"], other / len(y))


@pytest.mark.parametrize("wide", [1, 5, 32])
def test_a_projection_is_trained_and_averaged_with_the_model(wide: int) -> None:
    """One step of one client: torch differentiates the equations, written with matrices."""
    method = methods.build("moon", {"projection": wide}, o.task(epochs=1, batch_size=99, optimiser=SGD(0.1, 0, 0)))
    server, before = (method.init_server(o.key(seed)) for seed in ("server", "client"))
    x, y = (torch.tensor(a) for a in ROWS[0])

    def z_of(m: Model) -> Tensor:
        z = torch.where((a := x @ m.body["0.weight"].T + m.body["0.bias"]) > 0, a, o.SLOPE * a)
        u = (z @ m.head["hidden.weight"].T + m.head["hidden.bias"]).clamp(min=0)
        return u @ m.head["projection.weight"].T + m.head["projection.bias"]

    def loss(m: Model) -> Tensor:
        unit = [z / z.norm(dim=1, keepdim=True) for z in map(z_of, (m, server, before))]
        e_w, e_p = ((unit[0] * other).sum(1).div(0.5).exp() for other in unit[1:])
        logit = z_of(m) @ m.head["output.weight"].T + m.head["output.bias"]
        return (-logit.log_softmax(1)[range(len(y)), y] - (e_w / (e_w + e_p)).log()).mean()

    new, up, _ = method.local(o.one(method, server, 0), before, o.data(*ROWS[0]), o.key())
    for got, g, w in zip(tree.leaves(up.value), tree.leaves(grad(loss)(server)), tree.leaves(server), strict=True):
        close(got, -0.1 * g)
        assert got.shape == w.shape
    after, _ = method.aggregate(server, reduced(method.reduce, tree.stack([up])), torch.tensor([0]))
    logit = z_of(after) @ after.head["output.weight"].T + after.head["output.bias"]
    close(method.predict(o.one(method, after, 0), new, x), logit.log_softmax(1))


# --- traps ------------------------------------------------------------------------------------------------------------


def test_the_first_round_is_fedavg_s_because_all_start_alike() -> None:
    method, plain = methods.build("moon", {"mu": 5.0}, o.task()), methods.build("fedavg", {}, o.task())
    start = method.init_server(o.key())
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in o.IDS}
    got = o.round_of(method, start, clients, ROWS)[0]
    want = o.round_of(plain, start, dict.fromkeys(o.IDS, ()), ROWS)[0]
    for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
        close(a, b)


@pytest.mark.parametrize("dead", ["server", "before", "both"])
def test_features_that_are_all_zero_are_no_nan(dead: str) -> None:
    method = methods.build("moon", {}, r.task(r.read("moon"), SGD(0.05), 2))
    zero = r.Model({"0.weight": torch.zeros(8, 6), "0.bias": -torch.ones(8)}, method.init_server(o.key()).head)
    server, before = method.init_server(o.key()), method.init_server(o.key("other"))
    server, before = zero if dead != "before" else server, zero if dead != "server" else before
    x = np.random.default_rng(0).normal(size=(9, 6))
    result = method.local(o.one(method, server, 0), before, o.data(x, np.arange(9) % 4), o.key())
    assert tree.not_finite(result) is None


@pytest.mark.parametrize("options", [{"mu": -1}, {"temperature": 0}, {"projection": -3}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("moon", options)
