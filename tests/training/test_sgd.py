"""Local SGD against torch.optim.SGD, and mapped over clients against one client at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from idiolect.core import keys, tree
from idiolect.core.method import SGD, Data, Training
from idiolect.training import Batch, batches, cross_entropy_mean, mean, sgd, sgd_from

pytestmark = pytest.mark.usefixtures("float64")


RULES = [
    SGD(0.1, 0.0, 0.0),
    SGD(0.1, 0.9, 0.0),
    SGD(0.1, 0.0, 0.1),
    SGD(0.1, 0.5, 0.1),
    SGD(0.1, 0.5, 0.1, clip=0.3),
    SGD(0.1, 0.5, 0.1, clip=1e6),
]


def plan(n: int, size: int, epochs: int = 2) -> list[Batch]:
    at = [torch.arange(n)[i : i + size] for i in range(0, n, size)] * epochs
    return [Batch(a, torch.ones(len(a)), step) for step, a in enumerate(at)]


def reference(module: nn.Module, x: Tensor, y: Tensor, steps: list[Batch], rule: SGD) -> dict[str, Tensor]:
    """The same steps by torch's optimiser."""
    optimiser = torch.optim.SGD(module.parameters(), rule.lr, rule.momentum, weight_decay=rule.weight_decay)
    for batch in steps:
        optimiser.zero_grad()
        cross_entropy(module(x[batch.at_B]), y[batch.at_B]).backward()
        if rule.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), rule.clip)
        optimiser.step()
    return {k: v.detach() for k, v in module.named_parameters()}


