"""CCVR: federated averaging, and a head that is trained anew on features drawn from Gaussian classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, Weights, keys, reduce, tree, unchanged
from idiolect.statistics.covariance import pack, unpack
from idiolect.statistics.moments import weights_by_class
from idiolect.training import (
    Batch,
    cross_entropy_mean,
    features,
    log_softmax_of,
    require_classes,
    sgd,
    stateless,
    train_model,
)

SEARCH = {"per_class": "50..2000:log", "calibration_lr": "0.001..0.1:log"}
PRESETS: dict[str, dict[str, Any]] = {"flbench": {"covariance": "biased"}}

_ROUNDING = 1e-7  # eigenvalues below this share of the largest are rounding


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    calibrated: Model
    """The model of the round before, with its calibrated head."""
    key: Tensor
    """Of the next draw."""


class Shared(NamedTuple):
    """What the server sends."""

    model: Model
    calibrated: Model


class Report(NamedTuple):
    """What a client sends."""

    model: Model
    """The increment of the model."""
    mean_Cd: Tensor
    """Means of the features of each class, float64."""
    square_C: Tensor
    """Packed (C, d (d + 1) / 2): means of z z', float64."""


class Counts(NamedTuple):
    """What weighs it."""

    n: Tensor
    n_C: Tensor


def ccvr(
    task: Task,
    *,
    per_class: PositiveInt = 200,
    calibration_lr: PositiveFloat | None = None,
    calibration_epochs: PositiveInt = 1,
    covariance: Literal["unbiased", "biased"] = "unbiased",
) -> Method:
    """CCVR: the head is calibrated by virtual features of Gaussian classes (Luo et al., NeurIPS 2021).

    Client, with the received model w, whose features are z:
        n_ic, s_ic = mean of z, Q_ic = mean of z z' over its samples of class c                               [1]
        w_i <- SGD(CE) from w                                                                                 [2]
    Server, over the round's participants i, with n_c the sum of n_ic:
        mu_c = sum_i n_ic s_ic / n_c,   Q_c = sum_i n_ic Q_ic / n_c,
        S_c = n_c (Q_c - mu_c mu_c') / (n_c - 1)                            a class of two samples or more    [3]
        ``per_class`` virtual features of each class from N(mu_c, S_c)                                        [4]
        phi <- SGD(CE) on these from the head of w                                                            [5]
        w <- w + sum_i n_i (w_i - w) / sum_i n_i                                                              [6]
    Personal: the body of the w that [1] to [5] began with, and phi                                           [7]

    [3] is the covariance of all samples together, which is what the paper's sums of clients' means and covariances
    amount to. [5] does not go into w: the rounds are those of federated averaging.

    The method is one exchange after the last round, with all clients. Here it is part of every round: a round's
    statistics are of the model that it began with, and of its participants. So what is predicted with after T rounds
    is the calibrated model of T - 1 rounds. Run one more, and let all clients take part in it.

    Up: the increment w_i - w, weighted by n_i samples; s_ic (C, d) and Q_ic (C, d (d + 1) / 2), weighted by n_ic: large
    for many classes or features. Down: w; body and head of [7]. At the client: nothing. A new client takes the
    calibrated model as it is.

    Args:
        task: the problem.
        per_class: virtual features of each class (KarhouTam/FL-bench: 200; the paper tries hundreds to 2000).
        calibration_lr: rate of [5], in all rounds; None takes the task's. Momentum and decay are the task's. Weights of
            classes (``class_weights``) do not enter [5], in which all classes have as many samples.
        calibration_epochs: passes over the virtual features in [5] (FL-bench: 1).
        covariance: "biased" divides each client's covariance by n_ic in the formula for n_ic - 1 (FL-bench), so that
            S_c is too small.

    Source: the paper's algorithm 1 and equations 4 to 6; no code of its authors is known.
    Differs from source: when the exchange takes place, as said above. S_c of few samples is singular, and its symmetric
    root is taken without eigenvalues that are rounding. Virtual features are not clipped at 0, also after a relu.
    """
    require_classes(task, "ccvr", "it draws features of each class")
    network, rule = task.network, task.training.optimiser
    rule = rule if calibration_lr is None else replace(rule, lr=calibration_lr)

    def init_server(key: Tensor) -> Server:
        model = network.init(key)
        return Server(model, model, keys.fold(key, "virtual features"))

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=Shared(server.model, server.calibrated))

    def statistics(model: Model, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        z_Nd, y_N = features(task, model.body, data)
        z_Nd = torch.where(data.real_N[:, None] > 0, z_Nd, 0).double()
        hot_NC = weights_by_class(y_N, data.real_N, task.classes)
        n_C = hot_NC.sum(0)
        share_CN = hot_NC.T / n_C.clamp(min=1)[:, None]
        mean_Cd = share_CN @ z_Nd  # [1]
        square_Cdd = torch.stack([(z_Nd * share_N[:, None]).T @ z_Nd for share_N in share_CN])  # [1]
        if covariance == "biased":  # in [3] the same as n_ic in place of n_ic - 1 below each client's covariance
            spread_Cdd = square_Cdd - mean_Cd[:, :, None] * mean_Cd[:, None]
            square_Cdd = square_Cdd - spread_Cdd / n_C.clamp(min=1)[:, None, None]
        return n_C, mean_Cd, torch.stack([pack(square_dd) for square_dd in square_Cdd])

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        w: Model = down.shared.model
        n_C, *means = statistics(w, data)  # [1]
        model, loss = train_model(task, w, data, key)  # [2]
        return client, Up(Report(tree.sub(model, w), *means), Counts(data.real_N.sum(), n_C)), {"train_loss": loss}

    def calibrate(head: Weights, z_Md: Tensor, y_M: Tensor, key: Tensor) -> Weights:
        def loss(head: Weights, batch: Batch) -> tuple[Tensor, tuple[()]]:
            logit_BC = network.logits(head, z_Md[batch.at_B])
            return cross_entropy_mean(logit_BC, y_M[batch.at_B], batch.used_B), ()

        every = [*torch.split(torch.arange(len(y_M)), task.training.batch_size)] * calibration_epochs
        plan = [Batch(at_B, torch.ones(len(at_B)), step, key) for step, at_B in enumerate(every)]
        return sgd(loss, head, plan, rule)[0]  # [5]

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        report, n_C = up.value, up.weight.n_C
        body, head = server.model
        classes = (n_C > 1).nonzero()[:, 0]
        if len(classes):
            cov_Cdd = covariances(n_C, report.mean_Cd, report.square_C)  # [3]
            z_Md, y_M = draw(report.mean_Cd, cov_Cdd, classes, per_class, keys.fold(server.key, "draw"))  # [4]
            head = calibrate(head, z_Md.to(torch.get_default_dtype()), y_M, server.key)  # [5]
        model = tree.add(server.model, report.model)  # [6]
        return Server(model, Model(body, head), keys.fold(server.key, "next")), {}

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared.calibrated, x_B)  # [7]

    by_class = reduce.mean("n_C", exact=True)
    parts = Report(model=reduce.increment("n"), mean_Cd=by_class, square_C=by_class)  # [3] [6]
    return Method(init_server, stateless, send, local, parts, aggregate, unchanged, predict)


