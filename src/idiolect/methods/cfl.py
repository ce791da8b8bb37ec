"""CFL: clients are divided in two, again and again, where their updates point apart."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, PairValue, Reduced, Task, Tree, Up, reduce, tree
from idiolect.training import (
    Batch,
    batches,
    log_softmax_of,
    mean,
    optimiser_state,
    rows,
    sgd_from,
    train_model,
    trained_loss,
)

SEARCH = {"stationary": "0.05..2:log", "apart": "0.1..5:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {
        "linkage": "complete", "weighting": "uniform", "absent": "again", "keep_momentum": True, "rate_decay": 0.99,
        "burn_in": 20,
    }
}  # fmt: skip
REPORTS = {
    "similarity": PairValue(
        name="similarities of the updates",
        shows="whose updates point the same way",
        colours="Each row is a client, its colours the cosines between its last update and those of the others",
        value="cosine",
    )
}


Linkage = Literal["single", "complete"]


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """The model of each cluster, by its number: every weight has a leading axis (K, ...)."""
    cluster_K: Tensor
    """The number of each client's cluster."""
    updates: Model
    """Each client's last update; 0 until its first round."""
    n_K: Tensor
    """Each client's samples; 0 until its first round."""
    round: Tensor


class Place(NamedTuple):
    """What one client gets."""

    model: Model
    member: Tensor
    """0 for a new client, which is in no cluster."""


class Own(NamedTuple):
    """What stays at a client."""

    rounds: Tensor
    """In how many rounds it has taken part."""
    optimiser: Tree
    """The state of its optimiser, which goes on from round to round; () where it starts anew."""


