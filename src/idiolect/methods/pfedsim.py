"""pFedSim: bodies are mixed by how alike the clients' heads are."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from idiolect.core.method import Data, Down, Method, Model, PairValue, Reduced, Task, Up, Weights, reduce, tree
from idiolect.training import Personal, log_softmax_of, train_model, untrained

SEARCH = {"warm_up": "0.1..0.9"}
REPORTS = {
    "similarity": PairValue(
        name="similarities of the heads",
        shows="whose heads are alike",
        colours="Each row is a client, its colours the similarity of its head to those of the others",
        value="similarity",
    )
}
_OWN = 0.9999  # the similarity of a client to itself, of which the weight is finite

# K clients, m participants


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """The last model of each client, or the common one: every weight has a leading axis (K, ...)."""
    similar_KK: Tensor


class Start(NamedTuple):
    """What one client gets."""

    model: Model
    member: Tensor
    """0 for a new client."""


class Counts(NamedTuple):
    """What a client says beside its model."""

    n: Tensor
    after: Tensor
    """1 after the warm-up. The server does not know the number of rounds."""


def pfedsim(task: Task, *, warm_up: Annotated[float, Field(ge=0, le=1)] = 0.5) -> Method:
    """pFedSim: similarity-aware aggregation of bodies, after a warm-up (Tan, Zhou, Liu, Wang & Yu, arXiv 2023).

    For the first int(``warm_up`` times the number of rounds) rounds, over the participants i:
        w_i <- SGD(CE) from w;   w <- sum_i n_i w_i / sum_i n_i                                     [1]
    Client, in each round after that, with its own body and head (theta_i, phi_i), at first those of w:
        theta = sum_j a_ij theta_j over all clients j                                               [2]
        (theta_i, phi_i) <- SGD(CE) from (theta, phi_i)                                             [3]
    Server, in each of these rounds, for all pairs i, j of its participants:
        s_ij = max(0, mean over the rows of the head's matrix of cos(phi_i, phi_j));  s_ii = 0.9999 [4]
        a_ij = log(1 - s_ij) / sum_k log(1 - s_ik)                                                  [5]
    Personal: (theta_i, phi_i) as trained; w until the client has trained after the warm-up         [6]

    Pairs that have not met have s_ij = 0, and so no weight. A pair keeps its s_ij until it meets again.

    Up: theta_i and phi_i, weighted by n_i samples, and whether the warm-up is over, which the server takes from most of
    them. Down: theta and phi_i to each client. At the client: its model as it last trained; an absent client keeps it.
    Secure aggregation cannot hide the models, because they are kept and compared. A new client gets the mean of all
    clients' models, and trains it for one round's local work.

    Args:
        task: the problem.
        warm_up: share of the rounds with one model for all (released code: 0.5).

    Source: the paper's algorithm; an author's released code (KarhouTam/FL-bench).
    Differs from source: heads of several matrices are compared by the rows of all of them. A similarity above 0.9999
    counts as 0.9999, where the released code would divide by infinity.
    """

    def init_server(key: Tensor) -> Server:
        models: Model = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), task.network.init(key))
        return Server(models, torch.eye(task.clients))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key))

    def send(server: Server, ids: Tensor) -> Down:
        row_m, member_m = ids.clamp(max=task.clients - 1), ids < task.clients
        share_mK = shares(server.similar_KK)[row_m]  # [5]
        share_mK = torch.where(member_m[:, None], share_mK, 1 / task.clients)
        body: Weights = tree.map(lambda w_K: torch.tensordot(share_mK.to(w_K.dtype), w_K, 1), server.models.body)  # [2]
        head: Weights = tree.map(
            lambda w_K: torch.where(member_m.reshape(-1, *(1,) * (w_K.ndim - 1)), w_K[row_m], w_K.mean(0)),
            server.models.head,
        )
        return Down(own=Start(Model(body, head), member_m.to(torch.get_default_dtype())))

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model, loss = train_model(task, down.own.model, data, key)  # [1] [3]
        after = (data.round > (data.rounds.double() * warm_up).floor()).to(loss.dtype)  # [6]
        return Personal(model, after), Up(model, Counts(data.real_N.sum(), after)), {"train_loss": loss}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        similar_KK, new = server.similar_KK, up.value
        if up.weight_m.after.mean() > 0.5:
            models = tree.map(lambda old, w: old.index_copy(0, ids, w), server.models, new)
            similar_KK = similar_KK.clone()
            similar_KK[ids[:, None], ids] = likeness(new.head).to(similar_KK.dtype)  # [4]
        else:
            mean = tree.mean(new, up.weight_m.n)  # [1]
            models = tree.map(lambda w, old: w.expand_as(old).clone(), mean, server.models)
        return Server(models, similar_KK), {"similarity": similar_KK[ids][:, ids]}

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        def received() -> Model:
            start: Model = down.own.model
            return tree.when(down.own.member, lambda: start, lambda: train_model(task, start, data, key)[0])

        model: Model = tree.when(client.trained, lambda: client.value, received)  # [6]
        return Personal(model, client.trained)

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)

    parts = reduce.each(whole=True)  # [4]
    return Method(init_server, init_client, send, local, parts, aggregate, personalise, predict)


def likeness(head: Weights) -> Tensor:
    """The similarities of all pairs of heads, (m, m), float64; 1 of each with itself."""
    units = [normalize(w.double().flatten(2), dim=-1) for w in head.values() if w.ndim > 2]
    cosines = [torch.einsum("irp,jrp->ijr", u, u) for u in units]
    similar_mm = torch.cat(cosines, 2).mean(2).clamp(min=0)  # [4]
    return similar_mm.fill_diagonal_(1.0)


def shares(similar_KK: Tensor) -> Tensor:
    """a of all pairs (K, K); a client that is like no other has its own body alone."""
    own_KK = torch.eye(len(similar_KK), dtype=torch.bool)
    close_KK = -torch.log1p(-similar_KK.clamp(max=_OWN).masked_fill(own_KK, _OWN))  # [5]
    return close_KK / close_KK.sum(1, keepdim=True)
