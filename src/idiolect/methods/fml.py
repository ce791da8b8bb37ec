"""FML: a personal model and a shared one that teach each other."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import kl_div

from idiolect import models
from idiolect.core.method import SGD, Data, Down, Method, Model, Task, Tree, Up, keys, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batches,
    joins_by_training,
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


Seen = tuple[Tensor, Tensor]
"""The mean loss of a step, and its samples."""
Trained = tuple[Model, Model, Tree, list[Seen], list[Seen]]
"""Both models after a round, the state of the own model's optimiser, and what both have seen."""


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

    def learning(
        logit_BC: Tensor, target_BC: Tensor, y_B: Tensor, used_B: Tensor, by_labels: float
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        error = mean(task.loss(logit_BC, y_B), used_B)
        return by_labels * error + (1 - by_labels) * apart(logit_BC, target_BC, used_B), (error, used_B.sum())

    def together(data: Data, start: tuple[Model, Model], state: Tree, plan: list[Batch]) -> Trained:
        """Both models in one pass, by one optimiser: the same steps as of two, at less cost."""

        def loss(both: tuple[Model, Model], batch: Batch) -> tuple[Tensor, tuple[Seen, Seen]]:
            x_B, y_B = rows(task, data, batch)
            x_B = task.inputs(x_B)
            p_BC, q_BC = own(both[0], x_B), common(both[1], x_B)
            mine, seen = learning(p_BC, q_BC, y_B, batch.used_B, own_weight)  # [1]
            theirs, also = learning(q_BC, p_BC, y_B, batch.used_B, shared_weight)  # [2]
            return mine + theirs, (seen, also)

        (w, m), state, extras = sgd_from(loss, start, state, plan, rule)  # [1] [2]
        return w, m, state[0] if keep_momentum else (), [e[0] for e in extras], [e[1] for e in extras]

    def in_turn(data: Data, start: tuple[Model, Model], state: Tree, plan: list[Batch]) -> Trained:
        """Each model by an optimiser of its own, as one that counts its steps or bounds its gradient has to be."""

        def own_loss(m: Model, w: Model, batch: Batch) -> tuple[Tensor, tuple[Seen, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            x_B = task.inputs(x_B)
            logit_BC = own(w, x_B)
            value, seen = learning(logit_BC, common(m, x_B), y_B, batch.used_B, own_weight)  # [1]
            return value, (seen, logit_BC)

        def shared_loss(target_BC: Tensor, m: Model, batch: Batch) -> tuple[Tensor, Seen]:
            x_B, y_B = rows(task, data, batch)
            return learning(common(m, task.inputs(x_B)), target_BC, y_B, batch.used_B, shared_weight)  # [2]

        (w, m), state_m, own_seen, shared_seen = start, optimiser_state(rule, start[1]), [], []
        for batch in plan:
            w, state, [(seen, logit_BC)] = sgd_from(partial(own_loss, m), w, state, [batch], rule)  # [1]
            m, state_m, [also] = sgd_from(partial(shared_loss, logit_BC), m, state_m, [batch], rule)  # [2]
            own_seen.append(seen)
            shared_seen.append(also)
        return w, m, state if keep_momentum else (), own_seen, shared_seen

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        start = (client.value.model, down.shared)
        state = client.value.optimiser if keep_momentum else optimiser_state(rule, start[0])
        plan = batches(data, task.training, key)
        if isinstance(rule, SGD) and rule.clip is None:
            result = together(data, start, (state, optimiser_state(rule, start[1])), plan)
        else:
            result = in_turn(data, start, state, plan)
        w, m, state, own_seen, shared_seen = result
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())
        info = {"train_loss": trained_loss(own_seen), "shared_loss": trained_loss(shared_seen)}
        return trained(Own(w, state)), Up(tree.sub(m, down.shared), weight), info

    def first_round(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        value = client.value if shared_model else client.value._replace(model=down.shared)
        return local(down, client._replace(value=value), data, key)

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value.model, x_B)  # [4]

    return Method(
        common.init,
        init_client,
        send,
        local,
        reduce.increment(),
        add,
        joins_by_training(first_round),
        predict,
        own_start=start == "own",
    )  # [3]
