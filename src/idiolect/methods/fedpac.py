"""FedPAC: feature alignment and classifier collaboration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import log_softmax

from idiolect.core.method import Data, Down, Method, PairValue, Reduced, Task, Up, Weights, keys, reduce, tree
from idiolect.statistics.head_combination import combination_weights
from idiolect.statistics.moments import weights_by_class
from idiolect.training import (
    Batch,
    batch_features,
    batches,
    cross_entropy_mean,
    features,
    mean,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    stateless,
    trained_loss,
)

PERSONAL = ("tuning_epochs",)
SEARCH = {"alignment": "0.1..10:log", "head_lr": "0.01..0.3:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"align_first_round": True, "threshold": 0.0},
    "official": {"align_first_round": False},
}
REPORTS = {
    "combination": PairValue(
        name="combination weights",
        shows="whose heads each client combines",
        colours="Each row is a receiving client, its colours the weights of the heads given to it",
        row="receives a combined head",
        column="gives its head",
        value="weight",
        own="a client's own head carries {} of its combined head",
    )
}


class Server(NamedTuple):
    """What the server keeps."""

    body: Weights
    heads: Weights
    """Combined heads, one row per client."""
    newcomer: Weights
    """The mean of the last round's heads, for a client never seen."""
    centroid_Cd: Tensor
    known_C: Tensor
    """1 for a class whose centroid has been seen."""


class Shared(NamedTuple):
    """What the server sends to all."""

    body: Weights
    centroid_Cd: Tensor
    known_C: Tensor


class Report(NamedTuple):
    """What a client sends."""

    body: Weights
    """Increment of the body."""
    head: Weights
    sum_Cd: Tensor
    """Sum of the new body's features per class."""
    h_Cd: Tensor
    """p_c mu_c under the received body."""
    variance: Tensor
    """V / n under the received body."""


class Counts(NamedTuple):
    """What weighs it."""

    n: Tensor
    n_C: Tensor


