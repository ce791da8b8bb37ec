"""GPFL: features for all clients and features for each, told apart by embeddings of the classes."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import layer_norm, linear, log_softmax, normalize, relu

from idiolect.core.method import (
    Data,
    Down,
    Method,
    Reduced,
    Task,
    Tree,
    Up,
    Weights,
    keys,
    new_linear,
    reduce,
    tree,
    watch,
)
from idiolect.statistics.moments import weights_by_class
from idiolect.training import (
    Batch,
    Personal,
    batch_features,
    batches,
    cross_entropy_mean,
    mean,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"magnitude": "1e-4..1:log", "decay": "1e-3..1:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"norm": "batch", "inputs_from": "held", "shares_of": "batches"},
}
_EPS = 1e-12  # the least length of a vector that is divided by its length


class Branch(NamedTuple):
    """A linear layer d -> d, then relu, then a layer normalisation."""

    layer: Weights
    norm: Weights


class Valve(NamedTuple):
    """What turns features by a conditional input: relu(z * (scale(u) + 1) + shift(u))."""

    scale: Branch
    shift: Branch


class Shared(NamedTuple):
    """What the server sends, and what a client sends the increments of."""

    body: Weights
    valve: Valve
    embedding_Cd: Tensor
    """M, a row for each class."""


class Server(NamedTuple):
    """What the server keeps."""

    shared: Shared
    begun: Tensor
    """0 in the first round, then 1."""


class Own(NamedTuple):
    """What stays at a client."""

    head: Weights
    input_d: Tensor
    """u_p, the personal input that its predictions take."""
    held_Cd: Tree
    """M as the client holds it, where the inputs come from that; else ()."""


class Moving(NamedTuple):
    """What a client trains."""

    shared: Shared
    head: Weights


def gpfl(
    task: Task,
    *,
    magnitude: NonNegativeFloat = 0.01,
    decay: NonNegativeFloat = 0.1,
    norm: Literal["samples", "batch"] = "samples",
    inputs_from: Literal["received", "held"] = "received",
    shares_of: Literal["samples", "batches"] = "samples",
) -> Method:
    """GPFL: features for all clients beside features for each, by embeddings of the classes (Zhang et al., ICCV 2023).

    valve(z, u) = relu(z * (scale(u) + 1) + shift(u)),  scale and shift: layer norm(relu(linear(u)))         [1]
    u_g = sum_c M_c / C,   u_p = sum_c p_c M_c,   p_c the client's share of class c; 0 in the first round     [2]
    Client, with the received body, valve and embeddings M, its own head_i, and M_0 the received M:
        z_p = valve(z, u_p),  z_g = valve(z, u_g),  z = body(x)                                               [3]
        (body, valve, M, head_i) <- SGD(CE(head_i(z_p)) + CE(cosines of z_g and all M_c)
                                        + magnitude |z_g - M_0y| + decay / 2 |(valve, M)|^2)                  [4]
    Server, over the participants i of a round:
        (body, valve, M) <- (body, valve, M) + sum_i n_i ((body_i, valve_i, M_i) - (body, valve, M)) / sum_i n_i  [5]
    Personal:
        head_i(valve(body(x), u_p)), all but head_i as received                                               [6]

    |z_g - M_0y| is the mean over the samples of a batch. M_0 does not move. Cosines have no temperature.

    Up: increments of body, valve and M, weighted by n_i samples. Down: body, valve, M, and whether it is the first
    round. At the client: head_i. The inputs of [6] come from the newest M. A new client, and one that was never drawn,
    trains a head alone by CE(head_i(z_p)), on all else as received, for the local epochs.

    Args:
        task: the problem.
        magnitude: lambda (released script: 0.01 for a CNN and an MLP, 1e-4 for ResNet-18 and fastText).
        decay: mu, an L2 penalty on the valve and the embeddings alone, beside the task's own decay (released script:
            0.1 for a CNN and an MLP, 0 for ResNet-18 and fastText, 1 for a CNN on human activity).
        norm: of the third term in [4]: the mean of one norm for each sample (paper), or a single norm over all samples
            and dimensions of the batch (released code).
        inputs_from: where M in [2] comes from: the server (paper), or the M that the client holds before that comes,
            which it has trained itself or received the round before (released code, where the other is one word away).
        shares_of: which samples p counts: all, or those that fill whole batches in stored order (released code).

    Source: the paper's equations; released code TsingZ0/GPFL.
    Differs from source: the released code leaves out an incomplete last batch, which is the study's drop_last. A client
    that has never trained has the initial head there.
    """
    require_classes(task, "gpfl", "it has an embedding of each class")
    require_unweighted(task, "gpfl")
    network, classes = task.network, task.classes
    held = inputs_from == "held"

    def branch(key: Tensor) -> Branch:
        d = network.width
        return Branch(new_linear(key, d, d), {"weight": torch.ones(d), "bias": torch.zeros(d)})

    def embedding(key: Tensor) -> Tensor:
        return keys.normal(keys.fold(key, "embedding"), (classes, network.width))

    def init_server(key: Tensor) -> Server:
        valve = Valve(branch(keys.fold(key, "scale")), branch(keys.fold(key, "shift")))
        return Server(Shared(network.init(key).body, valve, embedding(key)), torch.zeros(()))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        held_Cd: Tree = embedding(key) if held else ()
        return untrained(Own(network.init(key).head, torch.zeros(network.width), held_Cd))

    def send(server: Server, ids: Tensor) -> Down:
        return Down(server.shared, server.begun.expand(len(ids)))

    def shares(data: Data) -> Tensor:
        counted_N = data.real_N
        if shares_of == "batches":
            n, size = data.real_N.sum(), task.training.batch_size
            most = torch.where(n < size, n, n - n % size)  # a client of less than one batch keeps it
            counted_N = counted_N * (torch.arange(len(counted_N)) < most)
        n_C = weights_by_class(data.y_R[data.row_N], counted_N, classes).sum(0)
        return (n_C / n_C.sum()).to(torch.get_default_dtype())

    def inputs(down: Down, own: Own, data: Data) -> tuple[Tensor, Tensor]:
        """u_g and u_p."""
        source_Cd = own.held_Cd if held else down.shared.embedding_Cd
        return down.own * source_Cd.mean(0), down.own * (shares(data) @ source_Cd)  # [2]

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        received: Shared = down.shared
        generic_d, personal_d = inputs(down, client.value, data)

        def loss(moving: Moving, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            body, valve, embedding_Cd = moving.shared
            z_Bd = network.features(body, task.inputs(x_B))
            own_Bd, all_Bd = (valve_output(valve, z_Bd, u_d) for u_d in (personal_d, generic_d))  # [3]
            error = cross_entropy_mean(network.logits(moving.head, own_Bd), y_B, batch.used_B)
            cosine_BC = normalize(all_Bd, eps=_EPS) @ normalize(embedding_Cd, eps=_EPS).T
            by_class = cross_entropy_mean(cosine_BC, y_B, batch.used_B)
            square_B = (all_Bd - received.embedding_Cd[y_B]).square().sum(1)
            if norm == "samples":
                apart = mean(root(square_B), batch.used_B)
            else:
                apart = root(square_B @ batch.used_B)
            penalty = tree.dot((valve, embedding_Cd), (valve, embedding_Cd)) / 2
            return error + by_class + magnitude * apart + decay * penalty, (error, batch.used_B.sum())  # [4]

        start = Moving(received, client.value.head)
        moving, seen = sgd(loss, start, batches(data, task.training, key), task.training.optimiser)  # [4]
        own = Own(moving.head, personal_d, moving.shared.embedding_Cd if held else ())
        up = Up(tree.sub(moving.shared, received), data.real_N.sum())
        return trained(own), up, {"train_loss": trained_loss(seen)}

    def stand_by(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        return client._replace(value=client.value._replace(held_Cd=down.shared.embedding_Cd))

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        return Server(tree.add(server.shared, up.value), torch.ones(())), {}  # [5]

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        own: Own = client.value
        body, valve, _ = down.shared
        _, personal_d = inputs(down, own, data)

        def head_alone() -> Weights:
            features_of = batch_features(task, body, data, then=lambda z_Nd: valve_output(valve, z_Nd, personal_d))

            def loss(head: Weights, batch: Batch) -> tuple[Tensor, tuple[()]]:
                z_Bd, y_B = features_of(batch)
                return cross_entropy_mean(network.logits(head, z_Bd), y_B, batch.used_B), ()

            return sgd(loss, own.head, batches(data, task.training, key), task.training.optimiser)[0]

        head = tree.when(client.trained, lambda: own.head, head_alone)
        return client._replace(value=own._replace(head=head, input_d=personal_d))

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        body, valve, _ = down.shared
        z_Bd = watch(valve_output(valve, network.features(body, task.inputs(x_B)), client.value.input_d))  # [6]
        return log_softmax(network.logits(client.value.head, z_Bd), -1)  # [6]

    parts = reduce.increment()  # [5]
    method = Method(init_server, init_client, send, local, parts, aggregate, personalise, predict)
    return method._replace(stand_by=stand_by) if held else method


def valve_output(valve: Valve, z_Bd: Tensor, input_d: Tensor) -> Tensor:
    """valve(z, u)."""
    scale_d, shift_d = (
        layer_norm(relu(linear(input_d, **part.layer)), input_d.shape, part.norm["weight"], part.norm["bias"])
        for part in valve
    )  # [1]
    return relu(z_Bd * (scale_d + 1) + shift_d)  # [1]


def root(a: Tensor) -> Tensor:
    """The square root, with a slope of 0 at 0."""
    return torch.where(a > 0, a, 1).sqrt() * (a > 0)
