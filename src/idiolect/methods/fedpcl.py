"""FedPCL: bodies learn by contrast with the class prototypes of all clients; only prototypes are sent."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from idiolect.core.method import Data, Down, Method, Reduced, Task, Up, Weights, keys, reduce, tree, watch
from idiolect.training import (
    Batch,
    Personal,
    batches,
    features,
    joins_by_training,
    mean,
    prototypes,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"temperature": "0.03..1:log"}
PRESETS: dict[str, dict[str, Any]] = {"paper": {"sum_over": "others"}}

# K clients, m participants, S sets of prototypes, B batch, C classes, d features


class Prototypes(NamedTuple):
    """A feature for each class, and 1 for the classes that have one."""

    mean_Cd: Tensor
    known_C: Tensor


class Server(NamedTuple):
    """What the server keeps."""

    common: Prototypes
    own: Prototypes
    """Those of each client's last round, with a leading axis (K, ...)."""
    n_K: Tensor
    """Each client's samples; 0 until its first round."""


class Shared(NamedTuple):
    """What all clients get."""

    common: Prototypes
    sets_KCd: Tensor
    """The prototypes of each client, those of clients with many samples first; the common ones where it has none."""
    sent_K: Tensor
    """1 for the clients that have sent theirs."""


class Counts(NamedTuple):
    """What a client says beside its prototypes: its number of samples, and 1 for the classes of these."""

    n: Tensor
    known_C: Tensor


class Client(NamedTuple):
    """What a client keeps."""

    body: Weights
    own: Prototypes


