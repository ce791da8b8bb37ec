"""FLUTE: personal heads are pulled towards the geometry of neural collapse, at the clients and at the server."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.method import SGD, Data, Down, Method, Model, Reduced, Task, Tree, Up, Weights, reduce, tree
from idiolect.training import (
    Batch,
    batch_features,
    batches,
    class_counts,
    log_softmax_of,
    mean,
    optimiser_state,
    require_classes,
    require_linear_head,
    rows,
    sgd_from,
    stateless,
    trained_loss,
)

PERSONAL = ("tuning_epochs",)
SEARCH = {"collapse": "0.01..1:log", "head_epochs": "1..10", "server_lr": "0.1..1:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"head_epochs": 9, "body_epochs": 1, "newcomer_head": "average"}}


class Server(NamedTuple):
    """What the server keeps."""

    body: Weights
    heads: Weights
    """Each client's head: every weight has a leading axis (K, ...)."""
    common: Weights
    """Where the head of a client starts that has never trained."""
    trained_K: Tensor
    """1 for clients that have taken part."""


class Sent(NamedTuple):
    """What a client sends."""

    body: Weights
    head: Weights


class Counts(NamedTuple):
    """What it says beside them: its weight, and 1 for the classes of its samples."""

    n: Tensor
    has_C: Tensor


