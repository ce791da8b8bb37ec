"""Trains a whole network, and passes all of a client's samples through its body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Data, Optimiser, Task
from idiolect.core.network import Model, Weights
from idiolect.core.tree import Tree
from idiolect.statistics.moments import weights_by_class
from idiolect.training.augment import crop_flip
from idiolect.training.batches import Batch, batches, rows
from idiolect.training.chunks import in_chunks
from idiolect.training.sgd import layout_copy, mean, sgd

ModelPart = Literal["model", "body", "head"]
"""Which weights train."""
_CHUNK = 50  # samples per forward pass, as in a training step: more do not fit into the processor's cache


def train_model(
    task: Task,
    model: Model,
    data: Data,
    key: Tensor,
    *,
    part: ModelPart = "model",
    epochs: int | None = None,
    steps: int | None = None,
    rule: Optimiser | None = None,
    pull: tuple[float | Tensor, Model] | None = None,
) -> tuple[Model, Tensor]:
    """Training of a model or of one part of it by the task's loss; also the mean loss over the samples seen.

    A part that does not train is left as it is: neither momentum nor weight decay moves it. A head trains on
    features that are computed once, or anew in each step where images are augmented.

    Args:
        task: the problem; its optimiser is used where ``rule`` is None.
        model: where to start.
        data: the client's samples.
        key: of the order of the samples.
        part: which weights train.
        epochs: of training; None takes the local epochs.
        steps: a number of batches in place of epochs.
        rule: the optimiser.
        pull: (mu, anchor) adds mu / 2 |w - anchor|^2 over the weights that train.
    """
    plan = batches(data, task.training, key, epochs=epochs, steps=steps)
    if not plan:
        return model, torch.zeros(())
    features_of = batch_features(task, model.body, data) if part == "head" else None

    def moving(model: Model) -> Tree:
        return model if part == "model" else getattr(model, part)

    def whole(weights: Tree) -> Model:
        return Model(*weights) if part == "model" else model._replace(**{part: weights})

    def loss(weights: Tree, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if features_of:
            z_Bd, y_B = features_of(batch)
            logit_BC = task.network.logits(weights, z_Bd)
        else:
            x_B, y_B = rows(task, data, batch)
            logit_BC = task.network(whole(weights), task.inputs(x_B))
        value = mean(task.loss(logit_BC, y_B), batch.used_B)
        total = value + pull[0] / 2 * tree.square_distance(weights, moving(pull[1])) if pull else value
        return total, (value, batch.used_B.sum())

    weights, extras = sgd(loss, moving(model), plan, rule or task.training.optimiser)
    return whole(weights), trained_loss(extras)


def trained_loss(extras: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean training loss from each step's (mean loss, samples)."""
    value_S, rows_S = (torch.stack(list(part)) for part in zip(*extras, strict=True))
    return (value_S * rows_S).sum() / rows_S.sum()


def features(task: Task, body: Weights, data: Data, *, augmented: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Features z (N, d) of all of a client's samples and their labels, without a graph.

    With ``augmented``, a key, images are augmented by its draws where the task says so; else they stay as they are.
    """
    x_N, y_N = tree.rows((data.x_R, data.y_R), data.row_N)
    if augmented is not None and task.training.augment == "crop_flip":
        x_N = crop_flip(x_N, augmented)
    if not tree.mapped((body, x_N)):
        body = tree.map(layout_copy, body)
    with torch.no_grad():
        z_Nd = in_chunks(lambda x_B: task.network.features(body, task.inputs(x_B)), x_N, _CHUNK)
    return z_Nd, y_N


def batch_features(
    task: Task,
    body: Weights,
    data: Data,
    *,
    then: Callable[[Tensor], Tree] = lambda z_Nd: z_Nd,
    known: tuple[Tensor, Tensor] | None = None,
) -> Callable[[Batch], tuple[Tree, Tensor]]:
    """A function from a batch to what ``then`` makes of its features z, and its labels, for a frozen body.

    The features come from one pass over all samples, or from ``known``, the result of ``features``. If the task
    augments images, they come from a pass in each step.
    """
    if task.training.augment == "none":
        z_Nd, y_N = known or features(task, body, data)
        value_N = then(z_Nd)
        return lambda batch: (tree.rows(value_N, batch.at_B), y_N[batch.at_B])
    if not tree.mapped((body, data.row_N)):
        body = tree.map(layout_copy, body)

    def anew(batch: Batch) -> tuple[Tree, Tensor]:
        x_B, y_B = rows(task, data, batch)
        with torch.no_grad():
            return then(task.network.features(body, task.inputs(x_B))), y_B

    return anew


def class_counts(task: Task, data: Data) -> Tensor:
    """A client's samples of each class (C,), in the default type."""
    hot_NC = weights_by_class(data.y_R[data.row_N], data.real_N, task.classes)
    return hot_NC.sum(0).to(torch.get_default_dtype())


def row_losses(task: Task, model: Model, data: Data) -> Tensor:
    """The task's loss (N,) of each of a client's samples, without a graph."""
    z_Nd, y_N = features(task, model.body, data)
    with torch.no_grad():
        return task.loss(task.network.logits(model.head, z_Nd), y_N)


def log_softmax_of(task: Task, model: Model, x_B: Tensor) -> Tensor:
    """What the task predicts of samples as stored: log-probabilities (B, C) for a classification."""
    logp_BC: Tensor = task.output(task.network(model, task.inputs(x_B)))
    return logp_BC
