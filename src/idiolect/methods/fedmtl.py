"""FedMTL: a model for each client, as in multi-task learning, pulled towards the mean of the others'."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, reduce, tree
from idiolect.training import Personal, joins_by_training, log_softmax_of, own_or, train_model, trained, untrained

SEARCH = {"pull": "0.01..10:log"}


class Server(NamedTuple):
    """What the server keeps. The number of clients is no part of it, so that clients can be added."""

    start: Model
    change: Model
    """The sum of w_i - start over all clients."""


def fedmtl(task: Task, *, pull: NonNegativeFloat = 0.1) -> Method:
    """FedMTL: multi-task learning, a model for each client and a penalty on all (Smith et al., NeurIPS 2017).

    min over all w_i of  sum_i CE_i(w_i) + pull tr(W Omega W'),   W = (w_1, ..., w_K),  Omega = (I - 11'/K)^2    [1]
    tr(W Omega W') = sum_i |w_i - m|^2,   m = sum_i w_i / K                                                     [2]
    Client, from its own w_i, in its first round from m, with the others' models as they are:
        w_i <- SGD(CE + pull (1 - 1/K) |w - m_-i|^2),   m_-i = (K m - w_i) / (K - 1)                            [3]
    Server, over the participants i of a round among K clients:
        m <- m + sum_i (w_i - the w_i before) / K                                                               [4]
    Personal: w_i                                                                                               [5]

    [3] is the part of [1] in which w_i is, up to a constant: (1 - 1/K) |w - m_-i|^2 has the slope 2 (W Omega)_i. All
    w_i start alike. The paper's second penalty, on |W|^2, is the weight decay of the task's optimiser.

    Up: the change of w_i, a plain sum. Down: m, and to each client whether m counts its model. At the client: w_i; an
    absent client keeps it, and m goes on to count it. A new client, which m does not count, does one round's local work
    from m and keeps w_i. A client that was never drawn does so too.

    Args:
        task: the problem.
        pull: lambda_1, the weight of the penalty. Twice this times the rate of the optimiser should be below 1.

    Source: the problem that the paper solves, with the penalty that it gives as mean-regularised multi-task learning.
    Differs from source: the paper's MOCHA solves it for convex models by dual coordinates, and can also learn Omega,
    for which a server needs the model of every client; here clients take steps of SGD, networks may be any, and Omega
    is fixed, so that sums are enough. A public version (PFLlib) also fixes it, but its penalty is on |sum_i w_i|^2: it
    draws the sum of the models to 0 in place of drawing them together.
    """
    clients = task.clients

    def init_server(key: Tensor) -> Server:
        model = task.network.init(key)
        return Server(model, tree.zeros(model))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key))

    def send(server: Server, ids: Tensor) -> Down:
        mean: Model = tree.map(lambda start, change: start + change / clients, server.start, server.change)  # [2]
        return Down(mean, (ids < clients).to(torch.get_default_dtype()))

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        mean, own, member = down.shared, client.value, down.own
        others = (clients - member).clamp(min=1)
        anchor: Model = tree.map(lambda m, w: (clients * m - member * w) / others, mean, own)  # [3]
        strength = 2 * pull * (1 - 1 / clients)  # [1]
        w, loss = train_model(task, own_or(client, mean), data, key, pull=(strength, anchor))  # [3]
        info = {"train_loss": loss, "distance": tree.square_distance(w, mean).sqrt()}
        return trained(w), Up(tree.sub(w, own), torch.ones(())), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        return server._replace(change=tree.add(server.change, up.value)), {}  # [4]

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)  # [5]

    personalise = joins_by_training(local)
    return Method(init_server, init_client, send, local, reduce.sum(), aggregate, personalise, predict)  # [4]
