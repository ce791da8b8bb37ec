"""Ditto: rounds of the authors' server code (litian96/ditto, float32) within 1e-5, a round by hand, and traps.

Parity: every array of the file. The recorded local work goes on from round to round over full batches only; the plan
is given to the method. A client's first personal model is the first model of all there, and so built by hand here.
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
from idiolect.core.method import SGD, Method
from idiolect.core.network import Model
from idiolect.core.reduction import reduced
from idiolect.training import Batch, Personal, supervised, trained, untrained

EXACT = {"rtol": 0, "atol": 1e-5}
ROWS = o.federation()
START = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
PULL = 0.8


# --- parity -----------------------------------------------------------------------------------------------------------


def test_recorded_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    f = rec.read("ditto")
    task = rec.task(f, SGD(0.05, 0.0, 0.0), 2, 0.01)
    method = methods.build("ditto", {"preset": "official", "pull": 0.7, "steps": 4}, task)
    server = rec.model(f, "init")
    clients = [trained(server) for _ in rec.clients(f)]
    cursor = [0 for _ in clients]
    for r in range(rec.count(f)):
        ids, ups = sorted(f[f"round{r}/participants"].tolist()), []
        for k in ids:
            full = len(rec.rows(f, k)[1]) // 7
            at = [np.arange(7) + 7 * ((cursor[k] + s) % full) for s in range(4)]
            cursor[k] += 4
            plan = [Batch(torch.tensor(a), torch.ones(7), s) for s, a in enumerate(at)]
            monkeypatch.setattr(supervised, "batches", lambda *a, plan=plan, steps, **k: plan[:steps])
            clients[k], up, _ = method.local(o.one(method, server, k), clients[k], rec.training(f, k), o.key(r, k))
            ups.append(up)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        rec.same(server, rec.model(f, f"round{r}/server"))
        correct = []
        for k in rec.clients(f):
            rec.same(clients[k].value, rec.model(f, f"round{r}/v", k))
            logp = method.predict(o.one(method, server, k), clients[k], torch.tensor(f[f"data/{k}/x_test"]).double())
            correct.append((logp.argmax(1).numpy() == f[f"data/{k}/y_test"]).sum())
        close(correct, f[f"round{r}/correct"])
        close(sum(correct) / rec.test_rows(f), f[f"round{r}/accuracy"])


# --- a round by hand --------------------------------------------------------------------------------------------------


def shared(k: int, plan: list[np.ndarray]) -> o.Params:
    return o.descend(START, "WbUc", plan, o.whole_gradient(*ROWS[k]))


def personal(k: int, plan: list[np.ndarray], start: o.Params) -> o.Params:
    """SGD with momentum and decay on CE + PULL / 2 |v - START|^2."""
    error = o.whole_gradient(*ROWS[k])

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        return {n: g + PULL * (p[n] - START[n]) for n, g in error(p, rows).items()}

    return o.descend(start, "WbUc", plan, gradient)


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


def build(**options: Any) -> Method:
    return methods.build("ditto", {"pull": PULL, **options}, o.task())


@pytest.mark.parametrize(
    ("options", "shared_steps", "personal_steps"),
    [
        ({}, None, None),
        ({"weighting": "uniform"}, None, None),
        ({"personal_epochs": 3}, None, 3),
        ({"steps": 5}, 5, 5),
        ({"steps": 5, "personal_epochs": 1}, 5, 1),
    ],
)
def test_round_by_hand(options: dict[str, Any], shared_steps: int | None, personal_steps: int | None) -> None:
    method = build(**options)
    server, clients, up, _ = o.round_of(
        method, o.model_of(START), {k: trained(o.model_of(OWN[k])) for k in o.IDS}, ROWS
    )
    new, in_steps = {}, "steps" in options
    for at, k in enumerate(o.IDS):
        n = o.SIZES[k]
        plan = o.batches(n, 9)[:shared_steps] if in_steps else o.batches(n)
        new[k] = shared(k, plan)
        same(tree.rows(up.value, at), {name: new[k][name] - START[name] for name in START})
        if personal_steps and "personal_epochs" in options:
            plan = o.batches(n, personal_steps)
        want = personal(k, plan, OWN[k])
        same(clients[k].value, want)
        down = o.one(method, server, k)
        kept = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, kept, torch.tensor(TEST)), o.log_probability(want, TEST))
    weight = [1.0] * len(o.IDS) if options.get("weighting") == "uniform" else [o.SIZES[k] for k in o.IDS]
    same(server, {name: o.average([new[k][name] for k in o.IDS], weight) for name in START})


def test_absent_client_keeps_its_model_and_a_new_one_starts_at_the_received() -> None:
    method = build()
    down = o.one(method, o.model_of(START), 2)
    absent = trained(o.model_of(OWN[2]))
    same(method.personalise(down, absent, o.data(*ROWS[2]), o.key()).value, OWN[2])
    new = untrained(o.model_of(OWN[2]))
    for state in (method.personalise(down, new, o.data(*ROWS[2]), o.key()), round_alone(method, new)):
        same(state.value, personal(2, o.batches(o.SIZES[2]), START))
        assert float(state.trained) == 1


def round_alone(method: Method, client: Personal) -> Personal:
    return method.local(o.one(method, o.model_of(START), 2), client, o.data(*ROWS[2]), o.key())[0]


# --- traps ------------------------------------------------------------------------------------------------------------


def test_pull_holds_to_the_received_model_and_not_to_the_moving_one() -> None:
    """With a pull that leaves no room, v is the received model while u walks away from it."""
    method = methods.build("ditto", {"pull": 1e3}, o.task(epochs=5, optimiser=SGD(1e-3, 0.0, 0.0)))
    client, up, info = method.local(
        o.one(method, o.model_of(START), 0), trained(o.model_of(START)), o.data(*ROWS[0]), o.key()
    )
    moved = float(tree.square_distance(up.value, tree.zeros(up.value)).sqrt())
    assert float(info["distance"]) < 0.25 * moved  # one step off; towards u it would be as far as u is
    close(info["distance"], tree.square_distance(client.value, o.model_of(START)).sqrt())


def test_pull_is_on_by_default_and_can_be_off() -> None:
    assert methods.settle("ditto", {})["pull"] == 1.0
    start = trained(o.model_of(OWN[0]))
    down = o.one(build(), o.model_of(START), 0)
    far, near = (
        methods.build("ditto", {"pull": pull}, o.task()).local(down, start, o.data(*ROWS[0]), o.key())[2]["distance"]
        for pull in (0.0, 1.0)
    )
    assert float(near) < 0.8 * float(far)


def test_personal_model_is_not_what_is_sent() -> None:
    method = build()
    clients = {k: trained(o.model_of(OWN[k])) for k in o.IDS}
    other = {k: trained(o.model_of(OWN[0])) for k in o.IDS}
    ups = [o.round_of(method, o.model_of(START), c, ROWS)[2] for c in (clients, other)]
    for a, b in zip(tree.leaves(ups[0]), tree.leaves(ups[1]), strict=True):
        assert torch.equal(a, b)
