"""FedPHP: recorded rounds of the authors' released code, rounds by hand, and its traps.

Every array of the record (float32) is compared within 1e-5, in both of its sets: "kd" compares logits, "mmd" features.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
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
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Data
from idiolect.core.reduction import reduced
from idiolect.methods import fedphp as module
from idiolect.methods.fedphp import Own, discrepancy
from idiolect.training import trained, untrained

ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TIMES = {0: 2.0, 1: 0.0, 2: 5.0, 3: 1.0, 4: 30.0}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "by"), [("kd", "logits"), ("mmd", "features")])
def test_recorded_rounds(part: str, by: str) -> None:
    f = r.read("fedphp")
    epochs, lr, guidance, rounds, share = f["options"].tolist()
    options = {"preset": "official", "guidance": guidance, "by": by, "participation": share}
    method = methods.build("fedphp", options, r.task(f, SGD(lr, 0.0, 0.0), int(epochs)))
    server = r.model(f, "init")
    clients = [untrained(Own(server, torch.zeros(()))) for _ in r.clients(f)]
    for number in range(r.count(f, part)):
        at, ups = f"{part}/round{number}", []
        ids = f[f"{at}/participants"].tolist()
        for place, k in enumerate(ids):
            data = r.training(f, k)._replace(round=torch.tensor(number + 1), rounds=torch.tensor(int(rounds)))
            clients[k], up, info = method.local(o.one(method, server, k), clients[k], data, o.key())
            r.same(tree.add(server, up.value), r.model(f, f"{at}/trained", place))
            close(info["inherited"], f[f"{at}/mu"][place], **r.EXACT)
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.model(f, f"{at}/server"))
        for k, client in enumerate(clients):
            r.same(client.value.model, r.model(f, f"{at}/personal", k))
    for k, client in enumerate(clients):
        down = o.one(method, server, k)
        mine = method.personalise(down, client, r.training(f, k), o.key())
        logp = method.predict(down, mine, torch.tensor(f[f"data/{k}/x_test"]))
        close(logp, log_softmax(f[f"{part}/final/logits/{k}"], 1), **r.EXACT)


# --- by hand ----------------------------------------------------------------------------------------------------------


def mmd(z: Any, h: Any) -> Any:
    both = np.concatenate([z, h])
    square = ((both[:, None] - both[None]) ** 2).sum(2)
    count = len(both)
    width = np.real(square).sum() / (count**2 - count) + 1e-8
    kernel = sum(np.exp(-square / (width / 4 * 2**i)) for i in range(5))
    n = len(z)
    return (kernel[:n, :n] + kernel[n:, n:] - kernel[:n, n:] - kernel[n:, :n]).mean()


def train(k: int, by: str, guidance: float, temperature: float, plan: list[np.ndarray]) -> o.Params:
    x, y = ROWS[k]
    teacher = o.embed(OWN[k], x)
    target = softmax((teacher @ OWN[k]["U"].T + OWN[k]["c"]) / temperature, 1)

    def loss(p: Any, at: np.ndarray) -> Any:
        z = c.relu(x[at] @ p["W"].T + p["b"], o.SLOPE)
        logit = z @ p["U"].T + p["c"]
        if by == "logits":
            apart = -(target[at] * c.log_softmax(logit)).sum(1).mean()
        else:
            apart = mmd(z, teacher[at])
        return (1 - guidance) * c.errors(logit, y[at]).mean() + guidance * apart

    return o.descend(START, "WbUc", plan, c.gradient_of(loss, "WbUc"))


def plan_of(n: int, least: int | None) -> list[np.ndarray]:
    usual = o.batches(n)
    return o.batches(n, 9)[: max(least or 0, len(usual))]


def same(got: Any, p: o.Params) -> None:
    for leaf, name in zip(tree.leaves(got), "WbUc", strict=True):
        close(leaf, p[name])


def at_round(k: int, rounds: int) -> Data:
    return o.data(*ROWS[k])._replace(round=torch.tensor(3), rounds=torch.tensor(rounds))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"guidance": 0.4, "temperature": 1.5, "most": 0.6, "participation": 0.3},
    {"preset": "official", "participation": 0.5, "guidance": 0.3},
    {"by": "features", "guidance": 0.5, "least_steps": 7},
    {"guidance": 0.0, "most": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rounds", [10, 1])
def test_round_by_hand(options: dict[str, Any], rounds: int) -> None:
    method = methods.build("fedphp", options, o.task())
    settled = methods.settle("fedphp", options)
    server, ends, ups = o.model_of(START), {}, []
    for k in o.IDS:
        client = trained(Own(o.model_of(OWN[k]), torch.tensor(TIMES[k])))
        new, up, info = method.local(o.one(method, server, k), client, at_round(k, rounds), o.key())
        plan = plan_of(o.SIZES[k], settled["least_steps"])
        ends[k] = train(k, settled["by"], settled["guidance"], settled["temperature"], plan)
        same(tree.add(server, up.value), ends[k])
        share = settled["most"] * min(TIMES[k] / max(int(settled["participation"] * rounds), 1), 1)
        close(info["inherited"], share)
        inherited = {n: share * OWN[k][n] + (1 - share) * ends[k][n] for n in START}
        same(new.value.model, inherited)
        assert float(new.value.times) == TIMES[k] + 1
        mine = method.personalise(o.one(method, server, k), new, o.data(*ROWS[k]), o.key())
        logp = method.predict(o.one(method, server, k), mine, torch.tensor(TEST))
        close(logp, o.log_probability(inherited, TEST))
        ups.append(up)
    after, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(o.IDS))
    weight = [o.SIZES[k] for k in o.IDS]
    same(after, {n: o.average([p[n] for p in ends.values()], weight) for n in START})


# --- traps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["logits", "features"])
def test_the_first_personal_model_is_the_trained_one(by: str) -> None:
    """Though what guides it is the initial one."""
    method = methods.build("fedphp", {"by": by, "guidance": 0.3}, o.task())
    client = untrained(Own(o.model_of(OWN[0]), torch.zeros(())))
    new, up, info = method.local(o.one(method, o.model_of(START), 0), client, at_round(0, 10), o.key())
    assert float(info["inherited"]) == 0
    want = train(0, by, 0.3, 4.0, o.batches(o.SIZES[0]))
    same(new.value.model, want)
    same(tree.add(o.model_of(START), up.value), want)


@pytest.mark.parametrize(
    ("share", "rounds"), [("0.29", 100), ("0.57", 100), ("0.35", 10), ("0.07", 100), ("0.7", 10), ("0.001", 20)]
)
def test_the_share_of_the_rounds_is_rounded_down_as_decimals_are(share: str, rounds: int) -> None:
    """0.29 of 100 rounds are 29, though the float 0.29 * 100 is less."""
    wanted = max(int(Decimal(share) * rounds), 1)
    method = methods.build("fedphp", {"participation": float(share)}, o.task(epochs=1))
    for times in (wanted - 1, wanted, wanted + 1):
        client = trained(Own(o.model_of(OWN[4]), torch.tensor(float(times))))
        info = method.local(o.one(method, o.model_of(START), 4), client, at_round(4, rounds), o.key())[2]
        close(info["inherited"], 0.9 * min(times / wanted, 1))


@pytest.mark.parametrize("k", [2, 4, 99])
def test_a_client_that_has_not_trained_takes_the_received_model(k: int) -> None:
    method = methods.build("fedphp", {}, o.task())
    down = o.one(method, o.model_of(START), k)
    client = untrained(Own(o.model_of(OWN[2]), torch.zeros(())))
    mine = method.personalise(down, client, o.data(*ROWS[2]), o.key())
    assert tree.same(mine.value.model, o.model_of(START))
    kept = trained(client.value)
    assert tree.same(method.personalise(down, kept, o.data(*ROWS[2]), o.key()), kept)


@pytest.mark.parametrize(
    ("n", "epochs", "least"), [(4, 1, 5), (13, 2, 5), (13, 1, 5), (1, 3, 5), (40, 1, 5), (4, 6, 5)]
)
def test_mapped_clients_take_as_many_steps_as_alone(n: int, epochs: int, least: int) -> None:
    """A client beside a larger one: padding is no step."""
    method = methods.build("fedphp", {"least_steps": least}, o.task(epochs=epochs, optimiser=SGD(0.05, 0.0, 0.0)))
    draw, wide = np.random.default_rng(n), 45
    x, y = draw.normal(size=(2 * wide, o.INPUTS)), draw.integers(0, 4, 2 * wide)
    state = trained(Own(o.model_of(OWN[0]), torch.tensor(1.0)))
    down = o.one(method, o.model_of(START), 0)
    alone = method.local(down, state, o.data(x[:n], y[:n]), o.key())[1]
    row = torch.stack([torch.arange(wide), torch.arange(wide, 2 * wide)])
    real = torch.stack([(torch.arange(wide) < n).double(), torch.ones(wide)])
    many = Data(torch.tensor(x), torch.tensor(y), row, real)
    axes = (None, None, Data(None, None, 0, 0, None, None, None), 0)
    got = torch.func.vmap(method.local, in_dims=axes)(down, state, many, torch.stack([o.key(), o.key()]))[1]
    for a, b in zip(tree.leaves(tree.rows(got.value, 0)), tree.leaves(alone.value), strict=True):
        close(a, b, rtol=1e-7, atol=1e-9)


def test_the_number_of_steps_is_no_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    honest = module.sgd
    monkeypatch.setattr(
        module, "sgd", lambda loss, w, plan, rule: (seen.append(len(plan)), honest(loss, w, plan, rule))[1]
    )
    for least, epochs in ((None, 1), (5, 1), (5, 3), (12, 3)):
        method = methods.build("fedphp", {"least_steps": least}, o.task(epochs=epochs))
        state = trained(Own(o.model_of(OWN[3]), torch.tensor(1.0)))
        method.local(o.one(method, o.model_of(START), 3), state, at_round(3, 10), o.key())
    per_epoch = len(o.batches(o.SIZES[3], 1))
    assert seen == [per_epoch, max(5, per_epoch), max(5, 3 * per_epoch), max(12, 3 * per_epoch)]


def test_features_that_are_alike_have_no_discrepancy_and_no_slope() -> None:
    z = torch.ones(1, 3, requires_grad=True)
    value = discrepancy(z, torch.ones(1, 3), torch.ones(1))
    (slope,) = torch.autograd.grad(value, z)
    assert float(value.detach()) == 0
    assert slope.tolist() == [[0.0, 0.0, 0.0]]


def test_padding_has_no_features() -> None:
    draw = np.random.default_rng(1)
    z, h = (torch.tensor(draw.normal(size=(5, 3))) for _ in range(2))
    close(discrepancy(z, h, torch.tensor([1.0, 1, 1, 0, 0])), mmd(z[:3].numpy(), h[:3].numpy()))


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_logits_need_classes_and_features_do_not(kind: Any) -> None:
    task = replace(o.task(), kind=kind)
    with pytest.raises(InputError, match=r"method fedphp needs classes, because .* \(by=features does without\)"):
        methods.build("fedphp", {}, task)
    methods.build("fedphp", {"by": "features"}, task)


@pytest.mark.parametrize("options", [{"guidance": 1.0}, {"temperature": 0}, {"most": 1.1}, {"participation": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedphp", options)
