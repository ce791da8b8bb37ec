"""FedKD: a personal mentor and a shared mentee that teach each other; updates of the mentee travel at low rank."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn.functional import linear

from idiolect import models
from idiolect.core.errors import InputError
from idiolect.core.method import (
    ClientValue,
    Data,
    Down,
    Method,
    Model,
    Reduced,
    Task,
    Tree,
    Up,
    keys,
    new_linear,
    reduce,
    tree,
)
from idiolect.training import (
    Batch,
    Personal,
    batches,
    joins_by_training,
    log_softmax_of,
    mean,
    require_classes,
    require_sgd,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"energy_start": "0.8..0.99", "energy_end": "0.9..0.999"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"divergence": "mean", "projection": "identity"},
    "pfllib": {"divergence": "mean", "compress": "weights"},
}
REPORTS = {
    "sent_share": ClientValue(
        name="sizes of the compressed updates",
        symbol="size",
        meaning="numbers that travel, as a share of the mentee's",
        shows="how much of an update each client has to send",
        ends="At 1 compression saves nothing",
    )
}


class Weight(NamedTuple):
    """What a client says beside its mentee: 1, and T, by which the server compresses too."""

    one: Tensor
    energy: Tensor


class Own(NamedTuple):
    """What stays at a client."""

    mentor: Model
    projection: Tree
    """W (mentor's width, mentee's width), or () where features are compared as they are."""


def fedkd(
    task: Task,
    *,
    energy_start: Annotated[float, Field(gt=0, le=1)] = 0.95,
    energy_end: Annotated[float, Field(gt=0, le=1)] = 0.98,
    shared_model: str = "",
    divergence: Literal["sum", "mean"] = "sum",
    projection: Literal["learned", "identity"] = "learned",
    compress: Literal["updates", "weights"] = "updates",
    mentee_lr: PositiveFloat | None = None,
) -> Method:
    """FedKD: a mentor and a shared mentee distil into each other, at low rank (Wu et al., Nature Communications 2022).

    Client, for each mini-batch, with features z and logits o of its mentor t_i and its mentee s_i, from the received s:
        D = KL(p(o_s) || p(o_t)) + KL(p(o_t) || p(o_s)),  p the softmax; mean over samples, sum over classes   [1]
        H = mean over samples and dimensions of (z_t - W_i z_s)^2                                              [2]
        (t_i, s_i, W_i) <- SGD(CE(o_t) + CE(o_s) + (D + 2 H) / (CE(o_t) + CE(o_s)))     all of it has gradients  [3]
        a_i = low(s_i - s), or low(s_i)                                                                        [4]
    Server, over the m participants of a round:
        s <- s + low(sum_i a_i / m), or low(sum_i a_i / m)                                                     [5]
    low() of a matrix keeps its r largest singular values, r the smallest with
        sum of the r largest squares > T times the sum of all                                                  [6]
        T = ``energy_start`` + (t / rounds) (``energy_end`` - ``energy_start``)         in round t = 1, 2, ...   [7]
    Personal: t_i                                                                                              [8]

    A tensor of more than two dimensions is a matrix of its first dimension and the rest; a vector is sent as it is.
    With "weights", t counts from 0.

    Privacy makes every weight 1, also T, which travels as one: there [5] keeps all of the mean.

    Up: a_i, written out at full size, because its rank depends on the data; ``sent_share`` reports how many numbers its
    factors have, as a share of the mentee's. Down: s. At the client: t_i and W_i; an absent client keeps them. A new
    client, and one that was never drawn, does one round's local work, in which t_i starts at s if both are the same
    network, else at the start that is common to all.

    Args:
        task: the problem; its network is the mentor's.
        energy_start: of the first rounds (released code: 0.95).
        energy_end: of the last round (released code: 0.98). 1 compresses nothing.
        shared_model: the network of the mentee, as ``model`` names it, for example mlp:hidden=16; it is the task's
            where this is empty.
        divergence: KL as the sum over classes, or as their mean: a C-th of it, what both released programs take.
        projection: whether W_i is learned, or the identity (released code, which makes maps and does not use them).
        compress: updates of the mentee (released code), or its weights (PFLlib), which then lose rank in every round.
        mentee_lr: rate of s_i along its loss; decay keeps the task's. None takes the task's. For SGD.

    Raises:
        InputError: ``mentee_lr`` without SGD, or "identity" where mentor and mentee have other widths.

    Source: the paper's algorithm; released code (wuch15/FedKD) and PFLlib's version of it.
    Differs from source: networks for news have more layers, whose hidden states and attention maps are compared by H;
    here the features are. The released exchange does not run as it stands. Where no r satisfies [6], both programs keep
    nothing, here all is kept. Tensors of more than two dimensions are compressed in slices by PFLlib.
    """
    require_classes(task, "fedkd", "its two models learn each other's class probabilities")
    own, training = task.network, task.training
    common = models.beside(shared_model, own, task.classes)
    if mentee_lr is not None:
        require_sgd(task, "fedkd", "mentee_lr is a factor of the gradient")
    slower = 1.0 if mentee_lr is None else mentee_lr / training.optimiser.lr
    if projection == "identity" and own.width != common.width:
        raise InputError(
            f"method fedkd: projection=identity compares features of {own.width} and of {common.width} dimensions: "
            "leave it out, or choose a shared_model with features as wide"
        )

    def init_client(key: Tensor, id: Tensor) -> Personal:
        learned = projection == "learned"
        layer = new_linear(keys.fold(key, "projection"), common.width, own.width) if learned else {}
        return untrained(Own(own.init(key), layer.get("weight", ())))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def energy_of(data: Data) -> Tensor:
        t = (data.round if compress == "updates" else data.round - 1).double().clamp(min=0)  # [7]
        part = t / data.rounds.double().clamp(min=1)
        return (energy_start + part * (energy_end - energy_start)).to(torch.get_default_dtype())  # [7]

    def loss_of(data: Data, weights: tuple[Own, Model], batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        (mentor, W), mentee = weights
        if slower != 1:  # the value stays, and the gradient has the factor
            mentee = tree.map(lambda w: slower * w + (1 - slower) * w.detach(), mentee)
        x_B, y_B = rows(task, data, batch)
        x_B = task.inputs(x_B)
        zt_Bd, zs_Bd = own.features(mentor.body, x_B), common.features(mentee.body, x_B)
        ot_BC, os_BC = own.logits(mentor.head, zt_Bd), common.logits(mentee.head, zs_Bd)
        error_t, error_s = (mean(task.loss(a_BC, y_B), batch.used_B) for a_BC in (ot_BC, os_BC))
        gap_BC = (ot_BC.softmax(-1) - os_BC.softmax(-1)) * (ot_BC.log_softmax(-1) - os_BC.log_softmax(-1))  # [1]
        apart = mean(gap_BC.sum(-1) if divergence == "sum" else gap_BC.mean(-1), batch.used_B)  # [1]
        hidden = mean((zt_Bd - (zs_Bd if isinstance(W, tuple) else linear(zs_Bd, W))).square().mean(-1), batch.used_B)
        errors = error_t + error_s
        total = errors + (apart + 2 * hidden) / errors.clamp(min=torch.finfo(errors.dtype).tiny)  # [2] [3]
        return total, (error_t, batch.used_B.sum(), error_s)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        def loss(weights: tuple[Own, Model], batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            return loss_of(data, weights, batch)

        start = (client.value, down.shared)
        (kept, mentee), extras = sgd(loss, start, batches(data, training, key), training.optimiser)  # [3]
        energy = energy_of(data)
        step = tree.sub(mentee, down.shared) if compress == "updates" else mentee
        low, sizes = compressed(step, energy)  # [4]
        full = sum(w.numel() for w in tree.leaves(step))
        info = {
            "train_loss": trained_loss([s[:2] for s in extras]),
            "shared_loss": trained_loss([(s[2], s[1]) for s in extras]),
            "sent_share": sizes / full,
        }
        return trained(kept), Up(low, Weight(torch.ones(()), energy)), info

    def aggregate(server: Model, up: Reduced, ids: Tensor) -> tuple[Model, dict[str, Tensor]]:
        low, _ = compressed(up.value, up.weight.energy / up.weight.one)  # [5]
        return (tree.add(server, low) if compress == "updates" else low), {}  # [5]

    def first_round(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        value = client.value if shared_model else client.value._replace(mentor=down.shared)
        return local(down, client._replace(value=value), data, key)

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value.mentor, x_B)  # [8]

    parts = reduce.mean("one", exact=compress == "weights")
    personalise = joins_by_training(first_round)
    return Method(common.init, init_client, send, local, parts, aggregate, personalise, predict)  # [5]


def compressed(model: Model, energy: Tensor) -> tuple[Model, Tensor]:
    """A model's matrices at the least rank that keeps this share of their squared singular values, and its size.

    The size is the numbers in the factors: u, s and v of a matrix, or the matrix itself where that is less.
    """
    flat, build = tree.flatten(model)
    parts = [low_rank(w, energy) for w in flat]
    return build([low for low, _ in parts]), torch.stack([size for _, size in parts]).sum()


def low_rank(a: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """One tensor of ``compressed``."""
    if a.ndim < 2:
        return a, torch.full((), float(a.numel()))
    matrix = a.flatten(1)
    finite = matrix.isfinite().all()  # of others there is no decomposition; they go on, and the engine names the client
    u, s, v = torch.linalg.svd(torch.where(finite, matrix, 0.0), full_matrices=False)
    sum_r = s.square().cumsum(0)
    before = (sum_r <= energy * sum_r[-1]).sum()  # [6]
    rank = (before + 1).clamp(max=len(s))
    kept = torch.where(torch.arange(len(s)) < rank, s, 0.0)
    size = (rank * (sum(matrix.shape) + 1)).clamp(max=matrix.numel())
    return torch.where(finite, ((u * kept) @ v).view_as(a), a), size.to(torch.get_default_dtype())
