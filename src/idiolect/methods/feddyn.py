"""FedDyn: federated averaging with a regulariser that moves with each client."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import PositiveFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Tree, Up, reduce, tree, unchanged
from idiolect.training import log_softmax_of, train_model

SEARCH = {"alpha": "0.001..1:log"}


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    memory: Model
    """h, the mean of all clients' memories."""


class Shared(NamedTuple):
    """What the server sends."""

    model: Model
    memory: Tree
    """h where the mean of the clients is predicted with, else ()."""


def feddyn(
    task: Task,
    *,
    alpha: PositiveFloat = 0.01,
    samples_per_client: PositiveFloat | None = None,
    predict_with: Literal["server", "mean"] = "server",
) -> Method:
    """FedDyn: dynamic regularisation, so that local optima agree with the global one (Acar et al., ICLR 2021).

    Client, with the received model w and its own memory m_i, which is minus its last gradient over alpha:
        v_i <- SGD(CE + alpha_i / 2 |v - (w - m_i)|^2) from w          alpha_i = alpha, or alpha n / n_i      [1]
        m_i <- m_i + (v_i - w)                                                                                [2]
    Server, over the m participants i of a round among K clients:
        h <- h + sum_i (v_i - w) / K                                   h is the mean of all K memories        [3]
        w <- w + sum_i (v_i - w) / m + h                                                                      [4]
    Personal: w, or the mean of the participants' v_i, which is w - h                                         [5]

    All memories start at 0, so that the first round has a proximal term alone. A client that is first drawn later
    starts at 0 too, and counts with 0 in h until then. An absent client keeps m_i.

    Up: the increment v_i - w, weighted 1. Down: w, with ``predict_with="mean"`` also h. At the client: m_i. A new
    client takes the global model as it is.

    Args:
        task: the problem.
        alpha: weight of the regulariser (the paper tunes it in {0.1, 0.01, 0.001}; released code: 0.01 for CIFAR-10).
        samples_per_client: n, the mean number of training samples of all K clients, which no client knows by itself.
            With it, alpha_i = alpha n / n_i, as in the released code. None: one alpha for all, as in the paper, which
            is the same where all clients have equally many.
        predict_with: "server" is the model that is sent; "mean" is that of the round's participants before h is added,
            which the released code tests too.

    Source: Algorithm 1; released code (alpemreacar/FedDyn). The paper keeps the gradient g_i = -alpha m_i and
    -alpha h, which gives the same models. The pull in [1] is its linear term and its quadratic term in one.
    Differs from source: with unequal alpha_i the released code adds memories that stand for gradients of different
    scales, and so does this one. Its bound on the gradient norm leaves out decay and the term alpha_i v; here the
    task's bound, if there is one, holds for the gradient of all of [1]. The plot of its example shows the mean of every
    client's last model, which needs all of these at the server; here that is left out.
    """

    def init_server(key: Tensor) -> Server:
        model = task.network.init(key)
        return Server(model, tree.zeros(model))

    def init_client(key: Tensor, id: Tensor) -> Model:
        zeros: Model = tree.zeros(task.network.init(key))
        return zeros

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=Shared(server.model, server.memory if predict_with == "mean" else ()))

    def local(down: Down, client: Model, data: Data, key: Tensor) -> tuple[Model, Up, dict[str, Tensor]]:
        w = down.shared.model
        weight = alpha * samples_per_client / data.real_N.sum() if samples_per_client else alpha  # [1]
        v, loss = train_model(task, w, data, key, pull=(weight, tree.sub(w, client)))  # [1]
        change = tree.sub(v, w)
        memory = tree.add(client, change)  # [2]
        info = {"train_loss": loss, "memory": tree.dot(memory, memory).sqrt()}
        return memory, Up(change, torch.ones(())), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        share = up.weight / task.clients
        memory = tree.map(lambda h, d: h + share * d, server.memory, up.value)  # [3]
        return Server(tree.map(lambda w, d, h: w + d + h, server.model, up.value, memory), memory), {}  # [4]

    def predict(down: Down, client: Model, x_B: Tensor) -> Tensor:
        model, memory = down.shared
        return log_softmax_of(task, tree.sub(model, memory) if memory else model, x_B)  # [5]

    # by part, and not as one: each weight's memory lives from what all clients average, so none can stay at a client;
    # and as means: the memory needs what clients sent, not the step that a server's optimiser makes of it
    parts = Model(reduce.mean(), reduce.mean())  # [4]
    return Method(init_server, init_client, send, local, parts, aggregate, unchanged, predict)
