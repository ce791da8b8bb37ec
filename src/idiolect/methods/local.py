"""Training alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from idiolect.method import Data, Down, Method, Task, Up, unchanged
from idiolect.network import Model
from idiolect.training import log_softmax_of, train_model
from idiolect.tree import Tree


def local(task: Task) -> Method:
    """Local: every client trains by itself, and nothing is sent.

    w_i <- SGD(w_i), from a start common to all. The floor that every method should beat for every client.

    Up: nothing. Down: nothing. At the client: the model. A client trains in the rounds it is drawn for: at a
    participation below one it has had less training than elsewhere, where "local" often trains every round.
    """

    def local(down: Down, client: Model, data: Data, key: Tensor) -> tuple[Model, Up, dict[str, Tensor]]:
        client, loss = train_model(task, client, data, key)
        return client, Up(), {"train_loss": loss}

    def aggregate(server: Tree, up: Up, ids: Tensor) -> tuple[Tree, dict[str, Tensor]]:
        return server, {}

    def predict(down: Down, client: Model, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client, x_B)

    def send(server: Any, ids: Tensor) -> Down:
        return Down()

    return Method(lambda key: (), task.network.init, send, local, aggregate, unchanged, predict)
