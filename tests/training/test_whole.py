"""Passes of all rows, in chunks or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from idiolect import keys
from idiolect.method import Data, Task
from idiolect.network import Network
from idiolect.training import features, log_softmax_of, trained_loss, whole


def make() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)


def test_features_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_CHUNK", 4)
    task = Task(Network(make, (3,)), 2, 1)
    model = task.network.init(keys.key(0))
    x, y = torch.randn(20, 3), torch.arange(20)
    row = torch.tensor([3, 19, 0, 7, 7, 11, 2, 5, 1])
    z, label = features(task, model.body, Data(x, y, row, torch.ones(9)))
    want = torch.tanh(x[row] @ model.body["0.weight"].T + model.body["0.bias"])
    torch.testing.assert_close(z, want)
    assert torch.equal(label, row)
    logit = z @ model.head["weight"].T + model.head["bias"]
    torch.testing.assert_close(log_softmax_of(task, model, x[row]), logit - logit.exp().sum(1, keepdim=True).log())


def test_training_loss_weighs_by_rows() -> None:
    seen = [(torch.tensor(1.0), torch.tensor(6.0)), (torch.tensor(4.0), torch.tensor(2.0))]
    assert trained_loss(seen) == (6 + 8) / 8


def test_inputs_are_normalised_per_channel() -> None:
    task = Task(Network(make, (3,)), 2, 1, mean=(0.5, 0.25), std=(0.2, 0.1))
    x = torch.randint(0, 256, (3, 2, 4, 5), dtype=torch.uint8)
    want = (x / 255 - torch.tensor([0.5, 0.25]).view(2, 1, 1)) / torch.tensor([0.2, 0.1]).view(2, 1, 1)
    torch.testing.assert_close(task.inputs(x), want, rtol=1e-5, atol=1e-6)
    given = torch.randn(3, 2)
    assert torch.equal(task.inputs(given), given), "floats are used as they are"
