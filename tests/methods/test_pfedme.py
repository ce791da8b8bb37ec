"""pFedMe: rounds of the authors' released code (CharlieDinh/pFedMe, float32) within 1e-5, by hand, and traps.

Parity: every array of the file. The recorded batches go on from round to round, and the plan is given to the method;
every client trains there in every round, and those drawn are averaged. What the released code tests as personal is
w_i: a slip, for which w_i is put in theta_i's place, and both accuracies are asserted.
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
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Data, Down, Method
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.methods import pfedme
from idiolect.training import Batch, trained, untrained

EXACT = {"rtol": 0, "atol": 1e-5}
ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
OPTIONS = {"pull": 6.0, "inner_steps": 3, "inner_lr": 0.11}


# --- parity -----------------------------------------------------------------------------------------------------------


def test_recorded_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    f = rec.read("pfedme")
    task = rec.task(f, SGD(0.02), 2, 0.01)
    how = {"pull": 15, "inner_steps": 3, "inner_lr": 0.03, "steps": 4, "beta": 1.5}
    method = methods.build("pfedme", {"preset": "official", **how}, task)
    everybody = rec.clients(f)

    def right(models: list[Model]) -> int:
        count = 0
        for k, model in enumerate(models):
            x, y = torch.tensor(f[f"data/{k}/x_test"]).double(), f[f"data/{k}/y_test"]
            logp = method.predict(o.one(method, server, k), trained(model), x)
            count += int((logp.argmax(1).numpy() == y).sum())
        return count

    server = rec.model(f, "init")
    cursor = [0 for _ in everybody]
    for r in range(rec.count(f)):
        close(right([server for _ in everybody]) / rec.test_rows(f), f["accuracy_global"][r])
        theta, w, ups = [], [], []
        for k in everybody:
            epoch = o.batches(len(rec.rows(f, k)[1]), 1, 7)
            at = [torch.tensor(epoch[(cursor[k] + s) % len(epoch)]) for s in range(4)]
            cursor[k] += 4
            plan = [Batch(a, torch.ones(len(a)), s) for s, a in enumerate(at)]
            monkeypatch.setattr(pfedme, "batches", lambda *a, plan=plan, steps: plan[:steps])
            down = o.one(method, server, k)
            client, up, _ = method.local(down, untrained(server), rec.training(f, k), o.key(r, k))
            theta.append(client.value)
            w.append(tree.add(server, up.value))
            ups.append(up)
            rec.same(theta[k], rec.model(f, f"round{r}/theta", k))
            rec.same(w[k], rec.model(f, f"round{r}/w", k))
            rec.same(rec.model(f, f"round{r}/tested", k), rec.model(f, f"round{r}/w", k))
        close(right(w) / rec.test_rows(f), f["accuracy_personal"][r])
        assert right(theta) == sum(rec.right(f, k, rec.model(f, f"round{r}/theta", k), 0.01) for k in everybody)
        ids = sorted(f[f"round{r}/participants"].tolist())
        server, _ = method.aggregate(
            server, reduced(method.reduce, tree.stack([ups[k] for k in ids])), torch.tensor(ids)
        )
        rec.same(server, rec.model(f, f"round{r}/server"))


# --- a round by hand --------------------------------------------------------------------------------------------------


def by_hand(
    k: int, plan: list[np.ndarray], *, decay: float = 0.0, warm_start: bool = True, clip: float | None = None
) -> tuple[o.Params, o.Params]:
    """theta and w after the mini-batches of a client."""
    error, pull = o.whole_gradient(*ROWS[k]), OPTIONS["pull"]
    w = theta = START
    for rows in plan:
        theta = dict(theta if warm_start else w)
        for _ in range(int(OPTIONS["inner_steps"])):
            g = {n: g + pull * (theta[n] - w[n]) for n, g in error(theta, rows).items()}
            if clip is not None:
                norm = np.sqrt(sum((a**2).sum() for a in g.values()))
                g = {n: a * min(1.0, clip / (norm + 1e-6)) for n, a in g.items()}
            theta = {n: theta[n] - OPTIONS["inner_lr"] * (g[n] + decay * theta[n]) for n in theta}
        w = {n: w[n] - o.RULE.lr * pull * (w[n] - theta[n]) for n in w}
    return theta, w


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


def build(rule: SGD = o.RULE, **options: Any) -> Method:
    return methods.build("pfedme", {**OPTIONS, **options}, o.task(optimiser=rule))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weighting": "samples", "beta": 1.7},
        {"decay": 0.3},
        {"warm_start": False, "beta": 0.5},
        {"steps": 5},
        {"personal": "fresh"},
    ],
)
def test_round_by_hand(options: dict[str, Any]) -> None:
    """Momentum and decay of the task have no part in it."""
    method = build(**options)
    states = {k: trained(o.model_of(OWN[k])) for k in o.IDS}
    server, clients, up, _ = o.round_of(method, o.model_of(START), states, ROWS)
    how = {n: v for n, v in options.items() if n in ("decay", "warm_start")}
    new = {}
    for at, k in enumerate(o.IDS):
        plan = o.batches(o.SIZES[k], 9)[:5] if "steps" in options else o.batches(o.SIZES[k])
        theta, new[k] = by_hand(k, plan, **how)
        same(tree.rows(up.value, at), {name: new[k][name] - START[name] for name in START})
        same(clients[k].value, theta)
        down = o.one(method, o.model_of(START), k)
        close(method.predict(down, clients[k], torch.tensor(TEST)), o.log_probability(theta, TEST))
        personalised = method.personalise(down, states[k], o.data(*ROWS[k]), o.key())
        same(personalised.value, theta if "personal" in options else OWN[k])
    weight = [o.SIZES[k] for k in o.IDS] if "weighting" in options else [1.0] * len(o.IDS)
    mean = {name: o.average([new[k][name] for k in o.IDS], weight) for name in START}
    beta = options.get("beta", 1.0)
    same(server, {name: (1 - beta) * START[name] + beta * mean[name] for name in START})


def test_bound_of_the_gradient() -> None:
    method = build(SGD(o.RULE.lr, clip=0.2))
    client, _, _ = method.local(o.one(method, o.model_of(START), 0), untrained(()), o.data(*ROWS[0]), o.key())
    want = by_hand(0, o.batches(o.SIZES[0]), clip=0.2)[0]
    same(client.value, want)
    assert np.abs(want["W"] - by_hand(0, o.batches(o.SIZES[0]))[0]["W"]).max() > 1e-3, "the bound is never reached"


def test_training_loss_is_theta_s_as_each_mini_batch_comes() -> None:
    method, (x, y) = build(steps=3), ROWS[1]
    plan, total = o.batches(len(y))[:3], 0.0
    for at, rows in enumerate(plan):
        total -= o.log_probability(by_hand(1, plan[:at])[0], x[rows])[np.arange(len(rows)), y[rows]].sum()
    info = method.local(o.one(method, o.model_of(START), 1), untrained(()), o.data(x, y), o.key())[2]
    close(info["train_loss"], total / sum(map(len, plan)))


def test_new_client_trains_for_a_round() -> None:
    method = build()
    down = o.one(method, o.model_of(START), 2)
    client = method.personalise(down, untrained(o.model_of(OWN[2])), o.data(*ROWS[2]), o.key())
    same(client.value, by_hand(2, o.batches(o.SIZES[2]))[0])


@pytest.mark.parametrize("warm_start", [True, False])
def test_padding_steps_change_nothing(warm_start: bool) -> None:
    """Mapped with a longer client, a short one has steps without a row."""
    method = build(warm_start=warm_start)
    ids = (4, 0)
    n = max(o.SIZES[k] for k in ids)
    x = torch.cat([torch.tensor(ROWS[k][0]) for k in ids])
    y = torch.cat([torch.tensor(ROWS[k][1]) for k in ids])
    row = torch.stack([torch.arange(n) % o.SIZES[4], torch.arange(n) + o.SIZES[4]])
    real = torch.stack([(torch.arange(n) < o.SIZES[k]).double() for k in ids])
    data, start = Data(x, y, row, real), o.model_of(START)
    client = untrained(start)
    axes = (None, None, Data(None, None, 0, 0, None, None, None), 0)
    got = torch.func.vmap(method.local, in_dims=axes)(
        Down(start), client, data, torch.stack([o.key(k) for k in ids])
    )  # fmt: skip
    for at, k in enumerate(ids):
        theta, w = by_hand(k, o.batches(o.SIZES[k]), warm_start=warm_start)
        same(tree.rows(got[0].value, at), theta)
        same(tree.add(start, tree.rows(got[1].value, at)), w)


# --- traps ------------------------------------------------------------------------------------------------------------


def test_personal_model_is_theta_in_memory_of_its_own() -> None:
    method = build()
    down = o.one(method, o.model_of(START), 0)
    client, up, info = method.local(down, untrained(o.model_of(OWN[0])), o.data(*ROWS[0]), o.key())
    theta, w = by_hand(0, o.batches(o.SIZES[0]))
    for mine, sent, received in zip(*(tree.leaves(t) for t in (client.value, up.value, down.shared)), strict=True):
        assert not torch.equal(mine, received)
        assert not torch.equal(mine, received + sent)
        sent.zero_()  # what the wire and the next message do to their memory
        received.zero_()
    same(client.value, theta)
    close(info["distance"], np.sqrt(sum(((theta[n] - w[n]) ** 2).sum() for n in w)))


def test_server_moves_by_default() -> None:
    method = methods.build("pfedme", {}, o.task())
    server, *_ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, untrained(o.model_of(START))), ROWS)
    assert float(tree.square_distance(server, o.model_of(START)).sqrt()) > 0.05


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pull": 15}, "pull=15 times lr=0.07 is 1.05.*choose a pull below 14.2857 or a lower lr"),
        ({"inner_lr": 0.4}, r"inner_lr=0.4 times pull \+ decay=6 is 2 or more.*choose an inner_lr below 0.333333"),
    ],
)
def test_rates_that_overshoot_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build(**options)
