"""A network as a function of its weights."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from idiolect import models
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.network import BatchMoments, Model, Network


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


@pytest.mark.parametrize(("make", "policy"), [(make, None), (with_buffers, "local")])
def test_the_width_can_be_asked_for_within_a_map(make: object, policy: object) -> None:
    network = Network(make, (3,), policy)  # type: ignore[arg-type]
    many = torch.func.vmap(torch.func.grad(lambda x: x * network.width))(torch.ones(2))
    assert many.tolist() == [4, 4]


def test_it_travels() -> None:
    network = Network(make, (3,))
    other = pickle.loads(pickle.dumps(network))
    x, model = torch.randn(2, 3), network.init(keys.key(0))
    assert torch.equal(other(model, x), network(model, x))
    assert other.shape == (3,)


class Shifted(nn.Module):
    """With a constant that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


def constant() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(Shifted(), nn.Linear(3, 4)), nn.Linear(4, 2)


def constant_and_batch() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(Shifted(), nn.BatchNorm1d(3, affine=False)), nn.Linear(3, 2)


def without_statistics() -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("make", "policy", "message"),
    [
        (make, "local", r"buffers=local is not possible.*no buffers: leave it out"),
        (make, "frozen", r"no buffers"),
        (constant, "aggregate", r"batch normalisation.*body\.0\.by.*choose buffers=frozen"),
        (constant, None, r"buffers \(body\.0\.by\).*buffers=aggregate, local or frozen.*GroupNorm"),
        (without_statistics, None, r"buffers \(body\)"),
        (without_statistics, "frozen", r"body keeps no statistics: choose buffers=local"),
    ],
)
def test_policies_that_do_not_fit(make: object, policy: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Network(make, (3,), policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["local", "aggregate"])
def test_training_passes_are_torchs_and_change_nothing(policy: object) -> None:
    network = Network(with_buffers, (3,), policy)  # type: ignore[arg-type]
    model, x = network.init(keys.key(0)), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    module = with_buffers()[0].train()
    module.load_state_dict(model.body, strict=False)
    for _ in range(2):
        torch.testing.assert_close(network.features(model.body, x), module(x))
    assert network.width == 4


def test_passes_by_given_statistics_are_torchs_in_evaluation() -> None:
    network = Network(with_buffers, (3,), "local")
    model, x = network.init(keys.key(0)), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    module = with_buffers()[0]
    module.load_state_dict(model.body, strict=False)
    module[1].momentum = 1.0  # running statistics are the last batch's; torch's variance is the unbiased one
    module(x)
    mean, var = module[1].running_mean, module[1].running_var
    given = {"body.1": BatchMoments(torch.stack([mean, mean + 1]), torch.stack([var + mean**2, var + (mean + 1) ** 2]))}
    with network.normalising(given):
        trained = network.features(model.body, x)  # with gradients: by the batch
        with torch.no_grad():
            first, second, third = (network.features(model.body, x) for _ in range(3))
    torch.testing.assert_close(trained, module.train()(x))
    module.eval()
    module[1].running_mean, module[1].running_var = mean, var
    torch.testing.assert_close(first, module(x))
    torch.testing.assert_close(third, first)
    module[1].running_mean = mean + 1
    torch.testing.assert_close(second, module(x))
    torch.testing.assert_close(network.features(model.body, x), trained)


def test_recording_notes_every_call() -> None:
    network = Network(constant_and_batch, (3,), "local")
    model, draw = network.init(keys.key(0)), torch.Generator().manual_seed(0)
    one, two = (torch.randn(n, 3, generator=draw) for n in (5, 7))
    with network.recording() as seen:
        for x in (one, two):
            network(model, x)
    network(model, one)
    shifted = [x + torch.arange(3.0) for x in (one, two)]
    torch.testing.assert_close(seen["body.1"].mean_MC, torch.stack([x.mean(0) for x in shifted]).double())
    torch.testing.assert_close(seen["body.1"].square_MC, torch.stack([(x**2).mean(0) for x in shifted]).double())


def test_a_batch_of_one_row_gives_the_bias_and_no_gradient() -> None:
    network = Network(with_buffers, (3,), "local")
    body = network.init(keys.key(0)).body
    body = {**body, "1.bias": torch.arange(4.0)}
    torch.testing.assert_close(network.features(body, torch.randn(1, 3))[0], torch.arange(4.0))
    got = torch.func.grad(lambda body: network.features(body, torch.ones(1, 3)).square().sum())(body)
    want = {k: torch.zeros_like(w) for k, w in body.items()} | {"1.bias": 2 * torch.arange(4.0)}
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("policy", ["local", "frozen"])
def test_the_policy_travels(policy: object) -> None:
    network = Network(with_buffers, (3,), policy)  # type: ignore[arg-type]
    other = pickle.loads(pickle.dumps(network))
    x, model = torch.randn(4, 3), network.init(keys.key(0))
    assert other.buffers == policy
    assert torch.equal(other(model, x), network(model, x))


def tied() -> tuple[nn.Module, nn.Module]:
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second), nn.Linear(3, 2)


def test_one_weight_in_two_places() -> None:
    network = Network(tied, (3,))
    model, x = network.init(keys.key(0)), torch.randn(4, 3)
    assert list(model.body) == ["0.weight"]
    w = model.body["0.weight"]
    torch.testing.assert_close(network.features(model.body, x), torch.tanh(x @ w.T) @ w.T)


def test_weights_are_the_keys_in_threads() -> None:
    """Torch's own generator, which makes them, is one for all threads."""
    network = models.build("mlp", (1, 4, 4), 3)
    want = {key: network.init(torch.tensor(key)) for key in range(4)}

    def right(key: int) -> bool:
        drawn = [tree.leaves(network.init(torch.tensor(key))) for _ in range(100)]
        return all(torch.equal(a, b) for d in drawn for a, b in zip(d, tree.leaves(want[key]), strict=True))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(right, range(4)))
