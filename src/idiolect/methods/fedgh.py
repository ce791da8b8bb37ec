"""FedGH: clients with bodies of their own, and one head that the server trains on their prototypes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.method import SGD, Data, Down, Method, Model, Reduced, Task, Up, Weights, keys, reduce
from idiolect.training import (
    Batch,
    Personal,
    batches,
    batches_of_pairs,
    features,
    joins_by_training,
    log_softmax_of,
    mean,
    pairs,
    prototypes,
    require_classes,
    sgd,
    train_model,
    trained,
    untrained,
    upload,
)

SEARCH = {"header_lr": "0.003..0.3:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"pairs_per_step": 1, "mean_over": "batches"}}


def fedgh(
    task: Task,
    *,
    header_lr: PositiveFloat = 0.01,
    header_epochs: PositiveInt = 1,
    pairs_per_step: PositiveInt | None = None,
    mean_over: Literal["samples", "batches"] = "samples",
) -> Method:
    """FedGH: a body for each client under one head, trained on the clients' prototypes (Yi et al., ACM MM 2023).

    Client, with its own body theta_i and the received head H:
        (theta_i, phi_i) <- SGD(CE) from (theta_i, H)                                            [1]
        P_ic = mean of theta_i(x) over its samples of class c                                    [2]
    Server, over the pairs (P_ic, c) of all participants:
        H <- SGD(CE(H(P_ic), c)) from H, ``pairs_per_step`` pairs a step, ``header_epochs``      [3]
    Personal:
        H(theta_i(x)), with the newest H                                                         [4]

    The optimiser of [3] is plain SGD: no momentum, no decay. A class that no participant has is no pair, and [3] pushes
    its logit down. Pairs come in a random order, the same in every pass; that of the clients' numbers where the study
    does not shuffle. With the study's drop_last, [2] too leaves out the samples that fill no batch.

    Up: P_i (C, d) and which classes it has; the server needs those of each client. Down: H. At the client: theta_i;
    phi_i is forgotten. Messages know nothing of the body but the number of features. A new client, and one that was
    never drawn, does the local work of one round under H and keeps its body.

    Args:
        task: the problem.
        header_lr: of [3] (a library of the field: 0.01; the authors' code steps another network's weights).
        header_epochs: passes over the pairs in a round.
        pairs_per_step: of [3]; None: the study's batch size; the authors' code takes each pair for itself.
        mean_over: of [2]: the samples, or the batches, each with its own mean (the authors' code).

    Source: the paper's algorithm; released code LipingYi/FedGH.
    Differs from source: the released server steps the optimiser of a client's network, so that its H never moves; here
    H is trained. In another public version (PFLlib) H is the first client's own head, which its local training moves.
    Each client's body starts from the common start; in the released code it starts from one of its own. The released
    code tests the body with phi_i, just trained.
    """
    require_classes(task, "fedgh", "its clients send a prototype of each class")
    network, training = task.network, task.training
    rule = SGD(lr=header_lr, momentum=0.0, weight_decay=0.0)

    def init_server(key: Tensor) -> Weights:
        return network.init(key).head

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(network.init(key).body)

    def send(server: Weights, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model, loss = train_model(task, Model(client.value, down.shared), data, key)  # [1]
        plan = batches(data, training, keys.fold(key, "prototypes"), epochs=1)
        mean_Cd, known_C = prototypes(*features(task, model.body, data), plan, task.classes, mean_over)  # [2]
        return trained(model.body), upload(mean_Cd, known_C, key), {"train_loss": loss}

    def aggregate(server: Weights, up: Reduced, ids: Tensor) -> tuple[Weights, dict[str, Tensor]]:
        p_Pd, y_P = pairs(up, shuffle=training.shuffle)

        def loss(head: Weights, batch: Batch) -> tuple[Tensor, tuple[()]]:
            error_B = task.loss(network.logits(head, p_Pd[batch.at_B]), y_P[batch.at_B])
            return mean(error_B, batch.used_B), ()

        plan = batches_of_pairs(len(y_P), pairs_per_step or training.batch_size, header_epochs)
        return sgd(loss, server, plan, rule)[0], {}  # [3]

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(client.value, down.shared), x_B)  # [4]

    personalise = joins_by_training(local)
    return Method(init_server, init_client, send, local, reduce.each(), aggregate, personalise, predict)  # [3]
