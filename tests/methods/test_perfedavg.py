"""Per-FedAvg: recorded rounds within 1e-5, rounds by hand, its traps.

Its authors released no code. ``fo`` and ``hf`` were computed by KarhouTam/FL-bench, ``pfllib`` by TsingZ0/PFLlib, both
float32, ``exact`` from the definition. Every array of the file is compared. The record says which rows each step uses,
and these are given to the method; that it chooses such steps itself is tested by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Method, Task, Up
from idiolect.core.reduction import reduced
from idiolect.core.schedules import Step
from idiolect.methods import perfedavg
from idiolect.training import Batch

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
BATCH = 4  # of the records of FL-bench


# --- recorded rounds --------------------------------------------------------------------------------------------------


def task(f: r.Files, rate: float, size: int) -> Task:
    return r.task(f, SGD(rate, 0.0, 0.0), 1, batch_size=size)


def options_of(f: r.Files, *names: str) -> list[Any]:
    return [f[f"options/{name}"].item() for name in names]


class Replay:
    """Gives ``perfedavg`` the steps of a record in place of those that it would choose."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows: Sequence[Sequence[np.ndarray]] = ()
        patch.setattr(perfedavg, "batches", self)

    def __call__(self, data: Any, training: Any, key: Any, *, steps: int) -> list[Batch]:
        flat = [torch.tensor(at[at >= 0]) for step in self.rows for at in step]
        assert len(flat) == steps
        return [Batch(at, torch.ones(len(at)), number) for number, at in enumerate(flat)]


def tuned(f: r.Files, method: Method, server: Any, form: str, *, single: bool = True) -> None:
    """The personal models; without ``single``, a last mini-batch of one row is left out."""
    for k in r.clients(f):
        x, y = r.rows(f, k)
        keep = len(y) if single or len(y) % BATCH != 1 else len(y) - 1
        down = o.one(method, server, k)
        mine = method.personalise(down, (), o.data(x[:keep], y[:keep]), o.key(k))
        r.same(mine, r.model(f, f"{form}/final/clients", k))
        logp = method.predict(down, mine, torch.tensor(r.rows(f, k, "_test")[0])).numpy()
        close(np.exp(logp), np.exp(log_softmax(f[f"{form}/final/logits/{k}"], 1)), **r.EXACT)


@pytest.mark.parametrize(("form", "hessian"), [("fo", "none"), ("hf", "difference"), ("exact", "exact")])
def test_recorded_rounds(form: str, hessian: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = r.read("perfedavg")
    alpha, beta, delta, tuning_epochs = options_of(f, "alpha", "beta", "delta", "tuning_epochs")
    how = {"alpha": alpha, "beta": beta, "hessian": hessian, "delta": delta, "tuning_epochs": tuning_epochs}
    server, replay = r.model(f, "init"), Replay(monkeypatch)
    rows = "hf" if form == "exact" else form
    for number in range(r.count(f, form)):
        ids = [k for k in r.clients(f) if f"{rows}/round{number}/rows/{k}" in f]
        ups = []
        for place, k in enumerate(ids):
            replay.rows = f[f"{rows}/round{number}/rows/{k}"]
            steps = {"steps": len(replay.rows)}
            method = methods.build("perfedavg", how | steps, task(f, 0.3, BATCH))  # 0.3 is not used
            ups.append(method.local(o.one(method, server, k), (), r.training(f, k), o.key(k))[1])
            r.same(tree.add(server, ups[-1].value), r.model(f, f"{form}/round{number}/clients", place))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.model(f, f"{form}/round{number}/server"))
    if form != "exact":
        tuned(f, methods.build("perfedavg", how, task(f, 0.3, BATCH)), server, form, single=False)