def fedpcl(task: Task, *, temperature: PositiveFloat = 0.07, sum_over: Literal["all", "others"] = "all") -> Method:
    """FedPCL: prototype-wise contrastive learning of personal bodies (Tan et al., NeurIPS 2022).

    Client, with its own body theta_i, z = theta_i(x) / |theta_i(x)|, and the received prototypes:
        l(z, y; P) = - log (exp(z P_y / tau) / sum_c exp(z P_c / tau))                                [1]
        theta_i <- SGD(mean of l(z, y; P) + mean over clients j of l(z, y; P_j)) from theta_i         [2]
        P_ic = mean of z over its samples of class c, after training                                  [3]
    Server, over the round's participants i that have class c:
        P_c <- sum_i P_ic / sum_i 1                                                                   [4]
        P_jc = P_c for a class that client j does not have                                            [5]
    Personal: log p(y | x) = log softmax(z P_ic / tau) over the client's own classes                  [6]

    The network's head is not used. Where the network has a frozen backbone, as in the paper, what follows it trains. In
    the first round there are no prototypes, and clients send theirs without training. A class that no participant has
    keeps its last P_c; where none is known, its samples add nothing to [2]. Clients that have sent nothing are left
    out of the mean in [2].

    Up: P_i (C, d) and which classes it has. Down: P and the P_j of all clients (K, C, d). At the client: theta_i and
    P_i; an absent client keeps both. No message depends on the body but by d. Secure aggregation cannot hide the
    prototypes, because all clients get them. A new client does one round's local work from the start common to all.

    Args:
        task: the problem.
        temperature: tau (released code: 0.07).
        sum_over: the classes c in [1]: all, which is a cross-entropy (PFLlib; the released code's sum has y's too), or
            those other than y (the paper; ``preset="paper"``).

    Source: the paper's equations for [1] and [2]; PFLlib's version; released code (yuetan031/FedPCL).
    Differs from source: the released code has another loss. It contrasts P_jy with the features of the mini-batch, two
    augmented images of each sample, in place of z with the classes; it sums over the clients j, and has no term of P
    beside them. It predicts the class of the nearest P_ic. This is left out. In PFLlib P_c is gone where no participant
    has the class. Its [6] is over all classes: by [5] those too that the client does not have, and a class without any
    prototype counts as 0. In its [1] the prototypes stand in the order in which classes were first seen, which
    need not be that of the labels; in [2] clients that have sent nothing count with P.
    """
    require_classes(task, "fedpcl", "its clients share a prototype of each class")
    require_unweighted(task, "fedpcl")
    network, classes, width = task.network, task.classes, task.network.width

    def nothing(*lead: int) -> Prototypes:
        return Prototypes(torch.zeros(*lead, classes, width), torch.zeros(*lead, classes))

    def init_server(key: Tensor) -> Server:
        return Server(nothing(), nothing(task.clients), torch.zeros(task.clients))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(Client(network.init(key).body, nothing()))

    def send(server: Server, ids: Tensor) -> Down:
        order_K = server.n_K.argsort(descending=True, stable=True)
        mean_KCd, known_KC = tree.rows(server.own, order_K)
        sets_KCd = torch.where(known_KC[..., None] > 0, mean_KCd, server.common.mean_Cd)  # [5]
        shared = Shared(server.common, sets_KCd, (server.n_K[order_K] > 0).to(known_KC.dtype))
        return Down(shared, torch.full((len(ids),), float(server.n_K.sum() > 0)))

    def contrast(z_Bd: Tensor, y_B: Tensor, mean_SCd: Tensor, known_C: Tensor) -> Tensor:
        logit_SBC = torch.einsum("bd,scd->sbc", z_Bd, mean_SCd) / temperature
        own_BC = y_B[:, None] == torch.arange(classes, device=y_B.device)
        counts_BC = (known_C > 0) & ~own_BC if sum_over == "others" else (known_C > 0).expand_as(own_BC)
        sum_SB = torch.where(counts_BC, logit_SBC, torch.finfo(logit_SBC.dtype).min).logsumexp(-1)
        own_SB = torch.where(own_BC, logit_SBC, 0.0).sum(-1)
        return torch.where((known_C[y_B] > 0) & counts_BC.any(-1), sum_SB - own_SB, 0.0)  # [1]

    def train(shared: Shared, body: Weights, data: Data, key: Tensor) -> tuple[Weights, Tensor]:
        common, sets_KCd, sent_K = shared
        mean_SCd = torch.cat([common.mean_Cd[None], sets_KCd])
        share_S = torch.cat([torch.ones(1), sent_K / sent_K.sum().clamp(min=1)])

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = normalize(network.features(body, task.inputs(x_B)), dim=1)
            error = mean(share_S @ contrast(z_Bd, y_B, mean_SCd, common.known_C), batch.used_B)  # [2]
            return error, (error, batch.used_B.sum())

        body, extras = sgd(loss, body, batches(data, task.training, key), task.training.optimiser)  # [2]
        return body, trained_loss(extras)

    def prototypes_of(body: Weights, data: Data) -> Prototypes:
        z_Nd, y_N = features(task, body, data)
        every = Batch(torch.arange(len(y_N)), data.real_N, 0)
        return Prototypes(*prototypes(normalize(z_Nd, dim=1), y_N, [every], classes))  # [3]

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        start: Weights = client.value.body
        body, loss = tree.when(
            down.own, lambda: train(down.shared, start, data, keys.fold(key, "train")), lambda: (start, torch.zeros(()))
        )
        own = prototypes_of(body, data)  # [3]
        up = Up(own.mean_Cd, Counts(data.real_N.sum(), own.known_C))
        return trained(Client(body, own)), up, {"train_loss": loss}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        mean_mCd, (n_m, known_mC) = up.value, up.weight_m
        count_C = known_mC.sum(0)
        new_Cd = (mean_mCd * known_mC[..., None]).sum(0) / count_C.clamp(min=1)[:, None]  # [4]
        mean_Cd = torch.where(count_C[:, None] > 0, new_Cd, server.common.mean_Cd)
        known_C = torch.maximum(server.common.known_C, (count_C > 0).to(count_C.dtype))
        new = Prototypes(mean_mCd, known_mC)
        own = tree.map(lambda old, new: old.index_copy(0, ids, new), server.own, new)
        return Server(Prototypes(mean_Cd, known_C), own, server.n_K.index_copy(0, ids, n_m)), {}

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        body, (mean_Cd, known_C) = client.value
        z_Bd = watch(normalize(network.features(body, task.inputs(x_B)), dim=1))
        logit_BC = z_Bd @ mean_Cd.T / temperature
        least = torch.finfo(logit_BC.dtype)
        has_C = torch.where(known_C.sum() > 0, known_C, torch.ones_like(known_C))
        return log_softmax(torch.where(has_C > 0, logit_BC, least.min), -1).clamp(min=math.log(least.tiny))  # [6]

    return Method(
        init_server, init_client, send, local, reduce.each(), aggregate, joins_by_training(local), predict
    )  # [4]
