"""FML: a personal model and a shared one that teach each other."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div

from idiolect import models
from idiolect.core.method import Data, Down, Method, Model, Task, Tree, Up, keys, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batches,
    log_softmax_of,
    mean,
    optimiser_state,
    require_classes,
    rows,
    sgd_from,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"own_weight": "0.1..0.9", "shared_weight": "0.1..0.9"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"start": "own"}}


class Own(NamedTuple):
    """What stays at a client."""

    model: Model
    optimiser: Tree
    """The state of its optimiser, which goes on from round to round; () where it starts anew."""


def fml(
    task: Task,
    *,
    own_weight: Annotated[float, Field(ge=0, le=1)] = 0.5,
    shared_weight: Annotated[float, Field(ge=0, le=1)] = 0.5,
    shared_model: str = "",
    start: Literal["common", "own"] = "common",
    keep_momentum: bool = True,
    weighting: Literal["uniform", "samples"] = "uniform",
) -> Method:
    """FML: federated mutual learning, of a personal model and a shared one (Shen et al., arXiv 2020).

    Client, for each mini-batch, with its own model w_i, and the shared model m_i from the received m:
        p, q = softmax of w_i and of m_i on the mini-batch, both before a step; constant as targets
        w_i <- SGD step of a CE(w_i) + (1 - a) mean KL(q || softmax w_i)        a = ``own_weight``        [1]
        m_i <- SGD step of b CE(m_i) + (1 - b) mean KL(p || softmax m_i)        b = ``shared_weight``     [2]
    Server, over the participants i of a round:
        m <- m + sum_i u_i (m_i - m) / sum_i u_i                                u_i = 1, or n_i samples   [3]
    Personal: w_i                                                                                         [4]

    KL(q || p) = sum over the classes of q log(q / p). The optimiser of m_i is fresh in every round.

    Up: the increment m_i - m. Down: m. At the client: w_i and the state of its optimiser; an absent client keeps both.
    No more of w_i is known to others than what m_i learns from it, and m may be a network of its own, smaller than w_i.
    A new client, and one that was never drawn, does one round's local work, in which w_i starts at m if both are the
    same network, else at the start that is common to all.

    Args:
        task: the problem; its network is that of w_i.
        own_weight: alpha, of the labels for w_i (released code: 0.5).
        shared_weight: beta, of the labels for m_i (released code: 0.5).
        shared_model: the network of m, as ``model`` names it, for example mlp:hidden=16; it is the task's where this is
            empty.
        start: of w_i: common to all clients, or drawn for each (released code).
        keep_momentum: whether the optimiser of w_i goes on from round to round (released code), or is fresh too.
        weighting: of the mean over shared models: uniform (released code), or by samples.

    Source: the paper's algorithm; released code (ZJU-DAI/Federated-Mutual-Learning), in whose main program the
    exchange of the shared model is commented out.
    Differs from source: the clients' networks are all the same here. PFLlib's version sends gradients through the
    targets, and divides KL by the number of classes.
    """
    require_classes(task, "fml", "its two models learn each other's class probabilities")
    own, rule = task.network, task.training.optimiser
    common = models.beside(shared_model, own, task.classes)

    def init_client(key: Tensor, id: Tensor) -> Personal:
        model = own.init(keys.fold(key, id) if start == "own" else key)
        return untrained(Own(model, optimiser_state(rule, model) if keep_momentum else ()))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def apart(logit_BC: Tensor, target_BC: Tensor, used_B: Tensor) -> Tensor:
        target_BC = target_BC.detach().log_softmax(-1)
        return mean(kl_div(logit_BC.log_softmax(-1), target_BC, reduction="none", log_target=True).sum(-1), used_B)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        def own_loss(m: Model, w: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            x_B = task.inputs(x_B)
            logit_BC, target_BC = own(w, x_B), common(m, x_B)
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            value = own_weight * error + (1 - own_weight) * apart(logit_BC, target_BC, batch.used_B)  # [1]
            return value, (error, batch.used_B.sum(), logit_BC)

        def shared_loss(target_BC: Tensor, m: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            logit_BC = common(m, task.inputs(x_B))
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            value = shared_weight * error + (1 - shared_weight) * apart(logit_BC, target_BC, batch.used_B)  # [2]
            return value, (error, batch.used_B.sum())

        w, state = client.value.model, client.value.optimiser or optimiser_state(rule, client.value.model)
        m: Model = down.shared
        state_m, own_losses, shared_losses = optimiser_state(rule, m), [], []
        for batch in batches(data, task.training, key):
            w, state, [seen] = sgd_from(partial(own_loss, m), w, state, [batch], rule)  # [1]
            m, state_m, [also] = sgd_from(partial(shared_loss, seen[2]), m, state_m, [batch], rule)  # [2]
            own_losses.append(seen[:2])
            shared_losses.append(also)
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())
        info = {"train_loss": trained_loss(own_losses), "shared_loss": trained_loss(shared_losses)}
        return trained(Own(w, state if keep_momentum else ())), Up(tree.sub(m, down.shared), weight), info

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        def joins() -> Personal:
            value = client.value if shared_model else client.value._replace(model=down.shared)
            return local(down, client._replace(value=value), data, key)[0]

        state: Personal = tree.when(client.trained, lambda: client, joins)
        return state

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value.model, x_B)  # [4]

    return Method(
        common.init, init_client, send, local, reduce.increment(), add, personalise, predict, own_start=start == "own"
    )  # [3]