def fedpac(
    task: Task,
    *,
    alignment: NonNegativeFloat = 1.0,
    collaboration: bool = True,
    head_lr: PositiveFloat = 0.1,
    head_epochs: PositiveInt = 1,
    threshold: NonNegativeFloat = 1e-3,
    align_first_round: bool = False,
    tuning_epochs: NonNegativeInt = 0,
    statistics: Literal["augmented", "clean"] = "augmented",
) -> Method:
    """FedPAC: feature alignment and classifier collaboration (Xu, Tong & Huang, ICLR 2023).

    Client, with the received body theta, its own combined head phi_i and the global centroids c:
        h_i = (p_c mu_c)_c,  V_i / n_i = (E|z|^2 - |h_i|^2) / n_i    p_c = n_ic / n_i; under theta
        (Eqs. 34, 44)                                                                        [1]
        phi_i <- SGD(CE), theta frozen                     ``head_epochs`` at ``head_lr``    (Eq. 15)       [2]
        theta_i <- SGD(CE + alignment |z - c_y|^2 / d), phi_i frozen                         (Eqs. 3, 16)   [3]
        s_i = sum of z per class under theta_i             n_ic times the client's centroid  (Eq. 17)       [4]
    Server:
        theta <- sum_i n_i theta_i / sum_i n_i,    c <- sum_i s_i / sum_i n_ic               (Eqs. 18, 19)  [5]
        phi_i <- sum_j a_ij phi_j                                                            (Eq. 4)        [6]
        a_i = argmin over the simplex of a' (diag(V_j / n_j) + Gram of (h_i - h_j)_j) a      (Eqs. 11, 46)  [7]
        a new client gets sum_i n_i phi_i / sum_i n_i, before [6]                                           [8]

    Up: increment of theta, phi, s (C, d), h (C, d), V / n; weighted by n and n_c. Down: theta, c (C, d) and which
    classes have one; per client its head. At the client: nothing. The personal model is the global body with the
    combined head. The server keeps one head per client: one that was never drawn has the head of the start, also where
    it is measured. A class that no participant has keeps its last centroid. For a class without one, a client uses its
    own mean feature before training.

    Args:
        task: the problem.
        alignment: lambda, the weight of the alignment term; 0 turns it off (ablation).
        collaboration: False leaves every client its own head (ablation).
        head_lr: learning rate of the head phase; otherwise the optimiser is the task's (for Adam, take less).
        head_epochs: epochs of the head phase.
        threshold: combination weights below it become 0 and the rest is renormalised (released code: 1e-3; the paper
            has none).
        align_first_round: whether to align in the first round, to the client's own means (released code: no; the paper
            aligns to a first c that it does not define).
        tuning_epochs: epochs of head-only tuning in ``personalise``, from the combined head (the paper's numbers fit
            0).
        statistics: where images are augmented: [1] and [4] use augmented images (released code), or the samples as they
            are.

    Source: Algorithm 1; appendix A.5, which takes the identity for the covariance of the features (Eq. 43).
    Differs from source: the released code solves the quadratic programme in float32 and rebuilds a matrix with a
    negative eigenvalue from eigenvalues of at least 0.01; here it is solved in float64, where a negative eigenvalue is
    rounding and counts as 0. The released code stops at a class that no participant has.
    """
    require_classes(task, "fedpac", "its clients pull features towards class means and combine heads by class")
    require_unweighted(task, "fedpac")
    network, rule = task.network, task.training.optimiser

    def init_server(key: Tensor) -> Server:
        model = network.init(key)
        heads = tree.map(lambda w: w.expand(task.clients, *w.shape).clone(), model.head)
        zero_Cd = torch.zeros(task.classes, network.width)
        return Server(model.body, heads, model.head, zero_Cd, torch.zeros(task.classes))

    def send(server: Server, ids: Tensor) -> Down:
        old = ids < task.clients
        at = torch.where(old, ids, 0)
        own = tree.map(
            lambda a, new: torch.where(old.view(-1, *[1] * new.ndim), a[at], new), server.heads, server.newcomer
        )
        return Down(Shared(server.body, server.centroid_Cd, server.known_C), own)

    def all_features(body: Weights, data: Data, key: Tensor) -> tuple[Tensor, Tensor]:
        return features(task, body, data, augmented=key if statistics == "augmented" else None)

    def train_head(head: Weights, features_of: Callable[[Batch], tuple[Tensor, Tensor]], plan: list[Batch]) -> Weights:
        def loss(head: Weights, batch: Batch) -> tuple[Tensor, tuple[()]]:
            z_Bd, y_B = features_of(batch)
            return cross_entropy_mean(network.logits(head, z_Bd), y_B, batch.used_B), ()

        return sgd(loss, head, plan, replace(rule, lr=head_lr))[0]

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        body, centroid_Cd, known_C = down.shared
        z_Nd, y_N = all_features(body, data, keys.fold(key, "received"))
        n_C, sum_Cd = class_sums(z_Nd, y_N, data.real_N)
        n = n_C.sum()
        h_Cd = sum_Cd / n  # [1]
        square_N = z_Nd.double().square().sum(1) * data.real_N
        variance = (square_N.sum() / n - h_Cd.double().square().sum()) / n  # [1]

        plan = batches(data, task.training, keys.fold(key, "head"), epochs=head_epochs)
        head = train_head(down.own, batch_features(task, body, data, known=(z_Nd, y_N)), plan)  # [2]

        own_Cd = sum_Cd / n_C.clamp(min=1)[:, None]
        target_Cd = torch.where(known_C[:, None] > 0, centroid_Cd, own_Cd)
        pull = alignment if align_first_round else alignment * known_C.amax()  # [3]

        def body_loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(body, task.inputs(x_B))
            error = cross_entropy_mean(network.logits(head, z_Bd), y_B, batch.used_B)
            distance = mean((z_Bd - target_Cd[y_B]).square().mean(1), batch.used_B)  # [3]
            return error + pull * distance, (error, batch.used_B.sum())  # [3]

        new, extras = sgd(body_loss, body, batches(data, task.training, keys.fold(key, "body")), rule)  # [3]
        _, new_sum_Cd = class_sums(all_features(new, data, keys.fold(key, "trained"))[0], y_N, data.real_N)  # [4]
        report = Report(tree.sub(new, body), head, new_sum_Cd, h_Cd, variance.to(h_Cd.dtype))
        return client, Up(report, Counts(n, n_C)), {"train_loss": trained_loss(extras)}

    def class_sums(z_Nd: Tensor, y_N: Tensor, real_N: Tensor) -> tuple[Tensor, Tensor]:
        hot_NC = weights_by_class(y_N, real_N, task.classes).to(z_Nd.dtype)
        return hot_NC.sum(0), hot_NC.T @ z_Nd

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        report, n_C = up.value, up.weight.n_C
        present_C = n_C > 0
        mean_Cd = report.sum_Cd / n_C.clamp(min=1)[:, None]  # [5]
        centroid_Cd = torch.where(present_C[:, None], mean_Cd, server.centroid_Cd)
        share_mm = combination(report) if collaboration else torch.eye(len(ids)).to(n_C)
        head = tree.map(lambda w: torch.tensordot(share_mm, w, 1), report.head)  # [6]
        heads = tree.map(lambda old, new: old.index_copy(0, ids, new), server.heads, head)
        newcomer = tree.mean(report.head, up.weight_m.n)  # [8]
        known_C = torch.maximum(server.known_C, present_C.to(server.known_C.dtype))
        server = Server(tree.add(server.body, report.body), heads, newcomer, centroid_Cd, known_C)  # [5]
        return server, {"combination": share_mm}

    def combination(report: Report) -> Tensor:
        weight_mm, _ = combination_weights(
            report.h_Cd.double().numpy(), report.variance.double().numpy(), threshold=threshold
        )  # [7]
        share_mm = torch.from_numpy(weight_mm)
        return (share_mm / share_mm.sum(1, keepdim=True)).to(report.h_Cd.dtype)

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        if not tuning_epochs:
            return client
        features_of = batch_features(task, down.shared.body, data)
        return train_head(down.own, features_of, batches(data, task.training, key, epochs=tuning_epochs))

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        z_Bd = network.features(down.shared.body, task.inputs(x_B))
        return log_softmax(network.logits(client or down.own, z_Bd), -1)

    parts = Report(
        body=reduce.increment("n"), head=reduce.each(), sum_Cd=reduce.sum(), h_Cd=reduce.each(), variance=reduce.each()
    )  # [5] [6] [7]
    return Method(init_server, stateless, send, local, parts, aggregate, personalise, predict)
