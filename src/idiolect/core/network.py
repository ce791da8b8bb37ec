"""A network in two parts, body and head, as pure functions of their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import RLock, local
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from idiolect.core import tree
from idiolect.core.errors import InputError

# B batch, C channels, M calls of a layer in one prediction

Weights = dict[str, Tensor]
Buffers = Literal["aggregate", "local", "frozen"]
Precision = Literal["float32", "bf16"]
_SEEDING = RLock()
_NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_WATCHED = local()


class Model(NamedTuple):
    """The weights of a whole network."""

    body: Weights
    head: Weights


class NormalisationWeights(NamedTuple):
    """The names of the weights of normalisation layers."""

    body: tuple[str, ...]
    head: tuple[str, ...]


class BatchMoments(NamedTuple):
    """The moments of a batch normalisation's input, per channel; row m is its m-th call in one prediction."""

    mean_MC: Tensor
    square_MC: Tensor
    """The mean of the squares."""


Statistics = dict[str, BatchMoments]  # by the layer's name


@dataclass(frozen=True)
class Network:
    """Body and head from a factory of two modules: x -> z (B, d) -> logits (B, C).

    The head of every network in ``idiolect.models`` is one linear layer, ``weight`` (C, d) and ``bias`` (C,). A user's
    own network may have another, so a method calls ``logits``, or makes a layer of its own by ``new_linear``.

    Attributes:
        make: builds (body, head) with the modules' own initialisation; it must be importable, so that a worker can
            build it too.
        shape: of one sample, for example (1, 28, 28).
        buffers: what happens to the buffers that a network has besides its weights. "frozen": they stay as the factory
            makes them, in training and in prediction. "local" and "aggregate": batch normalisations normalise by the
            batch, and predictions by statistics that ``idiolect.training.batchnorm`` measures; other buffers stay.
            None: the network has no buffers.
        precision: of products and convolutions in body and head, forward and backward. "bf16" computes them in
            bfloat16 by ``torch.autocast`` on the processor. Weights, gradients, features, logits and the statistics of
            batch normalisations keep their type.

    Raises:
        InputError: the policy does not fit the network's buffers.
    """

    make: Callable[[], tuple[nn.Module, nn.Module]]
    shape: tuple[int, ...]
    buffers: Buffers | None = None
    precision: Precision = "float32"
    _parts: tuple[_Pure, _Pure] = field(init=False, repr=False, compare=False)
    _norms: _Norms = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        body, head = self._build(0)
        modules = [(f"{part}.{path}".rstrip("."), m) for part, root in (("body", body), ("head", head))
                   for path, m in root.named_modules()]  # fmt: skip
        layers = {path: m for path, m in modules if isinstance(m, _BatchNorm)}
        _check(self.buffers, layers, [f"{path}.{n}" for path, m in modules for n, _ in m.named_buffers(recurse=False)])
        if self.buffers == "frozen":
            body.eval()
            head.eval()
        object.__setattr__(self, "_norms", _Norms({} if self.buffers == "frozen" else layers))
        half = self.precision == "bf16"
        object.__setattr__(self, "_parts", (_Pure(body, half), _Pure(head, half)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Network, (self.make, self.shape, self.buffers, self.precision)

    def _build(self, seed: int) -> tuple[nn.Module, nn.Module]:
        with seeded(seed):
            return self.make()

    @cached_property
    def normalisation(self) -> NormalisationWeights:
        """The names of the weights of normalisation layers, in body and head, for methods that keep them (FedBN)."""
        names = []
        for module in self._build(0):
            layers = [(path, m) for path, m in module.named_modules() if isinstance(m, _NORMALISATIONS)]
            names.append(
                tuple(f"{path}.{n}".lstrip(".") for path, m in layers for n, _ in m.named_parameters(recurse=False))
            )
        return NormalisationWeights(*names)

    @cached_property
    def width(self) -> int:
        """d, the number of features."""
        with tree.unmapped(), torch.no_grad():  # a method may ask for it first within a map over clients
            return int(self.features(_weights(self._build(0)[0]), torch.zeros(1, *self.shape)).shape[-1])

    def init(self, key: Tensor) -> Model:
        """Fresh weights, a function of the key alone."""
        body, head = self._build(int(key))
        return Model(_weights(body), _weights(head))

    def features(self, body: Weights, x_B: Tensor) -> Tensor:
        """z (B, d)."""
        return watch(self._parts[0](body, x_B))

    def logits(self, head: Weights, z_Bd: Tensor) -> Tensor:
        """Logits (B, C) of features (B, d)."""
        return self._parts[1](head, z_Bd)

    def __call__(self, model: Model, x_B: Tensor) -> Tensor:
        """Logits (B, C) of inputs."""
        return self.logits(model.head, self.features(model.body, x_B))

    @contextmanager
    def recording(self) -> Iterator[Statistics]:
        """Inside the block, batch normalisations add the moments of their inputs to the dict that this yields."""
        before, self._norms.seen = self._norms.seen, {}
        try:
            yield self._norms.seen
        finally:
            self._norms.seen = before

    @contextmanager
    def normalising(self, by: Statistics) -> Iterator[None]:
        """Inside the block, passes without gradients normalise by these statistics, a layer's m-th call by row m."""
        before = self._norms.given, self._norms.calls
        self._norms.given, self._norms.calls = by, Counter()
        try:
            yield
        finally:
            self._norms.given, self._norms.calls = before


@contextmanager
def watching() -> Iterator[list[Tensor]]:
    """Inside the block, the list that this yields holds the representation (B, V) that this thread noted last."""
    before, _WATCHED.seen = getattr(_WATCHED, "seen", None), list[Tensor]()
    try:
        yield _WATCHED.seen
    finally:
        _WATCHED.seen = before


def watch(z_BV: Tensor) -> Tensor:
    """Note a representation for ``watching``, if that is active, and return it.

    ``Network.features`` does so by itself. A method with another representation notes that one afterwards.
    """
    if (seen := getattr(_WATCHED, "seen", None)) is not None:
        seen[:] = [z_BV]
    return z_BV


def new_linear(key: Tensor, inputs: int, outputs: int) -> Weights:
    """A linear layer, weight (outputs, inputs) and bias (outputs,), as torch initialises one, by the key alone."""
    with seeded(int(key)):
        return _weights(nn.Linear(inputs, outputs))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside the block, torch's own generator has this seed; afterwards it is as before. One thread at a time."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also notes a traceback for every kind of device
        yield


def _weights(module: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def _check(policy: Buffers | None, layers: Mapping[str, _BatchNorm], buffers: list[str]) -> None:
    """Raise unless a policy fits the batch normalisations and the names of the buffers."""
    first = next(iter([*buffers, *layers]), None)
    if policy is None and first:
        raise InputError(
            f"the network has buffers ({first}): say what to do with them by the model's option buffers=aggregate, "
            "local or frozen, or normalise without running statistics, as GroupNorm does"
        )
    if policy and not first:
        raise InputError(f"buffers={policy} is not possible, because the network has no buffers: leave it out")
    if policy in ("aggregate", "local") and not layers:
        raise InputError(
            f"buffers={policy} is for batch normalisation, and the network has other buffers ({first}): "
            "choose buffers=frozen"
        )
    bare = next((path for path, m in layers.items() if m.running_mean is None), None)
    if policy == "frozen" and bare:
        raise InputError(f"buffers=frozen is not possible, because {bare} keeps no statistics: choose buffers=local")


class _Norms:
    """The batch normalisations of a network: by the batch, unless statistics are given. Their buffers never change."""

    def __init__(self, layers: Mapping[str, _BatchNorm]) -> None:
        self.seen: Statistics | None = None
        self.given: Statistics | None = None
        self.calls: Counter[str] = Counter()
        for name, layer in layers.items():
            layer.forward = partial(self._normalise, name, layer)  # type: ignore[method-assign]

    def _normalise(self, name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        if self.given is not None and not torch.is_grad_enabled():
            mean_MC, square_MC = self.given[name]
            call = self.calls[name] % len(mean_MC)
            self.calls[name] += 1
            mean_C, square_C = mean_MC[call], square_MC[call]
            var_C = (square_C - mean_C.square()).clamp(min=0)
            kind = _wide(x).dtype
            return batch_norm(x, mean_C.to(kind), var_C.to(kind), layer.weight, layer.bias, eps=layer.eps)
        if self.seen is not None:
            row = _moments(x)
            self.seen[name] = (
                tree.map(lambda a, b: torch.cat([a, b]), self.seen[name], row) if name in self.seen else row
            )
        if _single(x):
            x = x - x  # a single value per channel is its own mean: the result is the bias, without rounding
        # not torch's public form, which refuses a single value
        return torch.batch_norm(x, layer.weight, layer.bias, None, None, True, 0.0, layer.eps, False)


def _single(x: Tensor) -> bool:
    return x.numel() == x.shape[1]


def _moments(x: Tensor) -> BatchMoments:
    """The moments of one call, in float64. A single value per channel has no spread and counts as variance 1."""
    var_C, mean_C = torch.var_mean(_wide(x.detach()), [0, *range(2, x.ndim)], correction=0)
    if _single(x):
        var_C = torch.ones_like(var_C)
    return BatchMoments(mean_C.double()[None], (var_C.double() + mean_C.double().square())[None])


def _wide(x: Tensor) -> Tensor:
    """bfloat16 as float32, in which batch normalisations compute; else unchanged."""
    return x.float() if x.dtype == torch.bfloat16 else x


class _Pure:
    """A module as a function of its weights.

    As torch.func.functional_call, but without its bookkeeping, which takes a sixth of a small network's step.
    """

    def __init__(self, module: nn.Module, half: bool) -> None:
        self._module, self._half = module, half
        first: dict[int, str] = {}  # a tensor that is used in two places has one name
        self._slots = [
            (m, n, first.setdefault(id(p), f"{path}.{n}" if path else n))
            for path, m in module.named_modules() for n, p in m._parameters.items() if p is not None
        ]  # fmt: skip
        self._buffers = [(m, n, b) for m in module.modules() for n, b in m._buffers.items() if b is not None]
        self._at = torch.device("cpu")

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        if x.device != self._at:
            self._move(x.device)
        for module, name, key in self._slots:
            module._parameters[name] = weights[key]
        if not self._half:
            return self._module(x)  # type: ignore[no-any-return]
        with torch.autocast("cpu", torch.bfloat16):
            return self._module(x).to(x.dtype)  # type: ignore[no-any-return]

    def _move(self, device: torch.device) -> None:
        """Move the buffers to the device of the samples."""
        with tree.unmapped():
            for module, name, buffer in self._buffers:
                module._buffers[name] = buffer.to(device)
        self._at = device
