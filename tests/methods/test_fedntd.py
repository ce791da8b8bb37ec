"""FedNTD: rounds of the authors' released code (Lee-Gihun/FedNTD, float32) within 1e-5, by hand, and its traps.

Every array of the file is compared: models, the participants' accuracy of each class, its two means over them, and the
global model's accuracies, which the released code rounds to four digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close
from scipy.special import log_softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Method, Model
from idiolect.core.reduction import reduced
from idiolect.core.schedules import Exponential

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- recorded rounds --------------------------------------------------------------------------------------------------


def right_by_class(f: r.Files, method: Method, model: Model) -> tuple[np.ndarray, float]:
    """Of all test rows those that a model has right: the share of each class, and of all."""
    parts = [r.rows(f, k, "_test") for k in r.clients(f)]
    x, y = (np.concatenate(side) for side in zip(*parts, strict=True))
    hit = method.predict(o.one(method, model, 0), (), torch.tensor(x)).argmax(1).numpy() == y
    return np.array([hit[y == c].mean() for c in range(4)]), hit.mean()


def test_recorded_rounds() -> None:
    f = r.read("fedntd")
    rule = SGD(*(float(f[f"options/{name}"]) for name in ("lr", "momentum", "weight_decay")))
    how = {"beta": float(f["options/beta"]), "temperature": float(f["options/tau"]), "preset": "official"}
    fall = Exponential(factor=float(f["options/lr_decay"]))
    method = methods.build("fedntd", how, r.task(f, rule, int(f["options/epochs"]), schedule=fall))
    server, accuracy = r.model(f, "init"), [right_by_class(f, method, r.model(f, "init"))[1]]
    for number, ids in enumerate(r.drawn(f)):
        at, ups, own = f"round{number}", [], []
        for place, k in enumerate(ids):
            data = replay.at(r.training(f, k), number + 1, r.count(f))
            ups.append(method.local(o.one(method, server, k), (), data, o.key(k))[1])
            model = tree.add(server, ups[-1].value)
            r.same(model, r.model(f, f"{at}/clients", place))
            by_class = right_by_class(f, method, model)[0]
            close(by_class, f[f"{at}/classwise_accuracy"][place], **r.EXACT)
            own.append(by_class @ np.bincount(f[f"data/{k}/y"].astype(int), minlength=4) / len(f[f"data/{k}/y"]))
        close(np.mean(own), f[f"{at}/released/in_dist_acc_mean"], **r.EXACT)
        sizes = [len(f[f"data/{k}/y"]) for k in ids]
        close(np.average(own, weights=sizes), f[f"{at}/released/in_dist_acc_prop"], **r.EXACT)
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.model(f, f"{at}/server"))
        accuracy.append(right_by_class(f, method, server)[1])
    close(np.round(accuracy, 4), f["accuracy"], **r.EXACT)
    for k in r.clients(f):
        logp = method.predict(o.one(method, server, k), (), torch.tensor(r.rows(f, k, "_test")[0])).numpy()
        close(np.exp(logp), np.exp(log_softmax(f[f"final/logits/{k}"], 1)), **r.EXACT)


# --- a round by hand --------------------------------------------------------------------------------------------------


def others(logit: np.ndarray, y: int, tau: float) -> np.ndarray:
    """The softmax over the classes other than y; y itself is not in it."""
    e = np.exp(np.delete(logit, y) / tau)
    return e / e.sum()


def distillation(logit: np.ndarray, known: np.ndarray, y: np.ndarray, tau: float) -> np.ndarray:
    out = []
    for a, b, c in zip(logit, known, y, strict=True):
        p, q = others(b, c, tau), others(a, c, tau)
        out.append((p * np.log(p / q)).sum())
    return np.array(out)


def alone(k: int, weight: float, tau: float, plan: list[np.ndarray] | None = None) -> o.Params:
    """d KL(p || q) / d logits = (q - p) / tau at the other classes, 0 at a row's own."""
    x, y = ROWS[k]

    def logits(p: o.Params, rows: np.ndarray) -> np.ndarray:
        return o.embed(p, x[rows]) @ p["U"].T + p["c"]

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        z, logit, known = o.embed(p, x[rows]), logits(p, rows), logits(START, rows)
        dl = o.error_back(logit, y[rows])
        for at, label in enumerate(y[rows]):
            pull = (others(logit[at], label, tau) - others(known[at], label, tau)) / tau / len(rows)
            dl[at] += weight * np.insert(pull, label, 0)
        return {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(p, x[rows], dl @ p["U"])

    return o.descend(START, "WbUc", o.batches(len(y)) if plan is None else plan, gradient)


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


@pytest.mark.parametrize(
    ("options", "weight", "tau"),
    [
        ({}, 1.0, 1.0),
        ({"beta": 3.0, "temperature": 0.5}, 3.0, 0.5),
        ({"beta": 2.0, "temperature": 3.0, "square_temperature": True}, 18.0, 3.0),
        ({"beta": 0.0}, 0.0, 1.0),
    ],
)
def test_a_round_by_hand(options: dict[str, Any], weight: float, tau: float) -> None:
    method = methods.build("fedntd", options, o.task())
    server, _, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    ends = {k: alone(k, weight, tau) for k in o.IDS}
    for at, k in enumerate(o.IDS):
        same(tree.rows(up.value, at), {n: ends[k][n] - START[n] for n in START})
    average = {n: o.average([p[n] for p in ends.values()], [o.SIZES[k] for k in o.IDS]) for n in START}
    same(server, average)
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, server, k)
        client = method.personalise(down, (), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(average, TEST))


