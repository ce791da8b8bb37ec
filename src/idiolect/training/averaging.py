"""Federated averaging: the rounds of several methods, and the server's step of most."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Data, Down, Info, Model, Reduced, Rounds, Task, Up, reduce
from idiolect.core.tree import Tree
from idiolect.training.client_state import stateless
from idiolect.training.sharing import shared
from idiolect.training.supervised import train_model


def add(server: Tree, up: Reduced, ids: Tensor) -> tuple[Tree, Info]:
    """The ``aggregate`` of methods whose server adds what is reduced to its own state.

    Source: FedAvg (McMahan et al., AISTATS 2017), Algorithm 1, where u_i is the increment of the client's weights.
    """
    return tree.add(server, up.value), {}


@shared
def averaging(
    task: Task, *, part: Literal["model", "body"] = "model", weighting: Literal["samples", "uniform"] = "samples"
) -> Rounds[Model, Any]:
    """Rounds of federated averaging: all train the received model, or its body, and the server averages what trains.

    Client:  w_i <- SGD(CE) from w
    Server:  w <- w + sum_i a_i (w_i - w) / sum_i a_i,   a_i = n_i samples (or 1)

    over the round's participants i. The head stays as it was drawn if the body alone trains. Nothing stays at a client.

    Args:
        task: the problem.
        part: what trains.
        weighting: of the mean.

    Source: FedAvg (McMahan et al., AISTATS 2017), Algorithm 1.
    """

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def moving(model: Model) -> Model:
        return model if part == "model" else model._replace(head={})

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, Info]:
        model, loss = train_model(task, down.shared, data, key, part=part)
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())
        return client, Up(tree.sub(moving(model), moving(down.shared)), weight), {"train_loss": loss}

    def aggregate(server: Model, up: Reduced, ids: Tensor) -> tuple[Model, Info]:
        if part == "model":
            return add(server, up, ids)
        return server._replace(body=tree.add(server.body, up.value.body)), {}

    parts = reduce.increment() if part == "model" else Model(reduce.increment(), {})
    return Rounds(task.network.init, stateless, send, local, parts, aggregate)
