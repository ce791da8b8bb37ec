"""FedALA: each client learns how much of the received model it takes, weight by weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.method import SGD, ClientValue, Data, Down, Method, Model, Network, Task, Up, keys, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batch_features,
    batches,
    log_softmax_of,
    mean,
    only,
    rows,
    sgd_from,
    train_model,
    trained,
    untrained,
)

SEARCH = {"mixing_lr": "0.1..10:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"initialise": "all", "sample": "window", "threshold": 0.1},
}
REPORTS = {
    "global_weight": ClientValue(
        name="mixing weights (W)",
        symbol="W",
        meaning="mean weight of the received model in the layers that are mixed",
        shows="how much of the received model each client takes",
        ends="At 1 a client starts from the received model, at 0 from its own last one",
        limits=(0, 1),
    ),
}
_LOSSES = 10  # whose spread ends the first search


class Own(NamedTuple):
    """What stays at a client."""

    model: Model
    """L: as it was last trained or mixed."""
    weight: Model
    """W, of the layers that are mixed."""
    settled: Tensor
    """1 once W has been learned until the loss was steady."""


def fedala(
    task: Task,
    *,
    layers: NonNegativeInt = 1,
    share: Annotated[float, Field(gt=0, le=1)] = 0.8,
    mixing_lr: PositiveFloat = 1.0,
    threshold: NonNegativeFloat = 0.01,
    most_passes: PositiveInt = 50,
    sample: Literal["random", "window"] = "random",
    initialise: Literal["participants", "all"] = "participants",
) -> Method:
    """FedALA: each client learns what it takes of the received model before it trains (Zhang et al., AAAI 2023).

    Client, with the received model G, its own last model L_i, and weights W_i of the top ``layers`` (ones at first):
        theta = L_i + (G - L_i) * W_i in the top layers, elementwise; theta = G in all others            [1]
        W_i <- clip(W_i - eta dCE(theta)/dW_i, 0, 1),  a batch at a time, over ``share`` of its samples  [2]
        theta_i <- SGD(CE) from theta, all layers                                                        [3]
    Server, over the participants i of a round:
        G <- G + sum_i n_i (theta_i - G) / sum_i n_i                                                     [4]
    Personal:
        theta by [1] and [2], from the newest G                                                          [5]

    G and L_i do not move in [2]: dCE/dW_i = dCE/dtheta * (G - L_i). The first time, passes of [2] go on until there
    were more than ten and the standard deviation of the last ten losses is below ``threshold``; then it is one pass a
    round. The loss of a pass is that of its last batch, before the batch's step. The vectorised engine computes
    ``most_passes`` passes for all clients in every round, and each client keeps those that it needs. Where G and L_i
    are equal there is nothing to learn, and [1] gives G.

    Up: the increment theta_i - G, weighted by n_i samples. Down: G. At the client: L_i, W_i, and whether the first
    search is over. A client without a model of its own, as a new one, takes G as it is.

    Args:
        task: the problem.
        layers: how many of the layers that have weights are mixed, counted from the output; 0: all (paper: 1 to 6).
        share: of the client's samples that [2] uses, s; at least one sample is used.
        mixing_lr: eta, the step of [2]; the schedule of the learning rate does not change it.
        threshold: of the first search (paper: 0.01; the released code always takes 0.1).
        most_passes: of the first search, whose loss may never be steady.
        sample: of [2]: samples at random (paper), or neighbours in stored order from a random place on (released code);
            where samples are stored by class, the latter may lack classes.
        initialise: who takes part in [1] and [2]: the round's participants, or all clients in every round (released
            code); absent clients then keep theta as their L_i.

    Raises:
        InputError: the network has fewer layers.

    Source: the paper's algorithm; released code TsingZ0/FedALA.
    Differs from source: the released code counts tensors from the output end in place of layers (2 there is 1 here). It
    ends the first search by the threshold alone, and fails where the share of the samples is less than one. It compares
    only the first tensor of G and L_i to see whether they are equal. It leaves out an incomplete last batch in [3],
    which is the study's drop_last; in [2] such a batch is always used.
    """
    network, training = task.network, replace(task.training, drop_last=False)
    names = top_names(network, layers)
    rule = SGD(lr=mixing_lr, momentum=0.0, weight_decay=0.0)

    def top(model: Model) -> Model:
        return Model(*({n: part[n] for n in own} for part, own in zip(model, names, strict=True)))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        model = network.init(key)
        return untrained(Own(model, tree.map(torch.ones_like, top(model)), torch.zeros(())))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def mix(received: Model, own: Own, data: Data, key: Tensor) -> tuple[Own, Tensor]:
        """theta in the place of L, the new W, and the passes made."""
        some = only(data, sample_mask(data.real_N, share, sample, keys.fold(key, "sample")))
        base = tree.detach(top(own.model))
        gap = tree.sub(top(received), base)

        def candidate(weight: Model) -> Model:
            part = tree.map(lambda w, b, g: b + g * w, weight, base, gap)  # [1]
            return Model(*({**old, **new} for old, new in zip(received, part, strict=True)))

        head_alone = not names[0]
        features_of = batch_features(task, received.body, some) if head_alone else None

        def loss(weight: Model, batch: Batch) -> tuple[Tensor, Tensor]:
            if features_of:
                z_Bd, y_B = features_of(batch)
                logit_BC = network.logits(candidate(weight).head, z_Bd)
            else:
                x_B, y_B = rows(task, some, batch)
                logit_BC = network(candidate(weight), task.inputs(x_B))
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            return error, error

        def search(weight: Model, number: int) -> tuple[Model, Tensor]:
            last = torch.zeros(())
            for batch in batches(some, training, keys.fold(keys.fold(key, "mixing"), number), epochs=1):
                weight, _, (error,) = sgd_from(
                    loss, weight, tree.zeros(weight), [batch._replace(rate=1.0)], rule
                )  # [2]
                weight = tree.map(lambda w: w.clamp(0, 1), weight)  # [2]
                last = torch.where(batch.used_B.sum() > 0, error, last)
            return weight, last

        weight, passes, active, losses = own.weight, torch.zeros(()), torch.ones_like(own.settled), list[Tensor]()
        for number in range(most_passes):
            new, last = search(weight, number)
            weight = select(active, new, weight)
            passes, losses = passes + active, [*losses[1 - _LOSSES :], last]
            active = active * (1 - own.settled)
            if number >= _LOSSES:
                active = active * (torch.stack(losses).std(correction=0) >= threshold)
            if not tree.mapped(active) and not active:
                break
        return Own(candidate(weight), weight, torch.ones(())), passes

    def start(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Own, Tensor]:
        received, own = down.shared, client.value
        differs = client.trained * (tree.square_distance(received, own.model) > 0)
        return tree.when(
            differs, lambda: mix(received, own, data, key), lambda: (own._replace(model=received), torch.zeros(()))
        )

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        own, passes = start(down, client, data, key)
        model, loss = train_model(task, own.model, data, key)  # [3]
        all_weights = torch.cat([w.flatten() for w in tree.leaves(own.weight)])
        info = {"train_loss": loss, "global_weight": all_weights.mean(), "passes": passes}
        return trained(own._replace(model=model)), Up(tree.sub(model, down.shared), data.real_N.sum()), info

    def stand_by(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        return trained(start(down, client, data, key)[0])

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        return client._replace(value=start(down, client, data, key)[0])  # [5]

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value.model, x_B)

    parts = reduce.increment()  # [4]
    method = Method(network.init, init_client, send, local, parts, add, personalise, predict)
    return method._replace(stand_by=stand_by) if initialise == "all" else method


def top_names(network: Network, layers: int) -> tuple[list[str], list[str]]:
    """The names of the weights of the last so many layers, in body and head; 0: of all."""
    every = [(part, name, name.rpartition(".")[0]) for part in (0, 1) for name in network.weight_shapes[part]]
    owners = list(dict.fromkeys((part, owner) for part, _, owner in every))
    if layers > len(owners):
        raise InputError(
            f"method fedala mixes layers={layers}, and the network has {len(owners)} layers with weights that train: "
            "choose no more, or 0 for all"
        )
    last = owners[-layers:]
    return tuple([n for p, n, owner in every if p == part and (p, owner) in last] for part in (0, 1))  # type: ignore[return-value]


def select(flag: Tensor, one: Model, other: Model) -> Model:
    """One of two where the flag is positive, else the other."""
    return tree.when(flag, lambda: one, lambda: other)


def sample_mask(real_N: Tensor, share: float, sample: str, key: Tensor) -> Tensor:
    """1 for the samples (N,) that [2] uses: a share of them, rounded down, and at least one."""
    n = real_N.sum().long()
    count = (n.double() * share).floor().clamp(min=1)
    if sample == "random":
        place_N = keys.order(key, real_N).argsort()
    else:
        place_N = torch.arange(len(real_N)) - first_row(key, n, count.long())
    return ((place_N >= 0) & (place_N < count)).to(real_N.dtype) * real_N


def first_row(key: Tensor, n: Tensor, count: Tensor) -> Tensor:
    """Where a window of ``count`` of n samples starts, at random."""
    return (keys.bits(key, 1)[0] & 0x7FFFFFFFFFFFFFFF) % (n - count + 1)
