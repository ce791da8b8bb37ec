"""A network in two parts, body and head, as pure functions of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idiolect.errors import InputError

Weights = dict[str, Tensor]


class Model(NamedTuple):
    """The weights of a whole network."""

    body: Weights
    head: Weights


@dataclass(frozen=True)
class Network:
    """Body and head from a factory of two modules: x -> z (B, d) -> logits (B, C).

    Attributes:
        make: builds (body, head) with the modules' own initialisation; importable, so that a worker can build it too.
        shape: of one input row, for example (1, 28, 28).

    Raises:
        InputError: a module has buffers (batch statistics), which no method here aggregates.
    """

    make: Callable[[], tuple[nn.Module, nn.Module]]
    shape: tuple[int, ...]
    _parts: tuple[_Pure, _Pure] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        body, head = self._build(0)
        for module in (body, head):
            if names := [n for n, _ in module.named_buffers()]:
                raise InputError(
                    f"the network has buffers ({names[0]}): normalise without running statistics, as GroupNorm does"
                )
        object.__setattr__(self, "_parts", (_Pure(body), _Pure(head)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self.make, self.shape)

    def _build(self, seed: int) -> tuple[nn.Module, nn.Module]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    @cached_property
    def width(self) -> int:
        """d, the number of features."""
        with torch.no_grad():
            return int(self._build(0)[0](torch.zeros(1, *self.shape)).shape[-1])

    def init(self, key: Tensor) -> Model:
        """Fresh weights, a function of the key alone."""
        body, head = self._build(int(key))
        return Model(_weights(body), _weights(head))

    def features(self, body: Weights, x_B: Tensor) -> Tensor:
        """z (B, d)."""
        return self._parts[0](body, x_B)

    def logits(self, head: Weights, z_Bd: Tensor) -> Tensor:
        """Logits (B, C) of features (B, d)."""
        return self._parts[1](head, z_Bd)

    def __call__(self, model: Model, x_B: Tensor) -> Tensor:
        """Logits (B, C) of inputs."""
        return self.logits(model.head, self.features(model.body, x_B))


def new_linear(key: Tensor, inputs: int, outputs: int) -> Weights:
    """A linear layer, weight (outputs, inputs) and bias (outputs,), as torch starts one; the key alone decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(key))
        return _weights(nn.Linear(inputs, outputs))


def _weights(module: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


class _Pure:
    """A module as a function of its weights.

    torch.func.functional_call without its bookkeeping, which takes a sixth of a small network's step.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._slots = [
            (m, n, f"{path}.{n}" if path else n) for path, m in module.named_modules() for n in m._parameters
        ]

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        for module, name, key in self._slots:
            if module._parameters[name] is not None:
                module._parameters[name] = weights[key]
        return self._module(x)  # type: ignore[no-any-return]
