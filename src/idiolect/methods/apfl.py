"""APFL: a mixture of a personal model and the shared one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task, Tree, Up, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batches,
    joins_by_training,
    mean,
    optimiser_state,
    rows,
    sgd_from,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"alpha": "0.1..0.9"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"alpha": 0.5, "mix": "outputs", "alpha_gradient": "released", "evaluate_with": "own"}
}


class Own(NamedTuple):
    """What stays at a client."""

    v: Model
    alpha: Tensor
    """The share of v in the mixture."""
    w: Tree
    """The shared model as the client last trained it, where this is evaluated; else ()."""


def apfl(
    task: Task,
    *,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.25,
    adaptive: bool = False,
    mix: Literal["parameters", "outputs"] = "parameters",
    alpha_gradient: Literal["exact", "released"] = "exact",
    evaluate_with: Literal["received", "own"] = "received",
    steps: PositiveInt | None = None,
    weighting: Literal["uniform", "samples"] = "uniform",
) -> Method:
    """APFL: a mixture of a personal model and the shared one (Deng, Kamani & Mahdavi, arXiv 2020).

    M_i(v, w; x) = network(alpha_i v + (1 - alpha_i) w; x), or alpha_i network(v; x) + (1 - alpha_i) network(w; x)  [1]
    Client, for each mini-batch, w_i from the received w, v_i from where it was, in a client's first round from w:
        w_i <- SGD step of CE(network(w_i))                                                                         [2]
        v_i <- SGD step of CE(M_i(v_i, w_i)) in v_i alone, with the new w_i                                         [3]
        alpha_i <- clip(alpha_i - lr g, 0, 1)           after the first mini-batch of a round, if ``adaptive``      [4]
    where, on the same mini-batch, and in [6] with the gradients that [3] sees before its step,
        g = d CE(M_i) / d alpha_i, for a mixture of parameters <v_i - w_i, grad CE>                    "exact"      [5]
        g = <v_i - w_i, alpha_i dCE(M_i)/dv_i + (1 - alpha_i) dCE(M_i)/dw_i> + 0.02 alpha_i            "released"   [6]
    Server, over the participants i of a round:
        w <- w + sum_i a_i (w_i - w) / sum_i a_i           a_i = 1, or n_i samples                                  [7]
    Personal: M_i(v_i, w), or M_i(v_i, w_i)                                                                         [8]

    Up: the increment w_i - w, weighted by a_i. Down: w. At the client: v_i, alpha_i and, with
    ``evaluate_with="own"``, w_i; an absent client keeps them. A new client does one round's local work from w and keeps
    them.

    Args:
        task: the problem.
        alpha: the share of v_i in the mixture, or where it starts (FedPAC, pFedFDA: 0.25; released code: 0.5).
        adaptive: whether alpha_i moves (FedPAC, pFedFDA and the released code's default: no).
        mix: what is mixed, parameters (the paper) or outputs, as logits (the released code, in training and test).
        alpha_gradient: the direction in which alpha_i moves. The released one also shrinks alpha_i.
        evaluate_with: the shared model in the mixture: "received", the newest one from the server, or "own", the one
            that the client last trained, before the server's mean (released code).
        steps: mini-batches per round, as the released code can count; None: the task's local epochs.
        weighting: of the mean: uniform (released code), or by samples.

    Source: the paper's algorithm; released code (MLOPTPSU/FedTorch), whose issues 6 and 16 name its mixing of outputs.
    Differs from source: v_i starts at the model received in the client's first round; in the released code it starts at
    the initial model, which is the same where all clients take part. Momentum is the task's; the released code has
    none. The order of [2] and [3] and the place of [4] are the released code's. Three things in it are left out. The
    gradient of v_i in [6] includes its decay, but that of w_i does not. Its rate schedules change the rate of w_i and
    not that of v_i. An epoch ends at a batch of a single sample.
    """
    network, rule = task.network, task.training.optimiser

    def mixture(v: Model, w: Model, alpha: Tensor, x_B: Tensor) -> Tensor:  # [1]
        x_B = task.inputs(x_B)
        if mix == "outputs":
            return alpha * network(v, x_B) + (1 - alpha) * network(w, x_B)
        return network(tree.map(lambda a, b: alpha * a + (1 - alpha) * b, v, w), x_B)

    def init_client(key: Tensor, id: Tensor) -> Personal:
        model = network.init(key)
        return untrained(Own(model, torch.tensor(float(alpha)), model if evaluate_with == "own" else ()))

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        def global_error(w: Model, batch: Batch) -> tuple[Tensor, tuple[()]]:
            x_B, y_B = rows(task, data, batch)
            return mean(task.loss(network(w, task.inputs(x_B)), y_B), batch.used_B), ()  # [2]

        def mixture_error(v: Model, w: Model, share: Tensor, batch: Batch) -> Tensor:
            x_B, y_B = rows(task, data, batch)
            return mean(task.loss(mixture(v, w, share, x_B), y_B), batch.used_B)  # [3]

        def personal_step(v: Model, state: Tree, w: Model, share: Tensor, batch: Batch) -> tuple[Model, Tree, Tree]:
            def loss(v: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
                value = mixture_error(v, w, share, batch)
                return value, (value, batch.used_B.sum())

            v, state, [extra] = sgd_from(loss, v, state, [batch], rule)  # [3]
            return v, state, extra

        def slope(before: Model, v: Model, w: Model, share: Tensor, batch: Batch) -> Tensor:
            if alpha_gradient == "exact":
                derivative: Tensor = torch.func.grad(mixture_error, argnums=2)(v, w, share, batch)  # [5]
                return derivative
            by_v, by_w = torch.func.grad(mixture_error, argnums=(0, 1))(before, w, share, batch)  # [6]
            gradient = tree.map(lambda a, b: share * a + (1 - share) * b, by_v, by_w)  # [6]
            return tree.dot(tree.sub(v, w), gradient) + 0.02 * share  # [6]

        w, own = down.shared, client.value
        v, share = tree.when(client.trained, lambda: own.v, lambda: w), own.alpha
        state_w, state_v, losses = optimiser_state(rule, w), optimiser_state(rule, v), []
        for number, batch in enumerate(batches(data, task.training, key, steps=steps)):
            before = v
            w, state_w, _ = sgd_from(global_error, w, state_w, [batch], rule)  # [2]
            v, state_v, loss = personal_step(v, state_v, w, share, batch)  # [3]
            losses.append(loss)
            if adaptive and number == 0:  # [4]
                share = (share - rule.lr * batch.rate * slope(before, v, w, share, batch)).clamp(0, 1)
        weight = data.real_N.sum() if weighting == "samples" else torch.ones(())  # [7]
        up = Up(tree.sub(w, down.shared), weight)
        distance = tree.square_distance(v, w).sqrt()
        info = {"train_loss": trained_loss(losses), "alpha": share, "distance": distance}
        return trained(Own(v, share, w if evaluate_with == "own" else ())), up, info

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        own = client.value
        output: Tensor = task.output(mixture(own.v, own.w or down.shared, own.alpha, x_B))  # [8]
        return output

    personalise = joins_by_training(local)
    return Method(network.init, init_client, send, local, reduce.increment(), add, personalise, predict)  # [7]
