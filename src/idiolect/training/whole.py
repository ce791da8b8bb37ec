"""Training a whole network, and passes of all of a client's rows through its body."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from idiolect.method import Data, Task
from idiolect.network import Model, Weights
from idiolect.training.batches import Batch, batches, rows
from idiolect.training.sgd import cross_entropy_mean, sgd

_CHUNK = 256  # rows per forward pass: larger ones leave the processor's cache


def train_model(
    task: Task, model: Model, data: Data, key: Tensor, *, epochs: int | None = None
) -> tuple[Model, Tensor]:
    """Cross-entropy training of body and head together; also the mean loss over the rows seen."""

    def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x_B, y_B = rows(data, batch.at_B)
        value = cross_entropy_mean(task.network(model, task.inputs(x_B)), y_B, batch.used_B)
        return value, (value, batch.used_B.sum())

    model, seen = sgd(loss, model, batches(data, task.training, key, epochs=epochs), task.training.sgd)
    return model, trained_loss(seen)


def trained_loss(seen: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean training loss from each step's (mean loss, rows)."""
    value_S, rows_S = (torch.stack(list(part)) for part in zip(*seen, strict=True))
    return (value_S * rows_S).sum() / rows_S.sum()


def features(task: Task, body: Weights, data: Data) -> tuple[Tensor, Tensor]:
    """z (N, d) of all of a client's rows and their labels, without a graph."""
    x_N, y_N = rows(data, torch.arange(data.row_N.shape[0]))
    with torch.no_grad():
        z_Nd = torch.cat([task.network.features(body, task.inputs(x)) for x in torch.split(x_N, _CHUNK)])
    return z_Nd, y_N


def log_softmax_of(task: Task, model: Model, x_B: Tensor) -> Tensor:
    """Log-probabilities (B, C) of raw rows."""
    return log_softmax(task.network(model, task.inputs(x_B)), -1)
