"""FedBABU: the body alone is trained and averaged, under one random head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task
from idiolect.training import averaging, log_softmax_of, train_model

SEARCH = {"tuning_epochs": "1..10"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"tuning_part": "model", "tuning_lr": 1e-3, "weighting": "uniform"},
}


def fedbabu(
    task: Task,
    *,
    tuning_epochs: NonNegativeInt = 5,
    tuning_part: Literal["head", "model"] = "head",
    tuning_lr: PositiveFloat | None = None,
    weighting: Literal["samples", "uniform"] = "samples",
) -> Method:
    """FedBABU: body averaged under one frozen random head, then fine-tuned (Oh, Kim & Yun, ICLR 2022).

    Client, with the received body theta and the head phi, random and the same for all:
        theta_i <- SGD(CE) from theta, phi frozen                                                   [1]
    Server, over the round's participants i:
        theta <- theta + sum_i w_i (theta_i - theta) / sum_i w_i,   w_i = n_i samples (or 1)        [2]
    Personal:
        phi_i <- SGD(CE) from phi, theta frozen (or theta and phi together)   ``tuning_epochs``     [3]

    Up: the increment theta_i - theta, weighted by w_i. Down: theta, and phi as it was drawn. At the client: nothing.
    The head is not part of the optimiser: neither momentum nor decay moves it. A new client tunes as every client does;
    with ``tuning_epochs=0`` it takes theta and phi as they are.

    Args:
        task: the problem.
        tuning_epochs: in ``personalise``, when the personal model is wanted (pFedFDA and released code: 5; FedCR tunes
            heads for 10; FedPAC does not say); 0 measures the un-tuned model, as the released code does every round.
        tuning_part: the head on the frozen body (pFedFDA, FedCR), or the whole model (released code); pFedFDA gives new
            clients the better of the two.
        tuning_lr: learning rate of the tuning; None takes the task's (released code: 1e-3, the rate at which its
            training ends).
        weighting: of the mean over bodies: by samples, or uniform (released code).

    Source: the algorithm FedBABU of the paper; released code jhoon-oh/FedBABU.
    Differs from source: the released code tunes from the round that was best on test samples; here the last round's
    model is tuned. It tunes without decay; here the task's decay is used. It freezes the head by a learning rate of 0,
    which has the same effect. Its classification without a head, by the nearest class mean, is left out.
    """
    rule = task.training.optimiser if tuning_lr is None else replace(task.training.optimiser, lr=tuning_lr)

    rounds = averaging(task, part="body", weighting=weighting)  # [1] [2]

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Model:
        return train_model(task, down.shared, data, key, part=tuning_part, epochs=tuning_epochs, rule=rule)[0]  # [3]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client or down.shared, x_B)

    return Method(*rounds, personalise, predict)
