"""FedCross: several models travel from client to client, and exchange a little of their weights at the server."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, keys, reduce, tree, unchanged
from idiolect.training import log_softmax_of, stateless, train_model

SEARCH = {"alpha": "0.9..0.999"}


class Server(NamedTuple):
    """What the server keeps."""

    models: Model
    """Every weight has a leading axis (M, ...)."""
    used_M: Tensor
    """1 for a model that some client has trained."""
    n_K: Tensor
    """The number of samples of each client; 0 until its first upload."""
    key: Tensor
    round: Tensor


class Travelling(NamedTuple):
    """What the server sends to one client."""

    model: Model
    number: Tensor
    """Which of the M it is."""


class Counts(NamedTuple):
    """What a client says of its upload."""

    n: Tensor
    is_M: Tensor
    """1 for the model that it is."""


def fedcross(
    task: Task,
    *,
    models: Annotated[int, Field(ge=2)] | None = None,
    alpha: Annotated[float, Field(ge=0.5, lt=1)] = 0.99,
    partner: Literal["unlike", "like", "turn"] = "unlike",
) -> Method:
    """FedCross: several models travel and exchange weights, in place of one average (Hu et al., ICDE 2024).

    Server:
        gives each participant one of M models v_j, at random, no two the same while there are enough     [1]
    Client:
        w_i <- SGD(CE) from the received v_j                                                              [2]
    Server, over the models v_j that came back:
        v_j <- alpha w_i + (1 - alpha) w_co(j)                                                            [3]
        co(j): the other model with the least cosine to w_i ("unlike"), with the greatest ("like"), or each
        of the others in turn over the rounds ("turn")                                                    [4]
    All clients:
        v = mean of the v_j that have been trained                                                        [5]

    All v_j start alike. A model that comes back from several clients is first their mean by samples. One that comes
    back alone has no partner, and one that was not given stays as it is. [5] is one model for all: nothing is personal.

    Up: w_i, n_i samples and which model it is; the server needs those of each client. Down: v_j and its number to each
    participant, and v to all, because clients are measured with the message that they train from. At the client:
    nothing. A new client takes v as it is.

    Args:
        task: the problem.
        models: M; None: as many as clients. The paper takes as many as a round has participants: give that number where
            not all take part.
        alpha: how much of itself a model keeps (paper: 0.99).
        partner: the choice of [4] (paper: the least alike).

    Source: the paper's algorithm; PFLlib's version of it.
    Differs from source: the paper's two ways to hasten the start, several partners and an alpha that grows, are left
    out. The cosine is that of all weights; PFLlib adds up the cosines of every two tensors that follow each other. [5]
    is a plain mean, in PFLlib one by samples.
    """
    count = models or task.clients

    def init_server(key: Tensor) -> Server:
        all_M = tree.map(lambda w: w.expand(count, *w.shape).clone(), task.network.init(key))
        own_key = keys.fold(key, "fedcross")
        return Server(all_M, torch.zeros(count), torch.zeros(task.clients), own_key, torch.zeros((), dtype=torch.int64))

    def model_numbers(server: Server, ids: Tensor) -> Tensor:
        """The numbers (m,) of the models of these clients; the largest clients come first, whatever their numbers."""
        old_m = ids < task.clients
        n_m = torch.where(old_m, server.n_K[torch.where(old_m, ids, 0)], 0.0)
        place_m = torch.argsort(n_m, descending=True, stable=True).argsort()
        order_M = keys.order(keys.fold(server.key, server.round), torch.ones(count))
        return order_M[place_m % count]  # [1]

    def send(server: Server, ids: Tensor) -> Down:
        any_one = server.used_M.sum() > 0
        mean = tree.mean(server.models, torch.where(any_one, server.used_M, 1.0))  # [5]
        number_m = model_numbers(server, ids)
        return Down(mean, Travelling(tree.rows(server.models, number_m), number_m.to(torch.get_default_dtype())))

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        w, loss = train_model(task, down.own.model, data, key)  # [2]
        is_M = (torch.arange(count) == down.own.number).to(loss.dtype)
        return client, Up(w, Counts(data.real_N.sum(), is_M)), {"train_loss": loss}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        n_m, number_m = up.weight_m.n, up.weight_m.is_M.argmax(1)
        back_J, place_m = number_m.unique(return_inverse=True)
        share_Jm = torch.zeros(len(back_J), len(ids)).to(n_m).index_put((place_m, torch.arange(len(ids))), n_m)
        share_Jm = share_Jm / share_Jm.sum(1, keepdim=True)
        trained = tree.map(lambda w: torch.tensordot(share_Jm.to(w.dtype), w, 1), up.value)
        if len(back_J) > 1:
            other_J = partners(trained, partner, int(server.round))  # [4]
            trained = tree.map(lambda w: alpha * w + (1 - alpha) * w[other_J], trained)  # [3]
        new = tree.map(lambda old, w: old.index_copy(0, back_J, w), server.models, trained)
        used_M = server.used_M.index_fill(0, back_J, 1.0)
        return Server(new, used_M, server.n_K.index_copy(0, ids, n_m), server.key, server.round + 1), {}

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared, x_B)  # [5]

    return Method(init_server, stateless, send, local, reduce.each(whole=True), aggregate, unchanged, predict)  # [3]


def partners(models: Model, choice: str, round: int) -> Tensor:
    """The partner (J,) of each of some models, two at least."""
    count = len(tree.leaves(models)[0])
    if choice == "turn":
        return (torch.arange(count) + round % (count - 1) + 1) % count
    all_JP = torch.cat([w.double().flatten(1) for w in tree.leaves(models)], 1)
    unit_JP = all_JP / all_JP.norm(dim=1, keepdim=True).clamp(min=1e-12)
    cosine_JJ: Tensor = unit_JP @ unit_JP.T
    own = torch.eye(count, dtype=torch.bool)
    if choice == "like":
        return cosine_JJ.masked_fill(own, -torch.inf).argmax(1)
    return cosine_JJ.masked_fill(own, torch.inf).argmin(1)
