"""First-order optimisation of the models that a client downloads."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, PairValue, Reduced, Task, Up, keys, reduce, tree
from idiolect.statistics.interpolation import numbers
from idiolect.training import groups, inner, log_softmax_of, mean, only, row_losses, train_model

SEARCH = {"exploration": "0.1..0.5"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"distance": "l1", "average_candidate": True}}
REPORTS = {
    "affinity": PairValue(
        name="affinities",
        shows="whose models have helped each client",
        colours="Each row is a client, its colours the credit that it has given so far to each model it tried",
        row="tries a model",
        column="gives its model",
        value="credit",
    )
}

Distance = Literal["l2", "l1", "squared_l2"]


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """The last upload of each client: every weight has a leading axis (K, ...)."""
    n_K: Tensor
    """The number of samples it was trained on; 0 until a client's first upload."""
    affinity_KK: Tensor
    """Row i: the credit that client i has given to the others' models."""
    key: Tensor
    round: Tensor


class Candidates(NamedTuple):
    """Models to choose from: every weight has a leading axis (candidates, ...)."""

    models: Model
    usable: Tensor
    """1 for a candidate, 0 for an empty place."""


class Client(NamedTuple):
    """What stays at a client."""

    base: Model
    """Its model before its last local training."""
    model: Model
    """Its model after it."""
    split: Tensor
    """The key of its validation samples: the same in all rounds."""


class Report(NamedTuple):
    """What a client sends."""

    model: Model
    credit_C: Tensor
    """The gains of the own model and of those received, divided by the absolute value of their sum."""


