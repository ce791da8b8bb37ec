"""FedDBE: a mean feature of its own for each client, and features whose mean is the common one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, reduce, tree, unchanged, watch
from idiolect.training import Batch, batches, mean, optimiser_state, rows, sgd_from, trained_loss

SEARCH = {"kappa": "0.1..50:log", "momentum": "0.1..1"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"momentum": 1.0, "kappa": 50.0}}


class Server(NamedTuple):
    """What the server keeps and sends."""

    model: Model
    mean_d: Tensor
    """The mean feature over all clients, under models that each has trained alone."""
    known: Tensor
    """0 in the first round, in which the mean is made, then 1."""


class Report(NamedTuple):
    """What a client sends."""

    model: Model
    """The increment; 0 in the first round."""
    mean_d: Tensor
    """m_i of the first round; 0 in all others."""


class Weights(NamedTuple):
    """What a client trains."""

    model: Model
    bias_d: Tensor


def feddbe(
    task: Task,
    *,
    momentum: Annotated[float, Field(gt=0, le=1)] = 0.1,
    kappa: NonNegativeFloat = 1.0,
) -> Method:
    """FedDBE: a bias of its own for each client's features, whose mean is the common one (Zhang et al., NeurIPS 2023).

    First round, all clients, from the initial model, which is then forgotten:
        m_i <- (1 - momentum) m_i + momentum mean(z),   each batch of SGD(CE(head(z))), from m_i = 0        [1]
        M = sum_i n_i m_i / sum_i n_i                                                                       [2]
    Client, in all other rounds, with the received body and head, and its own bias b_i:
        m_i <- (1 - momentum) m_i + momentum mean(z),   each batch of [4], from m_i = 0                     [3]
        (body_i, head_i, b_i) <- SGD(CE(head(z + b_i)) + kappa |m_i - M|^2 / (2 d))                         [4]
    Server, over the participants i of a round:
        (body, head) <- (body, head) + sum_i n_i ((body_i, head_i) - (body, head)) / sum_i n_i              [5]
    Personal:
        head(z + b_i), with the received body and head                                                      [6]

    with features z = body(x), d of them. In [4] the gradient goes through the mean of the batch alone; m_i of the batch
    before is a constant. M never changes again. All b_i start at 0 and are trained with the model, at its rate.

    Up: the increment of body and head, and m_i, both weighted by n_i samples. The server needs m_i once, in the first
    round, which changes no model; in all others 0 is sent, so that m_i takes nothing of a norm that is bounded. Down:
    body, head, M. At the client: b_i. A new client, and one that was never drawn, predicts with b_i = 0.

    Args:
        task: the problem.
        momentum: mu, the share of the newest batch in the running mean; 1 takes each batch's own mean (released code:
            0.1 by default, 1 in its script).
        kappa: the weight of the second term in [4] (released code: 0 by default, which leaves the term out, and 50 in
            its script for a CNN with 512 features; for other networks far less).

    Source: the paper's algorithm; released code TsingZ0/DBE.
    Differs from source: [1] takes a round of its own; in the released code it comes before the first round. A client
    that does not answer in that round is left out of M. The released code fails at a client with less than one batch;
    it leaves out an incomplete last batch, which is the study's drop_last.
    """
    network, rule = task.network, task.training.optimiser

    def init_server(key: Tensor) -> Server:
        return Server(network.init(key), torch.zeros(network.width), torch.zeros(()))

    def init_client(key: Tensor, id: Tensor) -> Tensor:
        return torch.zeros(network.width)

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=server)

    def train(server: Server, bias_d: Tensor, data: Data, key: Tensor) -> tuple[Weights, Tensor, Tensor]:
        """The weights, m_i after the last batch, and the training loss. In the first round b_i has no effect."""

        def loss(before_d: Tensor, weights: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(weights.model.body, task.inputs(x_B))
            batch_d = (batch.used_B / batch.used_B.sum().clamp(min=1)) @ z_Bd
            m_d = (1 - momentum) * before_d + momentum * batch_d  # [1] [3]
            logit_BC = network.logits(weights.model.head, z_Bd + server.known * weights.bias_d)
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            apart = server.known * (m_d - server.mean_d).square().mean() / 2
            return error + kappa * apart, (error, batch.used_B.sum(), m_d)  # [4]

        weights, m_d, losses = Weights(server.model, bias_d), torch.zeros(network.width), []
        state = optimiser_state(rule, weights)
        for batch in batches(data, task.training, key):
            step = partial(loss, m_d)
            weights, state, ((error, count, new_d),) = sgd_from(step, weights, state, [batch], rule)  # [1] [4]
            m_d = torch.where(count > 0, new_d, m_d)
            losses.append((error, count))
        return weights, m_d, trained_loss(losses)

    def local(down: Down, client: Tensor, data: Data, key: Tensor) -> tuple[Tensor, Up, dict[str, Tensor]]:
        server: Server = down.shared
        weights, m_d, loss = train(server, client, data, key)
        change = tree.map(lambda new, old: (new - old) * server.known, weights.model, server.model)
        info = {"train_loss": loss, "bias": weights.bias_d.norm()}
        return weights.bias_d, Up(Report(change, m_d * (1 - server.known)), data.real_N.sum()), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        mean_d = torch.where(server.known > 0, server.mean_d, up.value.mean_d)  # [2]
        return Server(tree.add(server.model, up.value.model), mean_d, torch.ones(())), {}  # [5]

    def predict(down: Down, client: Tensor, x_B: Tensor) -> Tensor:
        model = down.shared.model
        z_Bd = watch(network.features(model.body, task.inputs(x_B)) + client)  # [6]
        output: Tensor = task.output(network.logits(model.head, z_Bd))  # [6]
        return output

    parts = Report(model=reduce.increment(), mean_d=reduce.mean())  # [2] [5]
    method = Method(init_server, init_client, send, local, parts, aggregate, unchanged, predict)
    return method._replace(full_rounds=(1,))