def test_recorded_rounds_of_pfllib(monkeypatch: pytest.MonkeyPatch) -> None:
    """D and D' are the halves of mini-batches of 14, two passes in a round; less than 14 rows are no step."""
    f = r.read("perfedavg")
    [rate, epochs] = options_of(f, "alpha", "pfllib_epochs")
    how = {"alpha": rate, "weighting": "samples", "tuning_steps": 1}
    server, replay, right = r.model(f, "init"), Replay(monkeypatch), []

    def test_accuracy() -> float:
        method, hits = methods.build("perfedavg", how, task(f, rate, 7)), []
        for k in r.clients(f):
            down, (x, y) = o.one(method, server, k), r.rows(f, k, "_test")
            mine = method.personalise(down, (), r.training(f, k), o.key(k))
            hits.extend(method.predict(down, mine, torch.tensor(x)).argmax(1).numpy() == y)
        return float(np.mean(hits))

    for number, ids in enumerate(r.drawn(f, "pfllib")):
        right.append(test_accuracy())
        ups = []
        for place, k in enumerate(ids):
            n = len(f[f"data/{k}/y"])
            replay.rows = [np.arange(at, at + 14).reshape(2, 7) for at in range(0, n - 13, 14)] * (2 * epochs)
            if replay.rows:
                method = methods.build("perfedavg", how | {"steps": len(replay.rows)}, task(f, rate, 7))
                up = method.local(o.one(method, server, k), (), r.training(f, k), o.key(k))[1]
            else:
                up = Up(tree.zeros(server), torch.tensor(float(n)))
            ups.append(up)
            r.same(tree.add(server, up.value), r.model(f, f"pfllib/round{number}/clients", place))
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.tensor(ids))
        r.same(server, r.model(f, f"pfllib/round{number}/server"))
    close([*right, test_accuracy()], f["pfllib/test_accuracy"], **r.EXACT)
    tuned(f, methods.build("perfedavg", how, task(f, rate, 7)), server, "pfllib")


# --- rounds by hand ---------------------------------------------------------------------------------------------------


def flat(p: o.Params) -> np.ndarray:
    return np.concatenate([p[n].ravel() for n in "WbUc"])


def like(v: np.ndarray) -> o.Params:
    ends = np.cumsum([START[n].size for n in "WbUc"])[:-1]
    return {n: part.reshape(START[n].shape) for n, part in zip("WbUc", np.split(v, ends), strict=True)}


def stream(n: int, size: int, steps: int | None) -> list[list[np.ndarray]]:
    """Groups of mini-batches of one stream, which starts at row 0 and goes on through all epochs."""
    epoch = o.batches(n, 1)
    if steps is None:
        steps = max(1, len(epoch) // size) * o.EPOCHS
    every = epoch * (size * steps)
    return [every[size * s : size * (s + 1)] for s in range(steps)]


def direction(k: int, w: o.Params, group: list[np.ndarray], alpha: float, hessian: str, delta: float) -> o.Params:
    def slope(v: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return flat(o.whole_gradient(*ROWS[k])(like(v), rows))

    v = flat(w)
    g = slope(v - alpha * slope(v, group[0]), group[1])
    if hessian == "none":
        return like(g)
    if hessian == "difference":
        return like(g - alpha * (slope(v + delta * g, group[2]) - slope(v - delta * g, group[2])) / (2 * delta))
    columns = [(slope(v + 1e-5 * e, group[2]) - slope(v - 1e-5 * e, group[2])) / 2e-5 for e in np.eye(len(v))]
    return like(g - alpha * np.stack(columns, 1) @ g)


def alone(k: int, rule: SGD = o.RULE, **how: Any) -> o.Params:
    """A client's model after a round: momentum and decay are the task's."""
    options = {"alpha": 0.01, "hessian": "none", "delta": 1e-3} | {n: how[n] for n in how if n != "steps"}
    plan = stream(o.SIZES[k], 2 if options["hessian"] == "none" else 3, how.get("steps"))
    p, moment = START, {n: np.zeros_like(a) for n, a in START.items()}
    for group in plan:
        d = direction(k, p, group, **options)
        moment = {n: rule.momentum * moment[n] + d[n] + rule.weight_decay * p[n] for n in p}
        p = {n: p[n] - rule.lr * moment[n] for n in p}
    return p


def same(model: Any, p: o.Params, **tolerance: float) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name], **tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.3},
        {"alpha": 0.2, "weighting": "samples", "steps": 3},
        {"alpha": 0.2, "hessian": "difference", "delta": 0.05},
        {"alpha": 0.3, "hessian": "exact", "steps": 2},
    ],
)
def test_a_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("perfedavg", options, o.task())
    server, _, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    how = {name: value for name, value in options.items() if name != "weighting"}
    ends = {k: alone(k, **how) for k in o.IDS}
    exact = {"rtol": 0, "atol": 1e-7} if "exact" in options.values() else {}  # the oracle's Hessian is of differences
    for at, k in enumerate(o.IDS):
        same(tree.rows(up.value, at), {n: ends[k][n] - START[n] for n in START}, **exact)
    weight = [o.SIZES[k] if "weighting" in options else 1.0 for k in o.IDS]
    average = {n: o.average([p[n] for p in ends.values()], weight) for n in START}
    same(server, average, **exact)


def test_beta_is_the_rate_of_the_outer_step_alone() -> None:
    method = methods.build("perfedavg", {"alpha": 0.2, "beta": 0.5}, o.task())
    up = o.round_of(method, o.model_of(START), {0: ()}, ROWS)[2]
    end = alone(0, SGD(0.5, o.RULE.momentum, o.RULE.weight_decay), alpha=0.2)
    same(tree.rows(up.value, 0), {n: end[n] - START[n] for n in START})


