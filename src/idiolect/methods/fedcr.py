"""FedCR: across-client common representation with conditional mutual information regularisation."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import linear, log_softmax, nll_loss, softplus

from idiolect.core.method import (
    SGD,
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
from idiolect.statistics.experts import Experts, class_products, kl_diagonal, posterior
from idiolect.training import (
    Batch,
    batch_features,
    batches,
    mean,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    trained_loss,
)

PERSONAL = ("head_epochs", "predict_with")
SEARCH = {"lr": "0.005..0.2:log", "beta": "0.00001..0.01:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"objective": "log_mean", "clip": None},
    "official": {"predict_with": "logits"},
}
_FLOOR = 1e-6  # of a standard deviation: softplus underflows


class Encoder(NamedTuple):
    """The network's body and the Gaussian layer on it, d -> 2 V."""

    body: Weights
    code: Weights


class Server(NamedTuple):
    """What the server keeps and sends."""

    encoder: Tree
    """``Encoder``, or () where none is shared."""
    mean_CV: Tensor
    std_CV: Tensor


class Client(NamedTuple):
    """What stays at the client."""

    head: Weights
    encoder: Tree
    """``Encoder`` where none is shared, else ()."""


class Report(NamedTuple):
    """What a client sends: the increment of the encoder, and natural parameters of its class products."""

    encoder: Tree
    experts: Experts


