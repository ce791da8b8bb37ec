"""Random layers in gradient steps: what torch's dropout functions become, against what they promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn import functional as F

from idiolect.core import keys
from idiolect.core.network import Network
from idiolect.core.randomness import ByKey, Draws, drawing


def drawn(function: Callable[..., Tensor], *arguments: Any, key: int = 0, **options: Any) -> Tensor:
    """A function of torch within a step of this key."""
    with ByKey(Draws(keys.key(key), 0)):
        return function(*arguments, **options)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(7, 301), (3, 5, 141)])
def test_dropout(p: float, shape: tuple[int, ...]) -> None:
    y = drawn(F.dropout, torch.full(shape, 3.0), p)
    zeros = int((y == 0).sum())
    assert binomtest(zeros, y.numel(), p).pvalue > 1e-4
    torch.testing.assert_close(y[y != 0], torch.full((y.numel() - zeros,), 3 / (1 - p)))
    assert torch.equal(y, drawn(F.dropout, torch.full(shape, 3.0), p))
    assert not torch.equal(y, drawn(F.dropout, torch.full(shape, 3.0), p, key=1))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_ends(p: float) -> None:
    for function in (F.dropout, F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout):
        x = torch.randn(2, 3, 4)
        assert torch.equal(drawn(function, x, p, training=True), x * (1 - p))


@pytest.mark.parametrize("function", [F.dropout, F.dropout1d, F.alpha_dropout])
@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan])
def test_what_is_no_probability(function: Callable[..., Tensor], p: float) -> None:
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        drawn(function, torch.ones(2, 3), p)


@pytest.mark.parametrize(("function", "shape"), [
    (F.dropout1d, (40, 30, 5)), (F.dropout2d, (40, 30, 3, 2)), (F.dropout3d, (40, 30, 2, 2, 2)),
])  # fmt: skip
def test_dropout_of_channels(function: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    y = drawn(function, torch.ones(shape), 0.3).flatten(2)
    assert (y == y[..., :1]).all()
    assert binomtest(int((y[..., 0] == 0).sum()), 1200, 0.3).pvalue > 1e-4
    assert set(y.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.7))}


@pytest.mark.parametrize("function", [F.alpha_dropout, F.feature_alpha_dropout])
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_alpha_dropout_keeps_mean_and_variance(function: Callable[..., Tensor], p: float) -> None:
    x = torch.randn(400, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = drawn(function, x, p, training=True)
    assert abs(float(y.mean())) < 0.02
    assert abs(float(y.var()) - 1) < 0.03
    dropped = torch.mode(y.flatten()).values
    torch.manual_seed(0)
    assert math.isclose(float(dropped), float(torch.mode(function(x, p, training=True).flatten()).values))


@pytest.mark.parametrize("masked", ["bool", "causal", "float", "none"])
def test_attention(masked: str) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 2, 3, 6, 8, generator=draw, dtype=torch.float64)
    value = torch.eye(6, dtype=torch.float64).expand(2, 3, 6, 6)  # what comes out are the weights
    options: dict[str, Any] = {
        "bool": {"attn_mask": torch.rand(6, 6, generator=draw) < 0.7}, "causal": {"is_causal": True},
        "float": {"attn_mask": torch.randn(6, 6, generator=draw, dtype=torch.float64)}, "none": {},
    }[masked]  # fmt: skip
    if masked == "bool":
        options["attn_mask"].fill_diagonal_(True)
    attend = F.scaled_dot_product_attention
    whole = attend(query, key, value, **options)
    torch.testing.assert_close(drawn(attend, query, key, value, **options), whole)
    dropped = drawn(attend, query, key, value, dropout_p=0.25, **options)
    torch.testing.assert_close(dropped[dropped != 0], (whole / 0.75)[dropped != 0])
    count = int((whole != 0).sum())
    assert binomtest(int(((dropped == 0) & (whole != 0)).sum()), count, 0.25).pvalue > 1e-4


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_short_batch_draws_as_the_start_of_a_long_one(rows: int) -> None:
    x = torch.ones(8, 5, 3)
    assert torch.equal(drawn(F.dropout, x[:rows]), drawn(F.dropout, x)[:rows])


def test_clients_that_are_mapped_draw_as_they_would_alone() -> None:
    key_K, x_K = torch.stack([keys.key(k) for k in range(4)]), torch.arange(1.0, 25).view(4, 6)

    def step(key: Tensor, x: Tensor) -> Tensor:
        with ByKey(Draws(key, 3)):
            return F.dropout(x, 0.4)

    together = torch.func.vmap(step)(key_K, x_K)
    assert torch.equal(together, torch.stack([step(key, x) for key, x in zip(key_K, x_K, strict=True)]))


class Counts(nn.Module):
    """Notes whether it was in training."""

    def forward(self, x: Tensor) -> Tensor:
        return x + float(self.training)


def counting() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(2, 3), Counts()), nn.Linear(3, 2)


def test_modules_are_in_training_within_steps_alone() -> None:
    network = Network(counting, (2,))
    body, x_B = network.init(keys.key(0)).body, torch.zeros(1, 2)
    plain = network.features(body, x_B)
    with drawing(keys.key(0), 0):
        torch.testing.assert_close(network.features(body, x_B), plain + 1)
        with torch.no_grad():
            assert torch.equal(network.features(body, x_B), plain)
    assert torch.equal(network.features(body, x_B), plain)
