"""Federated averaging."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from idiolect.core.method import Down, Method, Task, unchanged
from idiolect.training import averaging, log_softmax_of


def fedavg(task: Task) -> Method:
    """FedAvg: federated averaging of one model for all (McMahan et al., AISTATS 2017).

    Client:  w_i <- SGD(CE) from w                                    [1]
    Server:  w <- w + sum_i n_i (w_i - w) / sum_i n_i                 [2]

    over the round's participants i. Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client:
    nothing.

    Source: Algorithm 1.
    """

    rounds = averaging(task)  # [1] [2]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared, x_B)

    return Method(*rounds, unchanged, predict)
