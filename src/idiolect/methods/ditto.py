"""Ditto: a personal model beside the shared one, pulled towards it."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task, Up, reduce, tree
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
PRESETS: dict[str, dict[str, Any]] = {"official": {"weighting": "uniform"}}


def ditto(
    task: Task,
    *,
    pull: NonNegativeFloat = 1.0,
    personal_epochs: PositiveInt | None = None,
    steps: PositiveInt | None = None,
    weighting: Literal["samples", "uniform"] = "samples",
) -> Method:
    """Ditto: a personal model beside the shared one, pulled towards it (Li, Hu, Beirami & Smith, ICML 2021).

    Client, with the received model w:
        u_i <- SGD(CE) from w                                                                             [1]
        v_i <- SGD(CE + pull / 2 |v_i - w|^2) from v_i, in a client's first round from w                  [2]
    Server, over the participants i of a round:
        w <- w + sum_i a_i (u_i - w) / sum_i a_i           a_i = n_i samples, or 1                        [3]
    Personal: v_i                                                                                         [4]

    w does not change while v_i trains. Both see the same batches, and each has its own optimiser.

    Up: the increment u_i - w, weighted by n_i samples. Down: w. At the client: v_i; an absent client keeps it. A new
    client does one round's local work from w and keeps v_i.

    Args:
        task: the problem.
        pull: lambda, the weight of the pull (FedPAC, pFedFDA, released scripts: 1; FedCR: 0.1, 0.01 or 0.001 by data
            set).
        personal_epochs: of v_i; None takes ``steps``, or else the local epochs (pFedFDA: 5, the same as its local
            epochs).
        steps: mini-batches per round of u_i and v_i, as the released code counts (1 or 2 there); None: the task's
            local epochs.
        weighting: of the mean: by samples, or uniform. The released code takes the plain mean and draws clients with
            probabilities proportional to their numbers of samples.

    Source: the paper's algorithm; released code (litian96/ditto).
    Differs from source: clients are drawn uniformly with either weighting. v_i starts at the model received in the
    client's first round; in the released code it starts at the initial model, which is the same where all clients take
    part. Momentum and decay are the task's; the released code has none. In the released code only a client without a
    full batch uses a short last batch. Its choice of lambda among several values by held-out samples is left out.
    Another released version (s-huu/Ditto) pulls with constant force, by the plain norm, and towards the moving u_i, so
    that its lambda means something else.
    """

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        w: Model = down.shared
        u, global_loss = train_model(task, w, data, key, steps=steps)  # [1]
        start: Model = own_or(client, w)  # [2]
        v, loss = train_model(
            task, start, data, key, epochs=personal_epochs, steps=None if personal_epochs else steps, pull=(pull, w)
        )  # [2]
        info = {"train_loss": loss, "shared_loss": global_loss, "distance": tree.square_distance(v, w).sqrt()}
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [3]
        return trained(v), Up(tree.sub(u, w), weight), info

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)  # [4]

    personalise = joins_by_training(local)
    return Method(task.network.init, init_client, send, local, reduce.increment(), add, personalise, predict)  # [3]
