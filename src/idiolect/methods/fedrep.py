"""FedRep: a shared representation, and a head of its own for every client."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task, Up, Weights, keys, reduce, tree
from idiolect.training import Personal, add, log_softmax_of, own_or, train_model, trained, untrained

PERSONAL = ("tuning_epochs",)
SEARCH = {"head_epochs": "1..10"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"head_epochs": 10, "body_epochs": 5, "newcomer_head": "average"},
}


def fedrep(
    task: Task,
    *,
    head_epochs: PositiveInt = 5,
    body_epochs: PositiveInt | None = None,
    tuning_epochs: NonNegativeInt = 10,
    weighting: Literal["uniform", "samples"] = "uniform",
    newcomer_head: Literal["own", "average"] = "own",
) -> Method:
    """FedRep: a shared representation under personal heads, trained in turn (Collins et al., ICML 2021).

    Client, with the received body theta and its own head phi_i:
        phi_i <- SGD(CE) from phi_i, theta frozen             ``head_epochs``                       [1]
        theta_i <- SGD(CE) from theta, phi_i frozen           ``body_epochs``                       [2]
    Server, over the round's participants i:
        theta <- theta + sum_i w_i (theta_i - theta) / sum_i w_i,   w_i = 1 (or n_i samples)        [3]
    Personal:
        phi_i <- SGD(CE) from phi_i, theta frozen             ``tuning_epochs``                     [4]

    Up: the increment theta_i - theta, weighted by w_i. Down: theta. At the client: phi_i. A frozen part is not part of
    the optimiser: neither momentum nor decay moves it. A new client, and one that was never drawn, trains a head on the
    received body from the common initial head, for ``tuning_epochs`` or, where these are 0, ``head_epochs``.

    Args:
        task: the problem.
        head_epochs: epochs of the head phase in a round (pFedFDA: 5; FedCR: 9 with ``body_epochs=1``; released code:
            10; FedPAC gives five local epochs for every method and does not say how FedRep spends them).
        body_epochs: epochs of the body phase; None takes the local epochs (pFedFDA: 5; released code: 5, and 1 for
            CIFAR-10 with two classes a client and 100 clients).
        tuning_epochs: of the head in ``personalise``, on the averaged body (released code and FedCR: 10 after the last
            round; FedPAC and pFedFDA do not say); 0 leaves the head as the last round did.
        weighting: of the mean over bodies (released code: uniform for CIFAR and MNIST, by samples for FEMNIST and
            Sent140).
        newcomer_head: where a client that has never trained starts: from its own initial head, or from the mean of the
            heads of the last round's participants (released code, where clients refer to the server's model until they
            first train). With "average" clients send their heads too, and the server sends the mean; with
            ``tuning_epochs=0`` a new client takes it as it is.

    Source: the algorithm FedRep of the paper; released code lgcollins/FedRep.
    Differs from source: the algorithm is commonly given with one gradient step on the body, here as in the released
    code it is ``body_epochs``. The versions of torch that the released code names leave a gradient of zero on the head
    while the body trains, so that its momentum and decay still move it; here it does not move. The released code's
    headline is the mean over the last ten rounds without [4].
    """
    average = newcomer_head == "average"

    def part_of(model: Model) -> Model:
        return model if average else model._replace(head={})

    def init_server(key: Tensor) -> Model:
        return part_of(task.network.init(key))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key).head)

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def head_of(down: Down, client: Personal) -> Weights:
        head: Weights = own_or(client, down.shared.head) if average else client.value
        return head

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model = Model(down.shared.body, head_of(down, client))
        model, head_loss = train_model(
            task, model, data, keys.fold(key, "head"), part="head", epochs=head_epochs
        )  # [1]
        model, loss = train_model(task, model, data, keys.fold(key, "body"), part="body", epochs=body_epochs)  # [2]
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [3]
        info = {"train_loss": loss, "head_loss": head_loss}
        return trained(model.head), Up(tree.sub(part_of(model), down.shared), weight), info

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        head = head_of(down, client)

        def tune(epochs: int) -> Personal:
            model, _ = train_model(task, Model(down.shared.body, head), data, key, part="head", epochs=epochs)  # [4]
            return Personal(model.head, client.trained)

        if tuning_epochs:
            return tune(tuning_epochs)
        if average:
            return Personal(head, client.trained)
        state: Personal = tree.when(client.trained, lambda: client, lambda: tune(head_epochs))
        return state

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(down.shared.body, client.value), x_B)

    return Method(init_server, init_client, send, local, reduce.increment(), add, personalise, predict)  # [3]
