"""FedGen: a generator of features, which the server learns from all heads and sends to the clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import batch_norm, linear, relu

from idiolect.core.method import (
    Adam,
    Data,
    Down,
    Method,
    Model,
    Reduced,
    Task,
    Tree,
    Up,
    Weights,
    keys,
    new_linear,
    reduce,
    tree,
    unchanged,
)
from idiolect.statistics.moments import weights_by_class
from idiolect.training import (
    Batch,
    batches,
    cross_entropy_mean,
    log_softmax_of,
    mean,
    optimiser_state,
    require_classes,
    rows,
    sgd,
    sgd_from,
    stateless,
    trained_loss,
)

SEARCH = {"alpha": "0.1..10:log", "generator_lr": "0.0001..0.01:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"beta": 10.0, "teacher": "product"}}


class Generator(NamedTuple):
    """[noise, class] -> linear, batch normalisation, relu, linear -> a feature."""

    weights: Weights
    mean_H: Tensor
    """The running mean of the hidden units, by which clients normalise."""
    var_H: Tensor


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    generator: Generator
    optimiser: Tree
    """Adam's state, which goes on from round to round."""
    round: Tensor
    """How many rounds there were."""
    key: Tensor


class Shared(NamedTuple):
    """What the server sends."""

    model: Model
    generator: Generator


class Report(NamedTuple):
    """What a client sends."""

    increment: Model
    head: Weights
    """As trained, for the generator."""


class Counts(NamedTuple):
    """What it says beside them."""

    n: Tensor
    seen_C: Tensor
    """The samples of each class in all of its steps, divided by the epochs, or by the places in ``steps`` batches."""


