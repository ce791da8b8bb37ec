"""pFedLA: hypernetworks on the server say, layer by layer, whose weights each client's model is made of."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import relu

from idiolect.core.errors import InputError
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
    new_linear,
    reduce,
    tree,
)
from idiolect.training import Batch, Personal, log_softmax_of, sgd, train_model, trained, untrained

PERSONAL = ("tuning",)
SEARCH = {"server_lr": "0.1..1000:log"}
PRESETS: dict[str, dict[str, Any]] = {"public": {"server_lr": 5e-3, "layer": "tensor", "tuning": "nobody"}}
VARIANTS: dict[str, dict[str, Any]] = {"HeurpFedLA": {"retained": 1}}
REPORTS = {
    "alpha": PairValue(
        name="aggregation weights",
        shows="whose layers each client's model is made of",
        colours="Each row is a client, its colours the weights of the others in its model, mean over the layers",
        row="receives the model",
        column="gives its layers",
        value="weight",
        own="a client's own layers have {} of its model",
    )
}

# K clients, m participants, L layers, e embedding width, h hidden width, P weights of one tensor


class Linear(NamedTuple):
    """A linear layer for each client."""

    weight: Tensor
    bias: Tensor


class Hyper(NamedTuple):
    """The clients' hypernetworks: every tensor has a leading axis (K, ...)."""

    embedding_Ke: Tensor
    hidden: tuple[Linear, ...]
    heads: Linear
    """(K, L, K, h) and (K, L, K): for each layer a weight of each client."""


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """The model of each client as it last trained, before that the start: every weight has a leading axis (K, ...)."""
    hyper: Hyper


