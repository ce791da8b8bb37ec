"""APPLE: a personal mixture of all clients' core models, whose weights are learned."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from idiolect.core.method import (
    SGD,
    Data,
    Down,
    Method,
    Model,
    PairValue,
    Reduced,
    Task,
    Up,
    keys,
    reduce,
    tree,
)
from idiolect.training import (
    Batch,
    Personal,
    batches,
    joins_by_training,
    log_softmax_of,
    mean,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"relation_lr": "0.0003..0.03:log", "pull": "0.001..1:log"}
REPORTS = {
    "relation": PairValue(
        name="relations",
        shows="whose core models each client mixes",
        colours="Each row is a client, its colours the weights of the core models in its own mixture",
        row="mixes core models",
        column="gives its core model",
        value="weight",
    )
}


class Server(NamedTuple):
    """What the server keeps."""

    cores: Model
    """The core model of each client: every weight has a leading axis (K, ...)."""
    n_K: Tensor
    """Each client's samples; 0 until its first round."""
    shift_KK: Tensor
    """Row i: p_i - p_i0."""


class Shared(NamedTuple):
    """What all clients get; the core models of clients with many samples come first."""

    cores: Model
    n_K: Tensor


class Relations(NamedTuple):
    """What one client gets, in the same order."""

    own_K: Tensor
    """1 at its own core model, else 0; nothing but 0 for a new client."""
    shift_K: Tensor
    """p_i - p_i0."""


class Sent(NamedTuple):
    """What a client sends."""

    core: Model
    shift_K: Tensor


