"""A network in two parts, body and head, as pure functions of their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import local
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from idiolect.core import inputs as forms
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.frozen import Frozen, frozen, rebuilt
from idiolect.core.inputs import Form, Inputs
from idiolect.core.randomness import Randomness, draws_of_step, seeded
from idiolect.core.tree import Tree

# B batch, C channels, M calls of a layer in one prediction

Weights = dict[str, Tensor]
Buffers = Literal["aggregate", "local", "frozen"]
Precision = Literal["float32", "bf16"]
_NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_WATCHED = local()


class Model(NamedTuple):
    """The weights of a whole network."""

    body: Weights
    head: Weights


class WeightShapes(NamedTuple):
    """The shapes of a network's weights by name."""

    body: dict[str, torch.Size]
    head: dict[str, torch.Size]


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

    A parameter with ``requires_grad=False`` is frozen: it is no weight of the model, never trains and is never sent,
    and stays as the factory made it. All processes of a machine share one copy (``idiolect.core.frozen``). Dropout and
    whatever else is random acts in gradient steps alone (``idiolect.core.randomness``). Elsewhere the modules are as
    after ``eval()``.

    Attributes:
        make: builds (body, head) with the modules' own initialisation; it must be importable, so that a worker can
            build it too.
        form: of one sample: the shape, for example (1, 28, 28), if it is one tensor of floating-point numbers; else
            an ``Input``, or several by name, which the body gets as keyword arguments.
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
    form: Form
    buffers: Buffers | None = None
    precision: Precision = "float32"
    _parts: tuple[_Pure, _Pure] = field(init=False, repr=False, compare=False)
    _norms: _Norms = field(init=False, repr=False, compare=False)
    _frozen: Frozen | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        body, head = self._build(0)
        modules = [(f"{part}.{path}".rstrip("."), m) for part, root in (("body", body), ("head", head))
                   for path, m in root.named_modules()]  # fmt: skip
        layers = {path: m for path, m in modules if isinstance(m, _BatchNorm)}
        _check(self.buffers, layers, [f"{path}.{n}" for path, m in modules for n, _ in m.named_buffers(recurse=False)])
        object.__setattr__(self, "_frozen", frozen({"body": body, "head": head}))
        object.__setattr__(self, "_norms", _Norms({} if self.buffers == "frozen" else layers))
        half = self.precision == "bf16"
        parts = (
            _Pure(body, half, lambda: forms.blank(self.inputs, 1)),
            _Pure(head, half, lambda: torch.zeros(1, self.width)),
        )
        object.__setattr__(self, "_parts", parts)

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self._frozen and self._frozen.handle
        return rebuilt, (handle, Network, self.make, self.form, self.buffers, self.precision)

    @property
    def frozen_digest(self) -> str:
        """SHA-256 of the frozen weights; "" if there are none."""
        return self._frozen.digest if self._frozen else ""

    @property
    def frozen_bytes(self) -> int:
        """Of the frozen weights."""
        return tree.nbytes(self._frozen.tensors) if self._frozen else 0

    @property
    def inputs(self) -> Inputs:
        """The form of a sample, as the network takes it."""
        return forms.inputs_of(self.form)

    @property
    def shape(self) -> Any:
        """The shape of a sample, such as (1, 28, 28); of several tensors their shapes by name."""
        return forms.shapes(self.inputs)

    def _build(self, seed: int) -> tuple[nn.Module, nn.Module]:
        with seeded(seed):
            return self.make()

    @cached_property
    def weight_shapes(self) -> WeightShapes:
        """The shapes of the weights by name, in body and head."""
        return WeightShapes(*({n: p.shape for n, p in m.named_parameters() if p.requires_grad} for m in self._build(0)))

    @cached_property
    def normalisation(self) -> NormalisationWeights:
        """The names of the weights of normalisation layers, in body and head, which clients may keep (FedBN)."""
        names = []
        for module in self._build(0):
            layers = [(path, m) for path, m in module.named_modules() if isinstance(m, _NORMALISATIONS)]
            names.append(
                tuple(
                    f"{path}.{n}".lstrip(".")
                    for path, m in layers
                    for n, p in m.named_parameters(recurse=False)
                    if p.requires_grad
                )
            )
        return NormalisationWeights(*names)

    @cached_property
    def width(self) -> int:
        """d, the number of features."""
        with tree.unmapped(), torch.no_grad():  # a method may ask for it first within a map over clients
            return int(self.features(_weights(self._build(0)[0]), forms.blank(self.inputs, 1)).shape[-1])

    def init(self, key: Tensor) -> Model:
        """Fresh weights, a function of the key alone."""
        body, head = self._build(int(key))
        return Model(_weights(body), _weights(head))

    def features(self, body: Weights, x_B: Tree) -> Tensor:
        """z (B, d) of inputs: a tensor, or several by name."""
        return watch(self._parts[0](body, x_B))

    def logits(self, head: Weights, z_Bd: Tensor) -> Tensor:
        """Logits (B, C) of features (B, d)."""
        return self._parts[1](head, z_Bd)

    def __call__(self, model: Model, x_B: Tree) -> Tensor:
        """Logits (B, C) of inputs."""
        return self.logits(model.head, self.features(model.body, x_B))

    def prepare(self) -> None:
        """Find out by a pass on the host whether the network is random, before a device computes with it."""
        for part in self._parts:
            part.prepare()

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


