"""FedProto: recorded rounds, a round by hand, its options and its traps.

The record (float32) is of the authors' released code, preset "official" with its weight of 0.7. Every array is
compared, within 1e-5. Its clients start from models of their own, where the method's start from one, so the clients'
states are built here. The accuracies that the released code prints run on over clients and over both tests: they are
rebuilt here from the right ones, beside which they stand.
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

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import SGD, Up
from idiolect.core.reduction import reduced
from idiolect.methods.fedproto import VARIANTS, Client, Prototypes
from idiolect.simulation.robust import TrimmedMean
from idiolect.training import trained, untrained

ROWS = o.federation()
MODELS = [o.weights(10 + k) for k in range(len(o.SIZES))]
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
GLOBAL = np.random.default_rng(6).normal(size=(o.CLASSES, o.WIDTH))
OWN = np.random.default_rng(7).normal(size=(len(o.SIZES), o.CLASSES, o.WIDTH))
KNOWN = np.array([1.0, 1.0, 0.0, 1.0])  # class 2 has no prototype yet
Params = o.Params


def prototypes(mean: np.ndarray, known: np.ndarray) -> Prototypes:
    return Prototypes(torch.tensor(mean * known[:, None]), torch.tensor(known))


def test_recorded_rounds() -> None:
    f = r.read("fedproto")
    task = r.task(f, SGD(0.05, 0.5, 0.0), 2)
    by_head, by_prototypes = (
        methods.build("fedproto", {"preset": "official", "alignment": 0.7, "predict_with": how}, task)
        for how in ("head", "prototypes")
    )
    server = by_head.init_server(o.key())
    nothing = Prototypes(torch.zeros(4, 8), torch.zeros(4))
    clients = [untrained(Client(r.model(f, "init", k), nothing, torch.zeros(4))) for k in r.clients(f)]
    for number in range(r.count(f)):
        at, ups = f"round{number}/", []
        for k in r.clients(f):
            down = o.one(by_head, server, k)
            clients[k], up, _ = by_head.local(down, clients[k], r.training(f, k), o.key(number, k))
            r.same(clients[k].value.model, r.model(f, f"{at}clients", k))
            want = f[at + "local_prototypes"][k]
            has = ~np.isnan(want[:, 0])
            close(up.weight, has)
            close(up.value[has], want[has], **r.EXACT)
            ups.append(up)
        server, _ = by_head.aggregate(server, reduced(by_head.reduce, tree.stack(ups)), torch.tensor(r.clients(f)))
        close(server.mean_Cd, f[at + "prototypes"], **r.EXACT)

    counted, running, tested, right = [], [], 0, 0
    for k in r.clients(f):
        x, y = r.rows(f, k, "_test")
        for method in (by_head, by_prototypes):
            down = o.one(method, server, k)
            mine = method.personalise(down, clients[k], r.training(f, k), o.key())
            hits = int((method.predict(down, mine, torch.tensor(x)).argmax(1).numpy() == y).sum())
            counted.append(hits / len(y))
            tested, right = tested + len(y), right + hits
            running.append(right / tested)
    for name, at in (("head", 0), ("prototypes", 1)):
        close(counted[at::2], f[f"final/accuracy_{name}"], rtol=1e-6)
        close(running[at::2], f[f"final/released_accuracy_{name}"], rtol=1e-6)


# --- by hand --------------------------------------------------------------------------------------------------------


def train(
    k: int, target: np.ndarray, known: np.ndarray, *, alignment: float = 1.0, drop_last: bool = False
) -> dict[str, Any]:
    """A client's round from the equations."""
    x, y = ROWS[k]
    seen: list[tuple[np.ndarray, np.ndarray, float, float]] = []  # of each step, before it

    def gradient(p: Params, rows: np.ndarray) -> Params:
        z, label = o.embed(p, x[rows]), y[rows]
        dl = o.error_back(z @ p["U"].T + p["c"], label)
        gap = (z - target[label]) * known[label][:, None]
        seen.append((z, label, o.errors(z @ p["U"].T + p["c"], label).mean(), (gap**2).sum() / gap.size))
        return {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(p, x[rows], dl @ p["U"] + alignment * 2 * gap / gap.size)

    plan = o.batches(len(y), drop_last=drop_last)
    p = o.descend(MODELS[k], "WbUc", plan, gradient)
    last = seen[len(seen) // 2 :]
    z, label = (np.concatenate([s[part] for s in last]) for part in (0, 1))
    mean = o.class_means(z, label, np.zeros((o.CLASSES, o.WIDTH)))
    rows = [len(b) for b in plan]
    return {
        "p": p, "mean": mean, "n": np.bincount(label, minlength=o.CLASSES),
        "loss": np.average([s[2] for s in seen], weights=rows), "apart": np.average([s[3] for s in seen], weights=rows),
    }  # fmt: skip


def same(model: Any, p: Params) -> None:
    close(model.body["0.weight"], p["W"])
    close(model.body["0.bias"], p["b"])
    close(model.head["weight"], p["U"])
    close(model.head["bias"], p["c"])


def has(k: int) -> np.ndarray:
    return (np.bincount(ROWS[k][1], minlength=o.CLASSES) > 0).astype(float)


def start(k: int) -> Any:
    return trained(Client(o.model_of(MODELS[k]), prototypes(OWN[k], KNOWN), torch.tensor(has(k))))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"alignment": 3.5},
    {"alignment": 0.0},
    {"weighting": "counts"},
    {"drop_last": True},
    {"prototypes": "local"},
    {"prototypes": "local", "alignment": 3.5, "drop_last": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_round(options: dict[str, Any]) -> None:
    """Class 2 has no prototype before the round; some participants lack a class, client 2 stays away."""
    method = methods.build("fedproto", options, o.task())
    shared = options.get("prototypes") != "local"
    server = prototypes(GLOBAL, KNOWN) if shared else ()
    clients = {k: start(k) for k in range(5)}
    how = {name: options[name] for name in ("alignment", "drop_last") if name in options}
    want = {k: train(k, GLOBAL if shared else OWN[k], KNOWN, **how) for k in o.IDS}
    after, new, up, _ = o.round_of(method, server, {k: clients[k] for k in o.IDS}, ROWS)
    for at, k in enumerate(o.IDS):
        state, w = new[k].value, want[k]
        same(state.model, w["p"])
        close(state.own.mean_Cd, w["mean"])
        close(state.own.known_C, w["n"] > 0)
        close(state.has_C, has(k))
        assert float(new[k].trained) == 1
        info = method.local(o.one(method, server, k), clients[k], o.data(*ROWS[k]), o.key(k))[2]
        close(info["train_loss"], w["loss"])
        close(info["alignment"], w["apart"])
        if shared:
            close(up.value[at], w["mean"])
            close(up.weight[at], w["n"] if "weighting" in options else w["n"] > 0)
    if not shared:
        assert not tree.leaves((after, up, method.send(after, torch.tensor([0, 3])))), "something travels"
    else:
        weight = np.array([w["n"] if "weighting" in options else w["n"] > 0 for w in want.values()], float)
        means = np.array([w["mean"] for w in want.values()])
        assert weight.sum(0).min() > 0
        close(after.mean_Cd, (weight[:, :, None] * means).sum(0) / weight.sum(0)[:, None])
        close(after.known_C, np.ones(o.CLASSES))

    for k, client in (clients | new).items():
        down = o.one(method, after, k)
        mine = method.personalise(down, client, o.data(*ROWS[k]), o.key())
        p = want[k]["p"] if k in o.IDS else MODELS[k]
        same(mine.value.model, p)
        close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(p, TEST))


@pytest.mark.parametrize("which", ["global", "local"])
def test_nearest_prototype_among_the_own_classes(which: str) -> None:
    """Log-softmax of the negative mean squared distance; another class gets the smallest positive number."""
    method = methods.build("fedproto", {"predict_with": "prototypes", "prototypes": which}, o.task())
    known = np.ones(o.CLASSES)
    for k in (0, 1, 4):
        server = prototypes(GLOBAL, known) if which == "global" else ()
        client = trained(Client(o.model_of(MODELS[k]), prototypes(OWN[k], known), torch.tensor(has(k))))
        target = GLOBAL if which == "global" else OWN[k]
        apart = ((o.embed(MODELS[k], TEST)[:, None] - target) ** 2).mean(2)
        own = has(k) > 0
        logp = method.predict(o.one(method, server, k), client, torch.tensor(TEST)).numpy()
        close(logp[:, own], log_softmax(-apart[:, own], 1))
        close(logp[:, ~own], np.full((len(TEST), (~own).sum()), np.log(np.finfo(float).tiny)))


@pytest.mark.parametrize("which", ["global", "local"])
def test_an_own_class_without_any_prototype_is_none_of_the_nearest(which: str) -> None:
    """A class of few rows may fall out with the last batch: zeros in its place would be a prototype like any other."""
    method = methods.build("fedproto", {"predict_with": "prototypes", "prototypes": which}, o.task())
    server = prototypes(GLOBAL, KNOWN) if which == "global" else ()
    client = trained(Client(o.model_of(MODELS[0]), prototypes(OWN[0], KNOWN), torch.ones(o.CLASSES)))
    target = GLOBAL if which == "global" else OWN[0]
    apart = ((o.embed(MODELS[0], TEST)[:, None] - target) ** 2).mean(2)[:, KNOWN > 0]
    logp = method.predict(o.one(method, server, 0), client, torch.tensor(TEST)).numpy()
    close(logp[:, KNOWN > 0], log_softmax(-apart, 1))
    assert (logp[:, KNOWN == 0] < -700).all()


def test_newcomer_does_one_round() -> None:
    """It aligns to the prototypes received; where nobody else has its class, its own prototype stands in."""
    method = methods.build("fedproto", {"predict_with": "prototypes"}, o.task())
    down = o.one(method, prototypes(GLOBAL, KNOWN), 99)
    new = untrained(start(0).value._replace(model=o.model_of(MODELS[0])))
    mine = method.personalise(down, new, o.data(*ROWS[0]), o.key())
    want = train(0, GLOBAL, KNOWN)
    same(mine.value.model, want["p"])
    target = np.where(KNOWN[:, None] > 0, GLOBAL, want["mean"])
    apart = ((o.embed(want["p"], TEST)[:, None] - target) ** 2).mean(2)
    close(method.predict(down, mine, torch.tensor(TEST)), log_softmax(-apart, 1))


def test_before_any_round_all_classes_are_alike() -> None:
    method = methods.build("fedproto", {"predict_with": "prototypes"}, o.task())
    down = o.one(method, method.init_server(o.key()), 0)
    logp = method.predict(down, method.init_client(o.key(), torch.tensor(0)), torch.tensor(TEST))
    close(logp, np.full((len(TEST), o.CLASSES), -np.log(o.CLASSES)))


# --- traps ----------------------------------------------------------------------------------------------------------


def test_variants_of_fedpac() -> None:
    """Both are tested with the local classifier; L has nothing to align to in its first round, and no message."""
    for title, shared in (("FedProto-G", True), ("FedProto-L", False)):
        method = methods.build("fedproto", VARIANTS[title], o.task())
        client = method.init_client(o.key("init"), torch.tensor(0))
        down = o.one(method, method.init_server(o.key("init")), 0)
        assert bool(tree.leaves(down)) == shared
        first, up, info = method.local(down, client, o.data(*ROWS[0]), o.key())
        assert float(info["alignment"]) == 0
        assert bool(tree.leaves(up)) == shared
        logp = method.predict(down, first, torch.tensor(TEST))
        p = {"W": first.value.model.body["0.weight"].numpy(), "b": first.value.model.body["0.bias"].numpy()}
        p |= {"U": first.value.model.head["weight"].numpy(), "c": first.value.model.head["bias"].numpy()}
        close(logp, o.log_probability(p, TEST))
        info = method.local(down, first, o.data(*ROWS[0]), o.key())[2]
        assert (float(info["alignment"]) > 0) != shared, "G depends on what it receives, L on what it keeps"


def test_a_client_smaller_than_a_batch_trains() -> None:
    """With ``drop_last`` too: the released code stops at such a client."""
    method = methods.build("fedproto", {"drop_last": True}, o.task())
    down = o.one(method, prototypes(GLOBAL, KNOWN), 4)
    client, up, _ = method.local(down, start(4), o.data(*ROWS[4]), o.key())
    same(client.value.model, train(4, GLOBAL, KNOWN)["p"])
    close(up.weight, has(4))


def test_a_class_that_nobody_holds_keeps_its_prototype() -> None:
    method = methods.build("fedproto", {}, o.task())
    value = torch.tensor(OWN[:2])
    weight = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
    server, _ = method.aggregate(
        prototypes(GLOBAL, KNOWN), reduced(method.reduce, Up(value, weight)), torch.tensor([0, 3])
    )
    close(server.mean_Cd[0], OWN[:2, 0].mean(0))
    close(server.mean_Cd[3], OWN[0, 3])
    close(server.mean_Cd[1], GLOBAL[1])
    close(server.mean_Cd[2], np.zeros(o.WIDTH))
    close(server.known_C, KNOWN)


def test_a_class_of_which_a_trimmed_mean_leaves_nothing_keeps_its_prototype() -> None:
    method = methods.build("fedproto", {}, o.task())
    value = torch.tensor(np.random.default_rng(0).normal(size=(5, o.CLASSES, o.WIDTH)))
    weight = torch.ones(5, o.CLASSES)
    weight[2:, 1] = 0  # two of five have it, and one largest and one smallest value are cut
    value[2:, 1] = 0
    value, _ = TrimmedMean(share=0.2)(value, [None])
    server, _ = method.aggregate(prototypes(GLOBAL, KNOWN), reduced(method.reduce, Up(value, weight)), torch.arange(5))
    close(server.mean_Cd[1], GLOBAL[1])


def test_models_stay_at_home() -> None:
    """What a client sends does not hold its weights, and two clients stay unlike."""
    method = methods.build("fedproto", {}, o.task())
    client = method.init_client(o.key("init"), torch.tensor(0))
    server, new, up, _ = o.round_of(method, method.init_server(o.key("init")), dict.fromkeys(o.IDS, client), ROWS)
    assert [a.shape[1:] for a in tree.leaves(up)] == [(o.CLASSES, o.WIDTH), (o.CLASSES,)]
    assert [a.shape for a in tree.leaves(server)] == [(o.CLASSES, o.WIDTH), (o.CLASSES,)]
    a, b = (new[k].value.model.head["weight"] for k in (0, 1))
    assert (a - b).abs().max() > 1e-3
