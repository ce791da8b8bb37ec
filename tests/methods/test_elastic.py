"""Elastic aggregation: rounds by hand, written from the paper's equations, and traps."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.reduction import Reduced

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))


def sensitivity(k: int, mu: float) -> o.Params:
    """|d mean |logits|^2 / dw| of each mini-batch, a moving average of which the weights add up to 1."""
    x, parts = ROWS[k][0], []
    for rows in o.batches(o.SIZES[k], 1):
        z = o.embed(START, x[rows])
        dl = 2 * (z @ START["U"].T + START["c"]) / len(rows)
        slope = {"U": dl.T @ z, "c": dl.sum(0)} | o.embed_back(START, x[rows], dl @ START["U"])
        parts.append({n: np.abs(g) for n, g in slope.items()})
    weight = np.array([(1 - mu) * mu ** (len(parts) - 1 - at) for at in range(len(parts))])
    return {n: o.average([p[n] for p in parts], weight) for n in START}


def same(model: Any, p: o.Params) -> None:
    for got, name in zip(tree.leaves(model), ("W", "b", "U", "c"), strict=True):
        close(got, p[name])


@pytest.mark.parametrize("options", [{}, {"tau": 0.1, "mu": 0.3}, {"tau": 1.2, "mu": 0.0}, {"tau": 0.0}])
def test_a_round_by_hand(options: dict[str, Any]) -> None:
    method = methods.build("elastic", options, o.task())
    tau, mu = options.get("tau", 0.5), options.get("mu", 0.95)
    server, _, up, _ = o.round_of(method, o.model_of(START), dict.fromkeys(o.IDS, ()), ROWS)
    ends = {k: o.descend(START, "WbUc", o.batches(o.SIZES[k]), o.whole_gradient(*ROWS[k])) for k in o.IDS}
    omegas = {k: sensitivity(k, mu) for k in o.IDS}
    for at, k in enumerate(o.IDS):
        same(tree.rows(up.value.change, at), {n: ends[k][n] - START[n] for n in START})
        same(tree.rows(up.value.sensitivity, at), omegas[k])
    sizes, want = [o.SIZES[k] for k in o.IDS], {}
    for n in START:
        change = o.average([ends[k][n] - START[n] for k in o.IDS], sizes)
        omega = o.average([omegas[k][n] for k in o.IDS], sizes)
        want[n] = START[n] + (1 + tau - omega / omega.max()) * change
    same(server, want)
    for k in (0, 2, 99):  # who took part, who stayed away, who is new
        down = o.one(method, server, k)
        client = method.personalise(down, (), o.data(*ROWS[2]), o.key())
        close(method.predict(down, client, torch.tensor(TEST)), o.log_probability(want, TEST))


def test_a_tensor_without_sensitivity_moves_by_all_that_is_allowed() -> None:
    """With a head of zeros, the outputs do not depend on the body."""
    zero = {n: a if n in "Wb" else np.zeros_like(a) for n, a in START.items()}
    method = methods.build("elastic", {"tau": 0.5}, o.task())
    _, up, _ = method.local(o.one(method, o.model_of(zero), 0), (), o.data(*ROWS[0]), o.key())
    assert not up.value.sensitivity.body["0.weight"].any()
    server, _, _, _ = o.round_of(method, o.model_of(zero), {0: ()}, ROWS)
    assert tree.not_finite(server) is None
    close(server.body["0.weight"] - torch.tensor(zero["W"]), 1.5 * up.value.change.body["0.weight"])


def test_noise_below_0_is_no_sensitivity() -> None:
    method = methods.build("elastic", {"tau": 0.5}, o.task())
    start = o.model_of(START)
    _, up, _ = method.local(o.one(method, start, 0), (), o.data(*ROWS[0]), o.key())
    below = up.value._replace(sensitivity=tree.map(lambda a: -1e-3 * torch.ones_like(a), up.value.sensitivity))
    server, _ = method.aggregate(start, Reduced(below), torch.tensor([0]))
    for new, old, change in zip(*map(tree.leaves, (server, start, up.value.change)), strict=True):
        close(new, old + 1.5 * change)


@pytest.mark.parametrize("ids", [(4, 0), (2, 1)])
def test_clients_that_are_mapped_average_over_their_own_mini_batches(ids: tuple[int, ...]) -> None:
    method = methods.build("elastic", {"mu": 0.6}, o.task())
    n = max(o.SIZES[k] for k in ids)
    x, y = (torch.cat([torch.tensor(ROWS[k][part]) for k in ids]) for part in (0, 1))
    row = torch.stack([torch.arange(n) % o.SIZES[k] + at * o.SIZES[ids[0]] for at, k in enumerate(ids)])
    real = torch.stack([(torch.arange(n) < o.SIZES[k]).double() for k in ids])
    axes = (None, None, o.Data(None, None, 0, 0, None, None, None), 0)
    down = method.send(o.model_of(START), torch.tensor(ids))
    keys = torch.stack([o.key(k) for k in ids])
    _, up, _ = torch.func.vmap(method.local, in_dims=axes)(down, (), o.Data(x, y, row, real), keys)
    for at, k in enumerate(ids):
        same(tree.rows(up.value.sensitivity, at), sensitivity(k, 0.6))


@pytest.mark.parametrize("options", [{"tau": -0.1}, {"mu": 1.0}, {"mu": -0.1}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("elastic", options)
