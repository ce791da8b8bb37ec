"""What happens to an upload on its way: clipping, noise and compression, one after another.

A step takes the value of an upload, a tree of tensors, and returns a tree of the same form. It does not depend on the
method. Weights, which are numbers of samples, do not change. Your own step is a function of ``(value, key)`` in a
module that workers can import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from idiolect.core import keys, option_spec, tree
from idiolect.core.method import Up
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree


def parts(value: Tree) -> list[list[int]]:
    """The places of the leaves of each part of an upload, such as the body, the head or the class means."""
    names = [path.partition("/")[0] for path in tree.named(value)]
    return [[k for k, name in enumerate(names) if name == part] for part in dict.fromkeys(names)]


Step = Callable[[Tree, Tensor], Tree]
"""(value, key) -> value. A step that compresses has a method ``nbytes(value)``: the bytes of its result on the wire."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Scales the value down to a Euclidean norm of at most ``norm``, over all of its numbers together.

    Source: McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, section 3.
    """

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value, times norm / |value| if its norm is larger."""
        size = sum(float(a.double().square().sum()) for a in tree.leaves(value) if a.is_floating_point())
        shrink = min(1.0, self.norm / max(math.sqrt(size), 1e-30))
        return tree.map(lambda a: a * shrink if a.is_floating_point() else a, value)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Adds an independent draw from N(0, std^2) to every number. After ``Clip``, this hides what one client sent."""

    std: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value plus noise, which depends on the key."""
        flat, build = tree.flatten(value)
        return build([
            a + self.std * keys.normal(keys.fold(key, k), tuple(a.shape), a.dtype) if a.is_floating_point() else a
            for k, a in enumerate(flat)
        ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Quantise:
    """Rounds each tensor to 2^bits - 1 even steps between its least and its largest number, at random and unbiased.

    On the wire, a number takes ``bits`` bits, and each tensor 8 bytes more.

    Source: Suresh et al., Distributed Mean Estimation with Limited Communication, ICML 2017, section 2.2 (k-level).
    """

    bits: Annotated[int, Field(ge=1, le=16)] = 8

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value that the server gets."""
        flat, build = tree.flatten(value)
        return build([self._round(a, keys.fold(key, k)) for k, a in enumerate(flat)])

    def nbytes(self, value: Tree) -> int:
        """Bytes on the wire."""
        return sum(
            -(-a.numel() * self.bits // 8) + 8 if a.is_floating_point() else tree.nbytes(a) for a in tree.leaves(value)
        )

    def _round(self, a: Tensor, key: Tensor) -> Tensor:
        if not a.is_floating_point() or not a.numel():
            return a
        low, high = a.min(), a.max()
        step = (high - low) / (2**self.bits - 1)
        uniform = (keys.bits(key, a.numel()) & 0x7FFFFFFF).to(a.dtype).mul_(2.0**-31).view_as(a)
        at = torch.floor((a - low) / torch.where(step > 0, step, 1) + uniform).clamp_(max=2**self.bits - 1)
        value: Tensor = low + at * step
        return value


@dataclass(frozen=True, kw_only=True)
class TopK:
    """Keeps the largest ``share`` of the numbers of each part by absolute value, and sends 0 for the others.

    The parts are those of the message: the increment of the body, that of the head, the class means, ... Over all of
    them together, means that are large would leave nothing of increments that are small. On the wire, a number that is
    kept takes its own bytes and 4 bytes for its place.

    Source: Aji & Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017, without their residuals.
    """

    share: Annotated[float, Field(gt=0, le=1)]

    def __call__(self, value: Tree, key: Tensor) -> Tree:
        """The value with zeros for the numbers that are not sent."""
        flat, build = tree.flatten(value)
        for places in parts(value):
            moving = [k for k in places if flat[k].is_floating_point() and flat[k].numel()]
            if moving:
                all_ = torch.cat([flat[k].abs().flatten().double() for k in moving])
                least = torch.topk(all_, self._count(len(all_)), sorted=True).values[-1]
                for k in moving:
                    flat[k] = torch.where(flat[k].abs() >= least, flat[k], 0.0)
        return build(flat)

    def nbytes(self, value: Tree) -> int:
        """Bytes on the wire."""
        flat, total = tree.leaves(value), 0
        for places in parts(value):
            moving = [flat[k] for k in places if flat[k].is_floating_point()]
            count = self._count(sum(a.numel() for a in moving))
            total += count * (4 + max((a.element_size() for a in moving), default=0))
            total += tree.nbytes([flat[k] for k in places if not flat[k].is_floating_point()])
        return total

    def _count(self, count: int) -> int:
        return max(1, math.ceil(self.share * count)) if count else 0


STEPS: dict[str, Callable[..., Any]] = {"clip": Clip, "noise": Noise, "quantise": Quantise, "top_k": TopK}


def step_of(spec: Spec) -> Any:
    """The step for a spec such as ``clip:norm=1.0``.

    Raises:
        InputError: unknown name or option, an option that is left out, or a value out of range.
    """
    return option_spec.made(spec, STEPS, "upload")


def apply_steps(steps: Sequence[Step], up: Up, key: Tensor) -> Up:
    """An upload after all steps, each with its own key. Several steps together are a step again."""
    value: Any = up.value
    for k, step in enumerate(steps):
        value = step(value, keys.fold(key, k))
    return up._replace(value=value)


def nbytes(steps: Sequence[Step], up: Up) -> int:
    """The bytes of an upload on the wire, as the last step that compresses counts them, if there is one."""
    by = next((step.nbytes for step in reversed(steps) if hasattr(step, "nbytes")), tree.nbytes)
    return int(by(up.value)) + tree.nbytes(up.weight)
