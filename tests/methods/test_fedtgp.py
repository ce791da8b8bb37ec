"""FedTGP: recorded rounds of the authors' released code, rounds by hand, and its traps.

Every array of the record (float32) is compared within 1e-5, in both of its sets: "released" collects prototypes with
the model before the round's training, "after" with the trained one.
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
from scipy.spatial.distance import cdist
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD
from idiolect.core.reduction import reduced
from idiolect.methods.fedtgp import Generator, Server, gaps, prototypes_of
from idiolect.training import trained, untrained

ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


def generator_of(f: r.Files, at: str) -> Generator:
    embedding = torch.tensor(f[f"{at}/tgp.embedding.weight"])
    return Generator(embedding, r.head(f, f"{at}/tgp.fc1."), r.head(f, f"{at}/tgp.fc2."))


@pytest.mark.parametrize("part", ["released", "after"])
def test_recorded_rounds(part: str) -> None:
    f = r.read("fedtgp")
    epochs, lr, alignment, tau, passes = f["options"].tolist()
    task = r.task(f, SGD(lr, 0.0, 0.0), int(epochs), drop_last=True)
    options = {"alignment": alignment, "margin": tau, "server_lr": lr, "server_epochs": int(passes)}
    options |= {"preset": "official"} if part == "released" else {}
    by_prototypes, by_head = (
        methods.build("fedtgp", options | {"predict_with": way}, task) for way in ("prototypes", "head")
    )
    method, server = by_prototypes, Server(generator_of(f, "init"), torch.zeros(()))
    clients = [untrained(r.model(f, "init_clients", k)) for k in r.clients(f)]
    for number in range(r.count(f, part)):
        at, ups = f"{part}/round{number}", []
        ids = f[f"{at}/participants"].tolist()
        for k in ids:
            clients[k], up, _ = method.local(o.one(method, server, k), clients[k], r.training(f, k), o.key())
            r.same(clients[k].value, r.model(f, f"{at}/client/{k}"))
            want = f[f"{at}/client/{k}/prototypes"]
            close(up.weight.known_C, ~np.isnan(want[:, 0]))
            close(up.value, np.nan_to_num(want), **r.EXACT)
            ups.append(up)
        up_m = reduced(method.reduce, tree.stack(ups))
        gap_C, least = gaps(up_m.value, up_m.weight_m.known_C, tau)
        close(gap_C, f[f"{at}/gap"], **r.EXACT)
        close(least, f[f"{at}/margin"], **r.EXACT)
        server, _ = method.aggregate(server, up_m, torch.tensor(ids))
        for a, b in zip(tree.leaves(server.generator), tree.leaves(generator_of(f, at)), strict=True):
            close(a, b, **r.EXACT)
        close(o.one(method, server, 0).shared.prototype_Cd, f[f"{at}/prototypes"], **r.EXACT)
    for k, client in enumerate(clients):
        down, x = o.one(method, server, k), torch.tensor(f[f"data/{k}/x_test"])
        distance = f[f"{part}/final/distances/{k}"]  # a mean over the features
        logp = by_prototypes.predict(down, client, x)
        width = down.shared.prototype_Cd.shape[1]
        close(logp, log_softmax(-np.sqrt(distance * width), 1), **r.EXACT)
        close(by_head.predict(down, client, x), log_softmax(f[f"{part}/final/logits/{k}"], 1), **r.EXACT)


# --- by hand ----------------------------------------------------------------------------------------------------------


def start() -> o.Params:
    """The generator: an embedding M and two layers (A, a) and (B, b)."""
    draw, d = np.random.default_rng(8), o.WIDTH
    shapes = {"M": (o.CLASSES, d), "A": (d, d), "a": (d,), "B": (d, d), "b": (d,)}
    return {n: 0.7 * draw.normal(size=shape) for n, shape in shapes.items()}


GENERATOR = start()


def common(p: Any) -> Any:
    return c.relu(p["M"] @ p["A"].T + p["a"]) @ p["B"].T + p["b"]


def made_of(p: o.Params) -> Generator:
    t = {n: torch.tensor(a) for n, a in p.items()}
    return Generator(t["M"], {"weight": t["A"], "bias": t["a"]}, {"weight": t["B"], "bias": t["b"]})


def train(k: int, alignment: float, epochs: int = o.EPOCHS) -> o.Params:
    x, y = ROWS[k]
    target = common(GENERATOR)

    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        z = o.embed(p, x[at])
        dl = o.error_back(z @ p["U"].T + p["c"], y[at])
        dz = dl @ p["U"] + alignment * 2 * (z - target[y[at]]) / z.size
        return {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(p, x[at], dz)

    return o.descend(OWN[k], "WbUc", o.batches(len(y), epochs), gradient)


def margin_of(means: list[dict[int, np.ndarray]], tau: float) -> float:
    centre = [np.mean([m[k] for m in means if k in m], 0) for k in range(o.CLASSES) if any(k in m for m in means)]
    if len(centre) == 1:
        return tau
    apart = cdist(centre, centre) + np.diag([np.inf] * len(centre))
    return min(apart.min(1).max(), tau)


def serve(means: list[dict[int, np.ndarray]], settled: dict[str, Any]) -> o.Params:
    points = [(k, p) for m in means for k, p in sorted(m.items())]
    y, z = np.array([k for k, _ in points]), np.array([p for _, p in points])
    margin = margin_of(means, settled["margin"])

    def loss(p: Any, at: np.ndarray) -> Any:
        apart = np.sqrt(((z[at][:, None] - common(p)) ** 2).sum(2))
        return c.errors(-(apart + margin * np.eye(o.CLASSES)[y[at]]), y[at]).mean()

    plan = o.batches(len(y), settled["server_epochs"])
    slope = c.gradient_of(loss, GENERATOR)
    return o.descend(GENERATOR, list(GENERATOR), plan, slope, lr=settled["server_lr"], momentum=0.0, decay=0.0)  # type: ignore[arg-type]


OPTIONS: list[dict[str, Any]] = [
    {"server_epochs": 2},
    {"server_epochs": 3, "alignment": 0.4, "margin": 0.1, "server_lr": 0.2},
    {"server_epochs": 1, "preset": "official", "server_lr": 0.3},
    {"server_epochs": 1, "predict_with": "head", "alignment": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("begun", [1.0, 0.0])
def test_round_by_hand(options: dict[str, Any], begun: float) -> None:
    method = methods.build("fedtgp", options, o.task())
    settled = methods.settle("fedtgp", options)
    clients = {k: (untrained if k == 4 else trained)(o.model_of(OWN[k])) for k in o.IDS}
    server = Server(made_of(GENERATOR), torch.tensor(begun))
    after, new, up, _ = o.round_of(method, server, clients, ROWS)
    ends, means = {}, []
    for at, k in enumerate(o.IDS):
        x, y = ROWS[k]
        ends[k] = train(k, begun * settled["alignment"])
        for leaf, name in zip(tree.leaves(new[k].value), "WbUc", strict=True):
            close(leaf, ends[k][name])
        z = o.embed(ends[k] if settled["collected"] == "after" else OWN[k], x)
        means.append({label: z[y == label].mean(0) for label in sorted(set(y))})
        for label in range(o.CLASSES):
            close(up.value[at, label], means[-1].get(label, np.zeros(o.WIDTH)))
    want = serve(means, settled)
    for leaf, name in zip(tree.leaves(after.generator), want, strict=True):
        close(leaf, want[name])
    assert float(after.begun) == 1
    for k in o.IDS:
        down = o.one(method, after, k)
        mine = method.personalise(down, new[k], o.data(*ROWS[k]), o.key())
        logp = method.predict(down, mine, torch.tensor(TEST))
        if settled["predict_with"] == "head":
            close(logp, o.log_probability(ends[k], TEST))
        else:
            close(logp, log_softmax(-cdist(o.embed(ends[k], TEST), common(want)), 1))


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [1, 3], [2], [0, 2, 3]])
@pytest.mark.parametrize("tau", [0.5, 1e3])
def test_gaps_and_margin(classes: list[int], tau: float) -> None:
    """Of the means over participants, without the classes that nobody sent."""
    draw = np.random.default_rng(4)
    means = [{k: draw.normal(size=3) for k in classes if client != k} for client in range(3)]
    value, known = np.zeros((3, 4, 3)), np.zeros((3, 4))
    for client, mine in enumerate(means):
        for k, p in mine.items():
            value[client, k], known[client, k] = p, 1
    gap, margin = gaps(torch.tensor(value), torch.tensor(known), tau)
    close(margin, margin_of(means, tau))
    centre = {k: np.mean([m[k] for m in means if k in m], 0) for k in classes}
    nearest = {k: min((np.linalg.norm(p - q) for j, q in centre.items() if j != k), default=np.inf)
               for k, p in centre.items()}  # fmt: skip
    close(gap, [nearest.get(k, min(nearest.values())) for k in range(4)])


def test_a_prototype_at_a_common_one_has_no_slope() -> None:
    """A distance of 0 has no slope; the other classes' distances have theirs."""
    method = methods.build("fedtgp", {"server_epochs": 3}, o.task())
    server = Server(made_of(GENERATOR), torch.ones(()))
    up = method.local(o.one(method, server, 0), trained(o.model_of(OWN[0])), o.data(*ROWS[0]), o.key())[1]
    up = up._replace(value=prototypes_of(server.generator))
    after, _ = method.aggregate(server, reduced(method.reduce, tree.stack([up, up])), torch.tensor([0, 1]))
    assert all(bool(torch.isfinite(a).all()) for a in tree.leaves(after))


