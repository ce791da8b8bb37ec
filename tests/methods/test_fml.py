"""FML: recorded rounds, a round by hand, its options and its traps.

The record is of the authors' released code, with its exchange of the shared model put in where its main program has it
commented out. Every array of it is compared, within 1e-5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close
from scipy.special import log_softmax, softmax
from torch import Tensor

from idiolect import methods, models
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Adam, Method
from idiolect.core.network import Model
from idiolect.methods.fml import Own
from idiolect.training import optimiser_state, trained, untrained

ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
SPEED = {k: o.weights(40 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
RULE = SGD(0.05, 0.9, 5e-4)  # of the record


def test_recorded_rounds() -> None:
    f = r.read("fml")
    server = r.model(f, "init/global")
    clients = [state(r.model(f, "init/local", k), RULE) for k in r.clients(f)]
    for number in range(r.count(f)):
        at = f"round{number}"
        ids, before = r.below(f, f"{at}/meme"), server
        rule = replace(RULE, lr=float(f[f"{at}/lr"]))
        method = methods.build("fml", {"own_weight": 0.6, "shared_weight": 0.3}, r.task(f, rule, 2))
        server, clients, ups = replay.round_of(method, server, clients, f, ids)
        for k, up in zip(ids, ups, strict=True):
            r.same(tree.add(before, up.value), r.model(f, f"{at}/meme/{k}"))
        for k in r.clients(f):
            r.same(clients[k].value.model, r.model(f, f"{at}/local", k))
        r.same(server, r.model(f, f"{at}/global"))
    for k in r.clients(f):
        down = o.one(method, server, k)
        replay.logits_agree(method, down, clients[k], f, k, "final/logits")
        common = clients[k]._replace(value=Own(server, ()))
        replay.logits_agree(method, down, common, f, k, "final/global_logits")


def state(model: Model, rule: Any) -> Any:
    return untrained(Own(model, optimiser_state(rule, model)))


# --- by hand --------------------------------------------------------------------------------------------------------


def logits(p: o.Params, x: np.ndarray) -> np.ndarray:
    return o.embed(p, x) @ p["U"].T + p["c"]


def back(p: o.Params, x: np.ndarray, dl: np.ndarray) -> o.Params:
    return {"U": dl.T @ o.embed(p, x), "c": dl.sum(0)} | o.embed_back(p, x, dl @ p["U"])


def slope(own: np.ndarray, other: np.ndarray, y: np.ndarray, weight: float) -> np.ndarray:
    """Of weight CE + (1 - weight) KL(other || own): a cross-entropy with softened labels."""
    target = weight * np.eye(o.CLASSES)[y] + (1 - weight) * softmax(other, 1)
    return (softmax(own, 1) - target) / len(y)


def by_hand(k: int, w: o.Params, m: o.Params, speed: o.Params, a: float, b: float) -> tuple[o.Params, ...]:
    x, y = ROWS[k]
    speed, shared_speed = dict(speed), {n: np.zeros_like(v) for n, v in m.items()}

    def step(p: o.Params, v: o.Params, g: o.Params) -> o.Params:
        for n in g:
            v[n] = o.RULE.momentum * v[n] + g[n] + o.RULE.weight_decay * p[n]
        return {n: p[n] - o.RULE.lr * v[n] for n in p}

    for at in o.batches(len(y)):
        own, common = logits(w, x[at]), logits(m, x[at])
        by_w, by_m = slope(own, common, y[at], a), slope(common, own, y[at], b)
        w, m = step(w, speed, back(w, x[at], by_w)), step(m, shared_speed, back(m, x[at], by_m))
    return w, m, speed


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"own_weight": 0.8, "shared_weight": 0.2, "weighting": "samples"},
        {"own_weight": 0.0, "shared_weight": 1.0},
        {"own_weight": 1.0, "shared_weight": 0.0, "keep_momentum": False},
    ],
)
def test_round_by_hand(options: dict[str, Any]) -> None:
    method, kept = methods.build("fml", options, o.task()), options.get("keep_momentum", True)
    a, b = options.get("own_weight", 0.5), options.get("shared_weight", 0.5)
    states = {k: trained(Own(o.model_of(OWN[k]), o.model_of(SPEED[k]) if kept else ())) for k in o.IDS}
    server, clients, _, _ = o.round_of(method, o.model_of(START), states, ROWS)
    new = {}
    for k in o.IDS:
        speed = SPEED[k] if kept else {n: np.zeros_like(v) for n, v in START.items()}
        w, new[k], speed = by_hand(k, OWN[k], START, speed, a, b)
        same(clients[k].value.model, w)
        if kept:
            same(clients[k].value.optimiser, speed)
        down = o.one(method, o.model_of(OWN[0]), k)  # any other model as the received one
        mine = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, mine, torch.tensor(TEST)), log_softmax(logits(w, TEST), 1))
    weight = [o.SIZES[k] for k in o.IDS] if "weighting" in options else [1.0] * len(o.IDS)
    same(server, {n: o.average([new[k][n] for k in o.IDS], weight) for n in START})


# --- traps ----------------------------------------------------------------------------------------------------------


def test_with_labels_alone_both_models_train_as_if_alone() -> None:
    method = methods.build("fml", {"own_weight": 1.0, "shared_weight": 1.0, "keep_momentum": False}, o.task())
    x, y = ROWS[0]
    down = o.one(method, o.model_of(START), 0)
    client, up, _ = method.local(down, trained(Own(o.model_of(OWN[0]), ())), o.data(x, y), o.key())
    same(client.value.model, o.descend(OWN[0], "WbUc", o.batches(len(y)), o.whole_gradient(x, y)))
    same(tree.add(down.shared, up.value), o.descend(START, "WbUc", o.batches(len(y)), o.whole_gradient(x, y)))


@pytest.mark.parametrize("rule", [SGD(0.05, 0.9, 0.0), Adam(lr=0.01)])
def test_the_own_optimiser_goes_on_and_the_shared_one_starts_anew(rule: Any) -> None:
    """Two rounds are one of twice the epochs for w where m does not move it; m's second round knows nothing."""
    method = methods.build("fml", {"own_weight": 1.0, "shared_weight": 1.0}, o.task(optimiser=rule))
    longer = methods.build(
        "fml", {"own_weight": 1.0, "shared_weight": 1.0}, o.task(optimiser=rule, epochs=2 * o.EPOCHS)
    )
    down, start, data = o.one(method, o.model_of(START), 0), state(o.model_of(OWN[0]), rule), o.data(*ROWS[0])
    first, up, _ = method.local(down, start, data, o.key())
    second, other, _ = method.local(down, first, data, o.key())
    r.same(second.value.model, longer.local(down, start, data, o.key())[0].value.model, rtol=1e-9)
    r.same(other.value, up.value, rtol=1e-9)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_optimiser_for_both_and_one_for_each_take_the_same_steps(kept: bool, momentum: float) -> None:
    """A bound that never acts makes each model train by its own."""
    ends = []
    for clip in (None, 1e9):
        rule = SGD(0.05, momentum, 1e-3, clip)
        method = methods.build(
            "fml", {"own_weight": 0.3, "shared_weight": 0.7, "keep_momentum": kept}, o.task(optimiser=rule)
        )
        start = trained(Own(o.model_of(OWN[0]), o.model_of(SPEED[0]) if kept else ()))
        ends.append(method.local(o.one(method, o.model_of(START), 0), start, o.data(*ROWS[0]), o.key()))
    for a, b in zip(*map(tree.leaves, ends), strict=True):
        close(a, b)


