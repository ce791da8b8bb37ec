"""FedProto: clients send class prototypes, not models."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import log_softmax

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Tree, Up, reduce
from idiolect.statistics.moments import weights_by_class
from idiolect.training import (
    Batch,
    Personal,
    batches,
    cross_entropy_mean,
    joins_by_training,
    log_softmax_of,
    mean,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

PERSONAL = ("predict_with",)
SEARCH = {"alignment": "0.1..10:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"drop_last": True},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "FedProto-G": {"prototypes": "global"},
    "FedProto-L": {"prototypes": "local"},
}


class Prototypes(NamedTuple):
    """A feature for each class, and 1 for the classes that have one."""

    mean_Cd: Tensor
    known_C: Tensor


class Client(NamedTuple):
    """What a client keeps."""

    model: Model
    own: Prototypes
    """Those of its last round."""
    has_C: Tensor
    """1 for the classes of its training samples."""


def fedproto(
    task: Task,
    *,
    alignment: NonNegativeFloat = 1.0,
    prototypes: Literal["global", "local"] = "global",
    predict_with: Literal["head", "prototypes"] = "head",
    weighting: Literal["uniform", "counts"] = "uniform",
    drop_last: bool = False,
) -> Method:
    """FedProto: local models pulled to common class prototypes; only these are sent (Tan et al., AAAI 2022).

    Client, with its own model w_i (features z, d of them) and the received prototypes P:
        w_i <- SGD(CE + alignment |z - P_y|^2 / d) from w_i; no second term for a class without P   [1]
        P_ic = mean of z over the samples of class c seen in the last epoch, each before its step   [2]
    Server, over the round's participants i that have class c:
        P_c <- sum_i w_ic P_ic / sum_i w_ic,   w_ic = 1 (or n_ic samples)                           [3]
    Personal:
        log p(y | x) = log softmax(head(z)), or log softmax(-|z - P_c|^2 / d) over its own classes  [4]

    Up: P_i (C, d), weighted by w_ic. Down: P (C, d) and which classes have one. At the client: w_i, P_i and which
    classes it has. A class that no participant has keeps its last prototype; where none is known, [4] takes the
    client's own. A new client does one round's local work from the start common to all. The mean in [1] also counts
    samples without a prototype.

    Args:
        task: the problem.
        alignment: lambda, the weight of the second term (released code: 1 for MNIST and FEMNIST, 0.1 for CIFAR-10;
            FedPAC does not say).
        prototypes: "global", or "local": nothing is sent, and P is the client's own P_i of its last round (none in its
            first). FedPAC's FedProto-G and FedProto-L.
        predict_with: the local head (FedPAC), or the nearest prototype; the released code prints both. A class that the
            client does not have gets the smallest positive number as its probability. The scale of the distances is not
            fitted, so the order of these probabilities has a meaning, but their values have little.
        weighting: of the mean over prototypes: uniform (released code), or by counts of samples (a user of that code
            reads the paper's formula so, in a question without an answer).
        drop_last: leave out an incomplete last batch (released code); a client of one batch keeps it.

    Source: the algorithm of the paper; released code yuetan031/FedProto.
    Differs from source: every client starts from one common model; in the released code each starts from its own. There
    all clients take part in every round and prototypes are collected again each time, so that a class that no client
    sent is gone. The accuracies that it prints are cumulative over clients and over both tests; here each is counted by
    itself. For CIFAR-10 its prototypes are the feature maps before pooling; here they are the features that the head
    takes.
    """
    require_classes(task, "fedproto", "its clients share a prototype of each class")
    require_unweighted(task, "fedproto")
    network, training = task.network, task.training
    everyone = prototypes == "global"

    def nothing() -> Prototypes:
        return Prototypes(torch.zeros(task.classes, network.width), torch.zeros(task.classes))

    def init_server(key: Tensor) -> Tree:
        return nothing() if everyone else ()

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(Client(network.init(key), nothing(), torch.zeros(task.classes)))

    def send(server: Tree, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        target: Prototypes = down.shared if everyone else client.value.own

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(model.body, task.inputs(x_B))
            error = cross_entropy_mean(network.logits(model.head, z_Bd), y_B, batch.used_B)
            apart_B = (z_Bd - target.mean_Cd[y_B]).square().mean(1) * target.known_C[y_B]  # [1]
            apart = mean(apart_B, batch.used_B)
            extra = (error, batch.used_B.sum(), apart, z_Bd, y_B, batch.used_B)
            return error + alignment * apart, extra  # [1]

        plan = batches(data, training, key, drop_last=drop_last)
        model, extras = sgd(loss, client.value.model, plan, training.optimiser)  # [1]
        last = extras[-(len(extras) // training.epochs) :]  # [2]
        z_Nd, y_N, used_N = (torch.cat([s[part] for s in last]) for part in (3, 4, 5))
        hot_NC = weights_by_class(y_N, used_N, task.classes).to(z_Nd.dtype)
        n_C = hot_NC.sum(0)
        own = Prototypes(hot_NC.T @ z_Nd / n_C.clamp(min=1)[:, None], (n_C > 0).to(n_C.dtype))  # [2]
        has_C = (weights_by_class(data.y_R[data.row_N], data.real_N, task.classes).sum(0) > 0).to(n_C.dtype)
        up = Up(own.mean_Cd, n_C if weighting == "counts" else own.known_C) if everyone else Up()  # [3]
        info = {
            "train_loss": trained_loss([s[:2] for s in extras]),
            "alignment": trained_loss([(s[2], s[1]) for s in extras]),
        }
        return trained(Client(model, own, has_C)), up, info

    def aggregate(server: Tree, up: Reduced, ids: Tensor) -> tuple[Tree, dict[str, Tensor]]:
        if not everyone:
            return server, {}
        present_C = (up.weight > 0) & (up.value != 0).any(1)  # 0 where a robust rule trusts no client with a class
        known_C = torch.maximum(server.known_C, present_C.to(server.known_C.dtype))
        return Prototypes(torch.where(present_C[:, None], up.value, server.mean_Cd), known_C), {}  # [3]

    def nearest(down: Down, client: Client, x_B: Tensor) -> Tensor:
        mean_Cd, known_C = client.own
        if everyone:  # a new client may be the only one to have a class
            mean_Cd = torch.where(down.shared.known_C[:, None] > 0, down.shared.mean_Cd, mean_Cd)
            known_C = torch.maximum(down.shared.known_C, known_C)
        z_Bd = network.features(client.model.body, task.inputs(x_B))
        apart_BC = (z_Bd[:, None] - mean_Cd).square().mean(2)  # [4]
        least = torch.finfo(apart_BC.dtype)
        logp_BC = log_softmax(torch.where(client.has_C * known_C > 0, -apart_BC, least.min), -1)  # [4]
        return logp_BC.clamp(min=math.log(least.tiny))

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        if predict_with == "prototypes":
            return nearest(down, client.value, x_B)  # [4]
        return log_softmax_of(task, client.value.model, x_B)  # [4]

    parts = reduce.mean() if everyone else ()  # [3]
    return Method(init_server, init_client, send, local, parts, aggregate, joins_by_training(local), predict)
