"""FedTGP: clients send prototypes, and the server trains common ones that are far apart."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, log_softmax, relu

from idiolect.core.method import (
    SGD,
    Data,
    Down,
    Method,
    Model,
    Reduced,
    Task,
    Up,
    Weights,
    keys,
    new_linear,
    reduce,
    tree,
)
from idiolect.training import (
    Batch,
    Personal,
    batches,
    batches_of_pairs,
    features,
    log_softmax_of,
    mean,
    pairs,
    prototypes,
    require_classes,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
    upload,
)

PERSONAL = ("predict_with", "joining_epochs")
SEARCH = {"alignment": "0.1..10:log", "server_lr": "0.003..0.1:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"collected": "before"}}


class Generator(NamedTuple):
    """A trainable vector for each class, two linear layers d -> d with relu between: the common prototypes."""

    embedding_Cd: Tensor
    first: Weights
    second: Weights


class Server(NamedTuple):
    """What the server keeps."""

    generator: Generator
    begun: Tensor
    """0 before the first uploads, then 1."""


class Shared(NamedTuple):
    """What the server sends."""

    prototype_Cd: Tensor
    begun: Tensor


def fedtgp(
    task: Task,
    *,
    alignment: NonNegativeFloat = 10.0,
    margin: PositiveFloat = 100.0,
    server_lr: PositiveFloat = 0.01,
    server_epochs: PositiveInt = 100,
    collected: Literal["after", "before"] = "after",
    predict_with: Literal["prototypes", "head"] = "prototypes",
    joining_epochs: PositiveInt | None = 20,
) -> Method:
    """FedTGP: common prototypes that the server trains to be far apart (Zhang et al., AAAI 2024).

    Client, with its own model w_i (features z, d of them) and the received prototypes P:
        w_i <- SGD(CE + alignment |z - P_y|^2 / d) from w_i; no second term in the first round           [1]
        p_ic = mean of z over its samples of class c                                                     [2]
    Server, over the pairs (p_ic, c) of the participants i:
        Q_c = mean_i p_ic,   g_c = min over c' of |Q_c - Q_c'|,   a = min(max_c g_c, margin)             [3]
        G <- SGD(CE(-|p_ic - P_k| - a [k = c] over all classes k, c)) from G,   ``server_epochs``        [4]
        P = G: an embedding of each class, then linear, relu, linear                                     [5]
    Personal:
        log p(y | x) = log softmax(-|z - P_c|) over all classes, or log softmax(head(z))                 [6]

    A class of which no participant has a prototype gets the least g. Where there is only one class, a = margin. P has a
    prototype of every class, also of one that no client has. The optimiser of [4] is plain SGD: no momentum, no decay;
    its batches are of the study's batch size. Pairs come in a random order, the same in every pass; that of the
    clients' numbers where the study does not shuffle. With the study's drop_last, [2] too leaves out the samples that
    fill no batch.

    Up: p_i (C, d) and which classes it has; the server needs those of each client. Down: P (C, d). At the client: w_i.
    Messages know nothing of the network but the number of features. A new client, and one that was never drawn, trains
    by [1] from the common start for ``joining_epochs`` and keeps its model.

    Args:
        task: the problem.
        alignment: lambda (released script: 10).
        margin: tau, the most that a may be (released script: 100).
        server_lr: of [4].
        server_epochs: passes over the pairs in a round (released script: 100, its default: 1000).
        collected: whether [2] is of the trained model (paper), or of the model before the round's training (released
            code, which stores the trained model only after it has collected the prototypes).
        predict_with: the nearest prototype, or the head, which otherwise serves training alone. Probabilities by
            prototypes are those that the server trains for, without the margin.
        joining_epochs: of [1] at a client that has not trained, whose network is new; None: the local epochs.

    Source: the paper's algorithm; released code TsingZ0/FedTGP.
    Differs from source: every client starts from one common model; in the released code each starts from its own. The
    released code computes distances by a formula that may be below 0 before the root; here they are the roots of sums
    of squares, with a slope of 0 at 0. It leaves out an incomplete last batch, which is the study's drop_last.
    """
    require_classes(task, "fedtgp", "its clients share a prototype of each class")
    network, training, classes = task.network, task.training, task.classes
    rule = SGD(lr=server_lr, momentum=0.0, weight_decay=0.0)

    def init_server(key: Tensor) -> Server:
        d = network.width
        embedding_Cd = keys.normal(keys.fold(key, "embedding"), (classes, d))
        first, second = (new_linear(keys.fold(key, part), d, d) for part in ("first", "second"))
        return Server(Generator(embedding_Cd, first, second), torch.zeros(()))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(network.init(key))

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=Shared(prototypes_of(server.generator), server.begun))

    def train(
        down: Down, start: Model, data: Data, key: Tensor, epochs: int | None = None
    ) -> tuple[Model, dict[str, Tensor]]:
        target_Cd, begun = down.shared

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(model.body, task.inputs(x_B))
            error = mean(task.loss(network.logits(model.head, z_Bd), y_B), batch.used_B)
            apart = begun * mean((z_Bd - target_Cd[y_B]).square().mean(1), batch.used_B)
            return error + alignment * apart, (error, batch.used_B.sum(), apart)  # [1]

        model, seen = sgd(loss, start, batches(data, training, key, epochs=epochs), training.optimiser)  # [1]
        return model, {
            "train_loss": trained_loss([s[:2] for s in seen]),
            "alignment": trained_loss([(s[2], s[1]) for s in seen]),
        }

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model, info = train(down, client.value, data, key)
        body = (model if collected == "after" else client.value).body
        plan = batches(data, training, keys.fold(key, "prototypes"), epochs=1)
        mean_Cd, known_C = prototypes(*features(task, body, data), plan, classes)  # [2]
        return trained(model), upload(mean_Cd, known_C, key), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        p_Pd, y_P = pairs(up, shuffle=training.shuffle)
        _, least = gaps(up.value, up.weight_m.known_C, margin)  # [3]

        def loss(generator: Generator, batch: Batch) -> tuple[Tensor, tuple[()]]:
            y_B, apart_BC = y_P[batch.at_B], distances(p_Pd[batch.at_B], prototypes_of(generator))
            return cross_entropy(-apart_BC - least * torch.eye(classes).to(apart_BC)[y_B], y_B), ()  # [4]

        plan = batches_of_pairs(len(y_P), training.batch_size, server_epochs)
        return Server(sgd(loss, server.generator, plan, rule)[0], torch.ones(())), {}  # [4]

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        if predict_with == "head":
            return log_softmax_of(task, client.value, x_B)  # [6]
        z_Bd = network.features(client.value.body, task.inputs(x_B))
        return log_softmax(-distances(z_Bd, down.shared.prototype_Cd), -1)  # [6]

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        state: Personal = tree.when(
            client.trained, lambda: client, lambda: trained(train(down, client.value, data, key, joining_epochs)[0])
        )
        return state

    return Method(init_server, init_client, send, local, reduce.each(), aggregate, personalise, predict)  # [3] [4]


def prototypes_of(generator: Generator) -> Tensor:
    """P (C, d)."""
    return linear(relu(linear(generator.embedding_Cd, **generator.first)), **generator.second)  # [5]


def distances(z_Bd: Tensor, prototype_Cd: Tensor) -> Tensor:
    """|z - P_c| (B, C), with a slope of 0 at 0."""
    square_BC = (z_Bd[:, None] - prototype_Cd).square().sum(2)
    return torch.where(square_BC > 0, square_BC, 1).sqrt() * (square_BC > 0)


def gaps(mean_mCd: Tensor, known_mC: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """How far each class's mean prototype is from the nearest other one (C,), and the margin."""
    count_C = known_mC.sum(0)
    mean_Cd = (known_mC[:, :, None] * mean_mCd).sum(0) / count_C.clamp(min=1)[:, None]
    both_CC = (count_C > 0)[:, None] & (count_C > 0) & ~torch.eye(len(count_C), dtype=torch.bool)
    apart_CC = torch.where(both_CC, torch.linalg.vector_norm(mean_Cd[:, None] - mean_Cd, dim=2), torch.inf)
    gap_C = apart_CC.amin(1)
    gap_C = torch.where(count_C > 0, gap_C, gap_C.amin())
    return gap_C, gap_C.amax().clamp(max=most)  # [3]
