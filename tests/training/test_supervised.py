"""Passes of all rows, in chunks or not; training of a model and of its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from idiolect.core import keys, tree
from idiolect.core.method import SGD, Data, Task, Training
from idiolect.core.network import Model, Network
from idiolect.training import (
    ModelPart,
    Preprocessing,
    features,
    log_softmax_of,
    row_losses,
    supervised,
    train_model,
    trained_loss,
)


def make() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)


def test_features_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "_CHUNK", 4)
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
    inputs = Preprocessing((0.5, 0.25), (0.2, 0.1))
    x = torch.randint(0, 256, (3, 2, 4, 5), dtype=torch.uint8)
    want = (x / 255 - torch.tensor([0.5, 0.25]).view(2, 1, 1)) / torch.tensor([0.2, 0.1]).view(2, 1, 1)
    torch.testing.assert_close(inputs(x), want, rtol=1e-5, atol=1e-6)
    given = torch.tensor([[0.9, 0.25], [float("nan"), 0.05]])
    torch.testing.assert_close(inputs(given), torch.tensor([[2.0, 0.0], [0.0, -2.0]]))
    assert torch.equal(Preprocessing()(given[:1]), given[:1]), "without mean and spread, floats are used as they are"


# --- training a model or a part of it, written out with torch.optim ---------------------------------------------------

ROW = torch.tensor([3, 19, 0, 7, 12, 11, 2, 5, 1])
RULE = SGD(0.1, 0.6, 0.05)


def problem() -> tuple[Task, Model, Model, Data]:
    """Nine rows in batches of four, two epochs, in stored order."""
    task = Task(Network(make, (3,)), 2, 1, Training(2, 4, RULE, shuffle=False))
    torch.manual_seed(5)
    rows = Data(torch.randn(20, 3), torch.arange(20) % 2, ROW, torch.ones(9))
    start, anchor = (task.network.init(keys.key(seed)) for seed in (0, 1))
    return task, start, anchor, rows


def written_out(
    start: Model, data: Data, part: str, plan: list[list[int]], rule: SGD, pull: tuple[float, Model] | None
) -> tuple[Model, float]:
    """torch.optim.SGD on the part that moves; the pull stands in the loss."""
    body, head = make()
    body.load_state_dict(start.body)
    head.load_state_dict(start.head)
    moving = {"model": [body, head], "body": [body], "head": [head]}[part]
    weights = [p for module in moving for p in module.parameters()]
    names = [(n, module is head) for module in moving for n, _ in module.named_parameters()]
    anchors = [(pull[1].head if of_head else pull[1].body)[n] for n, of_head in names] if pull else []
    optimiser = torch.optim.SGD(weights, rule.lr, rule.momentum, weight_decay=rule.weight_decay)
    total = count = 0.0
    for at in plan:
        optimiser.zero_grad()
        row = data.row_N[torch.tensor(at)]
        error = cross_entropy(head(body(data.x_R[row])), data.y_R[row])
        total, count = total + float(error.detach()) * len(at), count + len(at)
        loss = error
        if pull:
            loss = loss + pull[0] / 2 * sum((w - a).square().sum() for w, a in zip(weights, anchors, strict=True))
        loss.backward()
        optimiser.step()
    return Model(*({n: p.detach() for n, p in m.named_parameters()} for m in (body, head))), total / count


FOUR = [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
HOW: list[tuple[dict[str, Any], list[list[int]]]] = [
    ({}, FOUR * 2),
    ({"epochs": 3}, FOUR * 3),
    ({"steps": 5}, (FOUR * 2)[:5]),
    ({"steps": 2}, FOUR[:2]),
    ({"rule": SGD(0.03, 0.0, 0.2)}, FOUR * 2),
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("part", ["model", "body", "head"])
@pytest.mark.parametrize(("how", "plan"), HOW, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_training_is_that_of_torch(how: dict[str, Any], plan: list[list[int]], part: ModelPart, pulled: bool) -> None:
    task, start, anchor, data = problem()
    pull = (0.7, anchor) if pulled else None
    got, loss = train_model(task, start, data, keys.key(0), part=part, pull=pull, **how)
    want, error = written_out(start, data, part, plan, how.get("rule", RULE), pull)
    for a, b in zip(tree.leaves(got), tree.leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(float(loss), error)
    for name in ("body", "head"):  # what does not train is the same bits, whatever momentum and decay
        before, after = getattr(start, name), getattr(got, name)
        assert all(torch.equal(before[k], after[k]) for k in before) == (part not in ("model", name))


@pytest.mark.usefixtures("float64")
def test_a_pull_of_nothing_and_a_strong_one() -> None:
    task, start, anchor, data = problem()
    free, _ = train_model(task, start, data, keys.key(0))
    none, _ = train_model(task, start, data, keys.key(0), pull=(0.0, anchor))
    strong, _ = train_model(task, start, data, keys.key(0), pull=(2.0, anchor))
    for a, b in zip(tree.leaves(free), tree.leaves(none), strict=True):
        torch.testing.assert_close(a, b)
    assert tree.square_distance(strong, anchor) < 0.5 * tree.square_distance(free, anchor)


def test_no_epochs_are_no_training() -> None:
    task, start, _, data = problem()
    got, loss = train_model(task, start, data, keys.key(0), epochs=0)
    assert got is start
    assert loss == 0


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("part", ["model", "body", "head"])
def test_mapped_training_of_parts(part: ModelPart) -> None:
    """Ragged clients at once, a number of steps each, pulled."""
    task, start, anchor, data = problem()
    task = replace(task, training=replace(task.training, shuffle=True))
    real = torch.stack([(torch.arange(9) < n).double() for n in (9, 3, 6)])
    key = torch.stack([keys.key(0, k) for k in range(3)])

    row = ROW.expand(3, -1)

    def train(row_N: torch.Tensor, real_N: torch.Tensor, key: torch.Tensor) -> tuple[Model, torch.Tensor]:
        rows = data._replace(row_N=row_N, real_N=real_N)
        return train_model(task, start, rows, key, part=part, steps=4, pull=(0.7, anchor))

    many = torch.func.vmap(train)(row, real, key)
    for k in range(3):
        for a, b in zip(tree.leaves(train(row[k], real[k], key[k])), tree.leaves(many), strict=True):
            torch.testing.assert_close(a, b[k], rtol=1e-11, atol=1e-12)


def test_losses_of_rows() -> None:
    task, start, _, data = problem()
    got = row_losses(task, start, data)
    for at, row in enumerate(ROW.tolist()):
        logit = task.network(start, data.x_R[row : row + 1])
        torch.testing.assert_close(got[at], cross_entropy(logit, data.y_R[row : row + 1]))
    assert got.shape == (9,)
    assert not got.requires_grad
