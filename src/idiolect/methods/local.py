"""Training alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from idiolect.core.method import Data, Down, Method, Reduced, Task, Tree, Up
from idiolect.training import Personal, joins_by_training, log_softmax_of, train_model, trained, untrained


def local(task: Task) -> Method:
    """Local: every client trains by itself, and nothing is sent.

    Client:  w_i <- SGD(CE) from w_i, at the start common to all          [1]

    The baseline that every method should beat for every client.

    Up: nothing. Down: nothing. At the client: the model. A client trains only in the rounds for which it is drawn. With
    a participation below one it therefore trains less than in other work, where "local" often trains in every round. A
    new client trains for the local epochs of one round.
    """

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key))

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model, loss = train_model(task, client.value, data, key)  # [1]
        return trained(model), Up(), {"train_loss": loss}

    def aggregate(server: Tree, up: Reduced, ids: Tensor) -> tuple[Tree, dict[str, Tensor]]:
        return server, {}

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)

    def send(server: Any, ids: Tensor) -> Down:
        return Down()

    return Method(lambda key: (), init_client, send, local, (), aggregate, joins_by_training(local), predict)
