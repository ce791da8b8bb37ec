"""A network as a function of its weights."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from idiolect import keys
from idiolect.errors import InputError
from idiolect.network import Model, Network


def make() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4, bias=False)), nn.Linear(4, 2)


def with_buffers() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2)


def buffers_in_head() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize("make", [with_buffers, buffers_in_head])
def test_buffers_are_refused(make: object) -> None:
    with pytest.raises(InputError, match=r"buffers .*running_mean.*GroupNorm"):
        Network(make, (3,))  # type: ignore[arg-type]


def test_weights_hang_on_the_key_alone() -> None:
    network = Network(make, (3,))
    state = torch.get_rng_state()
    first, again, other = (network.init(keys.key(s)) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state), "the process's generator moved"
    for k, w in first.body.items():
        assert torch.equal(w, again.body[k])
        assert not torch.equal(w, other.body[k])
    assert list(first.body) == ["0.weight", "0.bias", "2.weight"]
    assert list(first.head) == ["weight", "bias"]


def test_calls_are_pure() -> None:
    network = Network(make, (3,))
    a, b = (network.init(keys.key(s)) for s in (0, 1))
    x = torch.randn(6, 3)

    def by_hand(m: Model) -> torch.Tensor:
        z = torch.tanh(x @ m.body["0.weight"].T + m.body["0.bias"]) @ m.body["2.weight"].T
        return z @ m.head["weight"].T + m.head["bias"]

    for model in (a, b, a):
        torch.testing.assert_close(network(model, x), by_hand(model))
    mixed = Model(a.body, b.head)
    torch.testing.assert_close(network(mixed, x), by_hand(mixed))
    torch.testing.assert_close(network.logits(a.head, network.features(a.body, x)), network(a, x))
    assert network.width == 4


def test_gradients_and_maps_go_through() -> None:
    network = Network(make, (3,))
    model = network.init(keys.key(0))
    x = torch.randn(6, 3)
    got = torch.func.grad(lambda body: network.features(body, x).sum())(model.body)
    hidden = torch.tanh(x @ model.body["0.weight"].T + model.body["0.bias"])
    torch.testing.assert_close(got["2.weight"], hidden.sum(0).expand(4, 5))
    models = [network.init(keys.key(s)) for s in range(3)]
    stacked = {k: torch.stack([m.body[k] for m in models]) for k in model.body}
    many = torch.func.vmap(lambda body: network.features(body, x))(stacked)
    for one, m in zip(many, models, strict=True):
        torch.testing.assert_close(one, network.features(m.body, x))


def test_it_travels() -> None:
    network = Network(make, (3,))
    other = pickle.loads(pickle.dumps(network))
    x, model = torch.randn(2, 3), network.init(keys.key(0))
    assert torch.equal(other(model, x), network(model, x))
    assert other.shape == (3,)
