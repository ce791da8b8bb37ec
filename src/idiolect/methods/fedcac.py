"""FedCAC: critical parameters are shared among similar clients, the others among all."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from idiolect.core.method import (
    Data,
    Down,
    Method,
    Model,
    PairValue,
    Reduced,
    Task,
    Up,
    reduce,
    tree,
    unchanged,
)
from idiolect.training import log_softmax_of, stateless, train_model

SEARCH = {"critical": "0.1..0.9", "beta": "10..200:log"}
REPORTS = {
    "overlap": PairValue(
        name="overlaps of critical parameters",
        shows="whose critical parameters are the same",
        colours="Each row is a client, its colours the share of its critical parameters that are critical for another",
        value="overlap",
    )
}


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """Each client's model: every weight has a leading axis (K, ...)."""
    critical: Model
    """1 for the critical weights of each client, of the same shape; 0 until its first round."""
    common: Model
    """The mean of all clients' models."""
    n_K: Tensor
    """Each client's samples; 0 until its first round."""
    round: Tensor


def fedcac(
    task: Task,
    *,
    critical: Annotated[float, Field(ge=0, le=1)] = 0.5,
    beta: PositiveFloat = 100.0,
) -> Method:
    """FedCAC: critical parameters are averaged over similar clients only (Wu, Liu, Niu, Zhu & Tang, ICCV 2023).

    Client:
        w'_i <- SGD(CE) from w_i                                                                          [1]
    Server, in round t = 0, 1, ... over all clients i, j that have taken part so far; w'_i = w_i of who did not now:
        c = |(w'_i - w_i) w'_i| in each weight                                                            [2]
        m_i = 1 for the int(``critical`` P) largest c of each tensor of P weights, else 0                 [3]
        w = sum_i n_i w'_i / sum_i n_i                                                                    [4]
        o_ij = 1 - |m_i - m_j|_1 / (2 |m_i|_1)                                                            [5]
        J_i = i and all j with o_ij >= mean(o) + (t + 1) / beta (max(o) - mean(o))    over pairs i != j   [6]
        w_i <- m_i mean_{j in J_i} w'_j + (1 - m_i) w                                                     [7]
    Personal: w_i                                                                                         [8]

    [2] and [3] are for the participants of the round; the others keep their m_i, and get a new w_i by [7] too. Weights
    whose c equals the smallest of the largest are all critical. Where that smallest c is 1e-10 or less, it is replaced
    by the smallest c of the tensor above 1e-20; a tensor that has not moved at all is critical as a whole. From round
    beta on nobody is similar enough, and critical weights are the client's own; only where all o_ij are equal, as of
    two clients alone, all go on together.

    Up: w'_i, weighted by n_i samples. Down: w_i, to client i alone. At the client: nothing. Secure aggregation cannot
    hide the models, because they are compared. The server finds the critical weights itself, from the model that it has
    sent and the one that came back, so that they need not travel. A new client, and one that was never drawn, gets w.

    Args:
        task: the problem.
        critical: tau, the share of critical weights in each tensor (released code: 0.5).
        beta: in how many rounds the clients that work together grow fewer, down to none (released code: 100 of 300
            rounds).

    Source: the paper's algorithm; released code (kxzxvbk/Fling).
    Differs from source: in the released code clients send their masks, and all clients have to take part in the first
    round; here a client without a mask gets w. It can tune the whole models after the last round.
    """

    def init_server(key: Tensor) -> Server:
        start = task.network.init(key)
        models: Model = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), start)
        return Server(models, tree.zeros(models), start, torch.zeros(task.clients), torch.tensor(0))

    def send(server: Server, ids: Tensor) -> Down:
        member_m = (ids < task.clients) & (server.n_K[ids.clamp(max=task.clients - 1)] > 0)
        own = tree.map(
            lambda w_K, w: torch.where(_over(member_m, w_K), w_K[ids.clamp(max=task.clients - 1)], w),
            server.models, server.common,
        )  # fmt: skip
        return Down(own=own)

    def local(down: Down, client: tuple[()], data: Data, key: Tensor) -> tuple[tuple[()], Up, dict[str, Tensor]]:
        model, loss = train_model(task, down.own, data, key)  # [1]
        return client, Up(model, data.real_N.sum()), {"train_loss": loss}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        sent = send(server, ids).own
        mask = tree.map(lambda new, old: largest(((new - old) * new).abs(), critical), up.value, sent)  # [2] [3]
        models = tree.map(lambda old, new: old.index_copy(0, ids, new), server.models, up.value)
        masks = tree.map(lambda old, new: old.index_copy(0, ids, new), server.critical, mask)
        n_K = server.n_K.index_copy(0, ids, up.weight_m)
        common = tree.mean(models, n_K)  # [4]
        overlap_KK = overlaps(masks, n_K > 0)  # [5]
        share_KK = partners(overlap_KK, n_K > 0, float(server.round + 1) / beta)  # [6]
        custom = tree.map(lambda w_K: torch.tensordot(share_KK.to(w_K.dtype), w_K, 1), models)
        models = tree.map(lambda m, c, w: m * c + (1 - m) * w, masks, custom, _repeated(common, task.clients))  # [7]
        info = {"overlap": overlap_KK[ids][:, ids], "partners": (share_KK[ids] > 0).sum(1)}
        return Server(models, masks, common, n_K, server.round + 1), info

    def predict(down: Down, client: tuple[()], x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.own, x_B)  # [8]

    return Method(init_server, stateless, send, local, reduce.each(whole=True), aggregate, unchanged, predict)


