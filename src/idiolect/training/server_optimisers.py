"""The server's optimiser: a method whose server adds the mean increment takes another step along it (FedOpt)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from idiolect.core import keys, option_spec, tree
from idiolect.core.errors import InputError
from idiolect.core.method import Down, Info, Method, Up
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree
from idiolect.training.averaging import add_mean

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class ServerAverage:
    """x <- x + Delta: the method's own step."""


@dataclass(frozen=True, kw_only=True)
class ServerMomentum:
    """m <- momentum m + Delta,  x <- x + lr m.

    Source: FedAvgM (Hsu, Qi & Brown, 2019).
    """

    lr: PositiveFloat = 1.0
    momentum: Share = 0.9


@dataclass(frozen=True, kw_only=True)
class ServerAdam:
    """m <- beta1 m + (1 - beta1) Delta,  v <- beta2 v + (1 - beta2) Delta^2,  x <- x + lr m / (sqrt(v) + tau).

    m starts at 0 and v at tau^2, without bias correction.

    Source: FedAdam (Reddi et al., ICLR 2021), Algorithm 2, which requires v to start at tau^2 or more.
    """

    lr: PositiveFloat = 0.01
    beta1: Share = 0.9
    beta2: Share = 0.99
    tau: PositiveFloat = 1e-3


ServerOptimiser = ServerAverage | ServerMomentum | ServerAdam
AVERAGE = ServerAverage()
SERVER_OPTIMISERS: dict[str, type[ServerOptimiser]] = {
    "average": ServerAverage,
    "momentum": ServerMomentum,
    "adam": ServerAdam,
}


def server_optimiser_of(spec: Spec) -> ServerOptimiser:
    """The optimiser that a spec names, such as ``adam:lr=0.01``.

    Raises:
        InputError: unknown name or option, or a value out of range.
    """
    rule: ServerOptimiser = option_spec.made(spec, SERVER_OPTIMISERS, "server_optimiser")
    return rule


def complete_server_optimiser(spec: Spec) -> Spec:
    """The spec with all its options.

    Raises:
        InputError: as ``server_optimiser_of``.
    """
    return Spec(name=spec.name, options=asdict(server_optimiser_of(spec)))


class Optimised(NamedTuple):
    """A method's server and the optimiser's state."""

    method: Tree
    """x."""
    mean: Tree
    """m, a tree like the server."""
    square: Tree
    """v, the same; () where the optimiser has none."""


def with_server_optimiser(method: Method, name: str, rule: ServerOptimiser) -> Method:
    """The method with this optimiser at the server, for a server x that adds Delta = sum_i w_i u_i / sum_i w_i.

    A server without state takes no step, so such a method stays as it is.

    Raises:
        InputError: the method's server does more than add Delta.
    """
    if isinstance(rule, ServerAverage):
        return method
    if method.aggregate is not add_mean:
        if not tree.leaves(method.init_server(keys.key(0))):
            return method
        called = next(k for k, make in SERVER_OPTIMISERS.items() if isinstance(rule, make))
        raise InputError(
            f"method {name} cannot take server_optimiser={called}, because its server does more than add the mean of "
            f"the increments: leave out server_optimiser, or this method"
        )

    start, down = method.init_server, method.send  # alone, so that what else a method does is not part of its training

    def init_server(key: Tensor) -> Optimised:
        server = start(key)
        square: Tree = ()
        if isinstance(rule, ServerAdam):
            square = tree.map(partial(torch.full_like, fill_value=rule.tau**2), server)
        return Optimised(server, tree.zeros(server), square)

    def send(server: Optimised, ids: Tensor) -> Down:
        return down(server.method, ids)

    def aggregate(server: Optimised, up: Up, ids: Tensor) -> tuple[Optimised, Info]:
        delta = tree.mean(up.value, up.weight)
        return _adam(server, delta, rule) if isinstance(rule, ServerAdam) else _momentum(server, delta, rule), {}

    return method._replace(init_server=init_server, send=send, aggregate=aggregate)


def _momentum(server: Optimised, delta: Tree, rule: ServerMomentum) -> Optimised:
    mean = tree.map(lambda m, d: rule.momentum * m + d, server.mean, delta)
    return Optimised(tree.map(lambda x, m: x + rule.lr * m, server.method, mean), mean, ())


def _adam(server: Optimised, delta: Tree, rule: ServerAdam) -> Optimised:
    mean = tree.map(lambda m, d: rule.beta1 * m + (1 - rule.beta1) * d, server.mean, delta)
    square = tree.map(lambda v, d: rule.beta2 * v + (1 - rule.beta2) * d * d, server.square, delta)
    moved = tree.map(lambda x, m, v: x + rule.lr * m / (v.sqrt() + rule.tau), server.method, mean, square)
    return Optimised(moved, mean, square)