def cfl(
    task: Task,
    *,
    stationary: PositiveFloat = 0.4,
    apart: NonNegativeFloat = 1.6,
    burn_in: NonNegativeInt = 0,
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.0,
    linkage: Linkage = "single",
    weighting: Literal["samples", "uniform"] = "samples",
    absent: Literal["skip", "again"] = "skip",
    keep_momentum: bool = False,
    rate_decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> Method:
    """CFL: clustered federated learning, by repeated bipartition (Sattler, Mueller & Samek, IEEE TNNLS 2021).

    Client, with the model w of its cluster:
        d_i = SGD(CE) from w, less w                                                                          [1]
    Server, with the last update d_i of each client, u_i = n_i samples or 1, for each cluster c:
        s_ij = <d_i, d_j> / (|d_i| |d_j|)                                                                     [2]
        c is divided if |sum_c u_i d_i / sum_c u_i| < ``stationary`` and max_c |d_i| > ``apart``              [3]
        into the two groups that are left when the most similar groups have been merged, again and again      [4]
        and only if sqrt((1 - the largest s_ij across both) / 2) >= ``gamma``                                 [5]
        w_c <- w_c + sum_c u_i d_i / sum_c u_i, over the participants, for each cluster after the division    [6]
    Personal: the model of the client's cluster                                                               [7]

    All clients start in one cluster. A cluster of two is not divided. The similarity of two groups is that of their
    most similar members ("single", which makes the largest similarity across both groups as small as possible), or of
    their least similar ones ("complete"). A client that has not yet taken part has an update of 0.

    Up: d_i, weighted by n_i samples. Down: the model of its cluster to each client. At the client: in how many rounds
    it has taken part and, with ``keep_momentum``, the state of its optimiser. Secure aggregation cannot hide the
    updates, because they are compared. The server holds 2 K models. A new client is in no cluster: it gets the mean of
    all clients' models, and trains it for one round's local work.

    Args:
        task: the problem.
        stationary: epsilon 1. It depends on network and rate: the metric ``mean_step`` is what is compared with it, and
            a tenth of the first rounds' ``largest_step`` is a first guess (released code: 0.4).
        apart: epsilon 2, with which ``largest_step`` is compared (released code: 1.6).
        burn_in: rounds at the start without a division (released code: 20).
        gamma: 0 divides whatever the similarity across is (released code, which has no such test).
        linkage: how similar two groups are: see above (released code: complete).
        weighting: u_i: samples (paper), or 1 (released code).
        absent: what a member that does not take part adds to [6]: nothing, or its last update once more, and a member
            that never took part an update of 0 (released code).
        keep_momentum: whether the optimiser goes on from round to round, although the weights are put back (released
            code), or is fresh.
        rate_decay: a factor of a client's rate in each round that it takes part in, from the first one on (released
            code: 0.99).

    Source: the paper's algorithm; released code (felisat/clustered-federated-learning).
    Differs from source: in the released code the halves of a later division are positions within the cluster, taken for
    client numbers, so that clients end in two clusters or in none. It puts models of divided clusters aside, and each
    client takes the best of its own by validation samples at the end; here [7] is the last. The paper lets a new client
    walk down the tree of divisions, with a training on every step.
    """
    network, rule = task.network, task.training.optimiser

    def init_server(key: Tensor) -> Server:
        models: Model = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), network.init(key))
        cluster_K = torch.zeros(task.clients, dtype=torch.int64)
        return Server(models, cluster_K, tree.zeros(models), torch.zeros(task.clients), torch.tensor(0))

    def init_client(key: Tensor, id: Tensor) -> Own:
        state = optimiser_state(rule, network.init(key)) if keep_momentum else ()
        return Own(torch.zeros(()), state)

    def send(server: Server, ids: Tensor) -> Down:
        member_m = ids < task.clients
        everyone = tree.mean(tree.rows(server.models, server.cluster_K), torch.ones(task.clients))
        own = tree.rows(server.models, server.cluster_K[ids.clamp(max=task.clients - 1)])
        own = tree.map(lambda w_m, w: torch.where(member_m.reshape(-1, *(1,) * w.ndim), w_m, w), own, everyone)
        return Down(own=Place(own, member_m.to(torch.get_default_dtype())))

    def local(down: Down, client: Own, data: Data, key: Tensor) -> tuple[Own, Up, dict[str, Tensor]]:
        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            error = mean(task.loss(network(model, task.inputs(x_B)), y_B), batch.used_B)
            return error, (error, batch.used_B.sum())

        start, plan = down.own.model, batches(data, task.training, key)
        if rate_decay < 1:
            factor = rate_decay ** (client.rounds + 1)
            plan = [batch._replace(rate=batch.rate * factor) for batch in plan]
        state = client.optimiser if keep_momentum else optimiser_state(rule, start)
        model, state, extras = sgd_from(loss, start, state, plan, rule)  # [1]
        update: Model = tree.sub(model, start)  # [1]
        info = {"train_loss": trained_loss(extras), "step": tree.dot(update, update).sqrt()}
        return Own(client.rounds + 1, state if keep_momentum else ()), Up(update, data.real_N.sum()), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        updates = tree.map(lambda old, new: old.index_copy(0, ids, new), server.updates, up.value)
        n_K = server.n_K.index_copy(0, ids, up.weight_m)
        u_K = n_K if weighting == "samples" else torch.ones_like(n_K) if absent == "again" else (n_K > 0).to(n_K.dtype)
        gram_KK = products(updates)
        similar_KK = cosines(gram_KK)  # [2]
        cluster_K, models = server.cluster_K.clone(), tree.copy(server.models)
        size_K, large_K = torch.zeros(task.clients), torch.zeros(task.clients)
        for c in sorted(set(server.cluster_K.tolist())):
            at = torch.nonzero(server.cluster_K == c)[:, 0]
            size, large = norms(gram_KK[at][:, at], u_K[at])  # [3]
            size_K[at], large_K[at] = size.to(size_K.dtype), large.to(large_K.dtype)
            allowed = len(at) > 2 and int(server.round) >= burn_in
            if not (allowed and size < stationary and large > apart):  # [3]
                continue
            second = halves(similar_KK[at][:, at], linkage)  # [4]
            across = similar_KK[at][:, at][second][:, ~second].max()
            if ((1 - across).clamp(min=0) / 2).sqrt() >= gamma:  # [5]
                new = int(cluster_K.max()) + 1
                cluster_K[at[second]] = new
                models = tree.map(
                    lambda w_K, c=c, new=new: w_K.index_copy(0, torch.tensor([new]), w_K[c][None]), models
                )
        share_K = u_K if absent == "again" else torch.zeros_like(u_K).index_copy(0, ids, u_K[ids])
        member_KK = (cluster_K == torch.arange(task.clients)[:, None]).to(share_K.dtype) * share_K
        part_KK = member_KK / torch.where(member_KK.sum(1, keepdim=True) > 0, member_KK.sum(1, keepdim=True), 1)
        models = tree.map(lambda w_K, d_K: w_K + torch.tensordot(part_KK.to(w_K.dtype), d_K, 1), models, updates)  # [6]
        info = {
            "similarity": similar_KK[ids][:, ids],
            "mean_step": size_K[ids],
            "largest_step": large_K[ids],
            "cluster_size": (cluster_K[ids][:, None] == cluster_K).sum(1),
        }
        return Server(models, cluster_K, updates, n_K, server.round + 1), info

    def personalise(down: Down, client: Own, data: Data, key: Tensor) -> Model:
        model: Model = tree.when(
            down.own.member, lambda: down.own.model, lambda: train_model(task, down.own.model, data, key)[0]
        )
        return model

    def predict(down: Down, client: Own | Model, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client if isinstance(client, Model) else down.own.model, x_B)  # [7]

    return Method(init_server, init_client, send, local, reduce.each(), aggregate, personalise, predict)  # [2]


def products(updates: Model) -> Tensor:
    """The inner products of the updates of all pairs of clients, (K, K), float64."""
    return torch.stack([u.flatten(1).double() @ u.flatten(1).double().T for u in tree.leaves(updates)]).sum(0)


def cosines(gram_KK: Tensor) -> Tensor:
    """Of inner products; 0 where one update is 0."""
    norm_K = gram_KK.diagonal().clamp(min=0).sqrt()
    return gram_KK / (norm_K[:, None] * norm_K + 1e-12)


def norms(gram_kk: Tensor, weight_k: Tensor) -> tuple[Tensor, Tensor]:
    """Of a cluster's members: the norm of their mean update, and the largest norm of one."""
    share_k = weight_k.double() / weight_k.sum().clamp(min=1)
    return (share_k @ gram_kk @ share_k).clamp(min=0).sqrt(), gram_kk.diagonal().max().clamp(min=0).sqrt()


def halves(similar_kk: Tensor, linkage: Linkage) -> Tensor:
    """Which members are in the second half, of two or more."""
    apart_kk = (1 - similar_kk).clamp(min=0).numpy()
    np.fill_diagonal(apart_kk, 0)
    merged = hierarchy.linkage(squareform((apart_kk + apart_kk.T) / 2, checks=False), linkage)
    return torch.from_numpy(hierarchy.cut_tree(merged, n_clusters=[2])[:, 0] == 1)
