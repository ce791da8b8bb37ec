"""The learning rate of a round: in every method it is as if the study had this rate, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import oracle as o
import pytest
import torch

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import SGD, Adam, AdamW, Method
from idiolect.core.reduction import reduced
from idiolect.core.schedules import Constant, Cosine, Exponential, Schedule, Step
from idiolect.core.tree import Tree

ROWS = o.federation()
OWN_RATES: dict[str, dict[str, float]] = {
    "apple": {"relation_lr": 0.05},
    "fedas": {"alignment_lr": 0.02},
    "fedcr": {"lr": 0.05},
    "fedpac": {"head_lr": 0.1},
    "pfedhn": {"lr": 0.05},
    "pfedme": {"inner_lr": 0.09},
}
"""Learning rates of the clients that are options of methods."""
CASES: list[tuple[Schedule, int, int, float]] = [
    (Constant(warmup=3), 1, 8, 0.25),
    (Step(every=2, factor=0.5), 5, 8, 0.25),
    (Exponential(factor=0.5, warmup=1), 3, 8, 0.5),
    (Cosine(end=0.2), 4, 6, 0.6),
]
OF_METHODS = [(name, *CASES[k % len(CASES)]) for k, name in enumerate(sorted(methods.ours()))]
"""A rate is a number by the time that a method sees it: one schedule for each, and all four with every optimiser."""


def trained(name: str, options: dict[str, Any], times: tuple[int, int], **training: Any) -> tuple[Method, Tree]:
    """What ``local`` returns for two clients, of which one has a state, in a round of so many, after another round."""
    method = methods.build(name, options, o.task(**training))
    server = begun(name)
    out = []
    for k in (0, 3):
        client = method.init_client(o.key(), torch.tensor(k))
        data = o.data(*ROWS[k])._replace(round=torch.tensor(times[0]), rounds=torch.tensor(times[1]))
        for turn in range(1 + (k == 3)):
            client, up, info = method.local(o.one(method, server, k), client, data, o.key(k, turn))
            out.append((client, up, info))
    return method, out


@cache
def begun(name: str) -> Tree:
    """The server after a round, since some methods do not train before it."""
    method = methods.build(name, {}, o.task())
    ids = range(len(ROWS))
    clients = {k: method.init_client(o.key(), torch.tensor(k)) for k in ids}
    return o.round_of(method, method.init_server(o.key()), clients, ROWS)[0]


def same(one: Tree, other: Tree) -> bool:
    return all(
        torch.allclose(a, b, rtol=1e-9, atol=1e-11)
        for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True)
    )  # fmt: skip


@pytest.mark.kinds
@pytest.mark.parametrize(("name", "schedule", "round", "rounds", "factor"), OF_METHODS, ids=str)
def test_a_round_is_that_of_a_lower_rate(name: str, schedule: Schedule, round: int, rounds: int, factor: float) -> None:
    rates = OWN_RATES.get(name, {})
    options = {"adaptive": True} if name == "apfl" else {"pull": 5.0} if name == "pfedme" else {}
    slow = {k: v * factor for k, v in rates.items()}
    _, got = trained(name, options | rates, (round, rounds), schedule=schedule)
    _, want = trained(name, options | slow, (round, rounds), optimiser=replace(o.RULE, lr=o.RULE.lr * factor))
    assert same(got, want)
    _, fast = trained(name, options | rates, (round, rounds))
    assert same(got, fast) == (name == "fedcgs"), "only FedCGS, which takes no step, has no rate"


@pytest.mark.parametrize("rule", [SGD(0.05, 0.0, 0.0, clip=0.2), Adam(0.01), AdamW(0.01, weight_decay=0.3)], ids=str)
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "ditto", "fedem", "apfl"])
def test_with_every_optimiser(name: str, rule: SGD | Adam | AdamW) -> None:
    for schedule, round, rounds, factor in CASES:
        _, got = trained(name, {}, (round, rounds), schedule=schedule, optimiser=rule)
        _, want = trained(name, {}, (round, rounds), optimiser=replace(rule, lr=rule.lr * factor))
        assert same(got, want)


@pytest.mark.kinds
@pytest.mark.parametrize(("name", "schedule", "round", "rounds", "factor"), OF_METHODS, ids=str)
def test_without_a_round_the_rate_is_whole(
    name: str, schedule: Schedule, round: int, rounds: int, factor: float
) -> None:
    """A new client's ``personalise``, and all that is done for it."""
    out = []
    for how in ({"schedule": schedule}, {}):
        method = methods.build(name, {}, o.task(**how))
        server = method.init_server(o.key())
        client = method.init_client(o.key(), torch.tensor(0))
        out.append(method.personalise(o.one(method, server, 7), client, o.data(*ROWS[1]), o.key(1)))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(out[0]), tree.leaves(out[1]), strict=True))


@pytest.mark.parametrize(
    ("schedule", "factor_T"),
    [
        (Cosine(), (1 + np.cos(np.pi * np.arange(5) / 5)) / 2),
        (Step(every=2, factor=0.3), [1, 1, 0.3, 0.3, 0.09]),
        (Exponential(factor=0.7), 0.7 ** np.arange(5.0)),
        (Constant(warmup=3), [0.25, 0.5, 0.75, 1, 1]),
    ],
    ids=str,
)
def test_rounds_of_averaging_by_numpy(schedule: Schedule, factor_T: Any) -> None:
    """With a bound on the gradient, which the learning rate does not change."""
    rule = replace(o.RULE, clip=0.4)
    method = methods.build("fedavg", {}, o.task(schedule=schedule, optimiser=rule))
    p = o.weights(1)
    server: Any = o.model_of(p)
    for t, factor in enumerate(factor_T, start=1):
        ends = [
            o.descend(p, "WbUc", o.batches(len(y)), o.whole_gradient(x, y), lr=o.RULE.lr * factor, clip=0.4)
            for x, y in ROWS
        ]  # fmt: skip
        p = {n: o.average([end[n] for end in ends], o.SIZES) for n in p}
        ups = []
        for k, rows in enumerate(ROWS):
            data = o.data(*rows)._replace(round=torch.tensor(t), rounds=torch.tensor(5))
            ups.append(method.local(o.one(method, server, k), (), data, o.key(k))[1])
        server, _ = method.aggregate(server, reduced(method.reduce, tree.stack(ups)), torch.arange(len(ROWS)))
        for got, name in zip(tree.leaves(server), ("W", "b", "U", "c"), strict=True):
            o.close(got, p[name])


@pytest.mark.parametrize("name", sorted(methods.ours()))
def test_whom_the_bound_of_a_study_concerns(name: str) -> None:
    """All methods but those that have an option for it, and FedCGS, which takes no step."""
    _, bounded = trained(name, {}, (1, 1), optimiser=replace(o.RULE, clip=0.01))
    _, free = trained(name, {}, (1, 1))
    has_option = name in ("fedcr", "pfedhn")
    assert has_option == ("clip" in methods.get(name).options)
    assert same(bounded, free) == (has_option or name == "fedcgs")