@pytest.mark.parametrize(("k", "epochs"), [(2, 3), (4, 1), (99, None)])
def test_a_client_that_has_not_trained_does_so(k: int, epochs: int | None) -> None:
    method = methods.build("fedtgp", {"alignment": 3.0, "joining_epochs": epochs}, o.task())
    down = o.one(method, Server(made_of(GENERATOR), torch.ones(())), k)
    mine = method.personalise(down, untrained(o.model_of(OWN[2])), o.data(*ROWS[2]), o.key())
    want = train(2, 3.0, epochs or o.EPOCHS)
    for leaf, name in zip(tree.leaves(mine.value), "WbUc", strict=True):
        close(leaf, want[name])
    kept = trained(o.model_of(OWN[2]))
    assert tree.same(method.personalise(down, kept, o.data(*ROWS[2]), o.key()), kept)


def test_messages_know_nothing_of_the_network_but_its_features() -> None:
    method = methods.build("fedtgp", {}, o.task())
    down = method.send(method.init_server(o.key()), torch.tensor([0]))
    assert [tuple(a.shape) for a in tree.leaves(down)] == [(o.CLASSES, o.WIDTH), ()]


@pytest.mark.parametrize("options", [{"margin": 0}, {"server_lr": 0}, {"server_epochs": 0}, {"alignment": -1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedtgp", options)


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_other_tasks_are_refused(kind: Any) -> None:
    with pytest.raises(InputError, match="method fedtgp needs classes"):
        methods.build("fedtgp", {}, replace(o.task(), kind=kind))