def fedfomo(
    task: Task,
    *,
    models: Annotated[int, Field(ge=2)] = 5,
    distance: Distance = "l2",
    average_candidate: bool = False,
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    exploration: Annotated[float, Field(ge=0, le=1)] = 0.3,
    exploration_step: NonNegativeFloat = 0.05,
) -> Method:
    """FedFomo: each client moves towards models that do better on its validation samples (Zhang et al., ICLR 2021).

    Client, with b its model before its last training; the candidates c are its trained model and M - 1 received ones:
        g_c = (L(b) - L(c)) / |c - b|       L: mean CE over its validation samples; 0 where c = b     [1]
        w_c = max(0, g_c) / sum_c max(0, g_c);  all 0 where no candidate is better than b             [2]
        theta = b + sum_c w_c (c - b)                                                                 [3]
        its trained model <- SGD(CE) from theta on its other samples;  b <- theta                     [4]
    Server:
        keeps each client's last trained model                                                        [5]
        A_ic <- A_ic + g_c / |sum_c g_c|       for client i's own and received models c               [6]
        sends to i M - 1 models of others: at each place, with probability max(0, 0.3 - 0.05 round)
        the next of a random order, else the next best by A_i                                         [7]
    Personal:
        theta by [1] to [3], with the models that the server holds now                                [8]

    The score of a round is that of theta, after the update and before the local training that follows it. A client goes
    back to b if no candidate is better than b: it loses its last training.

    Up: the trained model and the credits of [6]; weight n, its number of training samples. Secure aggregation cannot
    hide the models, because they are kept, not summed. Down: M - 1 models of others and, with ``average_candidate``,
    their average. At the client: b and its trained model. A new client takes [1] to [3] from its untrained model, by
    forward passes; the server chooses for it by the mean over the rows of A without the diagonal, that is by what other
    clients gained.

    Memory, in models: server K, message M - 1 down and 1 up, client 2; an evaluation of everybody addresses K (M - 1)
    models at once.

    Args:
        task: the problem.
        models: M, the number of candidates with the client's own model, so that M - 1 are downloaded. The released code
            counts its 5 in this way (FedPAC: 5 downloaded ones, by its text, which would be 6 here).
        distance: |c - b| over all weights: Euclidean, the sum of absolute differences (released commands: l1), or the
            Euclidean squared (what the released code calls l2).
        average_candidate: the average of all clients' last models, weighted by samples, is one more candidate; it earns
            no credit, but counts in the sum of [6] (released code: yes).
        validation: share of a client's samples held out from training, the same ones in all rounds, at least one. A
            single sample is used for both.
        exploration: the probability 0.3 of [7].
        exploration_step: by how much it falls in each round.

    Source: the paper's algorithm; its authors' repository NVlabs/FedFomo for what b is, for the client's own model
    as a candidate, for A and for the choice.
    Differs from source: the released code groups clients by a spectral clustering of A and adds the average of each
    group to the candidates. It forms the average of all from the groups' averages; here there are no groups. Its random
    order is the same in every round, because it sets its seed again; here each round draws a new order, which also
    decides ties in A. It takes the mean of batch means as L. It has one more distance, the sum over tensors of their
    Euclidean norms. With a participation below one it trains all clients in the first round; here a client that is
    drawn later starts from the others' models, as a new client does.
    """

    def init_server(key: Tensor) -> Server:
        start = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), task.network.init(key))
        zeros_KK = torch.zeros(task.clients, task.clients)
        return Server(start, zeros_KK[0].clone(), zeros_KK, keys.fold(key, "choice"), torch.tensor(0))

    def init_client(key: Tensor, id: Tensor) -> Client:
        start = task.network.init(key)
        return Client(start, start, keys.fold(key, "validation"))

    def choice(server: Server, ids: Tensor) -> tuple[Tensor, Tensor]:
        chance = max(0.0, exploration - exploration_step * int(server.round))  # [7]
        return choose(server, ids, models - 1, chance)

    def send(server: Server, ids: Tensor) -> Down:
        at_mS, usable_mS = choice(server, ids)
        return Down(averages(server), Candidates(tree.rows(server.models, at_mS), usable_mS))

    def averages(server: Server) -> Any:
        if not average_candidate:
            return ()
        any_one = server.n_K.sum() > 0
        average = tree.mean(server.models, torch.where(any_one, server.n_K, 1.0))
        return Candidates(tree.stack([average]), any_one.to(server.n_K.dtype)[None])

    def update(down: Down, client: Client, validation_data: Data) -> tuple[Model, Tensor, Tensor]:
        groups = [group for group in (down.own, down.shared) if group]
        candidates = [client.model] + [tree.rows(g.models, c) for g in groups for c in range(len(g.usable))]
        usable_C = torch.cat([torch.ones(1), *(g.usable for g in groups)])

        def risk(model: Model) -> Tensor:
            return mean(row_losses(task, model, validation_data), validation_data.real_N)  # [1]

        at_base = risk(client.base)  # [1]
        gain_C = usable_C * torch.stack(
            [ratio(at_base - risk(c), between(c, client.base, distance)) for c in candidates]
        )  # [1]
        better_C = gain_C.clamp(min=0)  # [2]
        weight_C = ratio(better_C, better_C.sum())  # [2]
        theta = tree.map(
            lambda b, *cs: b + sum(w * (c - b) for w, c in zip(weight_C, cs, strict=True)), client.base, *candidates
        )  # [3]
        return theta, weight_C, gain_C

    def local(down: Down, client: Client, data: Data, key: Tensor) -> tuple[Client, Up, dict[str, Tensor]]:
        train, validation_data = split(data, client.split, validation)
        theta, weight_C, gain_C = update(down, client, validation_data)
        model, loss = train_model(task, theta, train, key)  # [4]
        state = client._replace(base=theta, model=model)  # [4]
        credit_C = ratio(gain_C, gain_C.sum().abs())[: 1 + len(down.own.usable)]  # [6]
        info = {"train_loss": loss, "own_weight": weight_C[0], "used": (weight_C > 0).sum()}
        return state, Up(Report(model, credit_C), train.real_N.sum()), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        at_mS, usable_mS = choice(server, ids)
        at_mC, usable_mC = torch.cat([ids[:, None], at_mS], 1), torch.cat([torch.ones(len(ids), 1), usable_mS], 1)
        credit_mK = torch.zeros(len(ids), task.clients).scatter_add(1, at_mC, up.value.credit_C * usable_mC)
        affinity_KK = server.affinity_KK.index_add(0, ids, credit_mK)  # [6]
        models = tree.map(lambda old, new: old.index_copy(0, ids, new), server.models, up.value.model)  # [5]
        n_K = server.n_K.index_copy(0, ids, up.weight_m)
        return Server(models, n_K, affinity_KK, server.key, server.round + 1), {"affinity": affinity_KK[ids][:, ids]}

    def personalise(down: Down, client: Client, data: Data, key: Tensor) -> Client:
        return client._replace(model=update(down, client, split(data, client.split, validation)[1])[0])  # [8]

    def predict(down: Down, client: Client, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.model, x_B)

    parts = reduce.each(whole=True)  # [5] [6]
    return Method(init_server, init_client, send, local, parts, aggregate, personalise, predict)


