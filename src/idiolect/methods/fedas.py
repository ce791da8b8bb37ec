"""FedAS: the received body is aligned with the client's own before it trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.method import SGD, ClientValue, Data, Down, Method, Model, Task, Up, Weights, keys, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batches,
    features,
    log_softmax_of,
    mean,
    prototypes,
    require_classes,
    rows,
    sgd,
    train_model,
    trained,
    untrained,
)

SEARCH = {"alignment_lr": "0.001..0.1:log", "alignment_epochs": "1..5"}
REPORTS = {
    "fisher": ClientValue(
        name="traces of the Fisher matrices",
        symbol="tr F",
        meaning="weight of a client's body in the server's mean",
        shows="whose bodies the server's mean is made of",
        ends="A client with a small trace hardly moves the shared body",
    )
}


def fedas(
    task: Task,
    *,
    alignment_lr: PositiveFloat = 0.01,
    alignment_epochs: NonNegativeInt = 1,
    alignment_batch: PositiveInt = 16,
    weighting: Literal["fisher", "samples", "uniform"] = "fisher",
    fisher_batch: PositiveInt | None = None,
    newcomer_head: Literal["average", "own"] = "average",
) -> Method:
    """FedAS: parameters are aligned on arrival, and clients weighted by Fisher information (Yang et al., CVPR 2024).

    Client, with the received body theta, its own body theta_i of its last round and its head phi_i:
        mu_c = mean of theta_i(x) over its samples of class c                                             [1]
        theta <- SGD(sum_c mean over its samples of class c in the batch of |theta(x) - mu_c|^2 / d)      [2]
        (theta_i, phi_i) <- SGD(CE) from (theta, phi_i)                                                   [3]
        f_i = sum over batches b of |grad of the mean CE of b at (theta_i, phi_i)|^2                      [4]
    Server, over the participants i of a round:
        theta <- theta + sum_i f_i (theta_i - theta) / sum_i f_i,  and the same of the heads, for new clients  [5]
    Personal: theta_i and phi_i of the client's last round                                                [6]

    Privacy makes every weight 1, also f_i: there the mean of [5] is uniform. Secure aggregation rounds f_i to 1e-9;
    where training has ended and f_i is not much larger, take ``weighting="samples"``.

    [2] moves the client's own copy of the body, by plain SGD. The sum over the classes of a batch is not divided, so a
    rare class weighs as much as a frequent one. A class that the client does not have adds nothing. The increment in
    [5] is from the body as it was sent.

    Up: the increments of body and head, weighted by f_i. Down: theta and the mean head. At the client: theta_i and
    phi_i; an absent client keeps them. Before its first round a client's body and head are those of the start. A new
    client, and one that was never drawn, has no body to align with: it trains the received body and the mean head for
    one round's local work.

    Args:
        task: the problem.
        alignment_lr: rate of [2] (released code: 0.01, a constant). A schedule of the study multiplies it too.
        alignment_epochs: passes of [2] (released code: 1); 0 leaves the received body as it is.
        alignment_batch: samples of a step of [2] (released code: 16, a constant).
        weighting: of the mean over bodies: by f_i, by n_i samples, or uniform. If all f_i are 0, the mean is uniform.
        fisher_batch: samples of a batch in [4]; None takes the task's batch size (released code). 1 sums over samples,
            which is the usual estimate of the trace of the Fisher matrix. Larger batches make f_i smaller.
        newcomer_head: where a new client's head starts: at the mean of the heads (the released code sends and averages
            them, and no client receives it), or at the common initial head. With "own" heads do not travel.

    Source: the paper's algorithm; released code (xiyuanyang45/FedAS) and PFLlib's version of it.
    Differs from source: in the released code the clients of a round align the server's own body, one after another, so
    that a client starts from what the one before it left. PFLlib's clients align copies, as here. The released code
    leaves out the samples that do not fill a batch (the task's ``drop_last``), in [1] too, and a client with fewer than
    16 samples is not aligned; here it is.
    """
    require_classes(task, "fedas", "it aligns the features of each class")
    network, training = task.network, task.training
    plain = SGD(alignment_lr, momentum=0.0, weight_decay=0.0)

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(network.init(key))

    def part_of(model: Model) -> Model:
        return model if newcomer_head == "average" else model._replace(head={})

    def init_server(key: Tensor) -> Model:
        return part_of(network.init(key))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def align(body: Weights, own: Weights, data: Data, key: Tensor) -> Weights:
        z_Nd, y_N = features(task, own, data)
        every = Batch(torch.arange(len(y_N)), data.real_N, 0)
        mean_Cd, _ = prototypes(z_Nd, y_N, [every], task.classes)  # [1]

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[()]]:
            x_B, y_B = rows(task, data, batch)
            gap_B = (network.features(body, task.inputs(x_B)) - mean_Cd[y_B]).square().mean(1)
            n_C = torch.zeros(task.classes).index_add(0, y_B, batch.used_B.to(gap_B.dtype))
            return gap_B @ (batch.used_B / n_C[y_B].clamp(min=1)), ()  # [2]

        plan = batches(data, replace(training, batch_size=alignment_batch), key, epochs=alignment_epochs)
        return sgd(loss, body, plan, plain)[0]  # [2]

    def trace(model: Model, data: Data, key: Tensor) -> Tensor:
        def error(model: Model, at_B: Tensor, used_B: Tensor) -> Tensor:
            x_B, y_B = tree.rows((data.x_R, data.y_R), data.row_N[at_B])
            return mean(task.loss(network(model, task.inputs(x_B)), y_B), used_B)

        square = torch.zeros(())
        for batch in batches(data, replace(training, batch_size=fisher_batch or training.batch_size), key, epochs=1):
            gradient = torch.func.grad(error)(model, batch.at_B, batch.used_B)
            square = square + tree.dot(gradient, gradient)  # [4]
        return square

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        own: Model = client.value
        body: Weights = down.shared.body
        if alignment_epochs:
            body = align(body, own.body, data, keys.fold(key, "alignment"))
        model, loss = train_model(task, Model(body, own.head), data, key)  # [3]
        info = {"train_loss": loss}
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())
        if weighting == "fisher":
            info["fisher"] = trace(model, data, keys.fold(key, "fisher"))
            weight = info["fisher"].clamp(min=1e-30)  # [5]
        return trained(model), Up(tree.sub(part_of(model), down.shared), weight), info

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        def joins() -> Personal:
            start = Model(down.shared.body, down.shared.head or client.value.head)
            model, _ = train_model(task, start, data, key)
            return Personal(model, client.trained)

        state: Personal = tree.when(client.trained, lambda: client, joins)
        return state

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value, x_B)  # [6]

    parts = reduce.increment(measured=weighting == "fisher")  # [5]
    return Method(init_server, init_client, send, local, parts, add, personalise, predict)
