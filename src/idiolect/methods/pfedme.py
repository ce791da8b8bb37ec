"""pFedMe: personal models as Moreau envelopes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    batches,
    joins_by_training,
    log_softmax_of,
    mean,
    require_sgd,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"lr": "0.001..0.03:log", "pull": "1..30:log", "inner_lr": "0.01..0.3:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"decay": 1e-3, "weighting": "samples", "personal": "fresh"}}


def pfedme(
    task: Task,
    *,
    pull: PositiveFloat = 10.0,
    inner_steps: PositiveInt = 5,
    inner_lr: PositiveFloat = 0.09,
    decay: NonNegativeFloat = 0.0,
    warm_start: bool = True,
    steps: PositiveInt | None = None,
    beta: PositiveFloat = 1.0,
    weighting: Literal["samples", "uniform"] = "uniform",
    personal: Literal["kept", "fresh"] = "kept",
) -> Method:
    """pFedMe: personal models as Moreau envelopes (Dinh, Tran & Nguyen, NeurIPS 2020).

    Client, from the received model w_i = theta_i = w, for each mini-batch B in turn:
        theta_i <- theta_i - inner_lr (grad CE(theta_i; B) + pull (theta_i - w_i) + decay theta_i)   K times  [1]
        w_i <- w_i - lr pull (w_i - theta_i)                                                                  [2]
    Server, over the participants i of a round:
        w <- w + beta sum_i a_i (w_i - w) / sum_i a_i           a_i = 1, or n_i samples                       [3]
    Personal: theta_i after the last mini-batch                                                               [4]

    Up: the increment w_i - w, weighted by a_i. Down: w. At the client: theta_i; an absent client keeps it. A
    new client does one round's local work and keeps theta_i.

    Args:
        task: the problem; of its optimiser the learning rate and the bound on the gradient are used, momentum and decay
            are not.
        pull: lambda (FedPAC: 10; pFedFDA: 5; the authors' runs: 15 to 30). lr times pull must be below 1.
        inner_steps: K, steps of theta_i on each mini-batch (FedPAC: 5; released code: 5).
        inner_lr: the rate of these steps (the authors' for MNIST: 0.09 and 0.1); times pull + decay below 2.
        decay: of theta_i, towards 0 (released code: 0.001, fixed).
        warm_start: theta_i continues from mini-batch to mini-batch (released code); False: it starts at w_i each time.
        steps: R, mini-batches per round (the authors' runs: 20); None: the task's local epochs.
        beta: the server's step; 1 takes the mean, above 1 goes past it (the authors' runs: 1 and 2).
        weighting: of the mean: uniform, or by samples (released code).
        personal: which theta_i is measured: that of the client's last round ("kept"), or that of one round's new work
            from the current w ("fresh"). In the released code every client trains in every round, and those that were
            drawn are averaged.

    Raises:
        InputError: the rates make a step of w_i or theta_i overshoot, or the task's optimiser is not SGD.

    Source: the paper's algorithm; released code (CharlieDinh/pFedMe).
    Differs from source: the released code is meant to test theta_i but tests w_i, which it copies into the same tensors
    after the last step. It continues a client's batches from round to round; here each round starts with new ones.
    """
    rule = require_sgd(task, "pfedme", "both of its steps are plain gradient steps with their own rates")
    if not rule.lr * pull < 1:
        raise InputError(
            f"method pfedme: pull={pull:g} times lr={rule.lr:g} is {rule.lr * pull:g}, so that a local step would "
            f"reach or pass the personal model: choose a pull below {1 / rule.lr:g} or a lower lr"
        )
    if not inner_lr * (pull + decay) < 2:
        raise InputError(
            f"method pfedme: inner_lr={inner_lr:g} times pull + decay={pull + decay:g} is 2 or more, so that the inner "
            f"steps would diverge: choose an inner_lr below {2 / (pull + decay):g}"
        )
    inner = replace(rule, lr=inner_lr, momentum=0.0, weight_decay=decay)

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        w: Model = down.shared
        theta, extras = w, []
        for batch in batches(data, task.training, key, steps=steps):
            theta, w, first = local_step(theta, w, data, batch)
            extras.append(first)
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [3]
        up = Up(tree.sub(w, down.shared), weight)
        info = {"train_loss": trained_loss(extras), "distance": tree.square_distance(theta, w).sqrt()}
        return trained(theta), up, info

    def local_step(theta: Model, w: Model, data: Data, batch: Batch) -> tuple[Model, Model, tuple[Tensor, Tensor]]:
        def loss(theta: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            error = mean(task.loss(task.network(theta, task.inputs(x_B)), y_B), batch.used_B)
            return error + pull / 2 * tree.square_distance(theta, w), (error, batch.used_B.sum())  # [1]

        new, extras = sgd(loss, theta if warm_start else w, [batch] * inner_steps, inner)  # [1]
        next_w = tree.map(lambda w, t: w - rule.lr * batch.rate * pull * (w - t), w, new)  # [2]
        theta, w = tree.when(batch.used_B.sum(), lambda: (new, next_w), lambda: (theta, w))
        return theta, w, extras[0]

    def aggregate(server: Model, up: Reduced, ids: Tensor) -> tuple[Model, dict[str, Tensor]]:
        return tree.map(lambda w, d: w + beta * d, server, up.value), {}  # [3]

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        return local(down, client, data, key)[0]

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)  # [4]

    personalise = joins_by_training(local) if personal == "kept" else personalise
    return Method(
        task.network.init, init_client, send, local, reduce.increment(), aggregate, personalise, predict
    )  # [3]