def pfedla(
    task: Task,
    *,
    server_lr: PositiveFloat = 30.0,
    layer: Literal["module", "tensor"] = "module",
    retained: NonNegativeInt = 0,
    embedding: PositiveInt = 100,
    hidden: PositiveInt = 100,
    tuning: Literal["newcomers", "all", "nobody"] = "newcomers",
) -> Method:
    """pFedLA: a hypernetwork for each client weighs the clients' models layer by layer (Ma et al., CVPR 2022).

    Server, for client i with its own hypernetwork psi_i and embedding v_i, and for each layer l:
        f_i = three times relu(W f + b), from v_i                                                             [1]
        a_i^l = relu(A^l f_i + a^l),   alpha_ij^l = a_ij^l / sum_k a_ik^l                                     [2]
        alpha_ii^l = 1, and so 0 for the others, in the ``retained`` layers of the largest alpha_ii^l         [3]
        w_i^l = sum_j alpha_ij^l theta_j^l, over all clients j                                                [4]
    Client:
        theta_i <- SGD(CE) from w_i                                                                           [5]
        Delta_i = w_i - theta_i                                                                               [6]
    Server, for each participant:
        g_i = (d w_i / d (psi_i, v_i))' Delta_i, the gradient of <w_i, Delta_i>, Delta_i and all theta fixed  [7]
        (psi_i, v_i) <- (psi_i, v_i) - server_lr g_i                                                          [8]
        keeps theta_i = w_i - Delta_i                                                                         [9]
    Personal:
        w_i, or w_i tuned by [5]; ``tuning`` says for whom, by default who has never trained                 [10]

    Where all a_ij^l of a layer are 0, the client's own layer stands alone. The hypernetworks start alike but for the
    embeddings, and the A^l start uniform between 0 and 1, so that all alpha start positive and near to 1 / K.

    Up: Delta, weighted 1. Down: w_i to client i alone. At the client: whether it has trained. The server has the model
    of every client, so secure aggregation cannot be used. A new client has no hypernetwork, and cannot get one here. It
    gets the mean of all clients' models, and tunes it by one round's local work. A client that was never drawn tunes
    its w_i.

    Args:
        task: the problem.
        server_lr: learning rate of [8] (public versions: 5e-3). The gradient is small, because a is large against its
            changes: with 5e-3, alpha stays near to 1 / K, and w_i near to the mean of all models. Measured accuracy
            (digits, 20 clients, Dirichlet 0.1, 10 rounds, seed 0): with 5e-3: 18.0 %, 1: 23.8 %, 10: 54.0 %, 30: 67.3 %
            and 100: 80.5 %; FedAvg: 21.7 %.
        layer: what has weights of its own: a module, as a convolution with its bias, or each tensor.
        retained: how many layers are kept as they are (HeurpFedLA).
        embedding: e (public versions).
        hidden: width of the hypernetworks (public versions).
        tuning: who tunes in ``personalise`` by [5]: clients that never trained, all, or nobody (public versions).

    Raises:
        InputError: more layers are to be retained than the network has.

    Source: the paper's equations. Its authors released no code that we know of; sizes, rate and the start of A are
        those of two public versions by one author (KarhouTam/pFedLA, KarhouTam/FL-bench). The preset is the second.
    Differs from source: [8] descends, as training asks for; both public versions subtract the gradient of
        <w_i, theta_i - w_i>, which leads away from what the client has learnt. They take one participant after another;
        here the models of a round are all made before it. In [3] the layers are compared by alpha, not by a. The layers
        of [3] are sent too, so that no bytes are saved.
    """
    like = task.network.init(keys.key(0, "pfedla"))
    paths = [path.replace("/", ".") for path in tree.named(like)]
    names = [path if layer == "tensor" else path.rpartition(".")[0] for path in paths]
    order = list(dict.fromkeys(names))
    place = [order.index(name) for name in names]
    if retained > len(order):
        raise InputError(
            f"method pfedla is to retain {retained} layers, and the network has {len(order)}: "
            f"give retained a number of 0 to {len(order)}"
        )

    def init_server(key: Tensor) -> Server:
        def all_clients(a: Tensor) -> Tensor:
            return a.expand(task.clients, *a.shape).clone()

        inner = tuple(
            Linear(**new_linear(keys.fold(keys.fold(key, "hidden"), at), hidden if at else embedding, hidden))
            for at in range(3)
        )
        uniform = torch.special.ndtr(keys.normal(keys.fold(key, "heads"), (len(order), task.clients, hidden)))
        heads = Linear(uniform, torch.zeros(len(order), task.clients))
        embedding_Ke = keys.normal(keys.fold(key, "embeddings"), (task.clients, embedding))
        model, inner, heads = tree.map(all_clients, (task.network.init(key), inner, heads))
        return Server(model, Hyper(embedding_Ke, inner, heads))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(())

    def shares(hyper: Hyper, ids: Tensor) -> Tensor:
        """alpha (m, L, K), from the hypernetworks of clients ``ids``."""
        f_mh = hyper.embedding_Ke
        for weights in hyper.hidden:
            f_mh = relu(torch.einsum("mij,mj->mi", weights.weight, f_mh) + weights.bias)  # [1]
        a_mLK = relu(torch.einsum("mlkh,mh->mlk", hyper.heads.weight, f_mh) + hyper.heads.bias)  # [2]
        total_mL1 = a_mLK.sum(2, keepdim=True)
        own_mLK = (ids[:, None] == torch.arange(task.clients)).to(a_mLK.dtype)[:, None].expand_as(a_mLK)
        some_mL1 = total_mL1 > 0
        alpha_mLK = torch.where(some_mL1, a_mLK / torch.where(some_mL1, total_mL1, 1), own_mLK)  # [2]
        if not retained:
            return alpha_mLK
        own_mL = (alpha_mLK * own_mLK).sum(2).detach()
        first_mk = own_mL.argsort(dim=1, descending=True, stable=True)[:, :retained]
        kept_mL = torch.zeros_like(own_mL).scatter(1, first_mk, 1.0)
        return torch.where(kept_mL[..., None] > 0, own_mLK, alpha_mLK)  # [3]

    def send(server: Server, ids: Tensor) -> Down:
        member_m, row_m = ids < task.clients, ids.clamp(max=task.clients - 1)
        alpha_mLK = shares(tree.rows(server.hyper, row_m), row_m)
        alpha_mLK = torch.where(member_m[:, None, None], alpha_mLK, 1 / task.clients)
        flat, build = tree.flatten(server.models)
        mixed = [torch.tensordot(alpha_mLK[:, at].to(w_K.dtype), w_K, 1) for at, w_K in zip(place, flat, strict=True)]
        return Down(own=build(mixed))  # [4]

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        theta, loss = train_model(task, down.own, data, key)  # [5]
        return trained(()), Up(tree.sub(down.own, theta), torch.ones(())), {"train_loss": loss}  # [6]

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        mine = tree.rows(server.hyper, ids)
        product_mLK = torch.zeros(len(ids), len(order), task.clients, dtype=torch.float64)
        for at, w_K, delta_m in zip(place, tree.leaves(server.models), tree.leaves(up.value), strict=True):
            product_mLK[:, at] += delta_m.double().flatten(1) @ w_K.double().flatten(1).T  # [7]

        def inner_product(hyper: Hyper, batch: Batch) -> tuple[Tensor, tuple[()]]:
            alpha_mLK = shares(hyper, ids)
            return (alpha_mLK * product_mLK.to(alpha_mLK.dtype)).sum(), ()  # [7]

        step = [Batch(torch.arange(len(ids)), torch.ones(len(ids)), 0)]
        moved, _ = sgd(inner_product, mine, step, SGD(server_lr, 0.0, 0.0))  # [8]
        theta = tree.sub(send(server, ids).own, up.value)  # [9]
        after = tree.map(lambda old, new: old.index_copy(0, ids, new), server, Server(theta, moved))  # [9]
        return after, {"alpha": shares(mine, ids).mean(1)[:, ids]}

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Model:
        def received() -> Model:
            model: Model = down.own
            return model

        def tuned() -> Model:
            return train_model(task, down.own, data, key)[0]

        if tuning == "newcomers":  # [10]
            return tree.when(client.trained, received, tuned)
        return tuned() if tuning == "all" else received()  # [10]

    def predict(down: Down, client: Personal | Model, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client if isinstance(client, Model) else down.own, x_B)

    return Method(init_server, init_client, send, local, reduce.each(), aggregate, personalise, predict)  # [9]
