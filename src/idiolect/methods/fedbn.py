"""FedBN: federated averaging in which each client keeps its normalisation layers."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.method import Down, Method, Task, unchanged
from idiolect.training import averaging, log_softmax_of, with_personal_weights


def fedbn(task: Task, *, weighting: Literal["samples", "uniform"] = "uniform") -> Method:
    """FedBN: averaging of all weights but those of normalisation layers (Li, Jiang, Zhang, Kamp & Dou, ICLR 2021).

    Client, with the received theta and its own normalisation weights nu_i:
        (theta_i, nu_i) <- SGD(CE) from (theta, nu_i)                                                         [1]
    Server, over the round's participants i:
        theta <- theta + sum_i a_i (theta_i - theta) / sum_i a_i           a_i = 1, or n_i samples            [2]
    Personal: (theta, nu_i) with the client's own statistics                                                  [3]

    nu_i are the scales and shifts of batch, instance, group, layer and RMS normalisation, by the layers' types. With
    the model's option ``buffers=local`` the statistics of a batch normalisation stay at the client too: they are
    measured on its own samples. This is federated averaging with the study's rule ``personal: normalisation``.

    Up: the increment theta_i - theta, weighted 1. Down: theta. At the client: nu_i; an absent client keeps it. A new
    client, and one that was never drawn, does one round's local work from the initial nu and keeps what it becomes, and
    measures its own statistics.

    A network without normalisation has nothing to keep: there, this is federated averaging, and a run says so.

    Args:
        task: the problem.
        weighting: of the mean: uniform (paper and released code), or by samples.

    Raises:
        InputError: the network averages the statistics of its batch normalisations.

    Source: the paper's algorithm; released code (med-air/FedBN).
    Differs from source: predictions use statistics of the finished model, not running averages from training. In the
    released code all clients take part. It has no rule for new clients; its authors' advice is to average the clients'
    normalisation, or to measure the statistics anew.
    """
    rounds = averaging(task, weighting=weighting)  # [1] [2]
    network = task.network

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared, x_B)

    method = Method(*rounds, unchanged, predict)
    if network.buffers == "aggregate":
        raise InputError(
            "method fedbn keeps the statistics of normalisation at each client, and buffers=aggregate averages them: "
            "give the model buffers=local, or leave this method out"
        )
    if not any(network.normalisation):
        note = "the network has no normalisation layer with weights, so that nothing stays at the clients and this is"
        return method._replace(note=f"{note} federated averaging: choose another model, as wrn16_2:norm=group")
    return with_personal_weights(method, "fedbn", "normalisation", task)  # [3]
