"""FedCP: recorded rounds of the authors' released code, rounds by hand, and its traps.

Every array of the record (float32) is compared within 1e-5: "plain" has no noise, "noisy" is the released code, whose
draws are given to the method. Predictions have no noise here, so that the noisy ones are computed in numpy from the
states that the method ends with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import complex_step as c
import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax, softmax

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Method
from idiolect.core.network import Network
from idiolect.core.reduction import reduced
from idiolect.methods import fedcp as module
from idiolect.methods.fedcp import Kept, Own, Policy, Shared
from idiolect.training import trained, untrained

ROWS = o.federation()
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


def policy_of(f: r.Files, at: str, row: Any = ...) -> Policy:
    return Policy(r.head(f, f"{at}.fc.", row), r.head(f, f"{at}.norm.", row))


def alike(got: Any, want: Any) -> None:
    for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
        close(a, b, **r.EXACT)


def recorded(f: r.Files, part: str) -> Method:
    alignment, epochs, lr = f["options"].tolist()
    task = r.task(f, SGD(lr, 0.0, 0.0), int(epochs), drop_last=True)
    return methods.build("fedcp", {"preset": "official", "alignment": alignment, "noise": part == "noisy"}, task)


@pytest.mark.parametrize("part", ["plain", "noisy"])
def test_recorded_rounds(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = r.read("fedcp")
    method = recorded(f, part)
    assert method.own_start
    assert method.stand_by is not None
    head, policy = r.head(f, "init/fc2."), policy_of(f, "init/cpn")
    server = Shared(r.body(f, "init/fc1"), head, policy)
    start = Kept(head, policy, torch.ones(()))
    clients = [untrained(Own(head, torch.tensor(v_d), start)) for v_d in f["init/context"]]
    for number in range(r.count(f, part)):
        at = f"{part}/round{number}"
        ids, ups = f[f"{at}/participants"].tolist(), []
        for k in r.clients(f):
            down, data = o.one(method, server, k), r.training(f, k)
            if k not in ids:
                clients[k] = method.stand_by(down, clients[k], data, o.key())
                continue
            mine = f"{at}/client/{k}"
            if part == "noisy":
                draws = iter(torch.tensor(f[f"{mine}/noise"]))
                monkeypatch.setattr(module, "gumbel", lambda key, shape, draws=draws: next(draws))
            clients[k], up, _ = method.local(down, clients[k], data, o.key())
            end = tree.add(server, up.value)
            r.same(end.body, r.body(f, f"{mine}/trained/body/fc1"))
            r.same(clients[k].value.head, r.head(f, f"{mine}/trained/head/fc2."))
            alike(end.policy, policy_of(f, f"{mine}/trained/cpn"))
            r.same(end.head, r.head(f, f"{mine}/uploaded_head/fc2."))
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        alike(server, Shared(r.body(f, f"{at}/server/body/fc1"), r.head(f, f"{at}/server/head/fc2."),
                             policy_of(f, f"{at}/server/cpn")))  # fmt: skip
        for k, client in enumerate(clients):  # what it has once the new messages are out
            kept = method.stand_by(o.one(method, server, k), client, r.training(f, k), o.key()).value.kept
            r.same(client.value.head, r.head(f, f"{at}/clients/head/fc2.", k))
            r.same(kept.head, r.head(f, f"{at}/clients/global_head/fc2.", k))
            alike(kept.policy, policy_of(f, f"{at}/clients/cpn", k))
            context = client.value.head["weight"].sum(0) if client.trained else client.value.context_d
            close(context, f[f"{at}/contexts"][k], **r.EXACT)
    for k, client in enumerate(clients):
        x, down = f[f"data/{k}/x_test"], o.one(method, server, k)
        mine = method.personalise(down, client, r.training(f, k), o.key())
        if part == "plain":
            logp = method.predict(down, mine, torch.tensor(x))
        else:
            kept = method.stand_by(down, client, r.training(f, k), o.key()).value.kept
            noise = f[f"noisy/final/noise/{k}"]
            logp = by_numpy(x, Shared(server.body, kept.head, kept.policy), client.value.head, noise)
        close(logp, log_softmax(f[f"{part}/final/logits/{k}"], 1), **r.EXACT)


def by_numpy(x: np.ndarray, shared: Shared, own: Any, noise: np.ndarray) -> np.ndarray:
    t = {n: a.numpy() for n, a in tree.named((shared, own)).items()}
    z = np.maximum(x @ t["0/body/0.weight"].T + t["0/body/0.bias"], 0)
    v = t["1/weight"].sum(0)
    a = (z * v / np.linalg.norm(v)) @ t["0/policy/layer/weight"].T + t["0/policy/layer/bias"]
    a = np.maximum(c.layer_norm(a, t["0/policy/norm/weight"], t["0/policy/norm/bias"]), 0)
    gate = softmax(a.reshape(len(x), 2, -1) + noise, 1)
    logit = (
        (z * gate[:, 0]) @ t["1/weight"].T + t["1/bias"] + (z * gate[:, 1]) @ t["0/head/weight"].T + t["0/head/bias"]
    )
    return log_softmax(logit, 1)


# --- by hand ----------------------------------------------------------------------------------------------------------


def begin() -> o.Params:
    """Body (W, b), common head (G, g), and the policy: a layer (A, a) and a normalisation (N, n)."""
    draw = np.random.default_rng(8)
    p, d = o.weights(1), o.WIDTH
    shapes = {"A": (2 * d, d), "a": (2 * d,), "N": (2 * d,), "n": (2 * d,)}
    own = {"G": p.pop("U"), "g": p.pop("c")}
    return p | own | {n: draw.normal(size=shape) for n, shape in shapes.items()}


START = begin()
HEADS = {k: o.weights(10 + k) for k in range(len(o.SIZES))}
CONTEXT = np.random.default_rng(2).uniform(size=o.WIDTH)
MOVING = [n for n in (*START, "U", "c") if n not in ("G", "g")]


def logits(p: Any, z: Any, v: np.ndarray, noise: Any = 0.0) -> Any:
    a = c.relu(c.layer_norm((z * v / np.sqrt((v**2).sum())) @ p["A"].T + p["a"], p["N"], p["n"]))
    a = a.reshape(len(a), 2, -1) + noise
    e = np.exp(a)
    r_, s_ = np.moveaxis(e / e.sum(1, keepdims=True), 1, 0)
    return (z * r_) @ p["U"].T + p["c"] + (z * s_) @ p["G"].T + p["g"]


def mmd(z: Any, other: Any) -> Any:
    def kernels(a: Any, b: Any) -> Any:
        square = ((a[:, None] - b[None]) ** 2).sum(2)
        return sum(np.exp(-square / (2 * width)) for width in (10, 15, 20, 50))

    return (kernels(z, z) + kernels(other, other) - 2 * kernels(z, other)).mean()


def train(k: int, head: o.Params, v: np.ndarray, alignment: float, noise: Iterator[Any] | None = None) -> o.Params:
    x, y = ROWS[k]
    before = o.embed(START, x)
    draws = dict[int, Any]()

    def loss(p: Any, at: np.ndarray) -> Any:
        z = c.relu(x[at] @ p["W"].T + p["b"], o.SLOPE)
        return c.errors(logits(p, z, v, draws.get(0, 0.0)), y[at]).mean() + alignment * mmd(z, before[at])

    slopes = c.gradient_of(loss, MOVING)

    def gradient(p: o.Params, at: np.ndarray) -> o.Params:
        if noise is not None:
            draws[0] = next(noise)
        return slopes(p, at)

    return o.descend(START | head, MOVING, o.batches(len(y), 1), gradient)  # type: ignore[arg-type]


def shared(p: o.Params) -> Shared:
    t = {n: torch.tensor(a) for n, a in p.items()}
    policy = Policy({"weight": t["A"], "bias": t["a"]}, {"weight": t["N"], "bias": t["n"]})
    return Shared(o.body_of(p), {"weight": t["G"], "bias": t["g"]}, policy)


def head_of(k: int) -> o.Params:
    return {n: HEADS[k][n] for n in "Uc"}


def kept(newest: bool) -> Kept:
    """Another head and policy than the server's."""
    old = shared({n: a + 0.1 for n, a in START.items()})
    return Kept(old.head, old.policy, torch.tensor(float(newest)))


