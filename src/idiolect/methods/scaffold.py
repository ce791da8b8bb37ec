"""Federated averaging with control variates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, reduce, tree, unchanged
from idiolect.training import Batch, batches, log_softmax_of, mean, require_sgd, rows, sgd, trained_loss

SEARCH = {"server_lr": "0.3..1.5:log"}


class Server(NamedTuple):
    """What the server keeps and sends; what a client sends are increments of the same shape."""

    model: Model
    control: Model
    """c, an estimate of the mean gradient over all clients."""


def scaffold(
    task: Task,
    *,
    server_lr: PositiveFloat = 1.0,
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    steps: PositiveInt | None = None,
) -> Method:
    """SCAFFOLD: local steps corrected by control variates (Karimireddy et al., ICML 2020).

    Client, with the received model x and control c, and its own control c_i:
        y_i <- y_i - eta (g(y_i) - c_i + c)         k steps from y_i = x; g: gradient of a mini-batch's CE    [1]
        c_i+ = c_i - c + (x - y_i) / (k eta)                                                                  [2]
    Server, over the m participants i of a round among K clients:
        x <- x + server_lr sum_i (y_i - x) / m                                                                [3]
        c <- c + sum_i (c_i+ - c_i) / K                                                                       [4]

    All controls start at 0. k counts the mini-batches of all epochs. An absent client keeps c_i.

    Up: increments of the model, weighted 1, and of c_i, a plain sum. Down: x, c. At the client: c_i. A new client takes
    the global model x as it is; its c_i starts at 0.

    Args:
        task: the problem; its momentum is not used.
        server_lr: the server's step along the mean increment; 1 takes the mean.
        momentum: of the local steps. [2] computes the mean gradient from the distance covered, which is exact for plain
            SGD. With momentum m and a constant gradient the distance is (k - m (1 - m^k) / (1 - m)) / (1 - m) steps in
            place of k, and [2] divides by that.
        steps: k, mini-batches of a round; None: those of the task's local epochs.

    Raises:
        InputError: the task's optimiser is not SGD.

    Source: the paper's algorithm with option II for the controls; its authors released no code.
    Differs from source: decay, where the task has one, is part of g, and so of c_i. A bound on the gradient norm, where
    the task has one, bounds the corrected gradient; where it acts, the controls miss what it cut off.
    """
    rule = replace(require_sgd(task, "scaffold", "it computes its controls from the learning rate"), momentum=momentum)

    def init_server(key: Tensor) -> Server:
        model = task.network.init(key)
        return Server(model, tree.zeros(model))

    def init_client(key: Tensor, id: Tensor) -> Model:
        zeros: Model = tree.zeros(task.network.init(key))
        return zeros

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=server)

    def way(plan: Sequence[Batch]) -> Tensor:
        """The number of plain steps along a constant gradient that lead as far as these."""
        k = torch.stack([batch.used_B.sum() > 0 for batch in plan]).sum()
        return (k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)  # [2]

    def local(down: Down, client: Model, data: Data, key: Tensor) -> tuple[Model, Up, dict[str, Tensor]]:
        base, control = down.shared
        shift = tree.sub(control, client)  # [1]

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            error = mean(task.loss(task.network(model, task.inputs(x_B)), y_B), batch.used_B)
            return error + tree.dot(shift, model), (error, batch.used_B.sum())  # [1]

        plan = batches(data, task.training, key, steps=steps)
        model, extras = sgd(loss, base, plan, rule)  # [1]
        change, length = tree.sub(model, base), rule.lr * plan[0].rate * way(plan)  # [2]
        new = tree.map(lambda c_i, c, d: c_i - c - d / length, client, control, change)  # [2]
        info = {"train_loss": trained_loss(extras), "correction": tree.square_distance(control, client).sqrt()}
        return new, Up(Server(change, tree.sub(new, client)), torch.ones(())), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        model = tree.map(lambda x, d: x + server_lr * d, server.model, up.value.model)  # [3]
        control = tree.map(lambda c, d: c + d / task.clients, server.control, up.value.control)  # [4]
        return Server(model, control), {}

    def predict(down: Down, client: Model, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared.model, x_B)

    parts = Server(model=reduce.increment(), control=reduce.sum())  # [3] [4]
    return Method(init_server, init_client, send, local, parts, aggregate, unchanged, predict)