def fedgen(
    task: Task,
    *,
    alpha: NonNegativeFloat = 10.0,
    beta: NonNegativeFloat = 0.0,
    decay: Annotated[float, Field(gt=0, le=1)] = 0.98,
    teacher: Literal["logits", "losses", "product"] = "logits",
    diversity: NonNegativeFloat = 1.0,
    noise: PositiveInt = 32,
    hidden: PositiveInt = 256,
    generator_lr: PositiveFloat = 3e-4,
    generator_weight_decay: NonNegativeFloat = 1e-2,
    generator_steps: PositiveInt = 50,
    generated_batch: PositiveInt | None = None,
    steps: PositiveInt | None = None,
) -> Method:
    """FedGen: clients also train their head on generated features of all classes (Zhu, Hong & Zhou, ICML 2021).

    Client in round t + 1, with the received model w, from which v starts, and the received generator G:
        v <- SGD(CE(v; x, y) + alpha_t r CE(head_v G(y', e')) + beta_t KL(head_v G(y, e) || v(x)))            [1]
        y' uniform over all classes, e and e' uniform in [0, 1);  r generated samples for each real one       [2]
        alpha_t = max(0.0001, alpha decay^t), beta_t alike; both 0 in the first round                         [3]
    Server, over the round's participants k, with u_ky the share of k in the samples of class y, each number plus 1:
        G <- Adam(teacher + diversity exp(-mean_ij |e_i - e_j|^2 |G_i - G_j|)), y of classes that are known   [4]
        teacher: CE of the mean of the heads' logits of G(y, e)                               "logits"        [5]
        or the sum over k of the mean of u_ky CE(head_k G(y, e)) over rows                    "losses"        [6]
        or the sum over k of the mean of u_ky times the mean of CE(head_k G(y, e))            "product"       [7]
        w <- w + sum_k n_k (v_k - w) / sum_k n_k, after G                                                     [8]

    G is a linear layer from [e, class] to hidden units, batch normalisation, relu, and a linear layer to the d features
    that a head takes. In [4], y is uniform over the classes that a participant trained on, and the norms are means over
    dimensions. In [1] G is constant and normalises by running averages, and the first part of KL is constant.

    Up: the increment of the model, weighted by n_k samples; the trained head and the numbers of samples of each class
    (C), of each participant. Down: w, G. At the client: nothing. A new client takes the global model as it is.

    Args:
        task: the problem.
        alpha: weight of the generated samples (released code: 10).
        beta: weight of the last term, which the paper does not have (released code: 10, for EMNIST 1).
        decay: of alpha, beta and ``generator_lr`` in each round (released code).
        teacher: what G is taught by (the paper: "logits"; released code: "product", by a slip of shapes in place of
            "losses").
        diversity: weight of the term that keeps outputs of unlike noise apart (released code: 1).
        noise: numbers of e (released code: 32).
        hidden: units of G (released code: 256).
        generator_lr: of Adam in [4] (released code: 3e-4, for EMNIST 1e-4).
        generator_weight_decay: added to the gradient (released code: 0.01).
        generator_steps: of a round (released code: 50), each on a batch of the task's size.
        generated_batch: generated samples of a step; None: as many as the task's batch has.
        steps: mini-batches of a round; None: those of the task's local epochs (released code: 20).

    Source: the paper's algorithm 1 and equations 4 and 5; released code (zhuangdizhu/FedGen).
    Differs from source: the released code's term for a student has weight 0 in all its settings and is left out. There,
    a client's mini-batches go on from round to round without the rows that do not fill one, its rate falls by 1 % for
    each round but only when it takes part (here ``lr_schedule``), and generated samples end after 20 local epochs.
    """
    require_classes(task, "fedgen", "it generates features of each class")
    network, training, classes = task.network, task.training, task.classes
    size = training.batch_size
    passes = training.epochs if steps is None else steps * size
    several = generated_batch or size
    rule = Adam(generator_lr, weight_decay=generator_weight_decay)

    def init_server(key: Tensor) -> Server:
        draw = keys.fold(key, "generator")
        layers = {
            "fc": new_linear(keys.fold(draw, "fc"), noise + classes, hidden),
            "bn": {"weight": torch.ones(hidden), "bias": torch.zeros(hidden)},
            "out": new_linear(keys.fold(draw, "out"), hidden, network.width),
        }
        weights = {f"{name}.{part}": w for name, layer in layers.items() for part, w in layer.items()}
        generator = Generator(weights, torch.zeros(hidden), torch.ones(hidden))
        return Server(network.init(key), generator, optimiser_state(rule, weights), torch.zeros(()), draw)

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=Shared(server.model, server.generator))

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        w, generator = down.shared

        def weight(start: float) -> Tensor:
            falling = (start * decay ** (data.round - 1).clamp(min=0)).clamp(min=1e-4 if start else 0.0)  # [3]
            return torch.where(data.round > 1, falling, 0)  # [3]

        alpha_t, beta_t = weight(alpha), weight(beta)

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            logit_BC = network(model, task.inputs(x_B))
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            y_G, e_Ge, e_Be = client_draws(key, batch, classes, several, noise)  # [2]
            z_Gd = generate(generator, y_G, e_Ge, classes)
            made = cross_entropy_mean(network.logits(model.head, z_Gd), y_G, torch.ones(several))
            total = error + alpha_t * several / size * made  # [1]
            if beta:
                fake_BC = network.logits(model.head, generate(generator, y_B, e_Be, classes)).detach()
                p_BC, q_BC = fake_BC.log_softmax(-1), logit_BC.log_softmax(-1)
                total = total + beta_t * mean((p_BC.exp() * (p_BC - q_BC)).sum(-1), batch.used_B)  # [1]
            seen_C = weights_by_class(y_B, batch.used_B, classes).sum(0).to(error.dtype)
            return total, (error, batch.used_B.sum(), seen_C, made)

        model, extras = sgd(loss, w, batches(data, training, key, steps=steps), training.optimiser)  # [1]
        seen_C = torch.stack([s[2] for s in extras]).sum(0)
        info = {
            "train_loss": trained_loss([s[:2] for s in extras]),
            "generated_loss": trained_loss([(s[3], s[1]) for s in extras]),
        }
        return client, Up(Report(tree.sub(model, w), model.head), Counts(data.real_N.sum(), seen_C / passes)), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        report: Report = up.value
        seen_mC: Tensor = up.weight_m.seen_C * passes
        share_mC = (1 + seen_mC) / (1 + seen_mC).sum(0)  # [6] [7]
        known = (seen_mC.amax(0) > 0).nonzero()[:, 0]
        known = known if len(known) else torch.arange(classes)
        key = keys.fold(server.key, server.round.long())

        def taught(z_Bd: Tensor, y_B: Tensor) -> Tensor:
            logit_mBC = torch.func.vmap(network.logits, in_dims=(0, None))(report.head, z_Bd)
            if teacher == "logits":
                return cross_entropy_mean(logit_mBC.mean(0), y_B, torch.ones(len(y_B)))  # [5]
            error_mB = -logit_mBC.log_softmax(-1)[:, torch.arange(len(y_B)), y_B]
            if teacher == "losses":
                return (share_mC[:, y_B] * error_mB).mean(1).sum()  # [6]
            return (share_mC[:, y_B].mean(1) * error_mB.mean(1)).sum()  # [7]

        def loss(weights: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            y_B, e_Be = server_draws(key, batch, known, noise)
            a_BH = hidden_units(weights, y_B, e_Be, classes)
            z_Bd = outputs(weights, a_BH, None, None)
            apart_BB = (e_Be[:, None] - e_Be).square().mean(-1) * (z_Bd[:, None] - z_Bd).abs().mean(-1)
            total = taught(z_Bd, y_B) + diversity * torch.exp(-apart_BB.mean())  # [4]
            return total, (a_BH.mean(0), a_BH.var(0) if len(y_B) > 1 else torch.ones(hidden))

        rate = float(decay**server.round)
        plan = [Batch(torch.arange(size), torch.ones(size), step, key, rate) for step in range(generator_steps)]
        weights, state, extras = sgd_from(loss, server.generator.weights, server.optimiser, plan, rule)  # [4]
        mean_H, var_H = server.generator[1:]
        for batch_mean_H, batch_var_H in extras:
            mean_H, var_H = 0.9 * mean_H + 0.1 * batch_mean_H, 0.9 * var_H + 0.1 * batch_var_H
        model = tree.add(server.model, report.increment)  # [8]
        return Server(model, Generator(weights, mean_H, var_H), state, server.round + 1, server.key), {}

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, down.shared.model, x_B)

    # each head of a round is sent as it is, so none can stay at a client: this is no place where the server's is
    parts = Report(increment=reduce.increment("n"), head=reduce.each())  # [4] [8]
    return Method(init_server, stateless, send, local, parts, aggregate, unchanged, predict)