def _over(flag_m: Tensor, weight: Tensor) -> Tensor:
    return flag_m.reshape(-1, *(1,) * (weight.ndim - 1))


def _repeated(model: Model, count: int) -> Model:
    return tree.map(lambda w: w.expand(count, *w.shape), model)


def largest(c_m: Tensor, share: float) -> Tensor:
    """1 for the largest share of each participant's entries (m, ...), ties included, else 0."""
    flat_mP = c_m.flatten(1)
    count = int(share * flat_mP.shape[1])
    if count == 0:
        return torch.zeros_like(c_m)
    least_m1 = flat_mP.topk(count, dim=1).values[:, -1:]
    above_m1 = torch.where(flat_mP > 1e-20, flat_mP, torch.inf).amin(1, keepdim=True)
    replaced_m1 = (least_m1 <= 1e-10) & above_m1.isfinite()
    return (flat_mP >= torch.where(replaced_m1, above_m1, least_m1)).to(c_m.dtype).view_as(c_m)


def overlaps(masks: Model, known_K: Tensor) -> Tensor:
    """Which share of the critical weights of a row's client is critical for a column's, (K, K), float64.

    It is 0 where one of both has no mask.
    """
    both_KK = torch.stack([(m.flatten(1) @ m.flatten(1).T).double() for m in tree.leaves(masks)]).sum(0)
    size_K = both_KK.diagonal()
    apart_KK = size_K[:, None] + size_K - 2 * both_KK
    pair_KK = known_K[:, None] & known_K & (size_K[:, None] > 0)
    return torch.where(pair_KK, 1 - apart_KK / (2 * size_K[:, None]).clamp(min=1), 0.0)


def partners(overlap_KK: Tensor, known_K: Tensor, progress: float) -> Tensor:
    """The weights (K, K) of the models in each client's custom model: equal ones for itself and its partners."""
    own_KK = torch.eye(len(known_K), dtype=torch.bool)
    pair_KK = known_K[:, None] & known_K & ~own_KK
    member_KK = own_KK
    if pair_KK.any():
        pairs = overlap_KK[pair_KK]
        member_KK = own_KK | (pair_KK & (overlap_KK >= torch.lerp(pairs.mean(), pairs.max(), progress)))
    return member_KK.double() / member_KK.sum(1, keepdim=True)
