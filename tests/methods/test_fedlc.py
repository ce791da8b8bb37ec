"""FedLC: recorded rounds within 1e-5, a round by hand, its traps.

Its authors released no code. ``bench`` was computed by KarhouTam/FL-bench and ``pfllib`` by TsingZ0/PFLlib (float32),
``paper`` from the definition: every array of the file is compared. PFLlib's counts of all clients, which the method
does not offer, are given to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import torch
from oracle import close
from scipy.special import log_softmax, logsumexp

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD
from idiolect.core.reduction import reduced
from idiolect.methods import fedlc

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- recorded rounds --------------------------------------------------------------------------------------------------


def counts(f: r.Files, k: int, keep: int = 10**6) -> np.ndarray:
    return np.bincount(f[f"data/{k}/y"].astype(int)[:keep], minlength=4)


@pytest.mark.parametrize("form", ["bench", "paper", "pfllib"])
def test_recorded_rounds(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = r.read("fedlc")
    rule, epochs = SGD(float(f["options/lr"]), 0.0, 0.0), int(f["options/epochs"])
    task = r.task(f, rule, epochs, drop_last=form == "pfllib")
    tau = float(f["options/tau"])
    if form == "pfllib":  # counts of the full batches of all clients; the others are not trained on either
        whole = np.stack([counts(f, k, len(f[f"data/{k}/y"]) // 7 * 7) for k in r.clients(f)])
        close(whole, f["pfllib/counts"])
        close(tau * whole.sum(0) ** -0.25, f["pfllib/calibration"], **r.EXACT)
        monkeypatch.setattr(fedlc, "class_counts", lambda task, data: torch.tensor(whole.sum(0)).double())
    elif form == "bench":
        close([counts(f, k) for k in r.clients(f)], f["bench/counts"], **r.EXACT)  # 1e-8 for none
    method = methods.build("fedlc", {"tau": tau} | ({"preset": "paper"} if form == "paper" else {}), task)
    server = r.model(f, "init")
    for number, ids in enumerate(r.drawn(f, form)):
        ups = []
        for place, k in enumerate(ids):
            ups.append(method.local(o.one(method, server, k), (), r.training(f, k), o.key(k))[1])
            r.same(tree.add(server, ups[-1].value), r.model(f, f"{form}/round{number}/clients", place))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.model(f, f"{form}/round{number}/server"))
    for k in r.clients(f):  # without margins
        logp = method.predict(o.one(method, server, k), (), torch.tensor(r.rows(f, k, "_test")[0])).numpy()
        close(np.exp(logp), np.exp(log_softmax(f[f"{form}/final/logits/{k}"], 1)), **r.EXACT)


# --- a round by hand --------------------------------------------------------------------------------------------------


def losses(logit: np.ndarray, y: np.ndarray, n: np.ndarray, tau: float, over: str) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each row and its gradient by the logits, over the classes that the client has."""
    has = np.flatnonzero(n)
    out, slope = np.zeros(len(y)), np.zeros_like(logit)
    for at, label in enumerate(y):
        terms = [c for c in has if over == "all" or c != label]
        if not terms:
            continue
        moved = {c: logit[at, c] - tau * n[c] ** -0.25 for c in has}
        out[at] = logsumexp([moved[c] for c in terms]) - moved[label]
        for c in terms:
            slope[at, c] += np.exp(moved[c] - logsumexp([moved[t] for t in terms]))
        slope[at, label] -= 1
    return out, slope


def alone(k: int, tau: float, over: str, plan: list[np.ndarray] | None = None, y: np.ndarray | None = None) -> o.Params:
    x, y = ROWS[k][0], ROWS[k][1] if y is None else y
    n = np.bincount(y, minlength=o.CLASSES)

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        z = o.embed(p, x[rows])
        dl = losses(z @ p["U"].T + p["c"], y[rows], n, tau, over)[1] / len(rows)
        return {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(p, x[rows], dl @ p["U"])

    return o.descend(START, "WbUc", o.batches(len(y)) if plan is None else plan, gradient)


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


@pytest.mark.parametrize("over", ["all", "others"])
@pytest.mark.parametrize("tau", [None, 0.0, 0.3, 2.5])
def test_a_round_by_hand(tau: float | None, over: str) -> None:
    """Clients 1 and 4 have no row of some class."""
    options = {"sum_over": over} | ({} if tau is None else {"tau": tau})
    method = methods.build("fedlc", options, o.task())
    server, _, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    ends = {k: alone(k, 1.0 if tau is None else tau, over) for k in o.IDS}
    for at, k in enumerate(o.IDS):
        same(tree.rows(up.value, at), {n: ends[k][n] - START[n] for n in START})
    average = {n: o.average([p[n] for p in ends.values()], [o.SIZES[k] for k in o.IDS]) for n in START}
    same(server, average)
    for k in (0, 2, 99):  # who took part, who stayed away, who is new: without margins
        down = o.one(method, server, k)
        client = method.personalise(down, (), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(average, TEST))


@pytest.mark.parametrize("over", ["all", "others"])
def test_what_a_round_tells(over: str) -> None:
    method = methods.build("fedlc", {"tau": 0.6, "sum_over": over}, o.task(epochs=1))
    x, y = ROWS[1]
    info = method.local(o.one(method, o.model_of(START), 1), (), o.data(x, y), o.key())[2]
    plan, total = o.batches(len(y), 1), 0.0
    for at, rows in enumerate(plan):  # each batch before its own step
        p = alone(1, 0.6, over, plan[:at]) if at else START
        logit = o.embed(p, x[rows]) @ p["U"].T + p["c"]
        total += losses(logit, y[rows], np.bincount(y, minlength=o.CLASSES), 0.6, over)[0].sum()
    close(info["train_loss"], total / len(y))


@pytest.mark.parametrize("over", ["all", "others"])
@pytest.mark.parametrize("label", [0, 2, 3])
def test_a_client_of_one_class_learns_nothing_and_stays_finite(over: str, label: int) -> None:
    y = np.full(o.SIZES[2], label)
    method = methods.build("fedlc", {"sum_over": over}, o.task())
    result = method.local(o.one(method, o.model_of(START), 2), (), o.data(ROWS[2][0], y), o.key())
    assert tree.not_finite(result) is None
    assert float(result[2]["train_loss"]) == 0
    decayed = o.descend(START, "WbUc", o.batches(len(y)), lambda p, rows: {n: np.zeros_like(p[n]) for n in p})
    same(tree.add(o.model_of(START), result[1].value), decayed)


def test_padding_of_a_class_that_the_client_lacks_is_no_nan() -> None:
    for over in ("all", "others"):
        method = methods.build("fedlc", {"sum_over": over}, o.task())
        x, y = ROWS[1]
        plain = method.local(o.one(method, o.model_of(START), 1), (), o.data(x, y), o.key())
        x, y = np.concatenate([x, ROWS[0][0][:5]]), np.concatenate([y, np.full(5, o.LACKS[1])])
        real = torch.cat([torch.ones(o.SIZES[1]), torch.zeros(5)])
        padded = method.local(o.one(method, o.model_of(START), 1), (), o.data(x, y)._replace(real_N=real), o.key())
        for a, b in zip(tree.leaves(plain), tree.leaves(padded), strict=True):
            close(a, b)


@pytest.mark.parametrize("options", [{"tau": -0.1}, {"sum_over": "none"}, {"tau": "much"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedlc", options)