def covariances(n_C: Tensor, mean_Cd: Tensor, square_C: Tensor) -> Tensor:
    """Covariance (C, d, d) of each class, of n_C samples, from means of z and, packed, of z z'."""
    square_Cdd = torch.stack([unpack(square, mean_Cd.shape[1]) for square in square_C])
    scale_C = n_C / (n_C - 1).clamp(min=1)
    return scale_C[:, None, None] * (square_Cdd - mean_Cd[:, :, None] * mean_Cd[:, None])


def draw(mean_Cd: Tensor, cov_Cdd: Tensor, classes: Tensor, count: int, key: Tensor) -> tuple[Tensor, Tensor]:
    """So many features of each of these classes, and their labels, in a random order."""
    value_Cd, vector_Cdd = torch.linalg.eigh(cov_Cdd[classes])
    # a covariance of few samples has eigenvalues of 0, and the root of what rounding makes of these would be noise
    value_Cd = value_Cd.clamp(min=0)
    value_Cd = torch.where(value_Cd > _ROUNDING * value_Cd.amax(1, keepdim=True), value_Cd, 0)
    root_Cdd = (vector_Cdd * value_Cd.sqrt()[:, None]) @ vector_Cdd.mT
    noise_CMd = keys.normal(key, (len(classes), count, mean_Cd.shape[1]), mean_Cd.dtype)
    z_Md = (mean_Cd[classes][:, None] + noise_CMd @ root_Cdd).flatten(0, 1)
    order_M = keys.order(keys.fold(key, "order"), torch.ones(len(z_Md)))
    return z_Md[order_M], classes.repeat_interleave(count)[order_M]