@pytest.mark.parametrize("hessian", ["none", "difference"])
@pytest.mark.parametrize(("round", "factor"), [(1, 1.0), (2, 0.1), (3, 0.01)])
def test_a_schedule_lowers_the_rate_of_the_outer_step_alone(hessian: str, round: int, factor: float) -> None:
    method = methods.build("perfedavg", {"alpha": 0.2, "hessian": hessian}, o.task(schedule=Step(every=1, factor=0.1)))
    data = o.data(*ROWS[0])._replace(round=torch.tensor(round), rounds=torch.tensor(3))
    up = method.local(o.one(method, o.model_of(START), 0), (), data, o.key(0))[1]
    rule = SGD(factor * o.RULE.lr, o.RULE.momentum, o.RULE.weight_decay)
    end = alone(0, rule, alpha=0.2, hessian=hessian)
    same(up.value, {n: end[n] - START[n] for n in START})


@pytest.mark.parametrize("options", [{}, {"tuning_epochs": 3}, {"tuning_steps": 1}, {"tuning_steps": 5}])
def test_the_personal_model_is_some_plain_steps_from_the_global_one(options: dict[str, Any]) -> None:
    """Of plain gradients at rate alpha: the task's momentum, decay and rate have no part in it."""
    method = methods.build("perfedavg", options | {"alpha": 0.15}, o.task())
    for k in (0, 2, 4, 99):
        x, y = ROWS[k % len(ROWS)]
        plan = o.batches(len(y), options.get("tuning_epochs", 1))
        if "tuning_steps" in options:
            plan = o.batches(len(y), 5)[: options["tuning_steps"]]
        want = o.descend(START, "WbUc", plan, o.whole_gradient(x, y), 0.15, 0.0, 0.0)
        down = o.one(method, o.model_of(START), k)
        client = method.personalise(down, (), o.data(x, y), o.key())
        same(client, want)
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(want, TEST))


@pytest.mark.parametrize("hessian", ["none", "difference", "exact"])
@pytest.mark.parametrize("ids", [(4, 0), (2, 1), (3, 4)])
def test_clients_that_are_mapped_have_their_own_steps(hessian: str, ids: tuple[int, ...]) -> None:
    """A short client has fewer steps than a long one, and the stream of its own mini-batches."""
    how: dict[str, Any] = {"alpha": 0.2, "hessian": hessian}
    method = methods.build("perfedavg", how, o.task())
    n = max(o.SIZES[k] for k in ids)
    x, y = (torch.cat([torch.tensor(ROWS[k][part]) for k in ids]) for part in (0, 1))
    starts = [sum(o.SIZES[j] for j in ids[:at]) for at in range(len(ids))]
    row = torch.stack([torch.arange(n) % o.SIZES[k] + at for k, at in zip(ids, starts, strict=True)])
    real = torch.stack([(torch.arange(n) < o.SIZES[k]).double() for k in ids])
    data, axes = o.Data(x, y, row, real), (None, None, o.Data(None, None, 0, 0, None, None, None), 0)
    start = o.model_of(START)
    key = torch.stack([o.key(k) for k in ids])
    _, up, _ = torch.func.vmap(method.local, in_dims=axes)(method.send(start, torch.tensor(ids)), (), data, key)
    tolerance = {"rtol": 0, "atol": 1e-7} if hessian == "exact" else {}
    for at, k in enumerate(ids):
        end = alone(k, **how)
        same(tree.rows(up.value, at), {n: end[n] - START[n] for n in START}, **tolerance)


def test_training_loss_is_that_after_the_step_which_a_client_will_take() -> None:
    method, total, seen = methods.build("perfedavg", {"alpha": 0.2}, o.task(epochs=1)), 0.0, 0
    x, y = ROWS[1]
    for at, group in enumerate(stream(len(y), 2, 1)):
        assert at == 0
        adapted = o.descend(START, "WbUc", group[:1], o.whole_gradient(x, y), 0.2, 0.0, 0.0)
        total += o.errors(o.embed(adapted, x[group[1]]) @ adapted["U"].T + adapted["c"], y[group[1]]).sum()
        seen += len(group[1])
    info = method.local(o.one(method, o.model_of(START), 1), (), o.data(x, y), o.key())[2]
    close(info["train_loss"], total / seen)


@pytest.mark.parametrize("options", [{"alpha": 0}, {"delta": 0}, {"hessian": "half"}, {"beta": -1}, {"steps": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("perfedavg", options)