def choose(server: Server, ids: Tensor, places: int, chance: float) -> tuple[Tensor, Tensor]:
    """The clients whose models these clients get (m, places), and 1 where there is one.

    The draws of a client are a function of the server's key and round and of its own id. The largest clients come
    first, so that the order of a message does not depend on the clients' numbers; empty places come last.
    """
    clients, member_m1 = len(server.n_K), (ids < len(server.n_K))[:, None]
    row_m = torch.where(member_m1[:, 0], ids, 0)
    others_KK = server.affinity_KK - server.affinity_KK.diagonal().diag()
    affinity_mK = torch.where(member_m1, server.affinity_KK[row_m], others_KK.mean(0))
    own_mK = member_m1 & (torch.arange(clients) == row_m[:, None])
    free_mK = (server.n_K > 0) & ~own_mK

    key_m1 = keys.fold(keys.fold(server.key, server.round), ids)[:, None]
    chance_mK = keys.bits(keys.fold(key_m1, "order"), clients).argsort(1)  # [7]
    best_mK = chance_mK.gather(1, affinity_mK.gather(1, chance_mK).argsort(dim=1, descending=True, stable=True))  # [7]
    draw_mS = (keys.bits(keys.fold(key_m1, "explore"), places) & (2**53 - 1)).double() / 2**53
    at, usable = [], []
    for explore_m1 in torch.split(draw_mS < chance, 1, dim=1):  # [7]
        order_mK = torch.where(explore_m1, chance_mK, best_mK)
        first_m1 = order_mK.gather(1, free_mK.gather(1, order_mK).long().argmax(1, keepdim=True))
        at.append(first_m1)
        usable.append(free_mK.gather(1, first_m1))
        free_mK = free_mK.scatter(1, first_m1, False)
    at_mS, usable_mS = torch.cat(at, 1), torch.cat(usable, 1).to(server.n_K.dtype)
    order_mS = torch.argsort(server.n_K[at_mS] * usable_mS, dim=1, descending=True, stable=True)
    return at_mS.gather(1, order_mS), usable_mS.gather(1, order_mS)


def split(data: Data, key: Tensor, share: float) -> tuple[Data, Data]:
    """A client's samples as (training, validation), each in stored order; a single sample, or group, is in both.

    Of groups in time, validation samples are those that are far enough from other groups, if there are some.
    """
    n = data.real_N.sum().double()
    rank_N = keys.order(key, data.real_N).argsort()
    if (group_N := groups(data)) is not None:  # each sample has the first rank of its group, in an order of groups
        number_N = numbers(torch.where(data.real_N > 0, group_N, torch.iinfo(torch.int64).max))
        place_N = torch.argsort(least(rank_N, number_N), stable=True).argsort()
        rank_N = least(place_N, number_N)
    part_N = (rank_N < (n * share).floor().clamp(min=1)).to(data.real_N.dtype) * data.real_N
    rest_N = data.real_N - part_N
    apart_N = part_N * inner(data)
    part_N = torch.where(apart_N.sum() > 0, apart_N, part_N)
    return only(data, torch.where(rest_N.sum() > 0, rest_N, data.real_N)), only(data, part_N)


def least(a_N: Tensor, number_N: Tensor) -> Tensor:
    """The least value (N,) of all entries with the same number."""
    return torch.full_like(a_N, len(a_N)).scatter_reduce(0, number_N, a_N, "amin")[number_N]


def between(a: Model, b: Model, distance: Distance) -> Tensor:
    """|a - b| over all weights."""
    if distance == "l1":
        return torch.stack([leaf.abs().sum() for leaf in tree.leaves(tree.sub(a, b))]).sum()
    square = tree.square_distance(a, b)
    return square.sqrt() if distance == "l2" else square


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, 0 where below is 0."""
    return torch.where(below > 0, above / torch.where(below > 0, below, 1), 0)
