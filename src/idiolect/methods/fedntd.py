"""FedNTD: federated averaging that keeps what the global model knows of the classes that a sample is not."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import log_softmax

from idiolect.core.method import Data, Down, Method, Model, Task, Up, reduce, tree, unchanged
from idiolect.training import (
    Batch,
    add,
    batch_features,
    batches,
    log_softmax_of,
    mean,
    require_classes,
    rows,
    sgd,
    stateless,
    trained_loss,
)

SEARCH = {"beta": "0.1..10:log", "temperature": "0.5..4"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"square_temperature": True}}


def fedntd(
    task: Task,
    *,
    beta: NonNegativeFloat = 1.0,
    temperature: PositiveFloat = 1.0,
    square_temperature: bool = False,
) -> Method:
    """FedNTD: distillation of the global model on all classes but a sample's own (Lee et al., NeurIPS 2022).

    Client, with the received model w, constant:
        w_i <- SGD(CE + beta KL(p || q)) from w                                                               [1]
        q = softmax over the classes c other than y of (logits of w_i)_c / temperature,  p the same of w      [2]
    Server, over the round's participants i:
        w <- w + sum_i n_i (w_i - w) / sum_i n_i                                                              [3]

    A class that a client does not have is always among the others, so that what the received model knows of it is kept.
    With two classes there is a single other class, and the second term of [1] is 0.

    Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client: nothing. A new client takes the global
    model as it is.

    Args:
        task: the problem.
        beta: weight of the distillation (authors: 1).
        temperature: tau (authors: 1).
        square_temperature: whether the distillation is multiplied by tau^2 (released code; the same with tau 1).

    Source: the paper's equations 3 to 5; released code (Lee-Gihun/FedNTD).
    Differs from source: the released code lowers the rate by 1 % after every round; here a study's
    ``lr_schedule: exponential:factor=0.99`` does that.
    """
    require_classes(task, "fedntd", "it distils the classes that a sample is not")
    network, least = task.network, torch.finfo(torch.float32).min / 2
    scale = beta * temperature**2 if square_temperature else beta

    def others(logit_BC: Tensor, y_B: Tensor) -> Tensor:
        """Log-probabilities of the other classes; a sample's own has probability 0."""
        own_BC = y_B[:, None] == torch.arange(task.classes, device=y_B.device)
        return log_softmax(torch.where(own_BC, least, logit_BC / temperature), -1)  # [2]

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        w: Model = down.shared
        known = batch_features(task, w.body, data, then=lambda z_Nd: network.logits(w.head, z_Nd))

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            logit_BC = network(model, task.inputs(x_B))
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            logp_BC, logq_BC = others(known(batch)[0], y_B), others(logit_BC, y_B)
            apart = mean((logp_BC.exp() * (logp_BC - logq_BC)).sum(-1), batch.used_B)
            return error + scale * apart, (error, batch.used_B.sum(), apart)  # [1]

        model, extras = sgd(loss, w, batches(data, task.training, key), task.training.optimiser)  # [1]
        info = {
            "train_loss": trained_loss([s[:2] for s in extras]),
            "distillation": trained_loss([(s[2], s[1]) for s in extras]),
        }
        return client, Up(tree.sub(model, w), data.real_N.sum()), info

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared, x_B)

    return Method(task.network.init, stateless, send, local, reduce.increment(), add, unchanged, predict)  # [3]
