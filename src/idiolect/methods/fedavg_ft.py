"""Federated averaging with fine-tuning."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor

from idiolect import tree
from idiolect.method import Data, Down, Method, Task, Up
from idiolect.network import Model
from idiolect.training import Batch, batches, cross_entropy_mean, features, log_softmax_of, sgd, train_model


def fedavg_ft(task: Task, *, epochs: PositiveInt | None = None, part: Literal["model", "head"] = "model") -> Method:
    """FedAvg-FT: federated averaging, then each client fine-tunes the global model (as in FedPAC, pFedFDA and FedCR).

    w as in FedAvg;  w_i = SGD(w) on the client's own rows when its model is wanted.

    Up: the increment w_i - w, weighted by n_i rows. Down: w. At the client: nothing until ``adapt`` tunes.

    Args:
        task: the problem.
        epochs: of tuning; None takes the local epochs (FedPAC and pFedFDA: 5; FedCR: 10 with ``part="head"``).
        part: what is tuned, the whole model or the head on a frozen body.

    Source: FedPAC, section 6.1; pFedFDA, section 5.1; FedCR, section 6.1. What is tuned and how long is from their
    released code.
    """

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        model, loss = train_model(task, down.shared, data, key)
        return client, Up(tree.sub(model, down.shared), data.real_N.sum()), {"train_loss": loss}

    def aggregate(server: Model, up: Up, ids: Tensor) -> tuple[Model, dict[str, Tensor]]:
        return tree.add(server, tree.mean(up.value, up.weight)), {}

    def adapt(down: Down, client: Any, data: Data, key: Tensor) -> Model:
        if part == "model":
            return train_model(task, down.shared, data, key, epochs=epochs)[0]
        z_Nd, y_N = features(task, down.shared.body, data)

        def head_loss(head: dict[str, Tensor], batch: Batch) -> tuple[Tensor, tuple[()]]:
            logit_BC = task.network.logits(head, z_Nd[batch.at_B])
            return cross_entropy_mean(logit_BC, y_N[batch.at_B], batch.used_B), ()

        head, _ = sgd(head_loss, down.shared.head, batches(data, task.training, key, epochs=epochs), task.training.sgd)
        return Model(down.shared.body, head)

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client or down.shared, x_B)

    return Method(task.network.init, lambda key: (), send, local, aggregate, adapt, predict)
