"""Elastic aggregation: the server moves a parameter less where predictions are sensitive to it."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, reduce, tree, unchanged
from idiolect.training import Batch, batches, log_softmax_of, mean, rows, stateless, train_model

SEARCH = {"tau": "0.1..1", "mu": "0..0.99"}


class Report(NamedTuple):
    """What a client sends."""

    change: Model
    sensitivity: Model


def elastic(task: Task, *, tau: NonNegativeFloat = 0.5, mu: Annotated[float, Field(ge=0, lt=1)] = 0.95) -> Method:
    """Elastic: averaging by how sensitive predictions are to each parameter (Chen, Hu, Tan, Wei & Wu, CVPR 2023).

    Client, with the received model w, over the mini-batches B of its samples in one pass before training:
        Omega_i <- mu Omega_i + (1 - mu) |d mean_B |w(x)|^2 / dw|, from 0     w(x): what the network returns  [1]
        w_i <- SGD(CE) from w                                                                                 [2]
    Server, over the round's participants i, by samples n_i, for each parameter of a tensor:
        Omega = sum_i n_i Omega_i / sum_i n_i,   zeta = 1 + tau - Omega / max over the tensor of Omega        [3]
        w <- w + zeta sum_i n_i (w_i - w) / sum_i n_i                                                         [4]

    The norm in [1] is over the outputs of the network, so it needs no labels. Omega_i is divided by the sum of its
    weights, 1 - mu^b after b mini-batches, so that clients with few of them count alike. A tensor without any
    sensitivity has zeta = 1 + tau.

    Up: w_i - w and Omega_i, weighted by n_i samples: twice the model. Down: w. At the client: nothing. A new client
    takes the global model as it is.

    Args:
        task: the problem.
        tau: the most sensitive parameter of a tensor moves by tau times its mean increment, one without sensitivity by
            1 + tau times (KarhouTam/FL-bench: 0.5).
        mu: of the moving average (FL-bench: 0.95).

    Source: the paper's algorithm and equations; no code of its authors is known.
    Differs from source: KarhouTam/FL-bench takes one sensitivity for a tensor, from the loss and the gradient of the
    tensor's first row, goes on with it from round to round, compares clients and not parameters in [3], and keeps the
    samples of [1] out of training; these are other methods and are left out.
    """
    network = task.network

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def slope(w: Model, data: Data, batch: Batch) -> Model:
        x_B, _ = rows(task, data, batch)

        def size(model: Model) -> Tensor:
            return mean(network(model, task.inputs(x_B)).square().flatten(1).sum(1), batch.used_B)

        gradient: Model = torch.func.grad(size)(w)  # [1]
        return gradient

    def sensitivity(w: Model, data: Data, key: Tensor) -> Model:
        total: Model = tree.zeros(w)
        weight = torch.zeros(())
        for batch in batches(data, task.training, key, epochs=1):
            gradient = slope(w, data, batch)
            live = (batch.used_B.sum() > 0).to(weight.dtype)  # where clients are mapped, some are at their end before
            keep = 1 - live * (1 - mu)
            total = tree.map(lambda a, g, k=keep: k * a + (1 - k) * g.abs(), total, gradient)  # [1]
            weight = keep * weight + 1 - keep
        return tree.map(lambda a: a / weight, total)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        w: Model = down.shared
        omega = sensitivity(w, data, key)
        model, loss = train_model(task, w, data, key)  # [2]
        return client, Up(Report(tree.sub(model, w), omega), data.real_N.sum()), {"train_loss": loss}

    def aggregate(server: Model, up: Reduced, ids: Tensor) -> tuple[Model, dict[str, Tensor]]:
        def moved(w: Tensor, change: Tensor, omega: Tensor) -> Tensor:
            omega = omega.clamp(min=0)  # below, there is only noise of privacy
            zeta = 1 + tau - omega / omega.amax().clamp(min=torch.finfo(omega.dtype).tiny)  # [3]
            return w + zeta * change  # [4]

        return tree.map(moved, server, up.value.change, up.value.sensitivity), {}

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared, x_B)

    # the server scales each parameter, so that the mean change is no increment that it adds as it is
    parts = Report(change=reduce.mean(), sensitivity=reduce.mean())  # [3] [4]
    return Method(network.init, stateless, send, local, parts, aggregate, unchanged, predict)
