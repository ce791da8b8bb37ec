"""FedLC: federated averaging with logits that are calibrated to each client's classes."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task, Up, reduce, tree, unchanged
from idiolect.training import (
    Batch,
    add,
    batches,
    class_counts,
    cross_entropy_mean,
    log_softmax_of,
    mean,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    stateless,
    trained_loss,
)

SEARCH = {"tau": "0.1..2:log"}
PRESETS: dict[str, dict[str, Any]] = {"paper": {"sum_over": "others"}}


def fedlc(task: Task, *, tau: NonNegativeFloat = 1.0, sum_over: Literal["all", "others"] = "all") -> Method:
    """FedLC: rare classes of a client need a larger margin in its training (Zhang et al., ICML 2022).

    Client, with n_ic samples of class c:
        m_ic = tau n_ic^(-1/4)                        infinite for a class that it does not have              [1]
        w_i <- SGD of log sum_c exp(l_c - m_ic) - (l_y - m_iy) from w       l: the logits of a sample         [2]
        the sum in [2] is over all classes, or over those other than y                                        [3]
    Server, over the round's participants i:
        w <- w + sum_i n_i (w_i - w) / sum_i n_i                                                              [4]
    Personal: w, without margins

    A class that a client does not have is thus left out of [2], and its logits get no gradient there. With
    tau = 0 nothing else is left of the method.

    Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client: nothing. A new client takes the global
    model as it is.

    Args:
        task: the problem.
        tau: of the margins (public code: 1).
        sum_over: "all" is the cross-entropy of l - m; "others" is the paper's formula (``preset="paper"``).

    Source: the paper's equation 8; no code of its authors is known. KarhouTam/FL-bench and makgyver/fluke have "all".
    Differs from source: the default keeps a sample's own class in the sum. Without it the loss has no lower bound and
    its gradient never becomes 0: logits grow without end, and users of public code report that it diverges. A client of
    a single class has no others; its samples then have loss 0. FL-bench gives an absent class the margin 100 tau, which
    is the same at tau = 1 and is not at tau = 0.01. TsingZ0/PFLlib takes the counts of all clients together, so that
    every client has the same margins; this is another method, for which a server must know all counts before the first
    round, and is left out.
    """
    require_classes(task, "fedlc", "its margins are of classes")
    require_unweighted(task, "fedlc")
    network = task.network

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        n_C = class_counts(task, data)
        margin_C = tau * n_C.clamp(min=1) ** -0.25  # [1]
        # the lowest number, not minus infinity: exp() gives the same 0, and the loss of padding times 0 is not NaN
        least = torch.finfo(n_C.dtype).min / 2
        alone = (n_C > 0).sum() < 2

        def of_others(logit_BC: Tensor, y_B: Tensor) -> Tensor:
            own_BC = y_B[:, None] == torch.arange(task.classes, device=y_B.device)
            others_B = torch.where(own_BC, least, logit_BC).logsumexp(-1)  # [3]
            own_B = torch.where(own_BC, logit_BC, 0).sum(-1)
            return torch.where(alone, 0, others_B - own_B)  # [2]

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            logit_BC = network(model, task.inputs(x_B))
            logit_BC = torch.where(n_C > 0, logit_BC - margin_C.to(logit_BC.dtype), least)  # [1]
            if sum_over == "others":
                error = mean(of_others(logit_BC, y_B), batch.used_B)  # [2]
            else:
                error = cross_entropy_mean(logit_BC, y_B, batch.used_B)  # [2]
            return error, (error, batch.used_B.sum())

        model, extras = sgd(loss, down.shared, batches(data, task.training, key), task.training.optimiser)  # [2]
        return client, Up(tree.sub(model, down.shared), data.real_N.sum()), {"train_loss": trained_loss(extras)}

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared, x_B)

    return Method(network.init, stateless, send, local, reduce.increment(), add, unchanged, predict)  # [4]
