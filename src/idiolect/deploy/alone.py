"""The model that a site trains alone, on its own samples, to compare the personal model with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from idiolect.core import keys
from idiolect.core.method import Data, Down, Method, Model, Task, Up
from idiolect.core.network import Network
from idiolect.training import log_softmax_of, stateless, train_model
from idiolect.training.batchnorm import with_statistics

EPOCHS = 30
"""Of the training, in the batches and with the optimiser of the study."""


def alone(task: Task, epochs: int = EPOCHS) -> Method:
    """The bundle's network, trained from its start on the site's samples alone: a method without a federation."""
    if task.network.buffers == "aggregate":  # with nobody else, its own statistics
        task = replace(task, network=Network(task.network.make, task.network.form, "local"))

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        return client, Up(), {}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Model:
        return train_model(task, task.network.init(keys.fold(key, "start")), data, key, epochs=epochs)[0]

    def predict(down: Down, client: Model, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client, x_B)

    method = Method(
        lambda key: (), stateless, lambda server, ids: Down(), local, (), lambda server, up, ids: (server, {}),
        personalise, predict,
    )  # fmt: skip
    return with_statistics(method, task)
