"""A shared body, and a head of its own for every client."""

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
    own_or,
    train_model,
    trained,
    untrained,
)

PERSONAL = ("tuning_epochs",)
PRESETS: dict[str, dict[str, Any]] = {
    "fedrep": {"weighting": "uniform", "newcomer_head": "average", "tuning_epochs": 10},
}


def fedper(
    task: Task,
    *,
    weighting: Literal["samples", "uniform"] = "samples",
    newcomer_head: Literal["own", "average"] = "own",
    tuning_epochs: NonNegativeInt = 0,
) -> Method:
    """FedPer: a body averaged over the clients, a head of its own for each (Arivazhagan et al., arXiv 2019).

    Client:    (theta_i, phi_i) <- SGD(CE) from (theta, phi_i), both at once                    [1]
    Server:    theta <- theta + sum_i n_i (theta_i - theta) / sum_i n_i                         [2]
    Personal:  phi_i <- SGD(CE), theta frozen; ``tuning_epochs``, 0 by default                  [3]

    over the round's participants i. The personal part is the network's head.

    Up: the increment of theta, weighted by n_i samples. Down: theta. At the client: phi_i. A new client, and one that
    was never drawn, does one round's local work and keeps phi_i.

    Args:
        task: the problem.
        weighting: of the average: by samples, as FedPer is commonly defined, or uniform (FedRep's repository on its
            image sets).
        newcomer_head: what a client that has not trained yet starts from and is tested with. "own": the initial head.
            "average": the mean of the heads of the last round's participants, which then travels up and down beside the
            body; such a client does not train for a round; it takes this head, tuned for ``tuning_epochs``.
        tuning_epochs: of the head alone in ``personalise``, on the received body (FedRep's repository and FedCR: 10).

    Source: the method as it is commonly defined. No code by its authors is known; ``preset="fedrep"`` is the FedPer of
    FedRep's repository (lgcollins/FedRep). It tunes for ten epochs after the last round. It averages heads because
    there a client that has not trained yet refers to the server's own tensors. It also exempts biases from decay, which
    is an option of the task's optimiser.
    Differs from source: the paper's personal part may be deeper than the last layer; here it is what the network calls
    its head.
    """

    def part_of(model: Model) -> Model:
        return model if newcomer_head == "average" else model._replace(head={})

    def init_server(key: Tensor) -> Model:
        return part_of(task.network.init(key))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key).head)

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def start(down: Down, client: Personal) -> Weights:
        head: Weights = client.value if newcomer_head == "own" else own_or(client, down.shared.head)
        return head

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model, loss = train_model(task, Model(down.shared.body, start(down, client)), data, key)  # [1]
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [2]
        return trained(model.head), Up(tree.sub(part_of(model), down.shared), weight), {"train_loss": loss}

    join = joins_by_training(local)

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        if newcomer_head == "own":
            client = join(down, client, data, key)
        model = Model(down.shared.body, start(down, client))
        end, _ = train_model(task, model, data, keys.fold(key, "tuning"), part="head", epochs=tuning_epochs)  # [3]
        return client._replace(value=end.head)

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(down.shared.body, client.value), x_B)

    return Method(init_server, init_client, send, local, reduce.increment(), add, personalise, predict)  # [2]
