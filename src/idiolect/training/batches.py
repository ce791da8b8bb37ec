"""Which samples a client sees in which step: a function of its key alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.method import Blocks, Data, Task, Training
from idiolect.core.schedules import Constant, rate_factor
from idiolect.training.augment import crop_flip

_EPOCH = 2**20  # steps are numbered epoch * _EPOCH + batch, so that padding changes no number


class Batch(NamedTuple):
    """One step's samples. ``step`` is its number: random draws of a step come from ``keys.fold(key, batch.step)``."""

    at_B: Tensor
    """Positions among the client's samples."""
    used_B: Tensor
    """1 for a sample, 0 for padding."""
    step: int | Tensor
    """Its number."""
    key: Tensor = torch.zeros((), dtype=torch.int64)
    """One key for all steps; by it and ``step`` images are augmented, and random layers draw."""
    rate: float | Tensor = 1.0
    """By what the step's learning rate is multiplied: see ``idiolect.core.schedules``."""


def batches(
    data: Data,
    training: Training,
    key: Tensor,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    drop_last: bool = False,
) -> list[Batch]:
    """The batches of all epochs, reshuffled in each; with ``steps``, that many batches over as many epochs as needed.

    ``drop_last``, here or in ``training``, leaves out an incomplete last batch. A client smaller than one batch still
    trains on the one batch it has. For a single client the last batch may be short; mapped over clients, all batches
    are full and masked.

    All have the learning rate of the round ``data.round``, as the schedule in ``training`` says.
    """
    drop_last = drop_last or training.drop_last
    many = tree.mapped(data.row_N)
    real_N = data.real_N if many else data.real_N[: int(data.real_N.sum())]
    n, size = real_N.shape[0], training.batch_size
    rate = _rate(data, training)
    if steps is not None and many:
        return _mapped_steps(real_N, training, key, steps, drop_last, rate)
    draws = keys.fold(key, "augment")
    plan: list[Batch] = []
    epochs = training.epochs if epochs is None else epochs
    if steps is not None:
        epochs = -(-steps // max(1, n // size if drop_last else -(-n // size)))
    for epoch, order_N in enumerate(_orders(real_N, training, key, epochs)):
        for batch, start in enumerate(range(0, n, size)):
            at_B = order_N[start : start + size]
            used_B = real_N[at_B]
            if drop_last:
                if many:
                    used_B = used_B * ((used_B.sum() == size) | (real_N.sum() < size))
                elif start > 0 and len(at_B) < size:
                    continue
            plan.append(Batch(at_B, used_B, epoch * _EPOCH + batch, draws, rate))
    return plan[:steps]


def _orders(real_N: Tensor, training: Training, key: Tensor, epochs: int) -> list[Tensor]:
    """The order (N,) of the samples in each epoch."""
    if not training.shuffle:
        return [torch.arange(len(real_N))] * epochs
    return list(keys.order(keys.fold(key, torch.arange(epochs, device=key.device)[:, None]), real_N))


def _rate(data: Data, training: Training) -> float | Tensor:
    """The factor of the learning rate: a number for a single client, so that its steps are torch's fused ones."""
    if training.schedule == Constant():
        return 1.0
    factor = rate_factor(training.schedule, data.round, data.rounds)
    many = tree.mapped((data.row_N, data.round, data.rounds))
    return factor.to(torch.get_default_dtype()) if many else float(factor)


def _mapped_steps(
    real_N: Tensor, training: Training, key: Tensor, steps: int, drop_last: bool, rate: float | Tensor
) -> list[Batch]:
    """Each client goes through its own epochs, whose lengths differ between clients."""
    n, size = real_N.shape[0], training.batch_size
    total = real_N.sum().long()
    per_epoch = (total // size if drop_last else (total + size - 1) // size).clamp(min=1)
    order_EN = torch.stack(_orders(real_N, training, key, steps))
    draws = keys.fold(key, "augment")
    plan = []
    for step in range(steps):
        epoch, batch = step // per_epoch, step % per_epoch
        place_B = batch * size + torch.arange(size)
        order_N = order_EN.index_select(0, epoch.view(1))[0]
        used_B = (place_B < total).to(real_N.dtype)
        plan.append(Batch(order_N[place_B.clamp(max=n - 1)], used_B, epoch * _EPOCH + batch, draws, rate))
    return plan


def groups(data: Data) -> Tensor | None:
    """Which of a client's samples (N,) belong together, as those of one patient; None where each stands for itself."""
    if isinstance(data.group_R, Blocks):
        group_N: Tensor = data.group_R.group_R[data.row_N]
        return group_N
    return None if isinstance(data.group_R, tuple) else data.group_R[data.row_N]


def inner(data: Data) -> Tensor:
    """1 for each of a client's samples (N,) that a model of other groups may be tested with, 0 for one that is too near
    to these in time."""
    if isinstance(data.group_R, Blocks):
        inner_N: Tensor = data.group_R.inner_R[data.row_N]
        return inner_N
    return torch.ones_like(data.real_N)


def only(data: Data, keep_N: Tensor) -> Data:
    """The samples marked 1; the others become padding at the end or, for a single client, are removed."""
    at_N = keep_N.argsort(descending=True, stable=True)
    if not tree.mapped(keep_N):
        at_N = at_N[: int(keep_N.sum())]
    return data._replace(row_N=data.row_N[at_N], real_N=keep_N[at_N])


def rows(task: Task, data: Data, batch: Batch) -> tuple[Any, Any]:
    """Samples as stored and targets of a step, for training. Where the task says so, each step augments its images."""
    row_B = data.row_N[batch.at_B]
    x_B, y_B = tree.rows((data.x_R, data.y_R), row_B)
    if task.training.augment == "crop_flip":
        x_B = crop_flip(x_B, keys.fold(batch.key, batch.step))
    return x_B, y_B
