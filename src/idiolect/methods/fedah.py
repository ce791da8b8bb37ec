"""FedAH: each client mixes the received head into its own, entry by entry, by weights that it learns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.method import ClientValue, Data, Down, Method, Model, Task, Up, Weights, keys, reduce, tree
from idiolect.training import (
    add,
    batch_features,
    batches,
    log_softmax_of,
    mean,
    train_model,
)

SEARCH = {"head_epochs": "1..10", "mixing_lr": "0.1..10:log"}
REPORTS = {
    "received_share": ClientValue(
        name="shares of the received head",
        symbol="A",
        meaning="mean weight of the received head's entries",
        shows="how much of the common head each client takes",
        ends="At 0 a client keeps its own head, at 1 it takes the received one",
        limits=(0, 1),
    )
}


class Client(NamedTuple):
    """What stays at a client."""

    head: Weights
    share: Weights
    """A: by how much each entry of the head moves towards the received one, from 0 to 1."""


def fedah(
    task: Task,
    *,
    head_epochs: PositiveInt = 1,
    body_epochs: PositiveInt | None = None,
    mixing_epochs: PositiveInt | None = None,
    mixing_lr: PositiveFloat = 1.0,
) -> Method:
    """FedAH: an aggregated head, of the own one and the received one (Zhou et al., arXiv 2024).

    Every client in every round, with the received body theta and head H, its head h_i and weights A_i of the same form:
        h = h_i + A_i (H - h_i)                                              entry by entry           [1]
        A_i <- clip(A_i - ``mixing_lr`` (dCE / dh) (H - h_i), 0, 1)          for each mini-batch      [2]
        h_i <- h, with the last A_i; it stays as it is while A_i is learned                           [3]
    Participant, then:
        h_i <- SGD(CE) from h_i, theta frozen                                ``head_epochs``          [4]
        theta_i <- SGD(CE) from theta, h_i frozen                            ``body_epochs``          [5]
    Server, over the participants i:
        (theta, H) <- (theta, H) + sum_i n_i ((theta_i, h_i) - (theta, H)) / sum_i n_i                [6]
    Personal: theta and the head by [1] to [3], with the newest theta and H                           [7]

    A_i starts at 1 and is kept over the rounds. A client that is not drawn mixes too: its head drifts towards H.

    Up: increments of theta and H, weighted by n_i samples. Down: theta, H. At the client: h_i, A_i. In a federation of
    sites this needs a participation of 1. A new client mixes H into the common initial head from A = 1, so from H.

    Args:
        task: the problem.
        head_epochs: of [4] (released code: 1).
        body_epochs: of [5]; None takes the local epochs (released code: 1).
        mixing_epochs: of [2]; None takes ``head_epochs`` (released code).
        mixing_lr: the rate of [2], the same in all rounds (released code: 1).

    Source: the paper's algorithm; released code (heyuepeng/FedAH).
    Differs from source: the released code leaves out the samples that do not fill a batch (the task's ``drop_last``); a
    client with less than one batch then takes H as it is there, and trains on the batch that it has here.
    """
    network = task.network

    def init_client(key: Tensor, id: Tensor) -> Client:
        head = network.init(key).head
        return Client(head, tree.map(torch.ones_like, head))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def mix(down: Down, client: Client, data: Data, key: Tensor) -> Client:
        gap = tree.sub(down.shared.head, client.head)
        features_of = batch_features(task, down.shared.body, data)

        def trial(share: Weights) -> Weights:
            return tree.map(lambda h, a, d: h + a * d, client.head, share, gap)  # [1]

        def error(head: Weights, z_Bd: Tensor, y_B: Tensor, used_B: Tensor) -> Tensor:
            return mean(task.loss(network.logits(head, z_Bd), y_B), used_B)

        share, epochs = client.share, mixing_epochs or head_epochs
        for batch in batches(data, task.training, keys.fold(key, "mixing"), epochs=epochs):
            slope = torch.func.grad(error)(trial(share), *features_of(batch), batch.used_B)
            share = tree.map(lambda a, g, d: (a - mixing_lr * g * d).clamp(0, 1), share, slope, gap)  # [2]
        return Client(trial(share), share)  # [3]

    def local(down: Down, client: Client, data: Data, key: Tensor) -> tuple[Client, Up, dict[str, Tensor]]:
        client = mix(down, client, data, key)
        model, head_loss = train_model(
            task, Model(down.shared.body, client.head), data, keys.fold(key, "head"), part="head", epochs=head_epochs
        )  # [4]
        model, loss = train_model(task, model, data, keys.fold(key, "body"), part="body", epochs=body_epochs)  # [5]
        share_P = torch.cat([a.flatten() for a in tree.leaves(client.share)])
        info = {"train_loss": loss, "head_loss": head_loss, "received_share": share_P.mean()}
        return client._replace(head=model.head), Up(tree.sub(model, down.shared), data.real_N.sum()), info

    def predict(down: Down, client: Client, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(down.shared.body, client.head), x_B)  # [7]

    return Method(
        network.init, init_client, send, local, reduce.increment(), add, mix, predict, stand_by=mix
    )  # [3] [6] [7]
