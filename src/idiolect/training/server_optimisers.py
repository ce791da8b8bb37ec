"""The server's optimiser: in place of a mean increment of weights the server takes another step along it (FedOpt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from idiolect.core import keys, option_spec, tree
from idiolect.core.errors import InputError
from idiolect.core.method import (
    Aggregate,
    Down,
    Info,
    InitClient,
    InitServer,
    Local,
    Method,
    Reduced,
    Rounds,
    Send,
    Task,
    unchanged,
)
from idiolect.core.option_spec import Spec
from idiolect.core.reduce import Increment, Mean, Rule, rules, spread
from idiolect.core.reduction import Reduction
from idiolect.core.tree import Tree
from idiolect.training.sharing import shared
from idiolect.training.trial import samples, trial

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


class WithOptimiser(NamedTuple):
    """A method's server and the optimiser's state."""

    method: Tree
    """x and all else that the server keeps."""
    mean: tuple[Tensor, ...]
    """m, for each tensor of the upload that is an increment."""
    square: tuple[Tensor, ...]
    """v, the same; empty where the optimiser has none."""


def with_server_optimiser(method: Method, name: str, rule: ServerOptimiser, task: Task) -> Method:
    """The method with this optimiser at the server: it steps what the method declares to be an ``Increment``.

    The method's ``aggregate`` gets the optimiser's step in place of the mean increment Delta, and all other parts as
    they are. A server without state takes no step, so such a method stays as it is.

    Raises:
        InputError: the method declares no increment.
    """
    if isinstance(rule, ServerAverage):
        return method
    if not any(isinstance(one, Increment) for one in rules(method.reduce)):
        if not tree.leaves(method.init_server(keys.key(0))):
            return method
        option = next(k for k, make in SERVER_OPTIMISERS.items() if isinstance(rule, make))
        raise InputError(
            f"method {name} cannot take server_optimiser={option}, because nothing that it sends is an increment of "
            "weights that its server adds: leave out server_optimiser, or this method"
        )
    rounds = _with_optimiser(method.init_server, method.send, method.reduce, method.aggregate, method.local,
                        method.init_client, rule, task)  # fmt: skip
    return method._replace(**rounds._asdict())


@shared
def _with_optimiser(
    start: InitServer[Tree], down: Send[Tree], parts: Tree, add: Aggregate[Tree], local: Local[Tree],
    init_client: InitClient[Tree], rule: ServerMomentum | ServerAdam, task: Task,
) -> Rounds[WithOptimiser, Tree]:  # fmt: skip
    def init_server(key: Tensor) -> WithOptimiser:
        method = Method(start, init_client, down, local, parts, add, unchanged, lambda down, client, x_B: x_B)
        data = samples(task.network.form, task.classes, 2)
        [up] = trial(method, data).ups
        flat = tree.leaves(up.value)
        zeros = tuple(torch.zeros_like(flat[k]) for k in Reduction(parts, up).increments)
        square = tuple(torch.full_like(a, rule.tau**2) for a in zeros) if isinstance(rule, ServerAdam) else ()
        return WithOptimiser(start(key), zeros, square)

    def send(server: WithOptimiser, ids: Tensor) -> Down:
        return down(server.method, ids)

    def aggregate(server: WithOptimiser, up: Reduced, ids: Tensor) -> tuple[WithOptimiser, Info]:
        flat, build = tree.flatten(up.value)
        places = [k for k, one in enumerate(spread(parts, up.value)) if isinstance(one, Increment)]
        delta = [flat[k] for k in places]
        state, step = _momentum(server, delta, rule) if isinstance(rule, ServerMomentum) else _adam(server, delta, rule)
        for k, change in zip(places, step, strict=True):
            flat[k] = change
        own, info = add(server.method, up._replace(value=build(flat)), ids)
        return WithOptimiser(own, *state), info

    def not_again(one: Rule) -> Rule:
        return Mean(one.by, one.measured, one.exact) if isinstance(one, Increment) else one

    once = tree.map(not_again, parts)
    return Rounds(init_server, init_client, send, local, once, aggregate)


RunningMeans = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # m and v, for each increment


def _momentum(server: WithOptimiser, delta: list[Tensor], rule: ServerMomentum) -> tuple[RunningMeans, list[Tensor]]:
    mean = tuple(rule.momentum * m + d for m, d in zip(server.mean, delta, strict=True))
    return (mean, ()), [rule.lr * m for m in mean]


def _adam(server: WithOptimiser, delta: list[Tensor], rule: ServerAdam) -> tuple[RunningMeans, list[Tensor]]:
    mean = tuple(rule.beta1 * m + (1 - rule.beta1) * d for m, d in zip(server.mean, delta, strict=True))
    square = tuple(rule.beta2 * v + (1 - rule.beta2) * d * d for v, d in zip(server.square, delta, strict=True))
    return (mean, square), [rule.lr * m / (v.sqrt() + rule.tau) for m, v in zip(mean, square, strict=True)]
