"""Turns samples as stored into what a network takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.inputs import Moments, is_integer
from idiolect.core.tree import Tree


@dataclass(frozen=True)
class Preprocessing:
    """Normalises samples (B, ...) per channel or feature: (x - mean) / std, 8-bit images on a scale of 0 to 1.

    A missing value (NaN) among floats becomes the mean. Images come out channels-last, which is faster. Whole numbers,
    such as the ids of words, stay as they are, as int64.

    Args:
        mean: one number per channel or feature, or one for all; of samples with several tensors this by name.
        std: the same, not 0.
    """

    mean: Moments = (0.0,)
    std: Moments = (1.0,)

    def __call__(self, x_B: Tree) -> Any:
        """The samples as the network takes them, numbers in the default floating-point type."""
        if isinstance(x_B, dict):
            return {name: self.of(name)(leaf_B) for name, leaf_B in x_B.items()}
        return x_B.long() if is_integer(x_B) else self._scaled(x_B)

    def of(self, name: str) -> Preprocessing:
        """What is done to the tensor of this name."""
        assert isinstance(self.mean, Mapping)
        assert isinstance(self.std, Mapping)
        return Preprocessing(self.mean[name], self.std[name])

    def _scaled(self, x_B: Tensor) -> Tensor:
        assert isinstance(self.mean, tuple)
        assert isinstance(self.std, tuple)
        if x_B.dtype != torch.uint8:
            return self._numbers(x_B.to(torch.get_default_dtype()))
        if x_B.ndim == 4 and not tree.mapped(x_B):
            # with one channel only the strides change, which convolutions look at; with more, floats are faster to move
            x_B = x_B.clone(memory_format=torch.channels_last) if x_B.shape[1] == 1 else x_B
            x_B = x_B.to(torch.get_default_dtype()).contiguous(memory_format=torch.channels_last)
            scale, shift = _whole(self.mean, self.std, x_B.shape[1:], x_B.dtype, x_B.device)
            return x_B.mul_(scale).add_(shift)
        x_B = x_B.to(torch.get_default_dtype())
        scale_C, shift_C = _scaling(self.mean, self.std, x_B.dtype, x_B.device)
        shape = (-1,) + (1,) * (x_B.ndim - 2)
        return x_B * scale_C.view(shape) + shift_C.view(shape)

    def _numbers(self, x_B: Tensor) -> Tensor:
        if self.mean == (0.0,) and self.std == (1.0,):
            return torch.nan_to_num(x_B, nan=0.0)
        shape = (-1,) + (1,) * (x_B.ndim - 2)
        mean, std = (tree.constant(v, x_B.dtype, x_B.device).view(shape) for v in (self.mean, self.std))
        z_B = (x_B - mean) / std
        return torch.nan_to_num(z_B, nan=0.0)


def _scaling(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Per channel, what 8-bit values are multiplied by, and what is then added."""
    scale_C = tree.constant(tuple(1 / (255 * s) for s in std), dtype, device)
    return scale_C, tree.constant(tuple(-m / s for m, s in zip(mean, std, strict=True)), dtype, device)


@lru_cache(maxsize=8)
def _whole(
    mean: tuple[float, ...], std: tuple[float, ...], shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The same for every pixel, in the layout of images: broadcasting a channel's number takes twice as long."""
    parts = _scaling(mean, std, dtype, device)
    with tree.unmapped():
        scale, shift = (a.view(1, -1, 1, 1).expand(1, *shape).clone(memory_format=torch.channels_last) for a in parts)
    return scale, shift
