"""GPFL: recorded rounds of the authors' released code, rounds by hand, and its traps.

Every array of the record (float32) is compared within 1e-5, in both of its sets: "released" is the code as it is,
"global" the code with inputs from the embeddings that the server sends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import complex_step as c
import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD
from idiolect.core.reduction import reduced
from idiolect.methods.gpfl import Branch, Own, Server, Shared, Valve, root
from idiolect.training import trained, untrained

ROWS = o.federation()
BRANCHES = ("scale", "shift")
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


def shared_of(f: r.Files, at: str) -> Shared:
    branches = (
        Branch(r.head(f, f"{at}/cov.{name}.fc."), r.head(f, f"{at}/cov.{name}.norm.")) for name in ("gamma", "beta")
    )
    return Shared(r.body(f, f"{at}/fc1"), Valve(*branches), torch.tensor(f[f"{at}/embedding"]))


def alike(got: Shared, want: Shared) -> None:
    for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
        close(a, b, **r.EXACT)


@pytest.mark.parametrize("part", ["released", "global"])
def test_recorded_rounds(part: str) -> None:
    f = r.read("gpfl")
    magnitude, decay, epochs, lr = f["options"].tolist()
    task = r.task(f, SGD(lr, 0.0, 0.0), int(epochs), drop_last=True)
    options: dict[str, Any] = {"preset": "official", "magnitude": magnitude, "decay": decay}
    if part == "global":
        options["inputs_from"] = "received"
    method = methods.build("gpfl", options, task)
    server = Server(shared_of(f, "init"), torch.zeros(()))
    held = server.shared.embedding_Cd if part == "released" else ()
    clients = [untrained(Own(r.head(f, "init/fc2."), torch.zeros(8), held)) for _ in r.clients(f)]
    for number in range(r.count(f, part)):
        at = f"{part}/round{number}"
        ids, ups = f[f"{at}/participants"].tolist(), []
        for k in r.clients(f):
            down, data = o.one(method, server, k), r.training(f, k)
            if k not in ids:
                clients[k] = method.stand_by(down, clients[k], data, o.key()) if method.stand_by else clients[k]
                continue
            clients[k], up, _ = method.local(down, clients[k], data, o.key())
            alike(tree.add(server.shared, up.value), shared_of(f, f"{at}/client/{k}"))
            r.same(clients[k].value.head, r.head(f, f"{at}/client/{k}/fc2."))
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        alike(server.shared, shared_of(f, f"{at}/server"))
        for k, client in enumerate(clients):
            r.same(client.value.head, r.head(f, f"{at}/heads/fc2.", k))
            mine = method.personalise(o.one(method, server, k), client, r.training(f, k), o.key())
            close(mine.value.input_d, f[f"{at}/input_personal"][k], **r.EXACT)
            source = client.value.held_Cd if part == "released" else server.shared.embedding_Cd
            close(source.mean(0), f[f"{at}/input_generic"][k], **r.EXACT)
            close(mine.value.input_d, f["class_share"][k] @ source.numpy(), **r.EXACT)
    for k, client in enumerate(clients):
        down = o.one(method, server, k)
        mine = method.personalise(down, client, r.training(f, k), o.key())
        logp = method.predict(down, mine, torch.tensor(f[f"data/{k}/x_test"]))
        close(logp, log_softmax(f[f"{part}/final/logits/{k}"], 1), **r.EXACT)


# --- by hand ----------------------------------------------------------------------------------------------------------


def start() -> o.Params:
    """Body and head, the valve (a layer and a normalisation in each branch), and the embeddings M."""
    draw = np.random.default_rng(8)
    p, d = o.weights(1), o.WIDTH
    for name in BRANCHES:
        shapes = {"A": (d, d), "a": (d,), "N": (d,), "n": (d,)}
        p |= {f"{name}{part}": 0.6 * draw.normal(size=shape) for part, shape in shapes.items()}
    return p | {"M": draw.normal(size=(o.CLASSES, d))}


START = start()
HEADS = {k: o.weights(10 + k) for k in range(len(o.SIZES))}
HELD = {k: np.random.default_rng(50 + k).normal(size=START["M"].shape) for k in range(len(o.SIZES))}
SHARED = [name for name in START if name not in ("U", "c")]


def turned(p: Any, z: Any, u: np.ndarray) -> Any:
    scale, shift = (c.layer_norm(c.relu(u @ p[f"{n}A"].T + p[f"{n}a"]), p[f"{n}N"], p[f"{n}n"]) for n in BRANCHES)
    return c.relu(z * (scale + 1) + shift)


def shares(k: int, how: str) -> np.ndarray:
    y = ROWS[k][1]
    if how == "batches" and len(y) >= o.BATCH:
        y = y[: len(y) // o.BATCH * o.BATCH]
    return np.bincount(y, minlength=o.CLASSES) / len(y)


def train(k: int, magnitude: float, decay: float, norm: str, generic: np.ndarray, personal: np.ndarray) -> o.Params:
    x, y = ROWS[k]
    anchor = START["M"].copy()

    def loss(p: Any, at: np.ndarray) -> Any:
        z = c.relu(x[at] @ p["W"].T + p["b"], o.SLOPE)
        own, everyone = turned(p, z, personal), turned(p, z, generic)
        error = c.errors(own @ p["U"].T + p["c"], y[at]).mean()
        length = (everyone**2).sum(1, keepdims=True)
        unit = everyone / np.sqrt(np.where(np.real(length) > 0, length, 1))  # a row of zeros has cosine 0
        rows = p["M"] / np.sqrt((p["M"] ** 2).sum(1, keepdims=True))
        square = ((everyone - anchor[y[at]]) ** 2).sum(1)
        apart = np.sqrt(square).mean() if norm == "samples" else np.sqrt(square.sum())
        penalty = sum((p[n] ** 2).sum() for n in p if n not in "WbUc") / 2
        return error + c.errors(unit @ rows.T, y[at]).mean() + magnitude * apart + decay * penalty

    begin = START | {n: HEADS[k][n] for n in "Uc"}
    return o.descend(begin, list(START), o.batches(len(y), 1), c.gradient_of(loss, START))  # type: ignore[arg-type]


def shared(p: o.Params) -> Shared:
    t = {n: torch.tensor(a) for n, a in p.items()}
    branches = (
        Branch({"weight": t[f"{n}A"], "bias": t[f"{n}a"]}, {"weight": t[f"{n}N"], "bias": t[f"{n}n"]}) for n in BRANCHES
    )
    return Shared(o.body_of(p), Valve(*branches), t["M"])


def same(got: Shared, p: o.Params) -> None:
    for a, b in zip(tree.leaves(got), tree.leaves(shared(p)), strict=True):
        close(a, b)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"magnitude": 0.3, "decay": 0.0, "norm": "batch"},
    {"preset": "official", "magnitude": 0.2, "decay": 0.4},
    {"inputs_from": "held", "shares_of": "samples", "decay": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("begun", [1.0, 0.0])
def test_round_by_hand(options: dict[str, Any], begun: float) -> None:
    """Of one epoch, because complex steps take their time."""
    method = methods.build("gpfl", options, o.task(epochs=1))
    settled = methods.settle("gpfl", options)
    held = settled["inputs_from"] == "held"
    server = Server(shared(START), torch.tensor(begun))
    clients = {
        k: trained(Own(o.head_of(HEADS[k]), torch.zeros(o.WIDTH), torch.tensor(HELD[k]) if held else ()))
        for k in (0, 3, 4)
    }
    after, new, up, _ = o.round_of(method, server, clients, ROWS)
    ends = {}
    for at, k in enumerate(clients):
        source = begun * (HELD[k] if held else START["M"])
        inputs = source.mean(0), shares(k, settled["shares_of"]) @ source
        ends[k] = train(k, settled["magnitude"], settled["decay"], settled["norm"], *inputs)
        same(tree.add(server.shared, tree.rows(up.value, at)), ends[k])
        close(new[k].value.head["weight"], ends[k]["U"])
        close(new[k].value.head["bias"], ends[k]["c"])
        if held:
            close(new[k].value.held_Cd, ends[k]["M"])
    weight = [o.SIZES[k] for k in clients]
    close(up.weight, weight)
    mean = {n: o.average([p[n] for p in ends.values()], weight) for n in SHARED}
    same(after.shared, mean)
    assert float(after.begun) == 1
    for k, client in new.items():
        down = o.one(method, after, k)
        mine = method.personalise(down, client, o.data(*ROWS[k]), o.key())
        source = ends[k]["M"] if held else mean["M"]
        z = c.relu(TEST @ mean["W"].T + mean["b"], o.SLOPE)
        own = turned(mean, z, shares(k, settled["shares_of"]) @ source)
        want = log_softmax(own @ ends[k]["U"].T + ends[k]["c"], 1)
        close(method.predict(down, mine, torch.tensor(TEST)), want)


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [3, 4, 99])
@pytest.mark.parametrize("held", [False, True])
def test_a_client_that_has_not_trained_gets_a_head_for_what_it_receives(k: int, held: bool) -> None:
    method = methods.build("gpfl", {"preset": "official"} if held else {}, o.task())
    server = Server(shared(START), torch.ones(()))
    own = Own(o.head_of(HEADS[0]), torch.zeros(o.WIDTH), torch.tensor(HELD[0]) if held else ())
    x, y = ROWS[3]
    down = o.one(method, server, k)
    mine = method.personalise(down, untrained(own), o.data(x, y), o.key())
    source = HELD[0] if held else START["M"]
    u = shares(3, "batches" if held else "samples") @ source

    def z(x: np.ndarray) -> np.ndarray:
        return np.real(turned(START, c.relu(x @ START["W"].T + START["b"], o.SLOPE), u))

    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        dl = o.error_back(z(x)[at] @ p["U"].T + p["c"], y[at])
        return {"U": dl.T @ z(x)[at], "c": dl.sum(0)}

    head = o.descend(HEADS[0], "Uc", o.batches(len(y)), gradient)
    close(mine.value.head["weight"], head["U"])
    close(mine.value.head["bias"], head["c"])
    close(method.predict(down, mine, torch.tensor(TEST)), log_softmax(z(TEST) @ head["U"].T + head["c"], 1))
    assert float(mine.trained) == 0


def test_one_that_stands_by_holds_what_it_received_last() -> None:
    method = methods.build("gpfl", {"inputs_from": "held"}, o.task())
    assert method.stand_by is not None
    assert methods.build("gpfl", {}, o.task()).stand_by is None
    own = Own(o.head_of(HEADS[0]), torch.zeros(o.WIDTH), torch.tensor(HELD[0]))
    down = o.one(method, Server(shared(START), torch.ones(())), 0)
    stood = method.stand_by(down, trained(own), o.data(*ROWS[0]), o.key())
    close(stood.value.held_Cd, START["M"])
    assert tree.same(stood.value._replace(held_Cd=own.held_Cd), own)


def test_features_at_their_embedding_have_no_slope() -> None:
    a = torch.tensor([0.0, 4.0], requires_grad=True)
    (slope,) = torch.autograd.grad(root(a).sum(), a)
    assert slope.tolist() == [0.0, 0.25]
    assert root(a).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("options", [{"magnitude": -1}, {"decay": -0.1}, {"norm": "l1"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("gpfl", options)


def test_numbers_need_another_method() -> None:
    with pytest.raises(InputError, match="method gpfl needs classes"):
        methods.build("gpfl", {}, replace(o.task(), kind="regression"))
