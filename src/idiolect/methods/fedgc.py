"""FedGC: heads stay apart by a step of the server, which knows the heads of all clients."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import log_softmax

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, Weights, reduce, tree
from idiolect.training import (
    Batch,
    batches,
    class_counts,
    mean,
    require_classes,
    require_linear_head,
    rows,
    sgd,
    stateless,
    trained_loss,
)

SEARCH = {"correction": "0.1..30:log"}
PRESETS: dict[str, dict[str, Any]] = {"pfllib": {"own_term": "constant"}}

# K clients, m participants, C classes, d features


class Server(NamedTuple):
    """What the server keeps."""

    body: Weights
    heads: Weights
    """Each client's head: every weight has a leading axis (K, ...)."""
    has_KC: Tensor
    """1 for the classes of each client; 0 until its first round."""
    start: Weights
    """The head of a client that has never trained."""


class Sent(NamedTuple):
    """What a client sends."""

    body: Weights
    head: Weights


class Counts(NamedTuple):
    """What it says beside them: its number of samples, and 1 for the classes of these."""

    n: Tensor
    has_C: Tensor


class Own(NamedTuple):
    """A client's personal head, and 1 for its classes."""

    head: Weights
    has_C: Tensor


def fedgc(
    task: Task,
    *,
    correction: NonNegativeFloat = 1.0,
    own_term: Literal["gradient", "constant"] = "gradient",
) -> Method:
    """FedGC: gradient correction of private class embeddings at the server (Niu & Deng, AAAI 2022).

    Client, with the received body theta, its own head (W_i, b_i), and its own classes alone as outputs:
        (theta_i, W_i, b_i) <- SGD(CE) from (theta, W_i, b_i)                                               [1]
    Server, over the participants i:
        theta <- theta + sum_i n_i (theta_i - theta) / sum_i n_i                                            [2]
    Server, over all clients i that have sent, their classes c, and the rows w_j of clients without class c:
        e_c = mean of w_ic over the clients that have class c, constant for the gradient                    [3]
        R = sum over i and c of - log (exp(w_ic e_c) / (exp(w_ic e_c) + sum_j exp(w_j e_c)))                [4]
        W <- W - ``correction`` lr dR / dW                                                                  [5]
    Personal: theta and (W_i, b_i), over the client's own classes                                           [6]

    [1] alone knows no other client's classes, so that different classes of two clients may end at one place; [5] moves
    them apart. The rows of classes that a client does not have take no part in [1] and [5]; only weight decay moves
    them.

    Up: the increment theta_i - theta, weighted by n_i; W_i, b_i and the client's classes. Down: theta, and its head to
    each client. At the client: nothing. Secure aggregation cannot hide the heads, because the server needs each. An
    absent client's head moves by [5]. A new client, and one that was never drawn, trains theta and the common initial
    head for one round's local work.

    Args:
        task: the problem. Its network's head has one matrix, ``weight`` (C, d). lr is its learning rate; a
            schedule of the study does not change it in [5].
        correction: lambda; 0 leaves [5] out.
        own_term: whether w_ic e_c in [4] has a gradient, which pulls the rows of one class together (paper), or none
            (PFLlib, where e_c e_c stands in its place).

    Raises:
        InputError: not a classification, or a head of another form.

    Source: the paper's equations; PFLlib's version, for clients that share classes. Its authors released no code.
    Differs from source: in the paper, on faces, no two clients share a class, and e_c is w_ic itself. Heads have a bias
    here, which [5] does not move.
    """
    require_classes(task, "fedgc", "it moves the rows of different classes apart")
    network, classes, rule = task.network, task.classes, task.training.optimiser
    require_linear_head(task, "fedgc", "it moves the rows of the head")

    def init_server(key: Tensor) -> Server:
        body, head = network.init(key)
        heads = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), head)
        return Server(body, heads, torch.zeros(task.clients, classes), head)

    def send(server: Server, ids: Tensor) -> Down:
        row_m = ids.clamp(max=task.clients - 1)
        has_mC = server.has_KC[row_m] * (ids < task.clients)[:, None]
        member_m = has_mC.sum(1) > 0
        head = tree.map(
            lambda w_K, w: torch.where(member_m.reshape(-1, *(1,) * w.ndim), w_K[row_m], w), server.heads, server.start
        )
        return Down(server.body, Own(head, has_mC))

    def own_logits(head: Weights, z_Bd: Tensor, has_C: Tensor) -> Tensor:
        logit_BC = network.logits(head, z_Bd)
        return torch.where(has_C > 0, logit_BC, torch.finfo(logit_BC.dtype).min)

    def classes_of(data: Data) -> Tensor:
        return class_counts(task, data).clamp(max=1)

    def train(down: Down, data: Data, key: Tensor) -> tuple[Model, Tensor]:
        has_C = classes_of(data)

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(model.body, task.inputs(x_B))
            error_B = task.loss(own_logits(model.head, z_Bd, has_C), y_B)
            error = mean(torch.where(has_C[y_B] > 0, error_B, 0.0), batch.used_B)  # [1]; padding may have other classes
            return error, (error, batch.used_B.sum())

        start = Model(down.shared, down.own.head)
        model, extras = sgd(loss, start, batches(data, task.training, key), rule)  # [1]
        return model, trained_loss(extras)

    def local(down: Down, client: tuple[()], data: Data, key: Tensor) -> tuple[tuple[()], Up, dict[str, Tensor]]:
        model, loss = train(down, data, key)
        up = Up(Sent(tree.sub(model.body, down.shared), model.head), Counts(data.real_N.sum(), classes_of(data)))
        return client, up, {"train_loss": loss}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        step, heads = up.value
        heads = tree.map(lambda old, new: old.index_copy(0, ids, new), server.heads, heads)
        has_KC = server.has_KC.index_copy(0, ids, up.weight_m.has_C)
        if correction:
            slope_KCd = torch.func.grad(overlap)(heads["weight"], has_KC, own_term == "gradient")
            heads = heads | {"weight": heads["weight"] - correction * rule.lr * slope_KCd}  # [5]
        return Server(tree.add(server.body, step), heads, has_KC, server.start), {}  # [2]

    def personalise(down: Down, client: tuple[()], data: Data, key: Tensor) -> tuple[Weights, Own]:
        def joins() -> tuple[Weights, Own]:
            model, _ = train(down, data, key)
            return model.body, Own(model.head, classes_of(data))

        state: tuple[Weights, Own] = tree.when(down.own.has_C.sum(), lambda: (down.shared, down.own), joins)
        return state

    def predict(down: Down, client: tuple[()] | tuple[Weights, Own], x_B: Tensor) -> Tensor:
        body, (head, has_C) = client or (down.shared, Own(down.own.head, torch.ones(classes)))
        logp_BC = log_softmax(own_logits(head, network.features(body, task.inputs(x_B)), has_C), -1)  # [6]
        return logp_BC.clamp(min=math.log(torch.finfo(logp_BC.dtype).tiny))

    parts = Sent(body=reduce.increment("n"), head=reduce.each())  # [2] [4]
    return Method(init_server, stateless, send, local, parts, aggregate, personalise, predict)


def overlap(weight_KCd: Tensor, has_KC: Tensor, pulls: bool) -> Tensor:
    """R: how near the rows of each class are to rows of clients that do not have it.

    Args:
        weight_KCd: the heads' matrices.
        has_KC: 1 for the classes of each client.
        pulls: whether the term of a client's own row has a gradient.
    """
    value_KCd = weight_KCd.detach() * has_KC[..., None]
    mean_Cd = value_KCd.sum(0) / has_KC.sum(0).clamp(min=1)[:, None]  # [3]
    if pulls:
        own_KC = torch.einsum("kcd,cd->kc", weight_KCd, mean_Cd)
    else:
        own_KC = mean_Cd.square().sum(1).expand_as(has_KC)
    other_CKC = torch.einsum("kjd,cd->ckj", weight_KCd, mean_Cd)
    counts_CKC = (1 - has_KC.T)[:, :, None] * has_KC
    other_CKC = torch.where(counts_CKC > 0, other_CKC, torch.finfo(weight_KCd.dtype).min)
    all_KC = torch.logaddexp(own_KC, other_CKC.flatten(1).logsumexp(1))
    return ((all_KC - own_KC) * has_KC).sum()  # [4]
