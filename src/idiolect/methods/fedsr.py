"""FedSR: a simple Gaussian representation for domain generalisation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn.functional import linear, log_softmax, softplus

from idiolect.core.method import Data, Down, Method, Task, Tree, Up, Weights, keys, new_linear, reduce, tree, watch
from idiolect.statistics.experts import kl_diagonal
from idiolect.training import (
    Batch,
    add,
    batch_features,
    batches,
    cross_entropy_mean,
    mean,
    optimiser_state,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    sgd_from,
    trained_loss,
)

PERSONAL = ("head_epochs", "samples")
SEARCH = {"norm": "0.0001..0.1:log", "conditional": "0.00001..0.01:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"latent": 512, "conditional": 5e-4, "steps": 5, "keep_momentum": True},
}
VARIANTS: dict[str, dict[str, Any]] = {"FedSR-FT": {"head_epochs": 10}}
_FLOOR = 1e-6  # of a standard deviation: softplus underflows, and the scale may pass through 0


class Shared(NamedTuple):
    """The network that is averaged: its body, the Gaussian layer on it (d -> 2 V) and the head (V -> C)."""

    body: Weights
    code: Weights
    head: Weights


class Reference(NamedTuple):
    """The Gaussians N(r_mu, softplus(r_sigma)^2) of the classes, and the scale a."""

    mean_CV: Tensor
    raw_CV: Tensor
    scale: Tensor


class Server(NamedTuple):
    """What the server keeps and sends."""

    model: Shared
    reference: Tree
    """``Reference`` where it is averaged, else ()."""


class Client(NamedTuple):
    """What stays at the client."""

    reference: Tree
    """``Reference``, or () where it is averaged."""
    momentum: Tree
    """Of (``Shared``, ``Reference``) where it is kept across rounds, else ()."""
    head: Weights | tuple[()] = ()
    """A tuned head, once ``personalise`` has made one."""


def fedsr(
    task: Task,
    *,
    latent: PositiveInt = 256,
    norm: NonNegativeFloat = 0.01,
    conditional: NonNegativeFloat = 1e-3,
    steps: PositiveInt | None = None,
    keep_momentum: bool = False,
    share_reference: bool = False,
    head_epochs: NonNegativeInt = 0,
    samples: PositiveInt = 20,
) -> Method:
    """FedSR: a Gaussian code, kept small and close to its class's Gaussian (Nguyen, Torr & Lim, NeurIPS 2022).

    Client, with encoder x -> (mu, sigma) (V), head, and of its own the Gaussians (r_mu, r_sigma) (C, V) and a scalar a:
        (mu, s) = W body(x) + b,   sigma = softplus(s)                                        [1]
        z = mu + sigma e,  e ~ N(0, I)                                                        [2]
        k(x, y) = KL(N(a mu, (a sigma)^2) || N(r_mu[y], softplus(r_sigma[y])^2))              [3]
        SGD on the mean over samples of CE(head(z), y) + norm |z|_2 + conditional k(x, y)     [4]
    Server:
        encoder, head <- uniform mean over participants                                       [5]
    Personal:
        head_i <- SGD(CE(head(z), y)), z drawn as in [2], encoder frozen, ``head_epochs``     [6]
        p(y | x) = mean over ``samples`` draws of softmax(head(z))                            [7]

    sigma is a standard deviation, |z|_2 the norm of the draw, not squared. sigma in [1] and both deviations in [3] are
    at least 1e-6. At the start r_mu = 0, r_sigma = 1, a = 1. Tuning leaves out the two terms that [4] adds to the
    cross-entropy.

    Up: increment of encoder and head, weighted 1. Down: encoder, head. At the client: r_mu, r_sigma, a, which are not
    averaged unless ``share_reference`` says so, and with ``keep_momentum`` the momentum of everything that trains. A
    new client needs nothing of its own: its model is the received one, head tuned or not.

    Args:
        task: the problem; the network's body is followed by a linear layer d -> 2 V, its head is replaced by V -> C.
            Rates are the task's.
        latent: V (released code: 512, on a pretrained ResNet; FedCR's networks: 256 or 512).
        norm: weight of |z|_2 (released code; FedCR: 0.01, for CIFAR-100 0.001).
        conditional: weight of the KL term (FedCR: 1e-3; released code: 5e-4, 1e-3 for PACS).
        steps: local mini-batches per round; None takes the task's local epochs (released code: 5).
        keep_momentum: whether a client's optimiser continues from its last round (released code); its momentum is not
            averaged as the weights are.
        share_reference: averages r_mu, r_sigma and a as well, as if they were part of the model.
        head_epochs: of tuning in ``personalise`` (FedSR is for domains never seen and tunes nothing; FedCR's FedSR-FT:
            10).
        samples: draws at a prediction; they are the same for every sample and in every call (released code: 20, fresh).

    Source: the paper's objective; what is averaged, the starts and the draws are from the released code
    (atuannguyen/FedSR).
    Differs from source: the released code takes log(a sigma), which is not a number once a < 0; here the standard
    deviation is |a| sigma, as it is for any a, and none falls below 1e-6. It draws every local batch from a fresh
    shuffle; here batches go through epochs. Where the weight of a term is exactly 0, it leaves out the term and does
    not change its parameters; here r_mu, r_sigma and a still decay, but nothing uses them.
    """
    require_classes(task, "fedsr", "it has a distribution of each class")
    require_unweighted(task, "fedsr")
    network, rule = task.network, task.training.optimiser

    def start(key: Tensor) -> tuple[Shared, Reference]:
        code = new_linear(keys.fold(key, "code"), network.width, 2 * latent)
        head = new_linear(keys.fold(key, "head"), latent, task.classes)
        zero_CV = torch.zeros(task.classes, latent)
        return Shared(network.init(key).body, code, head), Reference(zero_CV, zero_CV + 1, torch.ones(()))

    def init_server(key: Tensor) -> Server:
        model, reference = start(key)
        return Server(model, reference if share_reference else ())

    def init_client(key: Tensor, id: Tensor) -> Client:
        weights = start(key)
        return Client(() if share_reference else weights[1], optimiser_state(rule, weights) if keep_momentum else ())

    def code_of(code: Weights, z_Bd: Tensor) -> tuple[Tensor, Tensor]:
        out_B2V = linear(z_Bd, **code)  # [1]
        return watch(out_B2V[:, :latent]), softplus(out_B2V[:, latent:]).clamp(min=_FLOOR)  # [1]

    def apart(reference: Reference, mean_BV: Tensor, std_BV: Tensor, y_B: Tensor) -> Tensor:
        code = (reference.scale * mean_BV, (reference.scale.abs() * std_BV).clamp(min=_FLOOR))  # [3]
        goal = (reference.mean_CV[y_B], softplus(reference.raw_CV[y_B]).clamp(min=_FLOOR))  # [3]
        return kl_diagonal(*code, *goal)  # [3]

    def send(server: Server, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Client, data: Data, key: Tensor) -> tuple[Client, Up, dict[str, Tensor]]:
        base = (down.shared.model, down.shared.reference or client.reference)
        noise = keys.fold(key, "noise")

        def loss(weights: tuple[Shared, Reference], batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            model, reference = weights
            x_B, y_B = rows(task, data, batch)
            mean_BV, std_BV = code_of(model.code, network.features(model.body, task.inputs(x_B)))
            z_BV = mean_BV + std_BV * keys.normal(keys.fold(noise, batch.step), (len(y_B), latent))  # [2]
            error = cross_entropy_mean(linear(z_BV, **model.head), y_B, batch.used_B)  # [4]
            size = mean(torch.linalg.vector_norm(z_BV, dim=1), batch.used_B)  # [4]
            apart_ = mean(apart(reference, mean_BV, std_BV, y_B), batch.used_B)  # [4]
            return error + norm * size + conditional * apart_, (error, size, apart_, batch.used_B.sum())  # [4]

        plan = batches(data, task.training, keys.fold(key, "all"), steps=steps)
        momentum = client.momentum or optimiser_state(rule, base)
        (model, reference), momentum, extras = sgd_from(loss, base, momentum, plan, rule)  # [4]
        error, size, apart_ = (trained_loss([(s[part], s[3]) for s in extras]) for part in range(3))
        info = {"train_loss": error, "code_norm": size, "kl": apart_, "scale": reference.scale}
        change = Server(tree.sub(model, base[0]), tree.sub(reference, base[1]) if share_reference else ())
        state = Client(() if share_reference else reference, momentum if keep_momentum else ())
        return state, Up(change, torch.ones(())), info

    def personalise(down: Down, client: Client, data: Data, key: Tensor) -> Client:
        if not head_epochs:
            return client
        model = down.shared.model
        codes_of = batch_features(task, model.body, data, then=partial(code_of, model.code))
        noise = keys.fold(key, "noise")

        def loss(head: Weights, batch: Batch) -> tuple[Tensor, tuple[()]]:
            (mean_BV, std_BV), y_B = codes_of(batch)
            e_BV = keys.normal(keys.fold(noise, batch.step), (len(y_B), latent))
            logit_BC = linear(mean_BV + std_BV * e_BV, **head)  # [6]
            return cross_entropy_mean(logit_BC, y_B, batch.used_B), ()  # [6]

        plan = batches(data, task.training, keys.fold(key, "head"), epochs=head_epochs)
        return client._replace(head=sgd(loss, model.head, plan, rule)[0])  # [6]

    def predict(down: Down, client: Client, x_B: Tensor) -> Tensor:
        model = down.shared.model
        mean_BV, std_BV = code_of(model.code, network.features(model.body, task.inputs(x_B)))
        noise_SV = keys.normal(keys.key(0, "fedsr", "predict"), (samples, latent))
        z_BSV = mean_BV[:, None] + std_BV[:, None] * noise_SV  # [7]
        logp_BSC = log_softmax(linear(z_BSV, **(client.head or model.head)), -1)  # [7]
        return logp_BSC.logsumexp(1) - math.log(samples)  # [7]

    return Method(init_server, init_client, send, local, reduce.increment(), add, personalise, predict)  # [5]
