"""Fed-RoD: a generic predictor by balanced risk, and a personal head on top of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import linear, log_softmax, relu

from idiolect.core.method import Data, Down, Method, Model, Task, Tree, Up, Weights, keys, new_linear, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batches,
    class_counts,
    cross_entropy_mean,
    joins_by_training,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)


class Hypernetwork(NamedTuple):
    """Class shares (C,) -> H hidden units -> the weights of a linear layer d -> C."""

    hidden: Weights
    slope: Weights
    """weight (C, d, H) and bias (C, H): what each hidden unit adds to the layer."""
    base: Weights
    """weight (C, d) and bias (C,)."""


class Shared(NamedTuple):
    """What the server keeps and sends, and what a client sends the increments of."""

    model: Model
    """Body and generic head."""
    hyper: Tree
    """``Hypernetwork``, or () where every client trains a layer of its own."""


def fedrod(
    task: Task,
    *,
    personal_head: Literal["linear", "hypernetwork"] = "linear",
    hidden: PositiveInt = 32,
) -> Method:
    """Fed-RoD: generic model by balanced softmax, personal head as its residual (Chen & Chao, ICLR 2022).

    Client, with the received body theta and generic head phi, and its personal head psi_i:
        (theta_i, phi_i) <- SGD(CE(phi(z) + log n_i, y)), a class without samples left out          [1]
        psi_i <- SGD(CE(sg(phi(z)) + psi_i(sg(z)), y)), on the same batches                         [2]
    Server, over the round's participants i:
        (theta, phi) <- (theta, phi) + sum_i n_i ((theta_i, phi_i) - (theta, phi)) / sum_i n_i      [3]
    Personal:
        log p(y | x) = log softmax(phi(z) + psi_i(z))                                               [4]
        psi_i = A_0 + sum_h A_h relu(U p_i + u)_h,  p_ic = n_ic / n_i,  with ``hypernetwork``       [5]

    with z = theta(x), n_ic the client's samples of class c, psi_i linear d -> C, and sg() constant for the gradient. A
    bound on the gradient norm, where the task has one, is one for both steps together.

    Up: the increment of (theta, phi), weighted by n_i. Down: theta, phi. At the client: psi_i, zero until its first
    round, so that the first personal prediction is the generic one. A new client does one round's local work and keeps
    psi_i. With a hypernetwork U, u and A travel and are averaged with theta and phi, nothing stays at the client, and
    a new client joins by counting its classes.

    Args:
        task: the problem.
        personal_head: "linear" trains psi_i itself and keeps it at the client; "hypernetwork" makes it from the
            client's class shares and trains U, u and A by [2].
        hidden: H, units of the hypernetwork.

    Source: the paper's definition as it is commonly implemented. The authors' repository holds no code, and published
    implementations differ: whether the generic loss is a balanced softmax or inverse-count weights, and whether the
    personal loss reaches the body. FedPAC and pFedFDA, which compare with it, name no settings.
    Differs from source: psi_i starts at zero, where another implementation copies the generic head. The hypernetwork's
    form, one hidden layer whose output layer starts at zero, is a choice made here.
    """
    require_classes(task, "fedrod", "its loss is balanced by the counts of the classes")
    require_unweighted(task, "fedrod")
    network, classes = task.network, task.classes
    hypernetwork = personal_head == "hypernetwork"
    zero = {"weight": torch.zeros(classes, network.width), "bias": torch.zeros(classes)}

    def init_server(key: Tensor) -> Shared:
        if not hypernetwork:
            return Shared(network.init(key), ())
        first = new_linear(keys.fold(key, "hypernetwork"), classes, hidden)
        slope = tree.map(lambda w: w.new_zeros(*w.shape, hidden), zero)
        return Shared(network.init(key), Hypernetwork(first, slope, tree.zeros(zero)))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(() if hypernetwork else tree.zeros(zero))

    def generate(hyper: Hypernetwork, n_C: Tensor) -> Weights:
        unit_H = relu(linear(n_C / n_C.sum(), **hyper.hidden))  # [5]
        head: Weights = tree.map(lambda base, slope: base + slope @ unit_H, hyper.base, hyper.slope)  # [5]
        return head

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        n_C = class_counts(task, data)
        # the lowest number, not minus infinity: exp() gives the same 0, and the loss of padding times 0 is not NaN
        log_n_C = torch.where(n_C > 0, n_C.clamp(min=1).log(), torch.finfo(n_C.dtype).min)  # [1]

        def loss(weights: tuple[Model, Tree], batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            model, own = weights
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(model.body, task.inputs(x_B))
            logit_BC = network.logits(model.head, z_Bd)
            generic = cross_entropy_mean(logit_BC + log_n_C, y_B, batch.used_B)  # [1]
            head = generate(own, n_C) if hypernetwork else own
            sum_BC = logit_BC.detach() + linear(z_Bd.detach(), **head)  # [2]
            personal = cross_entropy_mean(sum_BC, y_B, batch.used_B)  # [2]
            return generic + personal, (personal, batch.used_B.sum(), generic)  # [1] [2]

        start = (down.shared.model, down.shared.hyper if hypernetwork else client.value)
        (model, own), extras = sgd(loss, start, batches(data, task.training, key), task.training.optimiser)  # [1] [2]
        info = {
            "train_loss": trained_loss([s[:2] for s in extras]),
            "generic_loss": trained_loss([(s[2], s[1]) for s in extras]),
        }
        new = Shared(model, own if hypernetwork else ())
        return client if hypernetwork else trained(own), Up(tree.sub(new, down.shared), data.real_N.sum()), info

    def from_shares(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        return Personal(generate(down.shared.hyper, class_counts(task, data)), client.trained)

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        model = down.shared.model
        z_Bd = network.features(model.body, task.inputs(x_B))
        logit_BC = network.logits(model.head, z_Bd)  # [4]
        if client.value:
            logit_BC = logit_BC + linear(z_Bd, **client.value)  # [4]
        return log_softmax(logit_BC, -1)  # [4]

    personalise = from_shares if hypernetwork else joins_by_training(local)
    return Method(init_server, init_client, send, local, reduce.increment(), add, personalise, predict)  # [3]