def fedcr(
    task: Task,
    *,
    latent: PositiveInt = 256,
    beta: NonNegativeFloat = 5e-4,
    samples: PositiveInt = 18,
    lr: PositiveFloat = 0.05,
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    weight_decay: NonNegativeFloat = 0.0,
    clip: PositiveFloat | None = 10.0,
    head_epochs: NonNegativeInt = 10,
    objective: Literal["mean_log", "log_mean"] = "mean_log",
    predict_with: Literal["probabilities", "logits"] = "probabilities",
    server_rate: Annotated[float, Field(gt=0, le=1)] = 1.0,
    share_encoder: bool = True,
) -> Method:
    """FedCR: a common Gaussian code per class, by products of experts across clients (Zhang et al., ICML 2023).

    Client, with the received encoder x -> (mu(x), sigma(x)) and per class c the global N(mu_c, sigma_c^2):
        z = mu(x) + sigma(x) e,  e ~ N(0, I)                                                               [1]
        (encoder, head) <- SGD(CE(head(z), y) + beta KL(N(mu_y, sigma_y^2) || N(mu(x), sigma(x)^2)))  (Eq. 7)  [2]
        L_ic = sum_x sigma(x)^-2,   m_ic = sum_x mu(x) sigma(x)^-2      over its samples of class c, as last seen in
        training                                                                                      (Eq. 8)  [3]
    Server:
        encoder <- uniform mean                                                                                [4]
        sigma_c^2 = 1 / (1 + sum_i L_ic),   mu_c = sigma_c^2 sum_i m_ic                               (Eq. 9)  [5]
    Personal:
        head <- SGD(CE(head(z), y)), the encoder frozen                                                        [6]

    A class that no participant has keeps its old Gaussian; all start at N(0, I). sigma is a standard deviation.

    Up: increment of the encoder, weighted 1; L and m (C, V), plain sums. Down: encoder, mu and sigma (C, V). At the
    client: the head (V -> C). ``personalise`` tunes the head alone on the frozen encoder.

    Args:
        task: the problem; the network's body is followed by a linear layer d -> 2 V.
        latent: V; by Tables 2 and 3 the paper takes 256 (EMNIST-L, CIFAR-10) or 512 (Fashion-MNIST, CIFAR-100).
        beta: weight of the KL term; 5e-4, for CIFAR-100 with Dirichlet labels 1e-3 (appendix A.1.3).
        samples: draws of z per sample (appendix A.1.3: 18; Algorithm 2 shows one).
        lr: learning rate of this method's own SGD, which is used in place of the task's optimiser (the paper tunes in
            0.001-0.5; the released code's instructions: 0.05).
        momentum: none in the released code; the paper names none.
        weight_decay: the same.
        clip: bound on the gradient norm of encoder and head together (released code: 10; the paper names none); the
            gradient of the KL term grows without bound as sigma(x) shrinks.
        head_epochs: of tuning in ``personalise`` (section 6.1: ten).
        objective: the mean over draws of the log-probability (released code, a bound by Jensen), or the log of their
            mean (Eqs. 2, 7).
        predict_with: average the probabilities of ``samples`` fixed draws (section 5.1) or the logits (released code).
        server_rate: the new Gaussians' share in mu and sigma (released code: an option, 1 in its instructions).
        share_encoder: False shares the class Gaussians alone and leaves every client its encoder (section 4.4).

    Source: Algorithm 2 (appendix A.4), section 4.3; released code. Eq. 9 prints the prior inside the product; Algorithm
    2 and the released code have it once, as here.
    Differs from source: the paper uses one symbol for the standard deviation and the diagonal of the covariance. Here
    softplus gives the standard deviation, as in the released code, and it is at least 1e-6. Products are accumulated as
    natural parameters in float64.
    """
    require_classes(task, "fedcr", "its clients share a distribution of each class")
    require_unweighted(task, "fedcr")
    network, rule = task.network, SGD(lr, momentum, weight_decay, clip)

    def encoder_of(key: Tensor) -> Encoder:
        return Encoder(network.init(key).body, new_linear(keys.fold(key, "code"), network.width, 2 * latent))

    def init_server(key: Tensor) -> Server:
        start = encoder_of(key) if share_encoder else ()
        return Server(start, torch.zeros(task.classes, latent), torch.ones(task.classes, latent))

    def init_client(key: Tensor, id: Tensor) -> Client:
        return Client(
            new_linear(keys.fold(key, "head"), latent, task.classes), () if share_encoder else encoder_of(key)
        )

    def encode(encoder: Encoder, x_B: Tensor) -> tuple[Tensor, Tensor]:
        return code_of(encoder, network.features(encoder.body, task.inputs(x_B)))

    def code_of(encoder: Encoder, z_Bd: Tensor) -> tuple[Tensor, Tensor]:
        out_B2V = linear(z_Bd, **encoder.code)
        return watch(out_B2V[:, :latent]), softplus(out_B2V[:, latent:]).clamp(min=_FLOOR)

    def log_probability(head: Weights, mean_BV: Tensor, std_BV: Tensor, noise_BSV: Tensor) -> Tensor:
        z_BSV = mean_BV[:, None] + std_BV[:, None] * noise_BSV  # [1]
        return log_softmax(linear(z_BSV, **head), -1)

    def error(head: Weights, mean_BV: Tensor, std_BV: Tensor, y_B: Tensor, key: Tensor) -> Tensor:
        noise_BSV = keys.normal(key, (len(y_B), samples, latent))
        logp_BSC = log_probability(head, mean_BV, std_BV, noise_BSV)
        logp_BC = logp_BSC.mean(1) if objective == "mean_log" else logp_BSC.logsumexp(1) - math.log(samples)
        return nll_loss(logp_BC, y_B, reduction="none")

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Client, data: Data, key: Tensor) -> tuple[Client, Up, dict[str, Tensor]]:
        base, mean_CV, std_CV = down.shared
        noise = keys.fold(key, "noise")

        def loss(model: tuple[Encoder, Weights], batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            mean_BV, std_BV = encode(model[0], x_B)
            error_B = error(model[1], mean_BV, std_BV, y_B, keys.fold(noise, batch.step))
            apart_B = kl_diagonal(mean_CV[y_B], std_CV[y_B], mean_BV, std_BV)
            ce = mean(error_B, batch.used_B)
            return ce + beta * mean(apart_B, batch.used_B), (mean_BV, std_BV, y_B, batch.used_B, ce)  # [2]

        plan = batches(data, task.training, keys.fold(key, "both"))
        (encoder, head), extras = sgd(loss, (base or client.encoder, client.head), plan, rule)  # [2]
        last = extras[-(len(extras) // task.training.epochs) :]
        mean_NV, std_NV, y_N, used_N = (torch.cat([s[part] for s in last]) for part in range(4))
        products = class_products(mean_NV, std_NV, y_N, used_N, task.classes)  # [3]
        experts = tree.map(lambda a: a.to(mean_NV.dtype), products)
        info = {"train_loss": trained_loss([(s[4], s[3].sum()) for s in extras])}
        if not share_encoder:
            return Client(head, encoder), Up(Report((), experts), torch.ones(())), info
        return Client(head, ()), Up(Report(tree.sub(encoder, base), experts), torch.ones(())), info

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        present_CV = up.value.experts.precision_CV > 0
        experts = tree.map(Tensor.double, up.value.experts)
        new = [
            torch.where(present_CV, a.to(old.dtype), old) for a, old in zip(posterior(experts), server[1:], strict=True)
        ]  # [5]
        mean_CV, std_CV = (old + server_rate * (a - old) for a, old in zip(new, server[1:], strict=True))
        encoder = tree.add(server.encoder, up.value.encoder) if share_encoder else ()  # [4]
        return Server(encoder, mean_CV, std_CV), {}

    def personalise(down: Down, client: Client, data: Data, key: Tensor) -> Client:
        encoder = down.shared.encoder or client.encoder
        codes_of = batch_features(task, encoder.body, data, then=partial(code_of, encoder))
        noise = keys.fold(key, "noise")

        def loss(head: Weights, batch: Batch) -> tuple[Tensor, tuple[()]]:
            (mean_BV, std_BV), y_B = codes_of(batch)
            return mean(error(head, mean_BV, std_BV, y_B, keys.fold(noise, batch.step)), batch.used_B), ()

        plan = batches(data, task.training, keys.fold(key, "head"), epochs=head_epochs)
        return Client(sgd(loss, client.head, plan, rule)[0], client.encoder)  # [6]

    def predict(down: Down, client: Client, x_B: Tensor) -> Tensor:
        mean_BV, std_BV = encode(down.shared.encoder or client.encoder, x_B)
        noise_SV = keys.normal(keys.key(0, "fedcr", "predict"), (samples, latent))
        if predict_with == "logits":
            z_BV = mean_BV + std_BV * noise_SV.mean(0)
            return log_softmax(linear(z_BV, **client.head), -1)
        logp_BSC = log_probability(client.head, mean_BV, std_BV, noise_SV[None])
        return logp_BSC.logsumexp(1) - math.log(samples)

    parts = Report(encoder=reduce.increment(), experts=reduce.sum())  # [4] [5]
    return Method(init_server, init_client, send, local, parts, aggregate, personalise, predict)
