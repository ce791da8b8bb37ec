"""A shared head, and a body of its own for every client."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task, Up, Weights, keys, reduce, tree
from idiolect.training import (
    Personal,
    add,
    joins_by_training,
    log_softmax_of,
    train_model,
    trained,
    untrained,
)

PERSONAL = ("tuning_epochs",)
PRESETS: dict[str, dict[str, Any]] = {"official": {"weighting": "uniform"}}


def lg_fedavg(
    task: Task, *, weighting: Literal["samples", "uniform"] = "samples", tuning_epochs: NonNegativeInt = 0
) -> Method:
    """LG-FedAvg: a head averaged over the clients, a body of its own for each (Liang et al., arXiv 2020).

    Client:    (theta_i, phi_i) <- SGD(CE) from (theta_i, phi), both at once                    [1]
    Server:    phi <- phi + sum_i n_i (phi_i - phi) / sum_i n_i                                 [2]
    Personal:  theta_i <- SGD(CE), phi frozen; ``tuning_epochs``, 0 by default                  [3]

    over the round's participants i. The personal model is theta_i with the newest phi, for absent clients too.

    Up: the increment of phi, weighted by n_i samples. Down: phi. At the client: theta_i. A new client, and one that was
    never drawn, does one round's local work and keeps theta_i.

    Args:
        task: the problem. What is shared is the network's head: the last layer, as in FedPAC's paper; FedCR's code
            shares the last two fully connected layers: use a network whose head has both.
        weighting: of the average: by samples, or uniform (released code).
        tuning_epochs: of the body alone in ``personalise``, under the received head (FedCR's code: 10 before its last
            test).

    Source: the paper's algorithm; released code (pliang279/LG-FedAvg).
    Differs from source: the released code starts from a FedAvg model; here all start from the common random one. It
    keeps the model of each client that was best on its test samples, and reports the best round of these. This is left
    out, because test samples choose no model here. It tests a client that was never drawn with the body it started
    from. On CIFAR-10 it shares the convolutions and keeps the fully connected layers local, and its small network has a
    softmax before the one in the loss. Neither is done here.
    """

    def init_server(key: Tensor) -> Weights:
        return task.network.init(key).head

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key).body)

    def send(server: Weights, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model, loss = train_model(task, Model(client.value, down.shared), data, key)  # [1]
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [2]
        return trained(model.body), Up(tree.sub(model.head, down.shared), weight), {"train_loss": loss}

    join = joins_by_training(local)

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        client = join(down, client, data, key)
        model, at = Model(client.value, down.shared), keys.fold(key, "tuning")
        end, _ = train_model(task, model, data, at, part="body", epochs=tuning_epochs)  # [3]
        return client._replace(value=end.body)

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(client.value, down.shared), x_B)

    return Method(init_server, init_client, send, local, reduce.increment(), add, personalise, predict)  # [2]