def test_what_a_round_tells() -> None:
    method = methods.build("fedntd", {"beta": 2.0, "temperature": 0.7}, o.task(epochs=1))
    x, y = ROWS[1]
    info = method.local(o.one(method, o.model_of(START), 1), (), o.data(x, y), o.key())[2]
    plan, loss, apart = o.batches(len(y), 1), 0.0, 0.0
    for at, rows in enumerate(plan):  # each batch before its own step
        p = alone(1, 2.0, 0.7, plan[:at]) if at else START
        logit, known = (o.embed(w, x[rows]) @ w["U"].T + w["c"] for w in (p, START))
        loss += o.errors(logit, y[rows]).sum()
        apart += distillation(logit, known, y[rows], 0.7).sum()
    close(info["train_loss"], loss / len(y))
    close(info["distillation"], apart / len(y))


@pytest.mark.parametrize("absent", [0, 2, 3])
def test_what_the_model_knows_of_a_class_that_a_client_lacks_is_kept(absent: int) -> None:
    """With a strong pull, the odds among the other classes stay those of the received model; FedAvg loses them."""
    x, y = ROWS[0]
    keep = y != absent
    apart = {}
    for name, how in (("fedavg", {}), ("fedntd", {"beta": 20.0})):
        method = methods.build(name, how, o.task(epochs=10, optimiser=SGD(0.02, 0.0, 0.0)))
        up = method.local(o.one(method, o.model_of(START), 0), (), o.data(x[keep], y[keep]), o.key())[1]
        end = tree.add(o.model_of(START), up.value)
        logp = method.predict(o.one(method, end, 0), (), torch.tensor(x[keep])).numpy()
        known = o.log_probability(START, x[keep])
        apart[name] = distillation(logp, known, y[keep], 1.0).mean()
    assert apart["fedntd"] < 0.2 * apart["fedavg"]


def test_with_two_classes_it_is_fedavg() -> None:
    x, y = ROWS[0]
    task = r.Task(r.Network(two, (o.INPUTS,)), 2, 1, r.Training(2, 6, o.RULE, shuffle=False))
    ends = []
    for name in ("fedavg", "fedntd"):
        method = methods.build(name, {}, task)
        start = method.init_server(o.key())
        ends.append(method.local(o.one(method, start, 0), (), o.data(x, y % 2), o.key())[1].value)
    for a, b in zip(*(tree.leaves(end) for end in ends), strict=True):
        close(a, b)


def two() -> tuple[torch.nn.Module, torch.nn.Module]:
    return o.make()[0], torch.nn.Linear(o.WIDTH, 2)


@pytest.mark.parametrize("options", [{"beta": -1}, {"temperature": 0}, {"square_temperature": "often"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fedntd", options)