def network() -> nn.Module:
    """Convolutions of odd layouts: one input channel, 1x1 kernel, several channels."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.LeakyReLU(), nn.Conv2d(3, 4, 1), nn.LeakyReLU(), nn.Conv2d(4, 2, 2),
        nn.Flatten(), nn.Linear(2 * 9, 3),
    )  # fmt: skip


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_steps_are_those_of_torch(rule: SGD, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    module = network()
    x = torch.randn(10, 1, 6, 6).contiguous(memory_format=layout)
    y = torch.randint(3, (10,))
    start = {k: v.detach().clone() for k, v in module.named_parameters()}
    kept = {k: v.clone() for k, v in start.items()}

    def loss(w: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        value = cross_entropy(torch.func.functional_call(module, w, x[batch.at_B]), y[batch.at_B])
        return value, value

    got, seen = sgd(loss, start, plan(10, 4), rule)
    want = reference(module, x, y, plan(10, 4), rule)
    for k in want:
        torch.testing.assert_close(got[k], want[k], rtol=1e-12, atol=1e-13)
        assert torch.equal(start[k], kept[k]), "weights were changed in place"
        assert not got[k].requires_grad
    assert len(seen) == 6
    assert not any(s.requires_grad for s in seen)


def test_the_loss_is_seen_before_the_step() -> None:
    got, seen = sgd(lambda w, b: ((w**2).sum(), w.clone()), torch.tensor([1.0]), plan(3, 1, 1), SGD(0.25, 0.0, 0.0))
    np.testing.assert_allclose(torch.cat(seen), [1, 0.5, 0.25])  # w <- w - 0.25 * 2 w
    np.testing.assert_allclose(got, [0.125])


def test_a_gradient_may_lie_otherwise_in_memory_than_its_weight() -> None:
    torch.manual_seed(2)
    start, slope = torch.randn(2, 3, 2, 2), torch.randn(24)
    rule = SGD(0.1, 0.5, 0.0)
    for layout in (torch.contiguous_format, torch.channels_last):
        start = start.contiguous(memory_format=layout)
        got, _ = sgd(lambda w, b: (w.reshape(-1) @ slope, ()), start, plan(2, 1, 1), rule)
        torch.testing.assert_close(got, start - 0.1 * 2.5 * slope.view(2, 3, 2, 2))  # two steps: g, then 1.5 g


def test_clipping_bounds_the_norm_of_all_parts_together() -> None:
    start = {"a": torch.zeros(1), "b": torch.zeros(1)}
    got, _ = sgd(lambda w, b: ((3 * w["a"] + 4 * w["b"]).sum(), ()), start, plan(1, 1, 1), SGD(1.0, 0.0, 0.0, clip=0.5))
    np.testing.assert_allclose([float(got["a"]), float(got["b"])], [-0.3, -0.4], rtol=1e-6)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rule", [RULES[3], RULES[4]], ids=str)
def test_mapped_over_ragged_clients(rule: SGD, drop_last: bool) -> None:
    """All clients at once, padded to one length, against each by itself: neither padding nor its steps change it."""
    torch.manual_seed(1)
    sizes, most = [5, 8, 11, 2], 13
    x_R, y_R = torch.randn(40, 4), torch.randint(3, (40,))
    row = torch.stack([torch.randperm(40)[:most] for _ in sizes])
    real = torch.stack([(torch.arange(most) < n).double() for n in sizes])
    key = torch.stack([keys.key(0, k) for k in range(len(sizes))])
    start = {"w": torch.randn(len(sizes), 3, 4), "b": torch.randn(len(sizes), 3)}
    training = Training(3, 4, rule)

    def train(w: dict[str, Tensor], row_N: Tensor, real_N: Tensor, key: Tensor) -> Any:
        data = Data(x_R, y_R, row_N, real_N)

        def loss(w: dict[str, Tensor], batch: Batch) -> tuple[Tensor, tuple[()]]:
            at_B = data.row_N[batch.at_B]
            return cross_entropy_mean(x_R[at_B] @ w["w"].T + w["b"], y_R[at_B], batch.used_B), ()

        return sgd(loss, w, batches(data, training, key, drop_last=drop_last), rule)[0]

    many = torch.func.vmap(train)(start, row, real, key)
    for k, n in enumerate(sizes):
        alone = train({p: v[k] for p, v in start.items()}, row[k, :n], real[k, :n], key[k])
        for part in start:
            torch.testing.assert_close(many[part][k], alone[part], rtol=1e-11, atol=1e-12)
            assert (alone[part] - start[part][k]).abs().max() > 1e-3


def test_means_leave_padding_out() -> None:
    per, used = torch.tensor([1.0, 5.0, 100.0]), torch.tensor([1.0, 1.0, 0.0])
    assert mean(per, used) == 3
    assert mean(per, torch.zeros(3)) == 0
    logit, y = torch.randn(3, 4), torch.tensor([0, 3, 1])
    torch.testing.assert_close(cross_entropy_mean(logit, y, used), cross_entropy(logit[:2], y[:2]))


# --- an optimiser that goes on, and biases that do not decay ----------------------------------------------------------


def linear_loss(x: Tensor, y: Tensor) -> Any:
    def loss(w: dict[str, Tensor], batch: Batch) -> tuple[Tensor, tuple[()]]:
        at_B = batch.at_B
        return cross_entropy_mean(x[at_B] @ w["weight"].T + w["bias"], y[at_B], batch.used_B), ()

    return loss


def problem() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    return torch.randn(10, 4), torch.randint(3, (10,)), {"weight": torch.randn(3, 4), "bias": torch.randn(3)}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_two_halves_are_one_run(rule: SGD) -> None:
    x, y, start = problem()
    steps, loss = plan(10, 4), linear_loss(x, y)
    want, whole_momentum, seen = sgd_from(loss, start, tree.zeros(start), steps, rule)
    half, momentum, first = sgd_from(loss, start, tree.zeros(start), steps[:2], rule)
    given, kept = momentum, tree.copy(momentum)
    got, momentum, second = sgd_from(loss, half, momentum, steps[2:], rule)
    assert len(first) + len(second) == len(seen)
    for k in want:
        assert torch.equal(got[k], want[k])
        assert torch.equal(momentum[k], whole_momentum[k])
        assert not got[k].requires_grad
    assert all(torch.equal(given[k], kept[k]) for k in kept), "the momentum given was changed in place"
    fresh, _ = sgd(loss, half, steps[2:], rule)
    assert torch.equal(fresh["weight"], got["weight"]) == (rule.momentum == 0)


@pytest.mark.parametrize("rule", RULES[1:5], ids=str)
def test_momentum_is_that_of_torch(rule: SGD) -> None:
    """Over two calls, between which the weights are replaced as a server does."""
    x, y, start = problem()
    module = nn.Linear(4, 3)
    module.load_state_dict(start)
    optimiser = torch.optim.SGD(module.parameters(), rule.lr, rule.momentum, weight_decay=rule.weight_decay)
    weights, momentum = start, tree.zeros(start)
    for _ in range(2):
        weights, momentum, _ = sgd_from(linear_loss(x, y), weights, momentum, plan(10, 4), rule)
        for batch in plan(10, 4):
            optimiser.zero_grad()
            cross_entropy(module(x[batch.at_B]), y[batch.at_B]).backward()
            if rule.clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), rule.clip)
            optimiser.step()
        for k, p in module.named_parameters():
            torch.testing.assert_close(weights[k], p.detach(), rtol=1e-12, atol=1e-13)
            if rule.momentum:
                torch.testing.assert_close(momentum[k], optimiser.state[p]["momentum_buffer"], rtol=1e-12, atol=1e-13)
        weights = {k: 0.5 * v for k, v in weights.items()}
        module.load_state_dict(weights)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_biases_may_be_exempt_from_decay(clip: float | None) -> None:
    x, y, start = problem()
    rule = SGD(0.1, 0.5, 0.3, clip, decay_biases=False)
    module = nn.Linear(4, 3)
    module.load_state_dict(start)
    groups = [{"params": [module.weight], "weight_decay": 0.3}, {"params": [module.bias], "weight_decay": 0.0}]
    optimiser = torch.optim.SGD(groups, 0.1, 0.5)
    for batch in plan(10, 4):
        optimiser.zero_grad()
        cross_entropy(module(x[batch.at_B]), y[batch.at_B]).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()
    got, _ = sgd(linear_loss(x, y), start, plan(10, 4), rule)
    for k, p in module.named_parameters():
        torch.testing.assert_close(got[k], p.detach(), rtol=1e-12, atol=1e-13)
    decayed, _ = sgd(linear_loss(x, y), start, plan(10, 4), SGD(0.1, 0.5, 0.3, clip))
    assert (decayed["bias"] - got["bias"]).abs().max() > 1e-3


@pytest.mark.parametrize("decay_biases", [False, True])
def test_mapped_with_kept_momentum(decay_biases: bool) -> None:
    """Steps of padding alone move neither weights nor momentum; per client the biases are of one dimension still."""
    torch.manual_seed(4)
    rule = SGD(0.1, 0.5, 0.3, 0.5, decay_biases)
    sizes, most = [5, 8, 2], 9
    x_R, y_R = torch.randn(20, 4), torch.randint(3, (20,))
    row = torch.stack([torch.randperm(20)[:most] for _ in sizes])
    real = torch.stack([(torch.arange(most) < n).double() for n in sizes])
    key = torch.stack([keys.key(0, k) for k in range(len(sizes))])
    start, momentum = ({"weight": torch.randn(3, 3, 4), "bias": torch.randn(3, 3)} for _ in range(2))

    def train(w: Any, m: Any, row_N: Tensor, real_N: Tensor, key: Tensor) -> Any:
        data = Data(x_R, y_R, row_N, real_N)

        def loss(w: dict[str, Tensor], batch: Batch) -> tuple[Tensor, tuple[()]]:
            at_B = data.row_N[batch.at_B]
            return cross_entropy_mean(x_R[at_B] @ w["weight"].T + w["bias"], y_R[at_B], batch.used_B), ()

        return sgd_from(loss, w, m, batches(data, Training(3, 4, rule), key), rule)[:2]

    many = torch.func.vmap(train)(start, momentum, row, real, key)
    for k, n in enumerate(sizes):
        alone = train(tree.rows(start, k), tree.rows(momentum, k), row[k, :n], real[k, :n], key[k])
        for a, b in zip(tree.leaves(alone), tree.leaves(tree.rows(many, k)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