def same(got: Shared, p: o.Params) -> None:
    for a, b in zip(tree.leaves(got), tree.leaves(shared(p)), strict=True):
        close(a, b)


@pytest.mark.parametrize("options", [{}, {"alignment": 0.7}, {"alignment": 0.0, "context": "random"}], ids=str)
def test_round_by_hand(options: dict[str, Any]) -> None:
    """Of one epoch; clients 0 and 4 have trained before, 3 has not."""
    method = methods.build("fedcp", options, o.task(epochs=1))
    random = options.get("context") == "random"
    context = torch.tensor(CONTEXT) if random else ()
    clients = {k: (untrained if k == 3 else trained)(Own(o.head_of(HEADS[k]), context, ())) for k in (0, 3, 4)}
    server = shared(START)
    after, new, up, _ = o.round_of(method, server, clients, ROWS)
    ends = {}
    for at, k in enumerate(clients):
        head = {"U": START["G"], "c": START["g"]} if k == 3 else head_of(k)
        v = CONTEXT if random and k == 3 else head["U"].sum(0)
        ends[k] = train(k, head, v, options.get("alignment", 5.0))
        close(new[k].value.head["weight"], ends[k]["U"])
        close(new[k].value.head["bias"], ends[k]["c"])
        sent = ends[k] | {"G": (ends[k]["U"] + START["G"]) / 2, "g": (ends[k]["c"] + START["g"]) / 2}
        same(tree.add(server, tree.rows(up.value, at)), sent)
        ends[k] = sent
    weight = [o.SIZES[k] for k in clients]
    close(up.weight, weight)
    mean = {n: o.average([p[n] for p in ends.values()], weight) for n in START}
    same(after, mean)
    for k, client in new.items():
        down = o.one(method, after, k)
        mine = method.personalise(down, client, o.data(*ROWS[k]), o.key())
        p = mean | {n: ends[k][n] for n in "Uc"}
        want = log_softmax(logits(p, o.embed(p, TEST), p["U"].sum(0)), 1)
        close(method.predict(down, mine, torch.tensor(TEST)), want)