def flute(
    task: Task,
    *,
    collapse: NonNegativeFloat = 0.25,
    head_decay: NonNegativeFloat = 0.0025,
    feature_decay: NonNegativeFloat = 0.0005,
    server_lr: NonNegativeFloat = 0.5,
    head_epochs: NonNegativeInt | None = None,
    body_epochs: PositiveInt = 1,
    tuning_epochs: PositiveInt = 10,
    weighting: Literal["uniform", "samples"] = "uniform",
    newcomer_head: Literal["own", "average"] = "own",
) -> Method:
    """FLUTE: few-round learning of a shared representation, with heads of one geometry (Liu, Shen & Yang, ICML 2024).

    NC(W, e) = | W W' / |W W'| - (C - 1)^(-1/2) (I - 1 1' / C) o (e e') |    Frobenius norms, o entry by entry    [1]
    Client, with the received body theta and its head phi_i = (W_i, b_i); e_i has 1 for the classes of its samples:
        L = CE + ``collapse`` NC(W_i, e_i) + ``head_decay`` |W_i|^2                                               [2]
        phi_i <- SGD(L) from phi_i, theta frozen                                           ``head_epochs``        [3]
        (theta_i, phi_i) <- SGD(L + ``feature_decay`` sum over the batch of |z|^2)         ``body_epochs``        [4]
    Server, over the m participants i:
        theta <- theta + sum_i a_i (theta_i - theta) / sum_i a_i       a_i = 1, or n_i samples                    [5]
        W_i <- W_i - (``server_lr`` / m) dNC(W_i, e_i) / dW_i                                                     [6]
    Personal:
        phi_i <- SGD(L) from phi_i, theta frozen                                           ``tuning_epochs``      [7]

    The optimiser of the head goes on from [3] to [4]; with Adam it starts anew. Of a class that the client does not
    have, rows and columns have the target 0 in [1].

    Up: the increment theta_i - theta, weighted by a_i; phi_i and e_i. Down: theta, and phi_i to client i. At the
    client: nothing; the server keeps all heads, because it moves them. Secure aggregation cannot hide the heads. An
    absent client's head stays. A new client, and one that was never drawn, takes the common initial head, or the mean
    of the heads, and tunes it by [7].

    Args:
        task: the problem. Its network's head has one matrix, ``weight`` (C, d).
        collapse: lambda 1 (released code: 0.25).
        head_decay: lambda 2 (released code: 0.0025).
        feature_decay: lambda 3 (released code: 0.0005).
        server_lr: of [6], in all rounds (released code: 0.5 in its commands; 0 leaves [6] out, the default of
            its parser).
        head_epochs: of [3]; None takes the local epochs less ``body_epochs`` (released code: 9 of 10).
        body_epochs: of [4] (released code: 1).
        tuning_epochs: of [7] (released code: the greater of 10 and ``head_epochs``, after the last round).
        weighting: of the mean over bodies: uniform (released code, for CIFAR), or by samples (for FEMNIST, Sent140).
        newcomer_head: "own": the common initial head; "average": the mean of the last round's heads, weighted as the
            bodies (released code, where clients refer to the server's model until they first train).

    Raises:
        InputError: not a classification, one class, or a head of another form.

    Source: the paper's algorithm for networks (FLUTE*); released code (RenpuLiu/flute).
    Differs from source: in the released code the scores of the rounds are of the head before [6], and without [7]. NC
    of a head of zeros is 0 here, and not defined there.
    """
    require_classes(task, "flute", "its heads are pulled towards one direction for each class")
    network, training, rule, classes = task.network, task.training, task.training.optimiser, task.classes
    require_linear_head(task, "flute", "it compares the directions of its rows")
    if classes < 2:
        raise InputError("method flute needs two classes or more, because it compares their directions: leave it out")
    first_epochs = max(training.epochs - body_epochs, 0) if head_epochs is None else head_epochs
    average = newcomer_head == "average"

    def init_server(key: Tensor) -> Server:
        body, head = network.init(key)
        heads = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), head)
        return Server(body, heads, head, torch.zeros(task.clients))

    def send(server: Server, ids: Tensor) -> Down:
        row_m = ids.clamp(max=task.clients - 1)
        member_m = (ids < task.clients) & (server.trained_K[row_m] > 0)
        own = tree.map(
            lambda w_K, w: torch.where(member_m.reshape(-1, *(1,) * w.ndim), w_K[row_m], w), server.heads, server.common
        )
        return Down(server.body, own)

    def penalty(head: Weights, has_C: Tensor) -> Tensor:
        weight_Cd = head["weight"]
        return collapse * geometry(weight_Cd, has_C) + head_decay * weight_Cd.square().sum()  # [2]

    def train_head(
        body: Weights, head: Weights, state: Tree, data: Data, plan: list[Batch]
    ) -> tuple[Weights, Tree, list[Tree]]:
        has_C, features_of = present(task, data), batch_features(task, body, data)

        def loss(head: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            z_Bd, y_B = features_of(batch)
            error = mean(task.loss(network.logits(head, z_Bd), y_B), batch.used_B)
            return error + penalty(head, has_C), (error, batch.used_B.sum())

        return sgd_from(loss, head, state, plan, rule)  # [3] [7]

    def local(down: Down, client: tuple[()], data: Data, key: Tensor) -> tuple[tuple[()], Up, dict[str, Tensor]]:
        has_C = present(task, data)

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(model.body, task.inputs(x_B))
            error = mean(task.loss(network.logits(model.head, z_Bd), y_B), batch.used_B)
            size = (z_Bd.square().sum(1) * batch.used_B).sum()
            return error + penalty(model.head, has_C) + feature_decay * size, (error, batch.used_B.sum())  # [4]

        plan = batches(data, training, key, epochs=first_epochs + body_epochs)
        start = len(plan) * first_epochs // (first_epochs + body_epochs)
        head, state, _ = train_head(down.shared, down.own, optimiser_state(rule, down.own), data, plan[:start])  # [3]
        model, fresh = Model(down.shared, head), optimiser_state(rule, Model(down.shared, head))
        state = fresh._replace(head=state) if isinstance(rule, SGD) else fresh
        model, _, extras = sgd_from(loss, model, state, plan[start:], rule)  # [4]
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [5]
        info = {"train_loss": trained_loss(extras), "collapse": geometry(model.head["weight"], has_C)}
        return client, Up(Sent(tree.sub(model.body, down.shared), model.head), Counts(weight, has_C)), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        (step, heads), (n_m, has_mC) = up.value, up.weight_m
        common = tree.mean(heads, n_m) if average else server.common
        slope = torch.func.vmap(torch.func.grad(geometry))(heads["weight"], has_mC)
        heads = heads | {"weight": heads["weight"] - server_lr / len(ids) * slope}  # [6]
        kept = tree.map(lambda old, new: old.index_copy(0, ids, new), server.heads, heads)
        body = tree.add(server.body, step)  # [5]
        return Server(body, kept, common, server.trained_K.index_fill(0, ids, 1.0)), {}

    def personalise(down: Down, client: tuple[()], data: Data, key: Tensor) -> Weights:
        plan = batches(data, training, key, epochs=tuning_epochs)
        return train_head(down.shared, down.own, optimiser_state(rule, down.own), data, plan)[0]  # [7]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(down.shared, client or down.own), x_B)

    parts = Sent(body=reduce.increment("n"), head=reduce.each())  # [5] [6]
    return Method(init_server, stateless, send, local, parts, aggregate, personalise, predict)


def present(task: Task, data: Data) -> Tensor:
    """1 for the classes (C,) of a client's samples."""
    return class_counts(task, data).clamp(max=1)


def geometry(weight_Cd: Tensor, has_C: Tensor) -> Tensor:
    """NC: how far the products of a head's rows are from those of neural collapse, among the classes that there are.

    It is 0, and has no gradient, where all weights are 0.
    """
    classes = len(has_C)
    product_CC = weight_Cd @ weight_Cd.T
    square = product_CC.square().sum()
    size = torch.where(square > 0, square, 1.0).sqrt()
    target_CC = (torch.eye(classes) - 1 / classes) * has_C[:, None] * has_C / math.sqrt(classes - 1)
    gap = (product_CC / size - target_CC).square().sum()  # [1]
    is_apart = (square > 0) & (gap > 0)
    return torch.where(is_apart, torch.where(is_apart, gap, 1.0).sqrt(), 0.0)
