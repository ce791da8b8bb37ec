"""kNN-Per: a memory of the client's own samples beside the global model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import log_softmax

from idiolect.core.method import Data, Down, Method, Task, keys
from idiolect.training import averaging, features, require_classes

SEARCH = {"k": "3..15", "knn_weight": "0.1..0.9", "scale": "0.1..10:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"mix": "logits"}}


class Memory(NamedTuple):
    """The global body's features of a client's own samples."""

    z_Nd: Tensor
    y_N: Tensor
    kept_N: Tensor
    """1 for a sample that can be a neighbour."""


def knnper(
    task: Task,
    *,
    k: PositiveInt = 7,
    knn_weight: Annotated[float, Field(ge=0, le=1)] = 0.5,
    scale: PositiveFloat = 1.0,
    capacity: Annotated[float, Field(gt=0, le=1)] = 1.0,
    mix: Literal["probabilities", "logits"] = "probabilities",
) -> Method:
    """kNN-Per: nearest neighbours among the client's own samples (Marfoq, Neglia, Vidal & Kameni, ICML 2022).

    Client, server:  w <- w + sum_i n_i (SGD(CE; w, i) - w) / sum_i n_i, as in FedAvg                          [1]
    Personal, where z is body(x) under the global model w:
        M_i = {(z_j, y_j)}, a share ``capacity`` of the client's training samples                              [2]
        p_knn(c | x) = sum_j [y_j = c] K(z, z_j) / sum_j K(z, z_j)   over the k samples j of M_i nearest to z  [3]
        K(z, z_j) = exp(-|z - z_j|^2 / (d scale))                       d features                             [4]
        p(c | x) = knn_weight p_knn(c | x) + (1 - knn_weight) softmax(head(z))_c                               [5]

    Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client: nothing until ``personalise`` fills the
    memory, by forward passes alone, for a new client as for an old one; before that a client predicts by w alone. In a
    memory of fewer than k samples all of them are neighbours.

    Args:
        task: the problem.
        k: neighbours (the authors' runs with unlike clients: 7; elsewhere 1 to 10).
        knn_weight: lambda, the share of the neighbours. FedPAC's grid is 0.5, 0.6, 0.7, 0.8; 0 is FedAvg.
        scale: of the distances (released code: 1; the option of its script has no effect).
        capacity: share of the client's samples that are kept, drawn at random, at least one.
        mix: "logits" adds raw logits in place of probabilities in [5] and takes the softmax of the sum, so that the
            most likely class is that of the released evaluation script.

    Source: the paper's method; released code (omarfoq/knn-per).
    Differs from source: the released script is meant to mix probabilities, as its client class does, but mixes logits:
    the default of its switch is a text, which is always true. With some clients absent it weighs each by its share of
    all clients' samples, divided by the sampling rate: such weights need not add up to 1. It scores grids of lambda and
    capacity on test samples and leaves the choice to the reader. Here both are set by hand, because the training
    samples, to which the model was fitted, cannot decide.
    """
    require_classes(task, "knnper", "it mixes the classes of neighbours into probabilities")
    network, rounds = task.network, averaging(task)  # [1]

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Memory:
        z_Nd, y_N = features(task, down.shared.body, data)  # [2]
        count = (capacity * data.real_N.sum().double()).floor().clamp(min=1)  # [2]
        # an order has padding last, so that no rank of it is below the count
        rank_N = torch.argsort(keys.order(keys.fold(key, "memory"), data.real_N))
        keep_N = (rank_N < count).to(data.real_N.dtype)  # [2]
        return Memory(z_Nd, y_N, keep_N)  # [2]

    def neighbours(memory: Memory, z_Bd: Tensor) -> Tensor:  # [3]
        distance_BN = torch.cdist(z_Bd, memory.z_Nd, compute_mode="donot_use_mm_for_euclid_dist").square()
        distance_BN = torch.where(memory.kept_N > 0, distance_BN, torch.inf)
        nearest_Bk, at_Bk = distance_BN.topk(min(k, len(memory.y_N)), largest=False)
        share_Bk = torch.softmax(-nearest_Bk / (z_Bd.shape[-1] * scale), -1)  # [4]
        hot_BkC = memory.y_N[at_Bk][..., None] == torch.arange(task.classes)
        return (share_Bk[..., None] * hot_BkC).sum(-2)

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        z_Bd = network.features(down.shared.body, task.inputs(x_B))
        logit_BC = network.logits(down.shared.head, z_Bd)
        if not client:  # without a memory
            return log_softmax(logit_BC, -1)
        knn_BC = neighbours(client, z_Bd)
        if mix == "logits":
            return log_softmax(knn_weight * knn_BC + (1 - knn_weight) * logit_BC, -1)  # [5]
        p_BC = knn_weight * knn_BC + (1 - knn_weight) * logit_BC.softmax(-1)  # [5]
        return p_BC.clamp(min=torch.finfo(p_BC.dtype).tiny).log()  # a class that no neighbour has, at knn_weight 1

    return Method(*rounds, personalise, predict)