@pytest.mark.parametrize("k", [1, 4, 99])
def test_a_client_that_has_not_trained_does_a_round_s_work_and_keeps_its_head(k: int) -> None:
    """It begins with the received head, whatever its own is; one that has trained keeps what it has."""
    method = methods.build("fedcp", {"alignment": 0.7}, o.task(epochs=1))
    server, data = shared(START), o.data(*ROWS[4])
    own = Own(o.head_of(HEADS[0]), (), ())
    down = o.one(method, server, k)
    mine = method.personalise(down, untrained(own), data, o.key())
    head = {"U": START["G"], "c": START["g"]}
    end = train(4, head, head["U"].sum(0), 0.7)
    close(mine.value.head["weight"], end["U"])
    close(mine.value.head["bias"], end["c"])
    p = START | {n: end[n] for n in "Uc"}
    want = log_softmax(logits(p, o.embed(p, TEST), p["U"].sum(0)), 1)
    close(method.predict(down, mine, torch.tensor(TEST)), want)
    assert tree.same(method.personalise(down, trained(own), data, o.key()), trained(own))


@pytest.mark.parametrize("real", [1, 3, 5])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_padding_is_in_no_pair(real: int, scale: float) -> None:
    draw = np.random.default_rng(real)
    z, other = (scale * draw.normal(size=(5, 3)) for _ in range(2))
    used = (torch.arange(5) < real).double()
    close(module.discrepancy(torch.tensor(z), torch.tensor(other), used), mmd(z[:real], other[:real]))


