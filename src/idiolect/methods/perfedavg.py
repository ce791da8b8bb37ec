"""Per-FedAvg: a model from which a few steps lead to each client's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.method import SGD, Data, Down, Method, Model, Task, Up, reduce, tree
from idiolect.training import (
    Batch,
    add,
    batches,
    log_softmax_of,
    mean,
    rows,
    sgd,
    stateless,
    train_model,
    trained_loss,
)

PERSONAL = ("tuning_epochs", "tuning_steps")
SEARCH = {"alpha": "0.001..0.3:log"}
VARIANTS: dict[str, dict[str, Any]] = {"Per-FedAvg (HF)": {"hessian": "difference"}}

Loss = tuple[Tensor, tuple[Tensor, Tensor]]
"""Of a step: its value, and what ``trained_loss`` averages."""


def perfedavg(
    task: Task,
    *,
    alpha: PositiveFloat = 0.01,
    beta: PositiveFloat | None = None,
    hessian: Literal["none", "difference", "exact"] = "none",
    delta: PositiveFloat = 1e-3,
    steps: PositiveInt | None = None,
    weighting: Literal["samples", "uniform"] = "uniform",
    tuning_epochs: NonNegativeInt = 1,
    tuning_steps: PositiveInt | None = None,
) -> Method:
    """Per-FedAvg: a common start for a gradient step at each client (Fallah, Mokhtari & Ozdaglar, NeurIPS 2020).

    Client, in each step with the next mini-batches D, D' and D'', and w_i from the received w:
        t = w_i - alpha grad f(w_i; D)                                                                        [1]
        g = grad f(t; D')                                                                                     [2]
        d = g, or g - alpha H g with H the Hessian of f(w_i; D''), of which                                   [3]
        H g = (grad f(w_i + delta g; D'') - grad f(w_i - delta g; D'')) / (2 delta), or exact                 [4]
        w_i <- w_i - beta d, by the task's optimiser                                                          [5]
    Server, over the participants i of a round:
        w <- w + sum_i a_i (w_i - w) / sum_i a_i           a_i = 1, or n_i samples                            [6]
    Personal: w_i <- w_i - alpha grad f(w_i; D), one step or several from w_i = w                             [7]

    f is the task's loss. [5] goes along the gradient of f(w - alpha grad f(w)), the loss after the step that a client
    will take; the step starts from w_i, not from t. A round's mini-batches are one stream, which goes on from epoch to
    epoch. A step takes two of it, with a Hessian three, and an epoch has as many steps as its mini-batches are enough
    for, at least one. So a client of a single mini-batch uses it as D, D' and D''.

    Up: the increment w_i - w, weighted 1. Down: w. At the client: nothing until ``personalise`` takes its steps, for a
    new client as for an old one.

    Args:
        task: the problem.
        alpha: the rate of a client's own steps (the paper's runs: 0.01). A schedule of the learning rate leaves it.
        beta: the rate of [5]; None takes the task's (the paper's runs: 0.001).
        hessian: "none" leaves the second term of [3] out, as the paper's Per-FedAvg (FO) and public code do;
            "difference" is its Per-FedAvg (HF), at two more gradients a step; "exact" differentiates twice.
        delta: of the difference; in float32 far smaller ones lose digits.
        steps: of a round; None: those of the task's local epochs.
        weighting: of the mean: uniform, or by samples (PFLlib).
        tuning_epochs: passes over the client's samples in [7], in mini-batches.
        tuning_steps: mini-batches in [7], in place of epochs (paper and PFLlib: 1).

    Source: the paper's algorithm 1 and section 5; no code of its authors is known. KarhouTam/FL-bench agrees with it.
    Differs from source: the paper's update is "exact", and its runs are with "none" and "difference"; the default is
    "none", which public code and comparisons mean. [7] is one step in the paper, and by default an epoch, as in
    FL-bench. TsingZ0/PFLlib trains twice in a round, has one rate for alpha and beta, weighs clients by samples, and
    takes D and D' from the halves of larger mini-batches, so that a client with less than one of these stays at w. A
    bound on the gradient norm, where the task has one, holds for d.
    """
    network, own = task.network, SGD(alpha, 0.0, 0.0)
    rule = task.training.optimiser if beta is None else replace(task.training.optimiser, lr=beta)
    size = 2 if hessian == "none" else 3

    def groups(data: Data, key: Tensor) -> list[list[Batch]]:
        """The mini-batches of each step; where clients are mapped, a client's last ones may be empty."""
        if steps is not None:
            count: Tensor | int = steps
            most = steps
        else:
            plan = batches(data, task.training, key)
            epochs = task.training.epochs
            most = max(1, len(plan) // epochs // size) * epochs
            in_epoch = torch.stack([b.used_B.sum() > 0 for b in plan[: len(plan) // epochs]]).sum()
            count = (in_epoch // size).clamp(min=1) * epochs
        stream = batches(data, task.training, key, steps=size * most)
        groups = [stream[at : at + size] for at in range(0, len(stream), size)]
        return [[b._replace(used_B=b.used_B * (at < count)) for b in group] for at, group in enumerate(groups)]

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        def error(model: Model, batch: Batch) -> Loss:
            x_B, y_B = rows(task, data, batch)
            value = mean(task.loss(network(model, task.inputs(x_B)), y_B), batch.used_B)
            return value, (value, batch.used_B.sum())

        def own_step(w: Model, batch: Batch) -> Model:
            return tree.sub(sgd(error, w, [batch._replace(rate=1.0)], own)[0], w)  # [1]

        def first_order(v: Model, group: Sequence[Batch]) -> Loss:
            way = own_step(tree.detach(v), group[0])
            return error(tree.add(v, way), group[1])  # the gradient at v = w_i is that of f at t  # [2]

        def second_order(v: Model, group: Sequence[Batch]) -> Loss:
            def slope(u: Model) -> Model:
                gradient: Model = torch.func.grad(lambda v: error(v, group[2])[0])(u)
                return gradient

            w = tree.detach(v)
            t = tree.add(w, own_step(w, group[0]))
            g, seen = torch.func.grad(error, has_aux=True)(t, group[1])  # [2]
            if hessian == "exact":
                turn = torch.func.grad(lambda u: tree.dot(slope(u), g))(w)  # [4]
            else:
                up, low = (slope(tree.map(lambda a, b, s=s: a + s * delta * b, w, g)) for s in (1, -1))
                turn = tree.map(lambda a, b: (a - b) / (2 * delta), up, low)  # [4]
            d = tree.map(lambda a, b: a - alpha * b, g, turn)  # [3]
            return tree.dot(d, v), seen

        loss, plan = (first_order if hessian == "none" else second_order), groups(data, key)
        ahead = iter(plan)  # the loss is called once for each step, in order
        w, extras = sgd(lambda v, _: loss(v, next(ahead)), down.shared, [group[1] for group in plan], rule)  # [5]
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [6]
        return client, Up(tree.sub(w, down.shared), weight), {"train_loss": trained_loss(extras)}

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Model:
        return train_model(task, down.shared, data, key, epochs=tuning_epochs, steps=tuning_steps, rule=own)[0]  # [7]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client or down.shared, x_B)

    return Method(network.init, stateless, send, local, reduce.increment(), add, personalise, predict)  # [6]
