"""FedPHP: a personal model that inherits from the client's trained models, and guides the next one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from idiolect.core.method import ClientValue, Data, Down, Method, Model, Task, Up, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batch_features,
    batches,
    log_softmax_of,
    mean,
    own_or,
    require_classes,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"guidance": "0.01..0.5:log", "most": "0.5..0.95"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"least_steps": 5}}
REPORTS = {
    "inherited": ClientValue(
        name="inherited share (mu)",
        symbol="μ",
        meaning="share of the former personal model in the new one",
        shows="how much of its former personal model each client inherits",
        ends="At 1 a client's personal model stays as it was, at 0 it is the newly trained one",
        limits=(0, 1),
    ),
}
_WIDTHS = 5  # kernels, each twice as wide as the one before


class Own(NamedTuple):
    """What stays at a client."""

    model: Model
    """h, its personal model."""
    times: Tensor
    """t, in how many rounds it took part."""


def fedphp(
    task: Task,
    *,
    guidance: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    by: Literal["logits", "features"] = "logits",
    temperature: PositiveFloat = 4.0,
    most: Annotated[float, Field(ge=0, le=1)] = 0.9,
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0,
    least_steps: PositiveInt | None = None,
) -> Method:
    """FedPHP: inherited personal models that guide local training (Li et al., ECML PKDD 2021).

    Client, with the received model w, and its own h_i, which took part in t_i rounds before:
        w_i <- SGD((1 - guidance) CE(w) + guidance R(w, h_i)) from w, h_i constant                          [1]
        R = mean of - sum_c softmax(logits of h_i / temperature)_c log softmax(logits of w)_c    "logits"    [2]
        R = MMD of the features of a batch under w and under h_i                                 "features"  [3]
        h_i <- mu h_i + (1 - mu) w_i,   mu = most min(t_i / max(floor(participation T), 1), 1);   t_i <- t_i + 1  [4]
    Server, over the participants i of a round:
        w <- w + sum_i n_i (w_i - w) / sum_i n_i                                                            [5]
    Personal: h_i                                                                                           [6]

    with T rounds in all. MMD = mean over all pairs of K_ww + K_hh - K_wh - K_hw, of kernels
    K = sum over k = 0..4 of exp(-D / (s 2^k / 4)), D the squared distance and s its mean over all pairs of different
    samples of both sets, plus 1e-8, a constant for the gradient. h_i starts as the initial model; in a client's first
    round mu = 0, so that h_i becomes w_i.

    Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client: h_i and t_i; an absent client keeps
    them. A new client, and one that was never drawn, takes w as it is.

    Args:
        task: the problem.
        guidance: the weight of R (released code: 0.1, also 0.05).
        by: R by the logits (knowledge distillation), which needs classes, or by the features.
        temperature: of the teacher alone.
        most: where mu ends.
        participation: the share of clients that takes part in a round; say what the study says. With 1 in a study of
            less, mu ends below ``most``: a client is drawn in far fewer than T rounds.
        least_steps: the fewest mini-batches of a round (released code: 5): a client with fewer goes over its samples
            again. None: those of the local epochs.

    Source: the paper's algorithm; released code lxcnju/FedRepo.
    Differs from source: the released code bounds the gradient norm by 100, which is an option of the task's optimiser.
    A client that was never drawn has the initial model there. Another public version (PFLlib) has kernels of fixed
    widths, and tests w_i in place of h_i.
    """
    if by == "logits":
        require_classes(task, "fedphp", "it compares the predictions of two models by class (by=features does without)")
    network, training = task.network, task.training

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(Own(network.init(key), torch.zeros(())))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def plan(data: Data, key: Tensor) -> list[Batch]:
        if least_steps is None or training.epochs >= least_steps:
            return batches(data, training, key)
        whole = batches(data, training, key, epochs=least_steps)
        usual, steps, made = len(whole) * training.epochs // least_steps, list[Batch](), torch.zeros(())
        many = tree.mapped(data.row_N)
        for number, batch in enumerate(whole):
            wanted = (made < least_steps) | (number < usual)
            made = made + (wanted & (batch.used_B.sum() > 0))
            if many:
                steps.append(batch._replace(used_B=batch.used_B * wanted))
            elif wanted:
                steps.append(batch)
        return steps

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        w, (h, times) = down.shared, client.value
        teacher = batch_features(task, h.body, data)

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(model.body, task.inputs(x_B))
            logit_BC = network.logits(model.head, z_Bd)
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            h_Bd = teacher(batch)[0]
            if by == "logits":
                with torch.no_grad():
                    target_BC = softmax(network.logits(h.head, h_Bd) / temperature, 1)  # [2]
                apart = mean(-(target_BC * log_softmax(logit_BC, 1)).sum(1), batch.used_B)  # [2]
            else:
                apart = discrepancy(z_Bd, h_Bd, batch.used_B)  # [3]
            return (1 - guidance) * error + guidance * apart, (error, batch.used_B.sum(), apart)  # [1]

        model, seen = sgd(loss, w, plan(data, key), training.optimiser)  # [1]
        rounds = (data.rounds.double() * participation + 1e-9).floor().clamp(min=1)
        mu = (most * (times / rounds).clamp(max=1)).to(times.dtype)  # [4]
        inherited = tree.map(lambda old, new: mu * old + (1 - mu) * new, h, model)  # [4]
        info = {
            "train_loss": trained_loss([s[:2] for s in seen]),
            "guidance": trained_loss([(s[2], s[1]) for s in seen]),
            "inherited": mu,
        }
        return trained(Own(inherited, times + 1)), Up(tree.sub(model, w), data.real_N.sum()), info

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        return client._replace(value=own_or(client, client.value._replace(model=down.shared)))

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, client.value.model, x_B)  # [6]

    return Method(network.init, init_client, send, local, reduce.increment(), add, personalise, predict)  # [5]


def discrepancy(z_Bd: Tensor, other_Bd: Tensor, used_B: Tensor) -> Tensor:
    """MMD of two sets of features, of samples that are not padding, by kernels as wide as the features are apart."""
    both_Md, used_M = torch.cat([z_Bd, other_Bd]), torch.cat([used_B, used_B])
    square_MM = (both_Md[:, None] - both_Md[None]).square().sum(2)
    count = used_M.sum()
    total = used_M @ square_MM.detach() @ used_M
    width = total / (count.square() - count).clamp(min=1) + 1e-8  # [3]
    kernel_MM = torch.stack([(-square_MM / (width * 2**k / 4)).exp() for k in range(_WIDTHS)]).sum(0)  # [3]
    sign_M = torch.cat([used_B, -used_B]) / used_B.sum().clamp(min=1)
    return sign_M @ kernel_MM @ sign_M  # [3]