def _weights(module: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}


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
        if self.seen is not None:
            row = _moments(x)
            self.seen[name] = (
                tree.map(lambda a, b: torch.cat([a, b]), self.seen[name], row) if name in self.seen else row
            )
        if self.given is not None and not torch.is_grad_enabled():
            mean_MC, square_MC = self.given[name]
            call = self.calls[name] % len(mean_MC)
            self.calls[name] += 1
            mean_C, square_C = mean_MC[call], square_MC[call]
            var_C = (square_C - mean_C.square()).clamp(min=0)
            kind = _wide(x).dtype
            return batch_norm(x, mean_C.to(kind), var_C.to(kind), layer.weight, layer.bias, eps=layer.eps)
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

    def __init__(self, module: nn.Module, half: bool, blank: Callable[[], Tree]) -> None:
        self._module, self._half = module.eval(), half
        first: dict[int, str] = {}  # a tensor that is used in two places has one name
        slots = [
            (m, n, p, first.setdefault(id(p), f"{path}.{n}" if path else n))
            for path, m in module.named_modules() for n, p in m._parameters.items() if p is not None
        ]  # fmt: skip
        self._slots = [(m, n, key) for m, n, p, key in slots if p.requires_grad]
        frozen = [(m._parameters, n, p) for m, n, p, _ in slots if not p.requires_grad]
        buffers = [(m._buffers, n, b) for m in module.modules() for n, b in m._buffers.items() if b is not None]
        self._constants: list[tuple[dict[str, Any], str, Tensor]] = [*frozen, *buffers]
        self._at = torch.device("cpu")
        # a batch normalisation is not asked: it has statistics of its own, or none
        self._modes = [m.__dict__ for m in module.modules() if not isinstance(m, _NormBase)]
        weights = _weights(module)
        self._randomness = Randomness(lambda x: self._train(weights, x), blank)

    def __call__(self, weights: Weights, x: Tree) -> Tensor:
        if (draws := draws_of_step()) is None:
            return self._run(weights, x)
        with self._randomness.inside(draws, (weights, x)):
            return self._train(weights, x)

    def prepare(self) -> None:
        """Find out whether the module is random."""
        _ = self._randomness.kinds

    def _train(self, weights: Weights, x: Tree) -> Tensor:
        """A pass of the module as after ``train()``."""
        for mode in self._modes:
            mode["training"] = True
        try:
            return self._run(weights, x)
        finally:
            for mode in self._modes:
                mode["training"] = False

    def _run(self, weights: Weights, x: Tree) -> Tensor:
        several = type(x) is dict
        first: Tensor = next(iter(x.values())) if several else x
        if first.device != self._at:
            self._move(first.device)
        for module, name, key in self._slots:
            module._parameters[name] = weights[key]
        if not self._half:
            return self._module(**x) if several else self._module(x)  # type: ignore[no-any-return]
        with torch.autocast("cpu", torch.bfloat16):
            z: Tensor = self._module(**x) if several else self._module(x)
        return z.to(first.dtype if first.dtype.is_floating_point else torch.get_default_dtype())

    def _move(self, device: torch.device) -> None:
        """Move frozen weights and buffers to the device of the samples."""
        with tree.unmapped():
            for holder, name, constant in self._constants:
                holder[name] = constant.to(device)
        self._at = device