def hidden_units(weights: Weights, y_B: Tensor, e_Be: Tensor, classes: int) -> Tensor:
    """The generator's hidden units before they are normalised."""
    hot_BC = (y_B[:, None] == torch.arange(classes, device=y_B.device)).to(e_Be.dtype)
    return linear(torch.cat((e_Be, hot_BC), -1), weights["fc.weight"], weights["fc.bias"])


def outputs(weights: Weights, a_BH: Tensor, mean_H: Tensor | None, var_H: Tensor | None) -> Tensor:
    """Features of hidden units, normalised by these moments; None: by the batch's own."""
    scale, shift = weights["bn.weight"], weights["bn.bias"]
    if len(a_BH) == 1 and mean_H is None:  # one has no spread, and is its own mean
        h_BH = (a_BH - a_BH) * scale + shift
    else:
        h_BH = batch_norm(a_BH, mean_H, var_H, scale, shift, training=mean_H is None)
    return linear(relu(h_BH), weights["out.weight"], weights["out.bias"])


def generate(generator: Generator, y_B: Tensor, e_Be: Tensor, classes: int) -> Tensor:
    """Features (B, d) of classes and noise, as clients use the generator."""
    a_BH = hidden_units(generator.weights, y_B, e_Be, classes)
    return outputs(generator.weights, a_BH, generator.mean_H, generator.var_H)


def uniform(key: Tensor, *shape: int) -> Tensor:
    """Draws of at least 0 and below 1, in the default type."""
    count = torch.Size(shape).numel()
    draw = (keys.bits(key, count) & 0x7FFFFF).to(torch.get_default_dtype()) * 2.0**-23
    return draw.reshape(shape)


def client_draws(key: Tensor, batch: Batch, classes: int, several: int, noise: int) -> tuple[Tensor, Tensor, Tensor]:
    """For one step: labels, their noise, and noise for the batch's own labels."""
    labels, first, own = (keys.fold(keys.fold(key, what), batch.step) for what in ("labels", "noise", "own noise"))
    y_G = (uniform(labels, several) * classes).long()
    return y_G, uniform(first, several, noise), uniform(own, len(batch.at_B), noise)


def server_draws(key: Tensor, batch: Batch, known: Tensor, noise: int) -> tuple[Tensor, Tensor]:
    """For one step: labels among the known ones, and their noise."""
    labels, first = (keys.fold(keys.fold(key, what), batch.step) for what in ("labels", "noise"))
    at_B = (uniform(labels, len(batch.at_B)) * len(known)).long()
    return known[at_B], uniform(first, len(batch.at_B), noise)
