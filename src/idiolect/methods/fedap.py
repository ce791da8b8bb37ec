"""FedAP: each client's model is a mixture of all, by how alike the statistics of their features are."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from idiolect.core.inputs import blank
from idiolect.core.method import Data, Down, Method, Model, PairValue, Reduced, Task, Up, Weights, keys, reduce, tree
from idiolect.training import Personal, batches, log_softmax_of, train_model, trained, untrained

SEARCH = {"momentum": "0.1..0.9", "statistics_round": "1,2,5"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"unbiased": True}}
REPORTS = {
    "mixture": PairValue(
        name="weights of the mixtures",
        shows="whose models each client mixes",
        colours="Each row is a client, its colours the weights of the models in its mixture",
        row="mixes models",
        column="gives its model",
        value="weight",
        own="a client's own model carries {} of its mixture",
    )
}

# K clients, m participants, C channels


class Moments(NamedTuple):
    """Of the input of a layer, per channel."""

    mean_C: Tensor
    var_C: Tensor


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """The last upload of each client: every weight has a leading axis (K, ...)."""
    weight_KK: Tensor
    """Row i: of the models in the mixture of client i; zeros are equal shares of all that are known."""
    known_K: Tensor
    """1 for clients that have taken part."""
    measured_K: Tensor
    """1 for clients whose statistics the server has had."""
    round: Tensor


class Received(NamedTuple):
    """What one client gets."""

    model: Model
    measures: Tensor
    """1 in the round in which clients measure their statistics."""


class Sent(NamedTuple):
    """What a client sends."""

    model: Model
    statistics: dict[str, Moments]
    """By layer; 0 but in the round in which they are measured."""


def fedap(
    task: Task,
    *,
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.5,
    statistics_round: PositiveInt = 1,
    unbiased: bool = False,
) -> Method:
    """FedAP: adaptive mixtures of models by feature statistics, with local normalisation (Lu et al., IEEE TBD 2022).

    Client, with weights w_i and normalisation layers b_i of its own:
        m_il, s_il = mean and standard deviation, per channel, of the input of its batch normalisation l  [1]
        (w_i, b_i) <- SGD(CE) from (the received mixture, b_i)                                            [2]
    Server, once, from what all clients measure in round ``statistics_round``, before they train:
        d_ij = sum over l of sqrt(|m_il - m_jl|^2 + |s_il - s_jl|^2)                                      [3]
        a_ij = (1 - ``momentum``) (1 / d_ij) / sum_{k != i} (1 / d_ik),   a_ii = ``momentum``             [4]
    Server, in every round, with the last w_j of each client:
        client i receives sum_j a_ij w_j                                                                  [5]
    Personal: the newest mixture, with b_i                                                                [6]

    Until statistics are there, all a_ij are equal. d = 0 counts as 1 / d = 1e14. A client that was away when they were
    measured receives the mean, and the others do without its model. A network without batch normalisation is compared
    by its features, the input of its head; what stays at a client are the weights of all its normalisation layers, if
    it has some.

    Up: w_i, and in one round the statistics. Down: its mixture to each client. At the client: b_i; an absent client
    keeps it. Secure aggregation cannot hide the models, because each client gets another mixture of them. A new client
    gets the mean of all models, with the common initial b, and trains both for one round's local work.

    Args:
        task: the problem.
        momentum: the weight of the own model (released code: 0.5; for its benchmark 0.3).
        statistics_round: the round in which clients measure. 1 measures with the network as it starts: the paper's way
            if that is pretrained. Later rounds are its variant without a pretrained network, f-FedAP, which begins as
            FedBN does.
        unbiased: whether the variance within a batch has its rows less one as divisor (released code); it then depends
            a little on the batch size. Else it is the variance over all samples.

    Source: the paper's algorithm; released code (microsoft/PersonalizedFL).
    Differs from source: there a network is pretrained on some pooled data first, and the statistics are measured with
    it. There all clients take part. Normalisation layers are known there by names that hold "bn". Predictions use
    statistics measured after training here, and running averages there.
    """
    network, training = task.network, task.training
    names, shapes = network.normalisation, network.weight_shapes

    def shared_of(model: Model) -> Model:
        return Model(*({n: w for n, w in p.items() if n not in own} for p, own in zip(model, names, strict=True)))

    def kept_of(model: Model) -> Model:
        return Model(*({n: w for n, w in p.items() if n in own} for p, own in zip(model, names, strict=True)))

    def whole(shared: Model, kept: Model) -> Model:
        parts: list[Weights] = [a | b for a, b in zip(shared, kept, strict=True)]
        return Model(*({n: part[n] for n in shape} for part, shape in zip(parts, shapes, strict=True)))

    def seen_in(model: Model, x_B: Any, used_B: Tensor) -> dict[str, Moments]:
        with torch.no_grad(), network.recording() as seen:
            z_Bd = network.features(model.body, x_B)
            network.logits(model.head, z_Bd)
        if seen:
            return {
                name: Moments(mean_MC.flatten(), (square_MC - mean_MC.square()).clamp(min=0).flatten())
                for name, (mean_MC, square_MC) in seen.items()
            }
        z_Bd, share_B = z_Bd.double(), used_B.double() / used_B.sum().clamp(min=1)
        mean_d = share_B @ z_Bd
        return {"features": Moments(mean_d, share_B @ (z_Bd - mean_d).square())}

    def measure(model: Model, data: Data, key: Tensor) -> dict[str, Moments]:
        parts, n_S = [], []
        for batch in batches(data, replace(training, drop_last=False), key, epochs=1):
            x_B = task.inputs(tree.rows(data.x_R, data.row_N[batch.at_B]))
            parts.append(seen_in(model, x_B, batch.used_B))
            n_S.append(batch.used_B.sum().double())
        return pooled(tree.stack(parts), torch.stack(n_S), unbiased=unbiased)  # [1]

    sizes = {
        name: len(moments.mean_C)
        for name, moments in seen_in(network.init(keys.key(0)), blank(network.inputs, 2), torch.ones(2)).items()
    }

    def nothing() -> dict[str, Moments]:
        return {name: Moments(torch.zeros(size), torch.zeros(size)) for name, size in sizes.items()}

    def init_server(key: Tensor) -> Server:
        start, count = shared_of(network.init(key)), task.clients
        models: Model = tree.map(lambda w: w.expand(count, *w.shape).clone(), start)
        none_K = torch.zeros(count)
        return Server(models, torch.zeros(count, count), none_K, none_K.clone(), torch.tensor(0))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(kept_of(network.init(key)))

    def send(server: Server, ids: Tensor) -> Down:
        row_mK = server.weight_KK[ids.clamp(max=task.clients - 1)]
        everyone_K = torch.where(server.known_K.sum() > 0, server.known_K, torch.ones_like(server.known_K))
        mixes_m = (ids < task.clients) & (row_mK.sum(1) > 0)  # not before its first round
        row_mK = torch.where(mixes_m[:, None], row_mK, everyone_K / everyone_K.sum())
        mixture: Model = tree.map(lambda w_K: torch.tensordot(row_mK.to(w_K.dtype), w_K, 1), server.models)  # [5]
        measures_m = torch.full((len(ids),), float(int(server.round) + 1 == statistics_round))
        return Down(own=Received(mixture, measures_m))

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        start = whole(down.own.model, client.value)
        statistics = tree.when(down.own.measures, lambda: measure(start, data, keys.fold(key, "statistics")), nothing)
        model, loss = train_model(task, start, data, key)  # [2]
        return trained(kept_of(model)), Up(Sent(shared_of(model), statistics), data.real_N.sum()), {"train_loss": loss}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        models = tree.map(lambda old, new: old.index_copy(0, ids, new), server.models, up.value.model)
        known_K, measured_K = server.known_K.index_fill(0, ids, 1.0), server.measured_K
        weight_KK = known_K.expand_as(server.weight_KK) / known_K.sum()
        if int(server.round) + 1 == statistics_round:
            measured_K = torch.zeros_like(measured_K).index_fill(0, ids, 1.0)
            weight_mm = mixtures(distances(up.value.statistics), momentum).to(weight_KK.dtype)  # [3] [4]
            weight_mK = torch.zeros(len(ids), task.clients).index_copy(1, ids, weight_mm)
            weight_KK = weight_KK.index_copy(0, ids, weight_mK)
        weight_KK = torch.where(server.measured_K[:, None] > 0, server.weight_KK, weight_KK)
        info = {"mixture": weight_KK[ids][:, ids]}
        return Server(models, weight_KK, known_K, measured_K, server.round + 1), info

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Model:
        mixture = whole(down.own.model, client.value)
        model: Model = tree.when(client.trained, lambda: mixture, lambda: train_model(task, mixture, data, key)[0])
        return model

    def predict(down: Down, client: Personal | Model, x_B: Tensor) -> Tensor:
        model = client if isinstance(client, Model) else whole(down.own.model, client.value)
        return log_softmax_of(task, model, x_B)  # [6]

    return Method(
        init_server, init_client, send, local, reduce.each(whole=True), aggregate, personalise, predict,
        full_rounds=(statistics_round,),
    )  # fmt: skip


def pooled(parts: dict[str, Moments], n_S: Tensor, *, unbiased: bool) -> dict[str, Moments]:
    """The moments of all samples from those of each batch, (S, C), whose variances are about its own mean."""
    share_S = n_S / n_S.sum()
    inner_S = torch.where(n_S > 1, n_S / (n_S - 1).clamp(min=1), 1.0) if unbiased else torch.ones_like(n_S)

    def of(mean_SC: Tensor, var_SC: Tensor) -> Moments:
        mean_C = share_S @ mean_SC
        var_C = share_S @ (inner_S[:, None] * var_SC + (mean_SC - mean_C).square())
        return Moments(*(a.to(torch.get_default_dtype()) for a in (mean_C, var_C)))

    return {name: of(*moments) for name, moments in parts.items()}


def distances(statistics_m: dict[str, Moments]) -> Tensor:
    """Of all pairs of clients, (m, m), float64."""
    parts = [torch.cat([m.mean_C.double(), m.var_C.double().clamp(min=0).sqrt()], 1) for m in statistics_m.values()]
    return torch.stack([(a[:, None] - a).square().sum(-1).sqrt() for a in parts]).sum(0)  # [3]


def mixtures(apart_mm: Tensor, momentum: float) -> Tensor:
    """The weights of each client's mixture; each row sums to 1."""
    own_mm = torch.eye(len(apart_mm), dtype=torch.bool)
    if len(apart_mm) == 1:
        return own_mm.double()
    near_mm = torch.where(apart_mm > 0, 1 / torch.where(apart_mm > 0, apart_mm, 1.0), 1e14).masked_fill(own_mm, 0.0)
    return torch.where(own_mm, momentum, (1 - momentum) * near_mm / near_mm.sum(1, keepdim=True))  # [4]