def test_noise_is_drawn_for_each_batch() -> None:
    """The method's own draws, of the key of each batch; predictions have none."""
    method = methods.build("fedcp", {"noise": True, "alignment": 1.0}, o.task(epochs=1))
    key, n = o.key(0), o.SIZES[0]
    plan = o.batches(n, 1)
    draws = [
        module.gumbel(keys.fold(keys.fold(key, "noise"), step), (len(at), 2, o.WIDTH)).numpy()
        for step, at in enumerate(plan)
    ]
    client = trained(Own(o.head_of(HEADS[0]), (), ()))
    down = o.one(method, shared(START), 0)
    new, _, _ = method.local(down, client, o.data(*ROWS[0]), key)
    want = train(0, head_of(0), HEADS[0]["U"].sum(0), 1.0, iter(draws))
    close(new.value.head["weight"], want["U"])
    p = START | head_of(0)
    logp = method.predict(down, client, torch.tensor(TEST))
    close(logp, log_softmax(logits(p, o.embed(p, TEST), p["U"].sum(0)), 1))


def test_the_noise_is_gumbel_s() -> None:
    from scipy.stats import gumbel_r, kstest

    draws = module.gumbel(o.key(), (40, 2, 30)).numpy()
    assert kstest(draws.ravel(), gumbel_r.cdf).pvalue > 0.01
    longer = module.gumbel(o.key(), (50, 2, 30)).numpy()
    close(longer[:40], draws)  # padding changes no draw


# --- who has which head and policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [True, False])
def test_participants_of_the_last_round_alone_get_the_new_head_and_policy(newest: bool) -> None:
    method = methods.build("fedcp", {"renewed": "participants", "alignment": 0.3}, o.task(epochs=1))
    assert method.stand_by is not None
    client = trained(Own(o.head_of(HEADS[0]), (), kept(newest)))
    server = shared(START)
    down, data = o.one(method, server, 0), o.data(*ROWS[0])
    held = server if newest else server._replace(head=kept(False).head, policy=kept(False).policy)
    t = {
        n: a.numpy() for n, a in zip(("G", "g", "A", "a", "N", "n"), tree.leaves((held.head, held.policy)), strict=True)
    }
    p = START | t | head_of(0)
    logp = method.predict(down, client, torch.tensor(TEST))
    close(logp, log_softmax(logits(p, o.embed(p, TEST), p["U"].sum(0)), 1))
    stood = method.stand_by(down, client, data, o.key())
    assert tree.same(stood.value.kept, Kept(held.head, held.policy, torch.zeros(())))
    new, up, _ = method.local(down, client, data, o.key())
    assert float(new.value.kept.newest) == 1
    close(tree.add(server, up.value).head["weight"], (new.value.head["weight"] + held.head["weight"]) / 2)


def test_contexts_of_the_released_code_differ_between_clients() -> None:
    method = methods.build("fedcp", {"context": "random"}, o.task())
    contexts = torch.stack([method.init_client(o.key(), torch.tensor(k)).value.context_d for k in range(40)])
    assert len({tuple(v.tolist()) for v in contexts}) == 40
    assert 0 <= float(contexts.min()) < 0.1
    assert 0.9 < float(contexts.max()) <= 1


def test_a_head_of_zeros_has_no_context() -> None:
    method = methods.build("fedcp", {}, o.task())
    zero = tree.zeros(o.head_of(HEADS[0]))
    new, _, _ = method.local(o.one(method, shared(START), 0), trained(Own(zero, (), ())), o.data(*ROWS[0]), o.key())
    assert all(bool(torch.isfinite(a).all()) for a in tree.leaves(new))


def deep() -> Any:
    from torch import nn

    return nn.Linear(o.INPUTS, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))


def without_bias() -> Any:
    from torch import nn

    return nn.Linear(o.INPUTS, 6), nn.Linear(6, 4, bias=False)


@pytest.mark.parametrize("make", [deep, without_bias])
def test_another_head_is_one_sentence(make: Any) -> None:
    with pytest.raises(InputError, match="fedcp needs a head of one linear layer with a bias, because"):
        methods.build("fedcp", {}, replace(o.task(), network=Network(make, (o.INPUTS,))))


@pytest.mark.parametrize("options", [{"alignment": -1}, {"context": "zero"}, {"renewed": "nobody"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedcp", options)
