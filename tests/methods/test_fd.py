"""FD: rounds by hand, written from the paper's algorithm, and its traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close
from scipy.special import log_softmax, softmax

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import Reduced
from idiolect.training import Personal

ROWS = o.federation()
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


class Oracle:
    """The paper's algorithm with dictionaries: who sent what for which class in which round."""

    def __init__(
        self, start: o.Params, gamma: float, outputs: str, teachers: str, distance: str = "cross_entropy"
    ) -> None:
        self.models = [start] * len(o.SIZES)
        self.distance = distance
        self.gamma, self.outputs, self.teachers = gamma, outputs, teachers
        self.last: dict[int, dict[int, np.ndarray]] = {}
        """By class, what the clients sent in the last round in which somebody had it."""

    def target(self, k: int, c: int) -> np.ndarray | None:
        sent = [a for j, a in self.last.get(c, {}).items() if j != k or self.teachers == "all"]
        if not sent:
            return None
        mean = np.mean(sent, 0)
        return softmax(mean) if self.outputs == "logits" and self.distance == "cross_entropy" else mean

    def local(self, k: int) -> dict[int, np.ndarray]:
        x, y = ROWS[k]
        seen: dict[int, list[np.ndarray]] = {}

        def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
            z = o.embed(p, x[rows])
            logit = z @ p["U"].T + p["c"]
            dl = o.error_back(logit, y[rows])
            for at, label in enumerate(y[rows]):
                probability = np.exp(log_softmax(logit[at]))
                seen.setdefault(label, []).append(logit[at] if self.outputs == "logits" else probability)
                if (target := self.target(k, label)) is not None:
                    dl[at] += self.gamma * self.slope(logit[at], probability, target) / len(rows)
            return {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(p, x[rows], dl @ p["U"])

        self.models[k] = o.descend(self.models[k], "WbUc", o.batches(len(y)), gradient)
        return {c: np.mean(rows, 0) for c, rows in seen.items()}

    def slope(self, logit: np.ndarray, probability: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Of the second term, in the logits of a sample."""
        if self.distance == "cross_entropy":
            return probability - target
        if self.outputs == "logits":
            return 2 * (logit - target) / o.CLASSES
        jacobian = np.diag(probability) - np.outer(probability, probability)
        return jacobian @ (2 * (probability - target) / o.CLASSES)

    def round(self, ids: tuple[int, ...]) -> dict[int, dict[int, np.ndarray]]:
        sent = {k: self.local(k) for k in ids}
        for c in {c for one in sent.values() for c in one}:
            self.last[c] = {k: one[c] for k, one in sent.items() if c in one}
        return sent


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


def begun(method: Any, start: o.Params) -> dict[int, Personal]:
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in range(len(o.SIZES))}
    return {k: c._replace(value=c.value._replace(model=o.model_of(start))) for k, c in clients.items()}


def options_of(gamma: float | None, outputs: str, distance: str, teachers: str) -> dict[str, Any]:
    given = {"outputs": outputs, "teachers": teachers, "distance": distance}
    return given if gamma is None else given | {"distillation": gamma}


@pytest.mark.parametrize("teachers", ["others", "all"])
@pytest.mark.parametrize(
    ("gamma", "outputs", "distance"),
    [
        (None, "probabilities", "cross_entropy"),
        (3.0, "probabilities", "cross_entropy"),
        (0.7, "logits", "cross_entropy"),
        (0.4, "logits", "squared_error"),
        (5.0, "probabilities", "squared_error"),
    ],
)
def test_rounds_by_hand(gamma: float | None, outputs: str, distance: str, teachers: str) -> None:
    """Clients 1 and 4 lack a class; in the round of client 1 alone, nobody has class 3, which keeps its teachers."""
    by_hand(options_of(gamma, outputs, distance, teachers), gamma, outputs, distance, teachers)


def test_pfllib_compares_with_the_softmax_of_the_mean_logits_of_all() -> None:
    by_hand({"preset": "pfllib"}, None, "logits", "cross_entropy", "all")


def by_hand(options: dict[str, Any], gamma: float | None, outputs: str, distance: str, teachers: str) -> None:
    method = methods.build("fd", options, o.task())
    start = o.weights(1)
    oracle = Oracle(start, 1.0 if gamma is None else gamma, outputs, teachers, distance)
    server, clients = method.init_server(o.key()), begun(method, start)
    for ids in ((0, 1, 3), (2, 4), (1,), (0, 1, 2)):
        sent = oracle.round(ids)
        server, new, up, _ = o.round_of(method, server, {k: clients[k] for k in ids}, ROWS)
        clients |= new
        for at, k in enumerate(ids):
            same(clients[k].value.model, oracle.models[k])
            close(up.weight[at], [float(c in sent[k]) for c in range(o.CLASSES)])
            for c, mean in sent[k].items():
                close(up.value[at, c], mean)
        for c in range(o.CLASSES):
            close(server.clients_C[c], len(oracle.last.get(c, {})))
            if c in oracle.last:
                close(server.output_CC[c], np.mean([*oracle.last[c].values()], 0))
    for k in range(len(o.SIZES)):
        down = o.one(method, server, k)
        client = method.personalise(down, clients[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(oracle.models[k], TEST))


def test_a_new_client_does_one_round_s_work_by_all_teachers() -> None:
    method = methods.build("fd", {}, o.task())
    start = o.weights(1)
    oracle = Oracle(start, 1.0, "probabilities", "others")
    server, clients = method.init_server(o.key()), begun(method, start)
    oracle.round((0, 1))
    server, _, _, _ = o.round_of(method, server, {k: clients[k] for k in (0, 1)}, ROWS)
    oracle.local(3)
    down = o.one(method, server, 99)
    client = method.personalise(down, clients[3], o.data(*ROWS[3]), o.key())
    same(client.value.model, oracle.models[3])


def test_the_first_round_and_a_single_client_learn_alone() -> None:
    method, alone = methods.build("fd", {"distillation": 5.0}, o.task()), methods.build("local", {}, o.task())
    server, clients = method.init_server(o.key()), begun(method, o.weights(1))
    mine, other = {0: clients[0]}, {0: clients[0]._replace(value=clients[0].value.model)}
    for _ in range(3):  # a client is never its own teacher
        server, mine, _, _ = o.round_of(method, server, mine, ROWS)
        _, other, _, _ = o.round_of(alone, (), other, ROWS)
        for a, b in zip(tree.leaves(mine[0].value.model), tree.leaves(other[0].value), strict=True):
            close(a, b)


def test_a_class_of_which_a_robust_rule_leaves_nothing_keeps_its_teachers() -> None:
    method = methods.build("fd", {"teachers": "all"}, o.task())
    server, _, _, _ = o.round_of(method, method.init_server(o.key()), begun(method, o.weights(1)), ROWS)
    value_CC, weight_C = torch.rand(o.CLASSES, o.CLASSES), torch.ones(o.CLASSES)
    value_CC[1] = 0
    after, _ = method.aggregate(server, Reduced(value_CC, weight_C), torch.arange(2))
    close(after.output_CC[1], server.output_CC[1])
    close(after.output_CC[0], value_CC[0])
    assert after.clients_C[1] == server.clients_C[1]
    assert after.round_C[1] == 0
    assert after.round_C[0] == 1


@pytest.mark.parametrize("form", ["probabilities", "logits"])
def test_no_weights_travel(form: str) -> None:
    method = methods.build("fd", {"outputs": form}, o.task())
    server, clients = method.init_server(o.key()), begun(method, o.weights(1))
    _, up, _ = method.local(o.one(method, server, 0), clients[0], o.data(*ROWS[0]), o.key())
    assert {tuple(a.shape) for a in tree.leaves((up, server))} == {(4, 4), (4,), ()}


@pytest.mark.parametrize(
    "options", [{"distillation": -1}, {"outputs": "labels"}, {"teachers": "none"}, {"distance": "l1"}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("fd", options)
