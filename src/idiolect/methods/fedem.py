"""Federated expectation-maximisation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Tree, Up, keys, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    batches,
    log_softmax_of,
    mean,
    optimiser_state,
    row_losses,
    rows,
    sgd_from,
    trained,
    trained_loss,
    untrained,
)  # fmt: skip

PERSONAL = ("tuning_epochs", "joining_steps")
SEARCH = {"models": "2,3,4"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"keep_momentum": True, "joining_steps": 1}}
VARIANTS: dict[str, dict[str, Any]] = {
    "FedEM (M=3)": {"models": 3},
    "FedEM (M=5)": {"models": 5},
    "FedEM-FT (M=3)": {"models": 3, "tuning_epochs": None},
    "FedEM-FT (M=5)": {"models": 5, "tuning_epochs": None},
}


class Server(NamedTuple):
    """What the server keeps and sends."""

    models: Model
    """The components: every weight has a leading axis (M, ...)."""


class Client(NamedTuple):
    """What stays at a client."""

    pi_M: Tensor
    """The share of each component in its samples."""
    momentum: Tree = ()
    """The optimisers' states (M, ...), where they are kept."""
    models: Tree = ()
    """Tuned components (M, ...), in what ``personalise`` makes only."""


def fedem(
    task: Task,
    *,
    models: PositiveInt = 3,
    keep_momentum: bool = False,
    tuning_epochs: NonNegativeInt | None = 0,
    joining_steps: PositiveInt = 10,
) -> Method:
    """FedEM: a mixture of M shared models with every client's own weights (Marfoq et al., NeurIPS 2021).

    Client, with the received models w_1 .. w_M and its weights pi of before (1 / M at the start):
        q_m(x, y) = pi_m exp(-CE(x, y; w_m)) / sum_l pi_l exp(-CE(x, y; w_l)) for each of its samples  [1]
        pi_m <- mean of q_m over its n samples                                                         [2]
        w'_m <- SGD(1/B sum_b q_m(b) CE(b; w'_m)) from w_m, each m by itself, q fixed                  [3]
    Server:
        w_m <- w_m + sum_i n_i (w'_im - w_m) / sum_i n_i over the round's participants i               [4]
    Personal:
        p(y | x) = sum_m pi_m softmax_y(w_m; x), a mixture of probabilities                            [5]
        FedEM-FT: first w_m <- [3] for ``tuning_epochs`` with the q of [1], pi stays                   [6]
        a client that has never trained: pi by [1] and [2], ``joining_steps`` times from 1 / M         [7]

    Up: the increments w'_m - w_m, weighted by n. Down: the M models. At the client: pi, which is never sent. A new
    client, or one never drawn, needs forward passes only: its losses are computed once, so that the steps of [7] cost
    almost nothing.

    The M models start from independent draws, the first of them as the model of other methods.

    Memory, in models: server M, message M each way, client 0 (M with ``keep_momentum``); training holds one model at a
    time beside the M received and the M trained. Local work is M times that of FedAvg.

    Args:
        task: the problem.
        models: M, the number of components (FedPAC's comparison: 3 and 5; released code: 3).
        keep_momentum: each client keeps its M optimisers' momentum from round to round, although the weights are
            overwritten (released code: yes).
        tuning_epochs: epochs of tuning of all components in ``personalise``, as in FedPAC's FedEM-FT; None takes the
            local epochs.
        joining_steps: repetitions of [7] (released code: one in every evaluation, so that its number of steps depends
            on how often it is evaluated).

    Source: the paper's algorithm; the repository omarfoq/FedEM for the order of the steps. There pi and q come from the
    received models and the pi of the round before, and training follows; a test uses the new models with the pi of the
    round's start.
    Differs from source: the released server averages over all clients, with the old model for an absent one. With
    sampling it therefore moves only by the participants' share of the samples; here the mean is over the participants.
    Its tuned variant predicts with uniform weights (its copy of the mixture never gets pi) and keeps momentum between
    evaluations; here tuning uses the client's pi and a fresh optimiser. Its learning rate is divided by ten after half
    and again after three quarters of the rounds, counted in a client's own epochs; here optimiser and schedule are the
    task's.
    """

    def uniform() -> Tensor:
        return torch.full((models,), 1 / models)

    def init_server(key: Tensor) -> Server:
        return Server(tree.stack([task.network.init(k) for k in keys.members(key, models)]))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        one = optimiser_state(task.training.optimiser, task.network.init(key))
        return untrained(Client(uniform(), tree.stack([one] * models) if keep_momentum else ()))

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=server)

    def losses(components: Model, data: Data) -> Tensor:
        return torch.stack([row_losses(task, tree.rows(components, m), data) for m in range(models)], 1)

    def maximisation(
        components: Model, momentum: Tree, q_NM: Tensor, data: Data, key: Tensor, epochs: int | None = None
    ) -> tuple[Model, Tree, Tensor]:
        def train(m: int) -> tuple[Model, Tree, Tensor]:
            q_N = q_NM[:, m]

            def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
                x_B, y_B = rows(task, data, batch)
                error_B = task.loss(task.network(model, task.inputs(x_B)), y_B)
                value = mean(q_N[batch.at_B] * error_B, batch.used_B)  # [3]
                return value, (value, batch.used_B.sum())

            start = tree.rows(components, m)
            buffers = tree.rows(momentum, m) if momentum else optimiser_state(task.training.optimiser, start)
            plan = batches(data, task.training, keys.fold(key, m), epochs=epochs)
            model, buffers, extras = sgd_from(loss, start, buffers, plan, task.training.optimiser)  # [3]
            return model, buffers, trained_loss(extras)

        model_M, buffers_M, loss_M = zip(*(train(m) for m in range(models)), strict=True)
        return tree.stack(model_M), tree.stack(buffers_M), torch.stack(loss_M).sum()

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        components, own = down.shared.models, client.value
        q_NM, pi_M = expectation(own.pi_M, losses(components, data), data.real_N)
        new, buffers, loss = maximisation(components, own.momentum, q_NM, data, key)
        info = {"train_loss": loss} | {f"pi_{m}": pi_M[m] for m in range(models)}
        state = trained(Client(pi_M, buffers if keep_momentum else ()))
        return state, Up(tree.sub(new, components), data.real_N.sum()), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        return Server(tree.add(server.models, up.value)), {}  # [4]

    def join(loss_NM: Tensor, real_N: Tensor) -> Tensor:
        pi_M = uniform()
        for _ in range(joining_steps):  # [7]
            pi_M = expectation(pi_M, loss_NM, real_N)[1]
        return pi_M

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        components, own = down.shared.models, client.value
        pi_M = tree.when(client.trained, lambda: own.pi_M, lambda: join(losses(components, data), data.real_N))
        if tuning_epochs == 0:
            return Personal(own._replace(pi_M=pi_M), client.trained)
        q_NM, _ = expectation(pi_M, losses(components, data), data.real_N)  # [6]
        tuning = maximisation(components, (), q_NM, data, key, tuning_epochs)[0]  # [6]
        return Personal(Client(pi_M, own.momentum, tuning), client.trained)

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        components, pi_M = client.value.models or down.shared.models, client.value.pi_M
        logp_MBC = torch.stack([log_softmax_of(task, tree.rows(components, m), x_B) for m in range(models)])  # [5]
        return task.mixture(pi_M, logp_MBC)  # [5]

    return Method(init_server, init_client, send, local, reduce.increment(), aggregate, personalise, predict)  # [4]


def expectation(pi_M: Tensor, loss_NM: Tensor, real_N: Tensor) -> tuple[Tensor, Tensor]:
    """The share of each component in each sample, q (N, M), and the weights (M,) that follow."""
    q_NM = torch.softmax(pi_M.log() - loss_NM, 1)  # [1]
    return q_NM, (q_NM * real_N[:, None]).sum(0) / real_N.sum()  # [2]
