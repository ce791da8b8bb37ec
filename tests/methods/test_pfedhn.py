"""pFedHN: six steps of the released code, rounds by hand, and its traps.

Every array of the file is compared: the targets after local training, embeddings and weights of the hypernetwork after
each step, test losses and accuracies of the generated models. Batches go on where a client's last one ended, so a
plan like that stands for the method's; a step of the file is a round of one participant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as rec
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import SGD, Task
from idiolect.core.network import Model, Network
from idiolect.core.reduction import reduced
from idiolect.methods import pfedhn
from idiolect.methods.pfedhn import Head, Hyper, Linear, Server
from idiolect.training import Batch, trained, untrained

EXACT = {"rtol": 0, "atol": 1e-5}
ROWS = o.federation()
K, E, H, DEPTH = len(o.SIZES), 3, 4, 2
STEPS = 5
INNER = {"lr": 0.06, "momentum": 0.7, "weight_decay": 0.02}
OUTER = {"server_lr": 0.05, "server_momentum": 0.8, "server_decay": 0.03}
SMALL = {"steps": STEPS, "embedding": E, "hidden": H, "depth": DEPTH, "clip": None, **INNER, **OUTER}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
SHAPE = {k: v.shape for k, v in o.weights(0).items()}
NEW = 1000


# --- the released code's rounds ---------------------------------------------------------------------------------------


def test_released_code(monkeypatch: pytest.MonkeyPatch) -> None:
    f = rec.read("pfedhn")
    n = [len(f[f"data/{k}/y"]) for k in rec.clients(f)]
    cursor = [0 for _ in n]
    who = 0

    def recorded(*_: Any, steps: int, **__: Any) -> list[Batch]:
        plan = []
        for step in range(steps):
            at = torch.arange(cursor[who], min(cursor[who] + 7, n[who]))
            cursor[who] = 0 if cursor[who] + 7 >= n[who] else cursor[who] + 7
            plan.append(Batch(at, torch.ones(len(at)), step))
        return plan

    monkeypatch.setattr(pfedhn, "batches", recorded)
    task = rec.task(f, SGD(), 2, 0.01)
    options = {"hidden": 5, "steps": 4, "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-3, "server_lr": 0.05}
    method = methods.build("pfedhn", {"preset": "official", **options}, task)

    def linear(at: str, name: str) -> Linear:
        return Linear(torch.tensor(f[f"{at}/{name}.weight"]), torch.tensor(f[f"{at}/{name}.bias"]))

    def hyper(at: str) -> Hyper:
        heads = [linear(at, name) for name in ("w1", "b1", "w2", "b2")]
        both = [
            Model({"0.weight": a[part], "0.bias": b[part]}, {"weight": c[part], "bias": d[part]})
            for part in range(2)
            for a, b, c, d in [heads]
        ]
        layers = tuple(linear(at, f"mlp.{i}") for i in (0, 2, 4, 6))
        return Hyper(torch.tensor(f[f"{at}/embeddings.weight"]), layers, Linear(*both))

    begun = method.init_server(o.key())
    like = [a.shape for a in tree.leaves(begun.hyper)]
    server = Server(hyper("init"), tree.zeros(hyper("init")))
    assert [a.shape for a in tree.leaves(server.hyper)] == like, "sizes of the released code"
    for step, who in enumerate(f["order"].tolist()):
        down = o.one(method, server, who)
        rows = f[f"data/{who}/x"], f[f"data/{who}/y"]
        _, up, _ = method.local(down, untrained(()), o.data(*rows), o.key())
        target = tree.sub(down.own, up.value)
        at = f"step{step}"
        for part, layer, prefix in ((target.body, "fc1", "0."), (target.head, "fc2", "")):
            for kind in ("weight", "bias"):
                close(part[prefix + kind], f[f"{at}/target/{layer}.{kind}"], **EXACT)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack([up])), torch.tensor([who]))
        tree.map(lambda got, want: close(got, want, **EXACT), server.hyper, hyper(at))
        losses, right = [], 0
        for k in rec.clients(f):
            x, y = f[f"data/{k}/x_test"], f[f"data/{k}/y_test"]
            client = method.personalise(o.one(method, server, k), trained(()), o.data(*rows), o.key())
            logp = method.predict(o.one(method, server, k), client, torch.tensor(x)).numpy()
            losses.append(-logp[np.arange(len(y)), y].mean())
            right += (logp.argmax(1) == y).sum()
        close(np.mean(losses), f[f"{at}/test_loss"], **EXACT)
        assert right / rec.test_rows(f) == pytest.approx(float(f[f"{at}/test_accuracy"]), abs=1e-6)


# --- rounds by hand ---------------------------------------------------------------------------------------------------


def start(seed: int = 3, depth: int = DEPTH, names: str = "WbUc") -> o.Params:
    """A hypernetwork: V, layers W0.. with b0.., and per tensor of the target a head A and its bias a."""
    rng = np.random.default_rng(seed)
    p = {"V": rng.normal(size=(K, E))}
    for i in range(depth + 1):
        p |= {f"W{i}": 0.7 * rng.normal(size=(H, H if i else E)), f"b{i}": 0.3 * rng.normal(size=H)}
    for name in names:
        size = int(np.prod(SHAPE[name]))
        p |= {f"A{name}": 0.4 * rng.normal(size=(size, H)), f"a{name}": 0.3 * rng.normal(size=size)}
    return p


def depth_of(p: o.Params) -> int:
    return sum(k[0] == "W" for k in p) - 1


def hyper_of(p: o.Params) -> Hyper:
    def tensors(letter: str) -> Any:
        body = {"0.weight": torch.tensor(p[f"{letter}W"]), "0.bias": torch.tensor(p[f"{letter}b"])}
        if "AU" not in p:
            return body
        return Model(body, {"weight": torch.tensor(p[f"{letter}U"]), "bias": torch.tensor(p[f"{letter}c"])})

    layers = tuple(Linear(torch.tensor(p[f"W{i}"]), torch.tensor(p[f"b{i}"])) for i in range(depth_of(p) + 1))
    return Hyper(torch.tensor(p["V"]), layers, Linear(tensors("A"), tensors("a")))


def same(hyper: Hyper, p: o.Params) -> None:
    tree.map(close, hyper, hyper_of(p))


def server_of(p: o.Params, v: o.Params | None = None) -> Server:
    return Server(hyper_of(p), hyper_of(v) if v else tree.zeros(hyper_of(p)))


def forward(p: o.Params, v: np.ndarray) -> tuple[o.Params, list[np.ndarray]]:
    """The target of one embedding, and the hidden layers before their relu."""
    u = [p["W0"] @ v + p["b0"]]
    for i in range(1, depth_of(p) + 1):
        u.append(p[f"W{i}"] @ np.maximum(u[-1], 0) + p[f"b{i}"])
    names = [k[1:] for k in p if k[0] == "A"]
    return {n: (p[f"A{n}"] @ u[-1] + p[f"a{n}"]).reshape(SHAPE[n]) for n in names}, u


def backward(p: o.Params, k: int, delta: o.Params) -> o.Params:
    """The gradient of <h(v_k), delta>."""
    _, u = forward(p, p["V"][k])
    g = {name: np.zeros_like(a) for name, a in p.items()}
    du = np.zeros(H)
    for name, d in delta.items():
        g[f"A{name}"], g[f"a{name}"] = np.outer(d.ravel(), u[-1]), d.ravel()
        du += p[f"A{name}"].T @ d.ravel()
    for i in range(depth_of(p), 0, -1):
        g[f"W{i}"], g[f"b{i}"] = np.outer(du, np.maximum(u[i - 1], 0)), du
        du = p[f"W{i}"].T @ du * (u[i - 1] > 0)
    g["W0"], g["b0"] = np.outer(du, p["V"][k]), du
    g["V"][k] = p["W0"].T @ du
    return g


def descend(p: o.Params, v: o.Params, g: o.Params, clip: float | None) -> tuple[o.Params, o.Params]:
    """A server step; momentum and decay move everything."""
    norm = np.sqrt(sum((a**2).sum() for a in g.values()))
    scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
    v = {k: OUTER["server_momentum"] * v[k] + scale * g[k] + OUTER["server_decay"] * p[k] for k in p}
    return {k: p[k] - OUTER["server_lr"] * v[k] for k in p}, v


def locally(theta: o.Params, k: int, steps: int | None = STEPS, clip: float | None = None, moving: str = "WbUc") -> Any:
    x, y = ROWS[k]
    plan = o.batches(len(y), 9)[:steps] if steps else o.batches(len(y))
    rule = (INNER["lr"], INNER["momentum"], INNER["weight_decay"])
    return o.descend(theta, moving, plan, o.whole_gradient(x, y), *rule, clip)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"server_steps": "sequential"},
    {"clip": 0.5},
    {"clip": 0.5, "server_steps": "sequential"},
    {"steps": None},
    {"depth": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_two_rounds(options: dict[str, Any]) -> None:
    method = methods.build("pfedhn", SMALL | options, o.task())
    clip = options.get("clip")
    p = start(depth=options.get("depth", DEPTH))
    v = {k: np.zeros_like(a) for k, a in p.items()}
    server, clients = server_of(p), {k: untrained(()) for k in range(K)}
    for ids in (o.IDS, (1, 2)):
        server, new, up, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        deltas = []
        for row, k in enumerate(ids):
            theta = forward(p, p["V"][k])[0]
            end = locally(theta, k, options.get("steps", STEPS), clip)
            deltas.append({name: theta[name] - end[name] for name in theta})
            tree.map(close, tree.rows(up.value, row), o.model_of(deltas[-1]))
        if options.get("server_steps") == "sequential":
            for k, delta in zip(ids, deltas, strict=True):
                p, v = descend(p, v, backward(p, k, delta), clip)
        else:
            every = [backward(p, k, delta) for k, delta in zip(ids, deltas, strict=True)]
            p, v = descend(p, v, {name: np.mean([g[name] for g in every], 0) for name in p}, clip)
        same(server.hyper, p)
        same(server.momentum, v)
    for k in range(K):
        down = o.one(method, server, k)
        tree.map(close, down.own, o.model_of(forward(p, p["V"][k])[0]))


def test_options_matter() -> None:
    """The bound that OPTIONS sets is met, on both sides, and the two ways of stepping are two."""
    ends = []
    for options in OPTIONS[:4]:
        method = methods.build("pfedhn", SMALL | options, o.task())
        server, _, up, _ = o.round_of(method, server_of(start()), {k: untrained(()) for k in o.IDS}, ROWS)
        ends.append((server.hyper.layers[0].weight, up.value.body["0.weight"]))
    for a in range(4):
        for b in range(a):
            assert (ends[a][0] - ends[b][0]).abs().max() > 1e-4, (a, b)
    assert (ends[0][1] - ends[2][1]).abs().max() > 1e-3, "the local bound is never reached"


@pytest.mark.parametrize("tuning", ["newcomers", "all", "nobody"])
def test_personal_models(tuning: str) -> None:
    method = methods.build("pfedhn", SMALL | {"tuning": tuning}, o.task())
    p = start()
    for k, known in ((0, True), (2, False), (NEW, False)):
        down = o.one(method, server_of(p), k)
        theta = forward(p, p["V"][k] if k < K else p["V"].mean(0))[0]
        row = k % K
        client = trained(()) if known else untrained(())
        model = method.personalise(down, client, o.data(*ROWS[row]), o.key())
        tunes = tuning == "all" or (tuning == "newcomers" and not known)
        want = locally(theta, row) if tunes else theta
        close(method.predict(down, model, torch.tensor(TEST)), o.log_probability(want, TEST))
        received = method.predict(down, client, torch.tensor(TEST))
        close(received, o.log_probability(theta, TEST))
        assert ((o.log_probability(want, TEST) - received.numpy()).max() > 1e-2) == tunes


@pytest.mark.parametrize("preset", ["official", "official_pc"])
def test_the_released_code_tunes_nobody(preset: str) -> None:
    """A client that never trained has the generated weights as they are, and with a local head its first head."""
    method = methods.build("pfedhn", {"preset": preset, "steps": 2}, o.task())
    tuning = methods.build("pfedhn", {"preset": preset, "steps": 2, "tuning": "newcomers"}, o.task())
    server, client, rows = method.init_server(o.key()), method.init_client(o.key(), torch.tensor(0)), o.data(*ROWS[1])
    for k in (1, NEW):
        down = o.one(method, server, k)
        want = Model(down.own, client.value.weights) if preset == "official_pc" else down.own
        tree.map(lambda a, b: close(a, b, rtol=0, atol=0), method.personalise(down, client, rows, o.key()), want)
        other = tuning.personalise(down, client, rows, o.key())
        assert (other.body["0.weight"] - want.body["0.weight"]).abs().max() > 1e-4


def test_a_local_head_keeps_its_momentum() -> None:
    method = methods.build("pfedhn", SMALL | {"local_head": True}, o.task())
    p = start(names="Wb")
    server, k = server_of(p), 1
    heads = {name: o.weights(4)[name] for name in "Uc"}
    v = {name: 0.1 * a for name, a in heads.items()}
    client = untrained(Head(o.head_of(heads), o.head_of(v)))
    x, y = ROWS[k]
    for _ in range(2):
        q = forward(p, p["V"][k])[0] | heads
        buffers = {name: np.zeros_like(q[name]) for name in "Wb"} | v
        body = {name: q[name] for name in "Wb"}
        for rows in o.batches(len(y), 9)[:STEPS]:
            g = o.whole_gradient(x, y)(q, rows)
            buffers = {n: INNER["momentum"] * buffers[n] + g[n] + INNER["weight_decay"] * q[n] for n in q}
            q = {n: q[n] - INNER["lr"] * buffers[n] for n in q}
        heads, v = ({name: part[name] for name in "Uc"} for part in (q, buffers))
        down = o.one(method, server, k)
        client, up, _ = method.local(down, client, o.data(x, y), o.key())
        tree.map(close, client.value, Head(o.head_of(heads), o.head_of(v)))
        tree.map(close, up.value, o.body_of({name: body[name] - q[name] for name in "Wb"}))
        own = method.personalise(down, client, o.data(x, y), o.key())
        close(method.predict(down, own, torch.tensor(TEST)), o.log_probability(body | heads, TEST))


def test_a_start_with_a_local_head() -> None:
    method = methods.build("pfedhn", {"local_head": True, "steps": 3}, o.task())
    server, clients, up, _ = o.round_of(
        method, method.init_server(o.key()), {0: method.init_client(o.key(), torch.tensor(0))}, ROWS
    )
    assert set(up.value) == {"0.weight", "0.bias"}
    assert not tree.leaves(method.send(server, torch.tensor([0])).shared)
    new = method.personalise(
        o.one(method, server, NEW), method.init_client(o.key(), torch.tensor(0)), o.data(*ROWS[0]), o.key()
    )
    assert (
        new.head["weight"] - method.init_client(o.key(), torch.tensor(0)).value.weights["weight"]
    ).abs().max() > 1e-3
    close(clients[0].trained, 1)


# --- traps ------------------------------------------------------------------------------------------------------------


def still(ids: tuple[int, ...]) -> Any:
    return tree.map(lambda a: torch.zeros(len(ids), *a.shape), o.model_of(o.weights(0)))


@pytest.mark.parametrize("server_steps", ["sequential", "mean"])
def test_embeddings_of_absent_clients_move(server_steps: str) -> None:
    """By decay alone at first, and by their momentum."""
    method = methods.build("pfedhn", SMALL | {"server_steps": server_steps}, o.task())
    p = start()
    v = {name: np.full_like(a, 0.2) for name, a in p.items()}
    up = reduced(method.reduce, pfedhn.Up(still((0,)), torch.ones(1)))
    end, _ = method.aggregate(server_of(p, v), up, torch.tensor([0]))
    same(end.hyper, descend(p, v, {name: np.zeros_like(a) for name, a in p.items()}, None)[0])
    assert (end.hyper.embedding_Ke[2] - torch.tensor(p["V"][2])).abs().max() > 1e-3


def test_the_step_descends() -> None:
    """The generated model gets nearer to where the client trained to."""
    method = methods.build("pfedhn", SMALL | {"server_decay": 0.0, "server_lr": 1e-3}, o.task())
    server = server_of(start())
    after, _, up, _ = o.round_of(method, server, {0: untrained(())}, ROWS)
    goal = tree.sub(o.one(method, server, 0).own, tree.rows(up.value, 0))
    before, now = (tree.square_distance(o.one(method, s, 0).own, goal) for s in (server, after))
    assert now < before


def test_sequential_steps_go_by_number_and_answer_the_first_weights() -> None:
    """Numbered otherwise, participants step in another order; under "mean" there is none."""
    ends: dict[str, list[Any]] = {"sequential": [], "mean": []}
    for server_steps, end in ends.items():
        method = methods.build("pfedhn", SMALL | {"server_steps": server_steps}, o.task())
        _, _, up, _ = o.round_of(method, server_of(start()), {k: untrained(()) for k in (0, 1)}, ROWS)
        for turn in (False, True):
            p = start()
            ids = [1, 0] if turn else [0, 1]
            if turn:
                p["V"] = p["V"][[1, 0, 2, 3, 4]]
            server = method.aggregate(server_of(p), reduced(method.reduce, tree.rows(up, ids)), torch.tensor([0, 1]))[0]
            end.append(server.hyper.layers[0].weight)
    assert (ends["sequential"][0] - ends["sequential"][1]).abs().max() > 1e-5
    close(*ends["mean"])


def test_a_newcomer_gets_what_the_mean_embedding_generates() -> None:
    method = methods.build("pfedhn", SMALL, o.task())
    p = start()
    down = method.send(server_of(p), torch.tensor([0, K, NEW]))
    tree.map(close, tree.rows(down.own, 0), o.model_of(forward(p, p["V"][0])[0]))
    for row in (1, 2):
        tree.map(close, tree.rows(down.own, row), o.model_of(forward(p, p["V"].mean(0))[0]))


@pytest.mark.parametrize(("clients", "e"), [(50, 13), (10, 3), (3, 1)])
def test_sizes(clients: int, e: int) -> None:
    """e = int(1 + K / 4), four linear layers of 100, and a head for every tensor of the target."""
    task = Task(Network(rec.make, (6,)), 4, clients)
    hyper = methods.build("pfedhn", {}, task).init_server(o.key()).hyper
    assert hyper.embedding_Ke.shape == (clients, e)
    assert [tuple(layer.weight.shape) for layer in hyper.layers] == [(100, e)] + [(100, 100)] * 3
    target = sum(a.numel() for a in tree.leaves(task.network.init(o.key())))
    assert sum(a.numel() for a in tree.leaves(hyper.heads)) == 101 * target