def test_absent_client_keeps_its_model_and_a_new_one_starts_at_the_shared_one() -> None:
    method = methods.build("fml", {}, o.task())
    down, data = o.one(method, o.model_of(START), 2), o.data(*ROWS[2])
    absent = trained(Own(o.model_of(OWN[2]), o.model_of(SPEED[2])))
    same(method.personalise(down, absent, data, o.key()).value.model, OWN[2])
    new = method.personalise(down, state(o.model_of(OWN[2]), o.RULE), data, o.key())
    same(new.value.model, by_hand(2, START, START, {n: np.zeros_like(v) for n, v in START.items()}, 0.5, 0.5)[0])


def test_own_starts_differ_between_clients_and_common_ones_do_not() -> None:
    for start, equal in (("common", True), ("own", False)):
        method = methods.build("fml", {"start": start}, o.task())
        one, other = (method.init_client(o.key(), torch.tensor(k)).value.model for k in (0, 1))
        assert tree.same(one, other) == equal
        assert method.own_start != equal


# --- a shared model of its own ----------------------------------------------------------------------------------------


def with_second(**options: Any) -> Method:
    network = models.build("mlp:hidden=9", (o.INPUTS,), o.CLASSES)
    return methods.build("fml", options, replace(o.task(), network=network))


@pytest.mark.parametrize(("model", "width"), [("mlp:hidden=3", 3), ("mlp:hidden=17", 17), ("", 9)])
def test_the_shared_model_may_be_another_network(model: str, width: int) -> None:
    method = with_second(shared_model=model)
    server = method.init_server(o.key())
    assert server.head["weight"].shape == (o.CLASSES, width)
    client = method.init_client(o.key(), torch.tensor(0))
    assert client.value.model.head["weight"].shape == (o.CLASSES, 9)
    x, y = ROWS[0]
    down, data = o.one(method, server, 0), o.data(x, y)
    after, up, _ = method.local(down, client, data, o.key())
    assert tree.same_form(up.value, server)
    assert r.apart(after.value.model, client.value.model) > 1e-4
    new = method.personalise(down, client, data, o.key())
    before = method.predict(down, client, torch.tensor(x))
    assert error(method.predict(down, new, torch.tensor(x)), y) < error(before, y)


def error(logp: Tensor, y: np.ndarray) -> float:
    return -float(logp[torch.arange(len(y)), torch.tensor(y)].mean())


@pytest.mark.parametrize(
    ("model", "words"),
    [("mpl", "did you mean 'mlp'"), ("my_package.net", "one of idiolect's own"), ("mlp:hiden=3", "hiden")],
)
def test_a_shared_model_that_is_not_there_is_one_sentence(model: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        with_second(shared_model=model)


def test_start_keys() -> None:
    """The first model of all has the seed's key itself, as every method's."""
    method = methods.build("fml", {"start": "own"}, o.task())
    r.same(method.init_server(o.key()), o.task().network.init(o.key()))
    r.same(method.init_client(o.key(), torch.tensor(3)).value.model,
           o.task().network.init(keys.fold(o.key(), torch.tensor(3))))  # fmt: skip


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_it_needs_classes(kind: Any) -> None:
    with pytest.raises(InputError, match=f"fml needs classes.*{kind}"):
        methods.build("fml", {}, replace(o.task(), kind=kind))
