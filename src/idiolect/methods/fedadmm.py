"""FedADMM: the alternating direction method of multipliers, with a dual variable at each client."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import PositiveFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, reduce, tree, unchanged
from idiolect.training import log_softmax_of, train_model

SEARCH = {"rho": "0.001..1:log", "server_lr": "0.3..1.5:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"start": "server", "previous": "received"}}


class Client(NamedTuple):
    """What a client keeps."""

    model: Model
    dual: Model
    """u = y / rho, the scaled dual variable."""


class Shared(NamedTuple):
    """What the server sends."""

    model: Model


def fedadmm(
    task: Task,
    *,
    rho: PositiveFloat = 0.01,
    server_lr: PositiveFloat = 1.0,
    average: Literal["participants", "clients"] = "participants",
    start: Literal["own", "server"] = "own",
    previous: Literal["own", "received"] = "own",
) -> Method:
    """FedADMM: local problems with a dual variable for each client (Gong, Li & Freris, ICDE 2022).

    Client, with the received theta, its own last model w_i and its dual variable y_i = rho u_i:
        w_i' <- SGD(CE + <y_i, w - theta> + rho / 2 |w - theta|^2)      from w_i, or from theta               [1]
        y_i' <- y_i + rho (w_i' - theta)                                                                      [2]
        Delta_i = (w_i' + y_i' / rho) - (w_i + y_i / rho)                                                     [3]
    Server, over the m participants i of a round among K clients:
        theta <- theta + server_lr sum_i Delta_i / m,   or / K                                                [4]

    All clients start with w_i = theta and y_i = 0; one that is first drawn later has the initial theta as w_i. With / K
    and a rate of 1, theta is always the mean of all clients' w_i + y_i / rho. An absent client keeps w_i and y_i.

    With the option ``start="server"`` and the w_i of [3] as it stands, a client that comes back also sends how far
    theta has moved since its last round. Its mean over the participants adds to theta what is in theta already: where
    clients stay away, the weights grow without end.

    Up: Delta_i, weighted 1. Down: theta. At the client: w_i, y_i / rho. A new client takes theta as it is.

    Args:
        task: the problem.
        rho: of the augmented Lagrangian (released code: 0.01).
        server_lr: eta (released code: 1, from round 60 on 0.5).
        average: over a round's participants, or over all clients, which is the paper's eta of m / K.
        start: of the local steps: the client's own last model, or the received one.
        previous: w_i in [3]: the client's own last model (the paper), or theta. "received" with the start "server" is
            what the released code computes (``preset="official"``): it loads theta into the network before it notes
            w_i, so that Delta_i is 2 (w_i' - theta), whatever the client sent before.

    Source: the paper's algorithm 1; released code (YonghaiGong/FedADMM). The terms of [1] are one pull towards
    theta - y_i / rho.
    Differs from source: clients run the task's epochs; the paper draws their number for each client and round, to model
    slow clients. The later folder of the released code means to start from w_i, but all clients there hold one and the
    same network: each starts where the one before it in the round has ended. This is left out.
    """

    def init_client(key: Tensor, id: Tensor) -> Client:
        model = task.network.init(key)
        return Client(model, tree.zeros(model))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=Shared(server))

    def local(down: Down, client: Client, data: Data, key: Tensor) -> tuple[Client, Up, dict[str, Tensor]]:
        theta: Model = down.shared.model
        first = theta if start == "server" else client.model
        model, loss = train_model(task, first, data, key, pull=(rho, tree.sub(theta, client.dual)))  # [1]
        away = tree.sub(model, theta)
        dual = tree.add(client.dual, away)  # [2]
        before: Model = client.model if previous == "own" else theta
        delta = tree.add(tree.sub(model, before), away)  # [3]
        info = {"train_loss": loss, "distance": tree.dot(away, away).sqrt()}
        return Client(model, dual), Up(delta, torch.ones(())), info

    def aggregate(server: Model, up: Reduced, ids: Tensor) -> tuple[Model, dict[str, Tensor]]:
        share = 1.0 if average == "participants" else up.weight / task.clients
        return tree.map(lambda w, d: w + server_lr * share * d, server, up.value), {}  # [4]

    def predict(down: Down, client: Client, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared.model, x_B)

    # by part, and not as one: a weight's dual variable lives from what all clients average, so none can stay at one;
    # and as means: theta is what clients have added up, and a server's optimiser would make another step of it
    parts = Model(reduce.mean(), reduce.mean())  # [4]
    return Method(task.network.init, init_client, send, local, parts, aggregate, unchanged, predict)