def apple(
    task: Task,
    *,
    relation_lr: PositiveFloat = 0.001,
    pull: NonNegativeFloat = 0.1,
    pull_rounds: Annotated[float, Field(ge=0, le=1)] = 0.1,
    pull_decay: Literal["cosine", "exponential"] = "exponential",
) -> Method:
    """APPLE: each client learns with which weights it mixes everybody's core model (Luo & Wu, IJCAI 2022).

    Client, with the core models w_j of all K clients, its own w_i among them, p_i0j = n_j / sum_j n_j, p_i from p_i0:
        theta_i = sum_j p_ij w_j                                      the model: p_i free, also below 0 or above 1   [1]
        (w_i, p_i) <- SGD(CE(theta_i) + lambda(r) |p_i - p_i0|^2)     w_i by lr, p_i by ``relation_lr``              [2]
        lambda(r) = pull (cos(pi r / L) + 1) / 2, or pull 0.001^(r / L)   in round r = 0, 1, ... below L, then 0     [3]
    Server: keeps the w_i of each client's last round                                                                [4]
    Personal: theta_i with the core models that the client had while it last trained, its own as trained             [5]

    L = int(``pull_rounds`` times the number of rounds). The gradient of w_i has the factor p_ii.

    Up: w_i, weighted by n_i samples, and p_i - p_i0. Down: all core models, and to client i its p_i - p_i0. At the
    client: theta_i; an absent client keeps it. Secure aggregation cannot hide the core models, because they are kept,
    not summed. A new client has no core model: it learns its p from p_0, and beside the mixture a model that starts at
    zero and has the weight 1, by one round's local work.

    Memory, in models: server K, message K down and 1 up, client 1.

    Args:
        task: the problem; its rate is that of the core models.
        relation_lr: rate of p_i (released code: 0.001). A schedule of the study multiplies it too.
        pull: mu, the weight of the pull towards p_0 in the first round (released code: 0.1).
        pull_rounds: the share of the rounds in which there is a pull (released code: 0.1).
        pull_decay: how it falls.

    Source: the paper's algorithm; released code (ljaiverson/pFL-APPLE).
    Differs from source: all clients know p_0 there before the first round; here the server learns n_j from the uploads.
    In the first round p_0 is 1 / K. The weight of a core model is learned from the round on after its client's first;
    until then, that client counts as having no samples for others, and counts its own for itself. What is kept is
    p_i - p_i0, so that p_i moves with p_0. p_i stays at the client there; here the server keeps it, so that clients can
    be added. A limit on downloads, by which a client goes on with older copies of some core models, is left out: every
    client would have to keep all of them. All weights of a step share one optimiser here: a decay of the task also
    pulls p_i to p_i0, and a bound on the gradient norm is one for both.
    """
    network, training = task.network, task.training
    ratio = relation_lr / training.optimiser.lr
    scale = math.sqrt(ratio) if isinstance(training.optimiser, SGD) else ratio  # so that one rate serves both

    def init_server(key: Tensor) -> Server:
        cores = tree.stack([network.init(k) for k in keys.members(key, task.clients)])
        zeros_KK = torch.zeros(task.clients, task.clients)
        return Server(cores, zeros_KK[0].clone(), zeros_KK)

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(network.init(key))

    def order(server: Server) -> Tensor:
        return server.n_K.argsort(descending=True, stable=True)

    def send(server: Server, ids: Tensor) -> Down:
        order_K, row_m = order(server), ids.clamp(max=task.clients - 1)
        own_mK = (order_K == ids[:, None]).to(server.n_K.dtype)
        shift_mK = server.shift_KK[row_m][:, order_K] * (ids < task.clients)[:, None]
        return Down(Shared(tree.rows(server.cores, order_K), server.n_K[order_K]), Relations(own_mK, shift_mK))

    def start_of(down: Down, data: Data) -> Tensor:
        n_K = torch.where(down.own.own_K > 0, data.real_N.sum().to(down.shared.n_K.dtype), down.shared.n_K)
        share_K = torch.where(down.shared.n_K.sum() > 0, n_K, torch.ones_like(n_K))
        return share_K / share_K.sum()

    def coefficient(data: Data) -> Tensor:
        last = (data.rounds.double() * pull_rounds).floor()
        number = (data.round - 1).clamp(min=0).double()
        part = number / last.clamp(min=1)
        value = (torch.cos(math.pi * part) + 1) / 2 if pull_decay == "cosine" else 0.001**part  # [3]
        return torch.where(number < last, pull * value, 0.0).to(torch.get_default_dtype())  # [3]

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        cores, own_K, p0_K, force = down.shared.cores, down.own.own_K, start_of(down, data), coefficient(data)
        known_K = (down.shared.n_K > 0).to(own_K.dtype)
        core: Model = tree.map(lambda w_K: torch.tensordot(own_K, w_K, 1), cores)

        def mixture(core: Model, shift_K: Tensor) -> Model:
            p_K = p0_K + shift_K
            own = (p_K * own_K).sum() + 1 - own_K.sum()
            return tree.map(lambda w, w_K: own * w + torch.tensordot(p_K * (1 - own_K), w_K, 1), core, cores)  # [1]

        def loss(weights: tuple[Model, Tensor], batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            core, shift_K = weights[0], known_K * scale * weights[1]
            x_B, y_B = rows(task, data, batch)
            logit_BC = network(mixture(core, shift_K), task.inputs(x_B))
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            return error + force * shift_K.square().sum(), (error, batch.used_B.sum())  # [2]

        plan = batches(data, training, key)
        (core, scaled_K), extras = sgd(loss, (core, down.own.shift_K / scale), plan, training.optimiser)  # [2]
        shift_K = known_K * scale * scaled_K
        up = Up(Sent(core, shift_K), data.real_N.sum())
        return trained(mixture(core, shift_K)), up, {"train_loss": trained_loss(extras)}  # [5]

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        cores = tree.map(lambda old, new: old.index_copy(0, ids, new), server.cores, up.value.core)  # [4]
        shift_mK = up.value.shift_K[:, order(server).argsort()] * (server.n_K > 0)
        n_K = server.n_K.index_copy(0, ids, up.weight_m)
        relation_mK = n_K / n_K.sum() + shift_mK
        return Server(cores, n_K, server.shift_KK.index_copy(0, ids, shift_mK)), {"relation": relation_mK[:, ids]}

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)  # [5]

    parts = reduce.each(whole=True)  # [4]
    return Method(init_server, init_client, send, local, parts, aggregate, joins_by_training(local), predict)
