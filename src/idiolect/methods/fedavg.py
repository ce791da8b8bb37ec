"""Federated averaging."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task, Up, tree, unchanged
from idiolect.training import add_mean, combine_mean, log_softmax_of, train_model


def fedavg(task: Task) -> Method:
    """FedAvg: federated averaging of one model for all (McMahan et al., AISTATS 2017).

    Client:  w_i <- SGD(CE) from w                                    [1]
    Server:  w <- w + sum_i n_i (w_i - w) / sum_i n_i                 [2]

    over the round's participants i. Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client:
    nothing.

    Source: Algorithm 1.
    """

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        model, loss = train_model(task, down.shared, data, key)  # [1]
        return client, Up(tree.sub(model, down.shared), data.real_N.sum()), {"train_loss": loss}

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared, x_B)

    return Method(task.network.init, lambda key: (), send, local, add_mean, unchanged, predict, combine_mean)  # [2]
