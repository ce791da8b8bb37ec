"""PFL-DA: each client's body learns to fit a common head, and its own head stays near to the common one."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveInt
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

SEARCH = {"pull": "0.01..10:log"}
PRESETS: dict[str, dict[str, Any]] = {"pfllib": {"first": "head", "weighting": "samples"}}


class Own(NamedTuple):
    """What stays at a client."""

    body: Weights
    head: Weights


def pfl_da(
    task: Task,
    *,
    pull: NonNegativeFloat = 1.0,
    head_epochs: PositiveInt | None = None,
    first: Literal["body", "head"] = "body",
    weighting: Literal["uniform", "samples"] = "uniform",
) -> Method:
    """PFL-DA: own features that fit a common head, and an own head near to it (Shi & Kontar, Technometrics 2023).

    Client, with its own body theta_i and head v_i, and the received head w:
        (theta_i, w_i) <- SGD(CE) from (theta_i, w)                                                           [1]
        v_i <- SGD(CE + pull / 2 |v_i - w|^2) from v_i, theta_i frozen                                        [2]
    Server, over the participants i of a round:
        w <- w + sum_i a_i (w_i - w) / sum_i a_i           a_i = 1, or n_i samples                            [3]
    Personal: (theta_i, v_i)                                                                                  [4]

    The bodies adapt the domains of the clients to one another: all are trained under one head. Before its first round a
    client has the common initial body, and v_i starts as the received w.

    Up: the increment w_i - w of the head alone, weighted 1. Down: w. At the client: theta_i and v_i; an absent client
    keeps them. A new client, and one that was never drawn, does one round's local work from the initial body and the
    received head, and keeps what becomes of it.

    Args:
        task: the problem.
        pull: lambda, how strongly v_i is held near to w. A rate of the optimiser times ``pull`` should be below 1.
        head_epochs: of [2]; None takes the local epochs, as [1] does.
        first: whether [1] or [2] comes first in a round. With "head", [2] fits the body of the round before.
        weighting: of the mean: uniform (released code), or by samples.

    Source: the paper's algorithm; the authors' released experiments (pflda), and PFLlib, whose order and mean are the
        preset "pfllib".
    Differs from source: the released code takes a step of [1] and one of [2] in turn, by Adam, and after each sets
        v_i <- 0.99 w + 0.01 v_i in place of a pull, so that v_i is all but w; it averages a body that nobody trains or
        uses, and lowers the rate over the rounds, which is a setting of the study here. PFLlib adds ``pull`` |v_i - w|
        without a square, computed from detached weights, so that it has no gradient and v_i is not held at all; here
        it is.
    """

    def init_server(key: Tensor) -> Weights:
        return task.network.init(key).head

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(Own(*task.network.init(key)))

    def send(server: Weights, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        w: Weights = down.shared
        body: Weights = client.value.body

        def common(body: Weights) -> tuple[Model, Tensor]:
            return train_model(task, Model(body, w), data, keys.fold(key, "common"))  # [1]

        def own(body: Weights) -> tuple[Weights, Tensor]:
            start = Model(body, own_or(client, Own(body, w)).head)
            near = (pull, Model(body, w))
            purpose = keys.fold(key, "own")
            model, loss = train_model(task, start, data, purpose, part="head", epochs=head_epochs, pull=near)  # [2]
            return model.head, loss

        if first == "body":
            shared, shared_loss = common(body)
            head, loss = own(shared.body)
        else:
            head, loss = own(body)
            shared, shared_loss = common(body)
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [3]
        distance = tree.square_distance(head, w).sqrt()
        info = {"train_loss": loss, "shared_loss": shared_loss, "distance": distance}
        return trained(Own(shared.body, head)), Up(tree.sub(shared.head, w), weight), info

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(*client.value), x_B)  # [4]

    personalise = joins_by_training(local)
    return Method(init_server, init_client, send, local, reduce.increment(), add, personalise, predict)  # [3]
