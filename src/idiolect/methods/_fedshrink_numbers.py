"""FedShrink where the target is numbers: Bayesian linear regression on the features."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core.method import Data, Down, Method, Reduced, Task, Up, Weights, reduce, tree
from idiolect.statistics import covariance, random_effects
from idiolect.training import Batch, batches, features, mean, rows, sgd, stateless, trained_loss


class Prior(NamedTuple):
    """What the server knows of numbers: everyone's weights, and how far clients' lie from them."""

    body: Weights
    weight_dD: Tensor
    """(d + 1, D); the last row is the bias."""
    spread: Tensor
    """l and m."""


class Sums(NamedTuple):
    """What a client sends of numbers; G are the pairs of l and m."""

    body: Weights
    gram: Tensor
    """Upper triangle of A (d + 1, d + 1)."""
    cross_dD: Tensor
    square_D: Tensor
    square_GD: Tensor
    log_det_G: Tensor
    n: Tensor


def of_numbers(task: Task, ridge: float, train_with: str, personal: str) -> Method:
    """FedShrink where the target is numbers: see [20] to [26] of ``fedshrink``; w_i, but with "everyone" or "own"."""
    network, width, outputs = task.network, task.network.width + 1, task.classes

    def init_server(key: Tensor) -> Prior:
        return Prior(network.init(key).body, torch.zeros(width, outputs), torch.ones(2))

    def send(server: Prior, ids: Tensor) -> Down:
        return Down(shared=server)

    def with_bias(z_Nd: Tensor) -> Tensor:
        return torch.cat([z_Nd, torch.ones_like(z_Nd[:, :1])], 1)

    def products(body: Weights, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        z_Nd, y_ND = features(task, body, data)
        real_N = data.real_N.double()
        z_Nd, y_ND = with_bias(z_Nd).double() * real_N[:, None], y_ND.double() * real_N[:, None]
        return z_Nd.T @ z_Nd, z_Nd.T @ y_ND, y_ND.square().sum(0)  # [20]

    def posterior(gram_dd: Tensor, cross_dD: Tensor, prior: Prior, how: str, pull: Tensor | float = 0) -> Tensor:
        weight_dD: Tensor = prior.weight_dD.double()
        if how == "everyone":
            return weight_dD
        inverse = 1 / prior.spread.double() if how != "own" else 1e-6 * torch.ones_like(prior.spread).double()
        inverse_d = torch.cat([inverse[:1].expand(width - 1), inverse[1:]])  # D^-1
        rest_dD = cross_dD - gram_dd @ weight_dD - pull * weight_dD
        change_dD: Tensor = torch.linalg.solve(gram_dd + torch.diag(inverse_d + pull), rest_dD)  # [20] [21]
        return weight_dD + change_dD

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        prior = down.shared
        gram_dd, cross_dD, square_D = products(prior.body, data)
        pull = ridge * data.real_N.sum().double()
        head_dD = posterior(gram_dd, cross_dD, prior, train_with, pull).to(prior.weight_dD.dtype)  # [21]

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_BD = rows(task, data, batch)
            value_BD = with_bias(network.features(body, task.inputs(x_B))) @ head_dD
            error = mean(task.loss(value_BD, y_BD), batch.used_B)
            return error, (error, batch.used_B.sum())

        new, extras = sgd(loss, prior.body, batches(data, task.training, key), task.training.optimiser)  # [21]
        weight_dD, spread = prior.weight_dD.double(), prior.spread[0]
        fit_dD = gram_dd @ weight_dD
        rest_D = square_D - (weight_dD * (2 * cross_dD - fit_dD)).sum(0)  # r' r
        square_GD, log_det_G, e_d = random_effects.by_spread(gram_dd, cross_dD - fit_dD, rest_D)  # [22]
        sums = (covariance.pack(gram_dd), cross_dD, square_D, square_GD, log_det_G, data.real_N.sum())
        up = Sums(tree.sub(new, prior.body), *(part.to(head_dD.dtype) for part in sums))
        info = {
            "train_loss": trained_loss(extras),
            "trust": (spread * e_d / (spread * e_d + 1)).mean().to(head_dD.dtype),
        }
        return client, Up(up, data.real_N.sum()), info

    def aggregate(server: Prior, up: Reduced, ids: Tensor) -> tuple[Prior, dict[str, Tensor]]:
        s, dtype = tree.map(torch.Tensor.double, up.value._replace(body={})), server.weight_dD.dtype
        spread = random_effects.likeliest(s.n, s.square_GD, s.log_det_G)  # [24]
        weight_dD = random_effects.ridge(covariance.unpack(s.gram, width), s.cross_dD, s.square_D, s.n)  # [25]
        return Prior(tree.add(server.body, up.value.body), weight_dD.to(dtype), spread.to(dtype)), {}  # [23]

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Tensor:
        gram_dd, cross_dD, _ = products(down.shared.body, data)
        return posterior(gram_dd, cross_dD, down.shared, personal).to(down.shared.weight_dD.dtype)  # [26]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        z_Bd = with_bias(network.features(down.shared.body, task.inputs(x_B)))
        value_BD: Tensor = task.output(z_Bd @ (client if len(client) else down.shared.weight_dD))
        return value_BD

    parts = Sums(reduce.increment(), *(reduce.sum(exact=True) for _ in Sums._fields[1:]))  # [23]
    return Method(init_server, stateless, send, local, parts, aggregate, personalise, predict)
