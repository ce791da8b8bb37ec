"""Federated averaging with fine-tuning."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task
from idiolect.training import averaging, log_softmax_of, train_model

SEARCH = {"epochs": "1..10"}


def fedavg_ft(task: Task, *, epochs: PositiveInt | None = None, part: Literal["model", "head"] = "model") -> Method:
    """FedAvg-FT: federated averaging, then each client fine-tunes the global model (as in FedPAC, pFedFDA and FedCR).

    Client, server:  w <- w + sum_i n_i (SGD(w; i) - w) / sum_i n_i, as in FedAvg                       [1]
    Personal:        w_i = SGD(w) on the client's own samples, when its model is wanted                 [2]

    Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client: nothing until ``personalise`` tunes.

    Args:
        task: the problem.
        epochs: of tuning; None takes the local epochs (FedPAC and pFedFDA: 5; FedCR: 10 with ``part="head"``).
        part: what is tuned, the whole model or the head on a frozen body.

    Source: FedPAC, section 6.1; pFedFDA, section 5.1; FedCR, section 6.1. What is tuned and how long is from their
    released code.
    """

    rounds = averaging(task)  # [1]

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Model:
        return train_model(task, down.shared, data, key, part=part, epochs=epochs)[0]  # [2]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client or down.shared, x_B)

    return Method(*rounds, personalise, predict)
