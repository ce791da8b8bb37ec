"""FD: clients teach each other by what their models predict for each class on average."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, reduce
from idiolect.statistics.moments import weights_by_class
from idiolect.training import (
    Batch,
    Personal,
    batches,
    joins_by_training,
    log_softmax_of,
    mean,
    require_classes,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"distillation": "0.01..10:log"}
PRESETS: dict[str, dict[str, Any]] = {"pfllib": {"outputs": "logits", "teachers": "all"}}


class Teacher(NamedTuple):
    """What the server keeps and sends."""

    output_CC: Tensor
    """For each class the mean output of the participants that had it, in the last round in which somebody had."""
    clients_C: Tensor
    """How many these were; 0 for a class that nobody has had."""
    round_C: Tensor
    """The round that they are of."""
    round: Tensor
    """How many rounds there were."""


class Client(NamedTuple):
    """What a client keeps."""

    model: Model
    output_CC: Tensor
    """What it sent in its last round, for its classes."""
    has_C: Tensor
    round: Tensor
    """Which round that was, as the server counts; -1 before the first."""


def fd(
    task: Task,
    *,
    distillation: NonNegativeFloat = 1.0,
    outputs: Literal["probabilities", "logits"] = "probabilities",
    teachers: Literal["others", "all"] = "others",
    distance: Literal["cross_entropy", "squared_error"] = "cross_entropy",
) -> Method:
    """FD: federated distillation of mean outputs by class; no weights travel (Jeong et al., arXiv 2018).

    Client, with its own model w_i and the received outputs F of the clients that have each class:
        w_i <- SGD(CE(w_i(x), y) + distillation D(w_i(x), T_y)); no second term for a class without T         [1]
        T_y = (M_y F_y - F_iy) / (M_y - 1), or F_y         M_y clients, this one among them                   [2]
        F_ic = mean of w_i(x) over the samples of class c seen in the round, each before its step             [3]
    Server, over the round's participants i that have class c:
        F_c <- sum_i F_ic / M_c                                                                               [4]
    Personal: w_i

    w_i(x) are probabilities, T_y is one distribution over the classes for all samples of class y, and D is the
    cross-entropy. A class that no participant has keeps its last F. A client whose F_i is not in F, because it did not
    take part in that round, takes F_y as it is; one that is F alone has no teacher for that class.

    Up: F_i (C, C), weighted 1 for the classes that it has. Down: F (C, C), M (C), and of which round each is. At the
    client: w_i, F_i and which classes it has. A new client does one round's local work from the start common to all.

    Args:
        task: the problem.
        distillation: gamma, the weight of the second term (TsingZ0/PFLlib: 1; the paper names no value).
        outputs: what w_i(x) is in [2] to [4]: probabilities, or logits (PFLlib).
        teachers: whose outputs T_y is of: the other clients', or all, the client's own among them (PFLlib).
        distance: D in [1]: the cross-entropy, in which a T_y of logits counts by its softmax; or the mean over classes
            of (w_i(x) - T_y)^2 (FedDistill, as an older PFLlib named the method).

    Source: the paper's algorithm 1 and section 2; no code of its authors is known.
    Differs from source: the paper's data augmentation by a generator (FAug) is another part, and is left out. Its
    clients all take part in every round.
    """
    require_classes(task, "fd", "its clients share a mean output of each class")
    network, classes = task.network, task.classes

    def init_server(key: Tensor) -> Teacher:
        zero_C = torch.zeros(classes)
        return Teacher(torch.zeros(classes, classes), zero_C, zero_C.clone(), torch.zeros(()))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        nothing = torch.zeros(classes, classes), torch.zeros(classes), torch.full((), -1.0)
        return untrained(Client(network.init(key), *nothing))

    def send(server: Teacher, ids: Tensor) -> Down:
        return Down(shared=server)

    def targets(teacher: Teacher, client: Client) -> tuple[Tensor, Tensor]:
        """T (C, C), and 1 for the classes that have one."""
        mean_CC, count_C = teacher.output_CC, teacher.clients_C
        if teachers == "others":
            own_C = client.has_C * (teacher.round_C == client.round)
            count_C = count_C - own_C
            total_CC = mean_CC * teacher.clients_C[:, None] - client.output_CC * own_C[:, None]
            mean_CC = torch.where(own_C[:, None] > 0, total_CC / count_C.clamp(min=1)[:, None], mean_CC)  # [2]
        if outputs == "logits" and distance == "cross_entropy":
            mean_CC = mean_CC.softmax(-1)
        return mean_CC, (count_C > 0).to(mean_CC.dtype)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        target_CC, known_C = targets(down.shared, client.value)

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            logit_BC = network(model, task.inputs(x_B))
            logp_BC = logit_BC.log_softmax(-1)
            output_BC = logit_BC if outputs == "logits" else logp_BC.exp()
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            if distance == "cross_entropy":
                far_B = -(target_CC[y_B] * logp_BC).sum(-1)
            else:
                far_B = (output_BC - target_CC[y_B]).square().mean(-1)
            far = mean(far_B * known_C[y_B], batch.used_B)
            hot_BC = weights_by_class(y_B, batch.used_B, classes).to(logit_BC.dtype)
            sum_CC = hot_BC.T @ output_BC  # [3]
            return error + distillation * far, (error, batch.used_B.sum(), far, sum_CC, hot_BC.sum(0))  # [1]

        plan = batches(data, task.training, key)
        model, extras = sgd(loss, client.value.model, plan, task.training.optimiser)  # [1]
        sum_CC, n_C = (torch.stack([s[part] for s in extras]).sum(0) for part in (3, 4))
        own_CC, has_C = sum_CC / n_C.clamp(min=1)[:, None], (n_C > 0).to(sum_CC.dtype)  # [3]
        info = {
            "train_loss": trained_loss([s[:2] for s in extras]),
            "distillation": trained_loss([(s[2], s[1]) for s in extras]),
        }
        return trained(Client(model, own_CC, has_C, down.shared.round)), Up(own_CC, has_C), info

    def aggregate(server: Teacher, up: Reduced, ids: Tensor) -> tuple[Teacher, dict[str, Tensor]]:
        new_C = (up.weight > 0) & (up.value != 0).any(1)  # 0 where a robust rule trusts no client with a class
        output_CC = torch.where(new_C[:, None], up.value, server.output_CC)  # [4]
        clients_C = torch.where(new_C, up.weight, server.clients_C)
        return Teacher(output_CC, clients_C, torch.where(new_C, server.round, server.round_C), server.round + 1), {}

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value.model, x_B)

    parts = reduce.mean(exact=teachers == "others")  # [4]; [2] takes out of it what the client has sent
    return Method(init_server, init_client, send, local, parts, aggregate, joins_by_training(local), predict)
