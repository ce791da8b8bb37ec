"""FedDyn: rounds of the authors' released code (alpemreacar/FedDyn, float32) within 1e-5, by hand, and its traps.

Every array of the file is compared: the participants' models, all memories, the server's model, the mean of the
participants, that of all clients' last models, and the losses and accuracies of both on all test rows.
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
from idiolect.core.method import SGD, Down, Method
from idiolect.core.reduction import reduced
from idiolect.core.schedules import Exponential
from idiolect.methods.feddyn import Server
from idiolect.training.server_optimisers import ServerAdam, ServerMomentum

ROWS = o.federation()
START, MEMORY = o.weights(1), o.weights(2)
OWN = [o.weights(10 + k) for k in range(len(o.SIZES))]
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


# --- recorded rounds --------------------------------------------------------------------------------------------------


def sizes(f: r.Files) -> list[int]:
    return [len(f[f"data/{k}/y"]) for k in r.clients(f)]


def participants(f: r.Files, number: int) -> list[int]:
    """Who took part: those whose last model is another one than before the round."""
    old = f[f"round{number - 1}/clients/fc1.weight"] if number else f["init/fc1.weight"][None]
    return r.changed(f[f"round{number}/clients/fc1.weight"], old)


def pooled(f: r.Files, logits: dict[int, np.ndarray]) -> tuple[float, float]:
    """Mean cross-entropy and accuracy of all test rows."""
    y = {k: f[f"data/{k}/y_test"].astype(int) for k in logits}
    loss = np.concatenate([o.errors(logits[k], y[k]) for k in logits])
    right = np.concatenate([logits[k].argmax(1) == y[k] for k in logits])
    return loss.mean(), right.mean()


def predictions(f: r.Files, method: Method, down: Down) -> dict[int, np.ndarray]:
    return {k: method.predict(down, None, torch.tensor(r.rows(f, k, "_test")[0])).numpy() for k in r.clients(f)}


def test_recorded_rounds() -> None:
    f = r.read("feddyn")
    rule = SGD(float(f["options/lr"]), 0.0, float(f["options/weight_decay"]))
    options = {"alpha": float(f["options/alpha"]), "samples_per_client": float(np.mean(sizes(f)))}
    fall = Exponential(factor=float(f["options/lr_decay"]))
    task, rounds = r.task(f, rule, int(f["options/epochs"]), schedule=fall), r.count(f)
    sent, mean = (methods.build("feddyn", options | {"predict_with": p}, task) for p in ("server", "mean"))
    server = Server(r.model(f, "init"), tree.zeros(r.model(f, "init")))
    clients = [tree.zeros(r.model(f, "init")) for _ in r.clients(f)]
    last = [r.model(f, "init") for _ in r.clients(f)]
    for number in range(rounds):
        at, ids, ups = f"round{number}", participants(f, number), []
        close(f[f"{at}/alpha"], [options["alpha"] * np.mean(sizes(f)) / sizes(f)[k] for k in ids], **r.EXACT)
        for k in ids:
            data = replay.at(r.training(f, k), number + 1, rounds)
            clients[k], up, _ = sent.local(o.one(sent, server, k), clients[k], data, o.key(k))
            last[k] = tree.add(server.model, up.value)
            ups.append(up)
        server, _ = sent.aggregate(server, reduced(sent.reduce, tree.stack(ups)), torch.tensor(ids))
        for k in r.clients(f):
            r.same(last[k], r.model(f, f"{at}/clients", k))
            r.same(clients[k], r.model(f, f"{at}/memory", k))
        r.same(server.model, r.model(f, f"{at}/server"))
        r.same(tree.sub(server.model, server.memory), r.model(f, f"{at}/average"))
        close(pooled(f, predictions(f, mean, o.one(mean, server, 0))), f["released/average_test"][number], **r.EXACT)
        every = tree.mean(tree.stack(last), torch.ones(len(last)))
        r.same(every, r.model(f, f"{at}/all"))
        down = o.one(sent, Server(every, server.memory), 0)
        close(pooled(f, predictions(f, sent, down)), f["released/all_test"][number], **r.EXACT)
    for path, method in (("logits", sent), ("average_logits", mean)):
        for k, logp in predictions(f, method, o.one(method, server, 99)).items():  # a new client has the same
            close(np.exp(logp), np.exp(log_softmax(f[f"final/{path}/{k}"], 1)), **r.EXACT)


# --- a round by hand --------------------------------------------------------------------------------------------------


def alone(k: int, alpha: float, plan: list[np.ndarray] | None = None, **rule: Any) -> o.Params:
    """The paper's local problem: its loss, minus <g_k, v> with g_k = -alpha m_k, plus alpha / 2 |v - w|^2."""
    x, y = ROWS[k]

    def gradient(v: o.Params, rows: np.ndarray) -> o.Params:
        g = o.whole_gradient(x, y)(v, rows)
        old = {n: -alpha * OWN[k][n] for n in g}
        return {n: g[n] - old[n] + alpha * (v[n] - START[n]) for n in g}

    return o.descend(START, "WbUc", o.batches(len(y)) if plan is None else plan, gradient, **rule)


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


