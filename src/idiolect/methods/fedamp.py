"""FedAMP: the more alike two clients' models are, the more they pull each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, PairValue, Reduced, Task, Up, reduce, tree
from idiolect.training import Personal, joins_by_training, log_softmax_of, train_model, trained, untrained

SEARCH = {"sigma": "0.1..100:log", "pull": "0.1..10:log"}
PRESETS: dict[str, dict[str, Any]] = {"pfllib": {"models_of": "last_round"}}
VARIANTS: dict[str, dict[str, Any]] = {"HeurFedAMP": {"similarity": "cosine", "sigma": 10.0}}
REPORTS = {
    "coefficient": PairValue(
        name="message coefficients",
        shows="whose models pull each client",
        colours="Each row is a client, its colours the shares of the models that its cloud model is made of",
        row="is pulled",
        column="gives its model",
        value="share",
        own="a client's own model has {} of its cloud model",
    )
}


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """The last upload of each client, before that the start: every weight has a leading axis (K, ...)."""
    start: Model
    """The model of a client never seen."""
    giving_K: Tensor
    """1 for a client whose model others are pulled to."""


def fedamp(
    task: Task,
    *,
    alpha: PositiveFloat = 1.0,
    sigma: PositiveFloat = 1.0,
    pull: NonNegativeFloat = 1.0,
    similarity: Literal["distance", "cosine"] = "distance",
    own_share: Annotated[float, Field(ge=0, lt=1)] | None = None,
    start: Literal["own", "cloud"] = "own",
    models_of: Literal["all", "last_round"] = "all",
) -> Method:
    """FedAMP: clients with like models pull each other, by a cloud model for each (Huang et al., AAAI 2021).

    Server, for client i and the models w_j that it has of the others:
        c_ij = alpha / sigma exp(-|w_i - w_j|^2 / sigma),   c_ii = 1 - sum_j c_ij               (Eq. 2)  [1]
        c_ij = (1 - c_ii) exp(sigma cos(w_i, w_j)) / sum_k exp(sigma cos(w_i, w_k)),  c_ii fixed  "cosine"  [2]
        u_i = c_ii w_i + sum_j c_ij w_j                                                                  [3]
    Client:
        w_i <- SGD(CE + pull / (2 alpha) |w - u_i|^2) from w_i, or from u_i                     (Eq. 4)  [4]
    Server:
        keeps w_i                                                                                        [5]
    Personal: w_i                                                                                        [6]

    Where the c_ij of [1] add up to more than 1, which the paper's condition on alpha rules out, they are divided by
    their sum, so that u_i stays between models. Before the first round all u_i are the common start. Numbers of samples
    play no part.

    Up: w_i, weighted 1. Down: u_i for each client. At the client: w_i. The server has the model of every client, so
    secure aggregation cannot be used. A new client gets the u_i of one whose model is the start, does one round's local
    work and keeps w_i. A client that was never drawn does so too.

    Args:
        task: the problem.
        alpha: of [1] and [4]. The paper's theory lets it fall over the rounds; here it stays. A rate of the optimiser
            times ``pull`` / alpha should be below 1.
        sigma: the width of [1], or the sharpness of [2].
        pull: lambda.
        similarity: of two models: by their distance (FedAMP), or by their angle (HeurFedAMP, which the paper takes for
            deep networks).
        own_share: c_ii in [2]; None takes 1 / K, of K clients that train.
        start: where local training begins: at the client's own model, or at its cloud model. The paper asks for the
            minimiser and leaves this open; public versions have either.
        models_of: which others [1] and [2] count: all that have trained, or the participants of the round before alone
            (a public version).

    Source: the paper's equations. Its authors released no code that we know of. The preset is PFLlib's server.
    Differs from source: PFLlib's pull has no gradient, so that it is local training; here it has one. It lets c_ii
    become negative.
    """

    def init_server(key: Tensor) -> Server:
        model = task.network.init(key)
        models = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), model)
        return Server(models, model, torch.zeros(task.clients))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key))

    def own_models(server: Server, ids: Tensor) -> Model:
        old_m = ids < task.clients
        at_m = torch.where(old_m, ids, 0)
        models: Model = tree.map(
            lambda a, new: torch.where(old_m.view(-1, *[1] * new.ndim), a[at_m], new), server.models, server.start
        )
        return models

    def coefficients(server: Server, ids: Tensor) -> tuple[Tensor, Tensor]:
        """c_ij (m, K), 0 for a client's own, and c_ii (m,), in float64."""
        mine_mP, all_KP = (flat(models) for models in (own_models(server, ids), server.models))
        other_mK = server.giving_K.double() * (ids[:, None] != torch.arange(task.clients))
        if similarity == "distance":
            square_mK = torch.cdist(mine_mP, all_KP).square()
            c_mK = other_mK * alpha / sigma * (-square_mK / sigma).exp()  # [1]
            c_mK = c_mK / c_mK.sum(1, keepdim=True).clamp(min=1)
            return c_mK, (1 - c_mK.sum(1)).clamp(min=0)  # [1]
        own = 1 / task.clients if own_share is None else own_share
        length_m1, length_1K = mine_mP.norm(dim=1)[:, None], all_KP.norm(dim=1)[None]
        cosine_mK = mine_mP @ all_KP.T / (length_m1 * length_1K).clamp(min=1e-12)
        weight_mK = other_mK * (sigma * (cosine_mK - 1)).exp()
        total_m1 = weight_mK.sum(1, keepdim=True)
        c_mK = (1 - own) * weight_mK / torch.where(total_m1 > 0, total_m1, 1)  # [2]
        return c_mK, 1 - c_mK.sum(1)

    def send(server: Server, ids: Tensor) -> Down:
        c_mK, own_m = coefficients(server, ids)

        def cloud(all_K: Tensor, mine_m: Tensor) -> Tensor:
            own = own_m.view(-1, *[1] * (mine_m.ndim - 1)) * mine_m
            all_m: Tensor = own + torch.tensordot(c_mK, all_K.double(), 1)  # [3]
            return all_m.to(mine_m.dtype)

        return Down(own=tree.map(cloud, server.models, own_models(server, ids)))

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        u: Model = down.own
        begin: Model = client.value if start == "own" else u
        w, loss = train_model(task, begin, data, key, pull=(pull / alpha, u))  # [4]
        info = {"train_loss": loss, "distance": tree.square_distance(w, u).sqrt()}
        return trained(w), Up(w, torch.ones(())), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        c_mK, own_m = coefficients(server, ids)
        models = tree.map(lambda old, new: old.index_copy(0, ids, new), server.models, up.value)  # [5]
        giving_K = server.giving_K if models_of == "all" else torch.zeros_like(server.giving_K)
        giving_K = giving_K.index_fill(0, ids, 1.0)
        return Server(models, server.start, giving_K), {"coefficient": c_mK[:, ids] + own_m.diag()}

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)  # [6]

    personalise = joins_by_training(local)
    parts = reduce.each(whole=True)  # [5]
    return Method(init_server, init_client, send, local, parts, aggregate, personalise, predict)


def flat(models: Model) -> Tensor:
    """All weights of each model (m, P), in float64."""
    return torch.cat([w.double().flatten(1) for w in tree.leaves(models)], 1)
