"""Adam and AdamW against torch.optim, and mapped over clients against one client at a time; methods that need SGD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from idiolect import methods, models
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Adam, AdamW, Data, Optimiser, Task, Training
from idiolect.training import Batch, batches, cross_entropy_mean, optimiser_state, sgd, sgd_from

pytestmark = pytest.mark.usefixtures("float64")

RULES = [
    Adam(),
    Adam(0.01, (0.5, 0.9), 1e-3, weight_decay=0.1),
    Adam(0.01, (0.0, 0.9), clip=0.3),
    Adam(0.01, weight_decay=0.1, clip=0.3, decay_biases=False),
    AdamW(),
    AdamW(0.05, (0.5, 0.9), 1e-3, weight_decay=2.0),
    AdamW(0.01, (0.0, 0.9), weight_decay=0.0, clip=0.3),
    AdamW(0.1, weight_decay=0.5, clip=0.3, decay_biases=False),
]
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


def plan(n: int, size: int, epochs: int = 2) -> list[Batch]:
    at = [torch.arange(n)[i : i + size] for i in range(0, n, size)] * epochs
    return [Batch(a, torch.ones(len(a)), step) for step, a in enumerate(at)]


def of_torch(module: nn.Module, rule: Adam) -> torch.optim.Optimizer:
    groups = [
        {"params": [p], "weight_decay": rule.weight_decay if rule.decay_biases or p.ndim > 1 else 0.0}
        for p in module.parameters()
    ]
    kind = torch.optim.AdamW if isinstance(rule, AdamW) else torch.optim.Adam
    return kind(groups, rule.lr, rule.betas, rule.eps, foreach=False)


def steps_of_torch(module: nn.Module, optimiser: Any, x: Tensor, y: Tensor, steps: list[Batch], rule: Adam) -> None:
    for batch in steps:
        optimiser.zero_grad()
        cross_entropy(module(x[batch.at_B]), y[batch.at_B]).backward()
        if rule.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), rule.clip)
        optimiser.step()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_steps_are_those_of_torch(rule: Adam, layout: torch.memory_format) -> None:
    """Over two calls, between which the weights are replaced as a server does and the optimiser goes on."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.LeakyReLU(), nn.Conv2d(3, 4, 1), nn.LeakyReLU(), nn.Conv2d(4, 2, 2),
        nn.Flatten(), nn.Linear(2 * 9, 3),
    )  # fmt: skip
    x = torch.randn(10, 1, 6, 6).contiguous(memory_format=layout)
    y = torch.randint(3, (10,))

    def loss(w: dict[str, Tensor], batch: Batch) -> tuple[Tensor, tuple[()]]:
        return cross_entropy(torch.func.functional_call(module, w, x[batch.at_B]), y[batch.at_B]), ()

    weights = {k: v.detach().clone() for k, v in module.named_parameters()}
    state, optimiser = optimiser_state(rule, weights), of_torch(module, rule)
    for _ in range(2):
        given, kept = (weights, state), tree.copy((weights, state))
        weights, state, seen = sgd_from(loss, weights, state, plan(10, 4), rule)
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(given), tree.leaves(kept), strict=True)), "in place"
        assert len(seen) == 6
        steps_of_torch(module, optimiser, x, y, plan(10, 4), rule)
        for k, p in module.named_parameters():
            torch.testing.assert_close(weights[k], p.detach(), **CLOSE)
            assert not weights[k].requires_grad
            torch.testing.assert_close(state.mean[k], optimiser.state[p]["exp_avg"], **CLOSE)
            torch.testing.assert_close(state.square[k], optimiser.state[p]["exp_avg_sq"], **CLOSE)
            assert state.steps == optimiser.state[p]["step"]
        weights = {k: 0.5 * v for k, v in weights.items()}
        module.load_state_dict(weights)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_mapped_over_ragged_clients(rule: Adam, drop_last: bool) -> None:
    """Steps of padding alone move neither weights nor state, and do not count."""
    torch.manual_seed(1)
    sizes, most = [5, 8, 11, 2], 13
    x_R, y_R = torch.randn(40, 4), torch.randint(3, (40,))
    row = torch.stack([torch.randperm(40)[:most] for _ in sizes])
    real = torch.stack([(torch.arange(most) < n).double() for n in sizes])
    key = torch.stack([keys.key(0, k) for k in range(len(sizes))])
    start = {"weight": torch.randn(len(sizes), 3, 4), "bias": torch.randn(len(sizes), 3)}
    training = Training(3, 4, rule)

    def train(w: dict[str, Tensor], row_N: Tensor, real_N: Tensor, key: Tensor) -> Any:
        data = Data(x_R, y_R, row_N, real_N)

        def loss(w: dict[str, Tensor], batch: Batch) -> tuple[Tensor, tuple[()]]:
            at_B = data.row_N[batch.at_B]
            return cross_entropy_mean(x_R[at_B] @ w["weight"].T + w["bias"], y_R[at_B], batch.used_B), ()

        state = optimiser_state(rule, w)
        for _ in range(2):
            w, state, _ = sgd_from(loss, w, state, batches(data, training, key, drop_last=drop_last), rule)
        return w, state

    many = torch.func.vmap(train)(start, row, real, key)
    counts = [2 * 3 * max(1, n // 4 if drop_last else -(-n // 4)) for n in sizes]
    assert many[1].steps.tolist() == counts
    for k, n in enumerate(sizes):
        alone = train(tree.rows(start, k), row[k, :n], real[k, :n], key[k])
        for a, b in zip(tree.leaves(alone), tree.leaves(tree.rows(many, k)), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_in_single_precision_a_mapped_first_step_is_as_exact() -> None:
    """1 - 0.999 has four digits in float32: the correction of the first steps is computed otherwise."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(2)
    start, slope = torch.randn(3, 4), torch.randn(4)

    def train(w: Tensor, used_B: Tensor) -> Tensor:
        moved: Tensor = sgd(
            lambda w, b: ((w * slope).sum() * b.used_B.sum(), ()), w, [Batch(used_B, used_B, 0)], Adam()
        )[0]
        return moved

    many = torch.func.vmap(train)(start, torch.ones(3, 1))
    want = -1e-3 * slope.sign().double()
    torch.testing.assert_close((many - start).double(), want.expand(3, 4), rtol=0, atol=3e-7)  # a rounding of start
    alone = torch.stack([train(w, torch.ones(1)) for w in start])
    torch.testing.assert_close(many, alone, rtol=2e-7, atol=0)


@pytest.mark.parametrize("rule", [AdamW(0.3, weight_decay=1.5), AdamW(0.02, (0.8, 0.99), weight_decay=10.0)], ids=str)
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_adamw_is_that_of_its_equations(rule: AdamW, rate: float) -> None:
    """In numpy: the decay is taken off the weights, and moves neither m nor v."""
    (b1, b2), lr = rule.betas, rule.lr * rate
    w, m, v = np.array([1.0, -2.0, 0.5]), np.zeros(3), np.zeros(3)
    steps = [Batch(torch.tensor([k]), torch.ones(1), k, rate=rate) for k in range(5)]

    def loss(w: Tensor, batch: Batch) -> tuple[Tensor, tuple[()]]:
        return (w**3).sum() * (1 + batch.at_B[0]), ()

    start = torch.tensor(w)
    got, state, _ = sgd_from(loss, start, optimiser_state(rule, start), steps, rule)
    for t in range(1, 6):
        g = 3 * w**2 * t
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        w = w - lr * rule.weight_decay * w - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + rule.eps)
    np.testing.assert_allclose(got, w, rtol=1e-12)
    np.testing.assert_allclose(state.mean, m, rtol=1e-12)
    np.testing.assert_allclose(state.square, v, rtol=1e-12)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_a_method_trains_by_adam_or_says_why_not(optimiser: str) -> None:
    refused = {}
    rule: Optimiser = Adam() if optimiser == "adam" else AdamW()
    for name in methods.names():
        task = Task(models.build("mlp", (4,), 3), 3, 2, Training(optimiser=rule))
        try:
            methods.build(name, {}, task)
        except InputError as error:
            refused[name] = str(error)
    assert sorted(refused) == ["pfedme", "scaffold"]
    for name, said in refused.items():
        assert said.startswith(f"method {name} needs SGD, because ")
        assert said.endswith(f": leave out optimiser={optimiser}, or this method")


# --- a factor of the learning rate, for each step -------------------------------------------------------------------

WITH_RATES = [SGD(0.1, 0.9, 0.1), SGD(0.1, 0.0, 0.1, clip=0.3), RULES[1], RULES[3], RULES[5], RULES[7]]
RATES = [1.0, 0.5, 0.5, 0.01, 0.0, 1.0]


@pytest.mark.parametrize("rule", WITH_RATES, ids=str)
def test_a_rate_is_that_of_a_scheduler_of_torch(rule: Optimiser) -> None:
    """torch's LambdaLR multiplies the rate of each step; for one client, and mapped, with the rate as a tensor."""
    torch.manual_seed(4)
    x, y = torch.randn(12, 4), torch.randint(3, (12,))
    module = nn.Linear(4, 3)
    weights = {k: v.detach().clone() for k, v in module.named_parameters()}
    steps = [b._replace(rate=r) for b, r in zip(plan(12, 4), RATES, strict=True)]

    def loss(w: dict[str, Tensor], batch: Batch) -> tuple[Tensor, tuple[()]]:
        at_B = batch.at_B
        return cross_entropy_mean(x[at_B] @ w["weight"].T + w["bias"], y[at_B], batch.used_B), ()

    def train(w: dict[str, Tensor], rate_S: Tensor) -> dict[str, Tensor]:
        return sgd(loss, w, [b._replace(rate=r) for b, r in zip(steps, rate_S, strict=True)], rule)[0]

    alone = sgd(loss, weights, steps, rule)[0]
    rate_KS = torch.stack([torch.tensor(RATES), torch.ones(len(RATES))])
    many = torch.func.vmap(train, in_dims=(None, 0))(weights, rate_KS)
    ones = sgd(loss, weights, plan(12, 4), rule)[0]
    if isinstance(rule, SGD):
        optimiser: Any = torch.optim.SGD(
            module.parameters(), rule.lr, rule.momentum, weight_decay=rule.weight_decay, foreach=False
        )
    else:
        optimiser = of_torch(module, rule)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: RATES[min(t, len(RATES) - 1)])
    for batch in steps:
        steps_of_torch(module, optimiser, x, y, [batch], rule)
        scheduler.step()
    for k, p in module.named_parameters():
        torch.testing.assert_close(alone[k], p.detach(), **CLOSE)
        torch.testing.assert_close(many[k][0], alone[k], **CLOSE)
        torch.testing.assert_close(many[k][1], ones[k], **CLOSE)
        assert (alone[k] - ones[k]).abs().max() > 1e-3, "the rates change nothing"


def test_sgd_is_the_default() -> None:
    assert Training().optimiser == SGD()