def started() -> tuple[Server, dict[int, Any]]:
    return Server(o.model_of(START), o.model_of(MEMORY)), {k: o.model_of(OWN[k]) for k in o.IDS}


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0.4}, {"alpha": 0.3, "samples_per_client": 11.5}, {"alpha": 0.2, "predict_with": "mean"}]
)
def test_a_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("feddyn", options, o.task())
    server, clients = started()
    after, new, up, _ = o.round_of(method, server, clients, ROWS)
    ends = {}
    for at, k in enumerate(o.IDS):
        alpha = options.get("alpha", 0.01) * options.get("samples_per_client", o.SIZES[k]) / o.SIZES[k]
        ends[k] = alone(k, alpha)
        same(tree.rows(up.value, at), {n: ends[k][n] - START[n] for n in START})
        same(new[k], {n: OWN[k][n] + ends[k][n] - START[n] for n in START})
    memory = {n: MEMORY[n] + sum(p[n] - START[n] for p in ends.values()) / len(o.SIZES) for n in START}
    mean = {n: np.mean([p[n] for p in ends.values()], 0) for n in START}  # rows weigh nothing
    same(after.memory, memory)
    same(after.model, {n: mean[n] + memory[n] for n in START})
    personal = mean if "predict_with" in options else {n: mean[n] + memory[n] for n in START}
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, after, k)
        client = method.personalise(down, new.get(k, o.model_of(OWN[2])), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(personal, TEST))


def test_the_server_s_memory_is_the_mean_of_all_clients_memories_over_rounds() -> None:
    method = methods.build("feddyn", {"alpha": 0.2}, o.task())
    server = method.init_server(o.key())
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in range(len(o.SIZES))}
    assert not any(bool(a.any()) for a in tree.leaves((server.memory, clients)))
    for ids in ((0, 1, 3), (2,), (1, 4)):
        server, new, _, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        mean = tree.mean(tree.stack([clients[k] for k in sorted(clients)]), torch.ones(len(clients)))
        for got, want in zip(tree.leaves(server.memory), tree.leaves(mean), strict=True):
            close(got, want)


def test_what_a_round_tells() -> None:
    method = methods.build("feddyn", {"alpha": 0.3}, o.task(epochs=1))
    server, clients = started()
    x, y = ROWS[1]
    info = method.local(o.one(method, server, 1), clients[1], o.data(x, y), o.key())[2]
    plan, total = o.batches(len(y), 1), 0.0
    for at, rows in enumerate(plan):  # cross-entropy without the regulariser, each batch before its own step
        p = alone(1, 0.3, plan[:at]) if at else START
        total -= o.log_probability(p, x[rows])[np.arange(len(rows)), y[rows]].sum()
    close(info["train_loss"], total / len(y))
    end = alone(1, 0.3, plan)
    close(info["memory"], np.sqrt(sum(((OWN[1][n] + end[n] - START[n]) ** 2).sum() for n in START)))


def test_without_a_regulariser_s_weight_the_clients_are_fedavg_s() -> None:
    method = methods.build("feddyn", {"alpha": 1e-12}, o.task())
    server, clients = started()
    _, _, up, _ = o.round_of(method, server, clients, ROWS)
    averaging = methods.build("fedavg", {}, o.task())
    _, _, plain, _ = o.round_of(averaging, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    for got, want in zip(tree.leaves(up.value), tree.leaves(plain.value), strict=True):
        close(got, want)


@pytest.mark.parametrize("pattern", ["head", "body", "*.bias", "body.0.weight"])
def test_weights_that_stay_at_a_client_are_refused(pattern: str) -> None:
    """A memory of weights that nobody averages would hold them where they are."""
    with pytest.raises(InputError, match=r"method feddyn cannot take personal=.*leave out this method"):
        methods.build("feddyn", {}, o.task(), personal_weights=pattern)


@pytest.mark.parametrize("server", [ServerMomentum(), ServerAdam()])
def test_an_optimiser_of_the_server_is_refused(server: Any) -> None:
    """Its step is not what the clients sent, of which the memory is made."""
    with pytest.raises(InputError, match="method feddyn cannot take server_optimiser="):
        methods.build("feddyn", {}, o.task(), server=server)


@pytest.mark.parametrize("options", [{"alpha": 0}, {"alpha": -1}, {"samples_per_client": 0}, {"predict_with": "all"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("feddyn", options)
