"""What the networks share: the shape of a sample, normalisation, and how convolutions start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm

from idiolect.core.errors import InputError
from idiolect.core.inputs import Inputs

Shape = tuple[int, ...]
Parts = tuple[nn.Module, nn.Module]
Norm = Literal["group", "batch"]
M = TypeVar("M", bound=nn.Module)


def image(name: str, shape: Shape, least: int) -> Shape:
    """Channels, height and width of a sample.

    Raises:
        InputError: it is not an image, or one smaller than ``least`` pixels a side.
    """
    if len(shape) != 3:
        raise InputError(f"model {name} needs images, and these samples have shape {shape}: choose model mlp")
    if min(shape[1:]) < least:
        size = f"{shape[1]}x{shape[2]}"
        raise InputError(f"model {name} needs images of at least {least}x{least}, these are {size}: choose model auto")
    return shape


def with_vocabulary(make: Callable[..., Any], options: Mapping[str, Any], inputs: Inputs, what: str) -> dict[str, Any]:
    """A factory's options with ``vocabulary``, one more than the largest id, if it has it and it is not given.

    Raises:
        InputError: the data do not say it, and the factory needs it.
    """
    parameters = inspect.signature(make).parameters
    if "vocabulary" not in parameters or "vocabulary" in options:
        return dict(options)
    each = inputs.values() if isinstance(inputs, dict) else [inputs]
    sizes = [one.size for one in each if one.integer]
    if len(sizes) == 1 and sizes[0]:
        return {**options, "vocabulary": sizes[0]}
    if parameters["vocabulary"].default is inspect.Parameter.empty:
        raise InputError(f"{what}: give vocabulary, one more than the largest id, which these data do not say")
    return dict(options)


def needs(name: str, shape: Shape, only: Shape) -> None:
    """Raise InputError unless a sample has the one shape that a network takes."""
    if shape != only:
        raise InputError(f"model {name} takes samples of shape {only}, and these have {shape}: choose model auto")


def dense(inputs: int, outputs: int) -> Parts:
    """A linear layer and its ReLU."""
    return nn.Linear(inputs, outputs), nn.ReLU()


def groups(channels: int) -> int:
    """The number of groups of 32 channels, or of somewhat more where 32 does not divide them."""
    return next(g for g in range(max(1, channels // 32), 0, -1) if channels % g == 0)


def new_norm(kind: Norm, channels: int, eps: float = 1e-5) -> nn.Module:
    """A normalisation of images with a scale and a shift per channel."""
    return nn.GroupNorm(groups(channels), channels, eps) if kind == "group" else nn.BatchNorm2d(channels, eps)


class SharedAffineGroupNorm(nn.Module):
    """GroupNorm whose scale and shift are one per group, not one per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(groups(channels)))
        self.bias = nn.Parameter(torch.zeros(groups(channels)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        count = len(self.weight)
        each = x.shape[1] // count
        return group_norm(x, count, self.weight.repeat_interleave(each), self.bias.repeat_interleave(each))


def he(module: M) -> M:
    """Start convolutions from N(0, 2 / (outputs x kernel area)), biases from 0 (He et al., 2015)."""
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            if m.bias is not None:
                nn.init.zeros_(m.bias)
    return module
