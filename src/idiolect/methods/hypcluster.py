"""Hypothesis-based clustering."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, keys, reduce, tree
from idiolect.training import log_softmax_of, mean, row_losses, stateless, train_model

SEARCH = {"clusters": "2,3,4,5"}
VARIANTS: dict[str, dict[str, Any]] = {"HypCluster (k=3)": {"clusters": 3}, "HypCluster (k=5)": {"clusters": 5}}


class Server(NamedTuple):
    """What the server keeps and sends."""

    models: Model
    """One model per cluster: every weight has a leading axis (k, ...)."""


def hypcluster(task: Task, *, clusters: PositiveInt = 3) -> Method:
    """HypCluster: each client trains the one of k models that fits its samples best (Mansour et al., arXiv 2020).

    Client, with the received models w_1 .. w_k:
        c_i = argmin_c mean CE of w_c over the client's training samples; the first on ties               [1]
        w'_i <- SGD(CE) from w_c, c = c_i, with a fresh optimiser                                         [2]
    Server, for each c over the participants i that chose it; a model that nobody chose stays:
        w_c <- w_c + sum_i n_i (w'_i - w_c) / sum_i n_i                                                   [3]
    Personal:
        w_c, c = argmin of the mean CE over the client's training samples, under the server's models now  [4]

    Up: the increment w'_i - w_c, one model, weighted by n_i samples in the place of c_i among k, so that the server
    learns which model a client chose. Down: all k models. At the client: nothing. A new client chooses by forward
    passes; before that it predicts by the mean of the k models' probabilities.

    The k models start from independent draws, the first of them as the model of other methods. Such starts can
    collapse: all clients choose one model from the first round on and the others never train. The metrics ``cluster``
    (which model a client trained) and ``cluster_size`` (how many participants trained that one) show it.

    Args:
        task: the problem.
        clusters: k, the number of models (FedPAC's comparison: 3 and 5).

    Source: the paper's algorithm; Google's FedJAX, by the same research group, for what it leaves open (the mean as
    loss, first on ties, training loss at test time, server rate 1). No release by the authors was found.
    Differs from source: the method is commonly given with a start from models trained on some sampled clients, and
    FedJAX has a start similar to k-means++. Both need samples before the first round, and here there are none. Left
    out: FedJAX's regulariser in the loss that decides, and its last batch, which it fills up with samples of the next
    epoch.
    """

    def init_server(key: Tensor) -> Server:
        return Server(tree.stack([task.network.init(k) for k in keys.members(key, clusters)]))

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=server)

    def best(models: Model, data: Data) -> tuple[Tensor, Model]:
        loss_k = torch.stack(
            [mean(row_losses(task, tree.rows(models, c), data), data.real_N) for c in range(clusters)]
        )  # [1]
        choice = loss_k.argmin()  # [1]
        return choice, tree.map(lambda w: w.index_select(0, choice.view(1))[0], models)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        choice, start = best(down.shared.models, data)
        model, loss = train_model(task, start, data, key)  # [2]
        n_k = torch.where(torch.arange(clusters) == choice, data.real_N.sum(), 0.0)
        return client, Up(tree.sub(model, start), n_k), {"train_loss": loss, "cluster": choice}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        n_mk = up.weight_m
        share_mk = n_mk / up.weight.clamp(min=1)  # [3]
        models = tree.map(lambda w, step: w + torch.tensordot(share_mk.T, step, 1), server.models, up.value)  # [3]
        member_mk = (n_mk > 0).to(share_mk.dtype)
        return Server(models), {"cluster_size": member_mk @ member_mk.sum(0)}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Model:
        return best(down.shared.models, data)[1]  # [4]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        if client:
            return log_softmax_of(task, client, x_B)
        models = down.shared.models  # before a choice
        logp_kBC = torch.stack([log_softmax_of(task, tree.rows(models, c), x_B) for c in range(clusters)])
        return task.mixture(torch.full((clusters,), 1 / clusters), logp_kBC)

    return Method(init_server, stateless, send, local, reduce.each(), aggregate, personalise, predict)  # [3]
