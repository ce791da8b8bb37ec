"""What a backbone does with an image before its network sees it, as part of the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

from idiolect.core.errors import InputError

# B images, C channels, H height, W width


@dataclass(frozen=True)
class ImageForm:
    """The images that a network takes.

    Attributes:
        resize: height and width; or the length of the shorter side, which keeps the proportions; None for no change.
        crop: height and width of the middle that is cut out afterwards; None for all.
        mode: of the interpolation.
        mean: per channel, on a scale of 0 to 1.
        std: per channel.
        scale: whether a value lies in 0 to 1 before the mean is subtracted; else in 0 to 255.
        channels: of an image.
    """

    resize: tuple[int, int] | int | None
    crop: tuple[int, int] | None
    mode: Literal["nearest-exact", "bilinear", "bicubic"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: bool = True
    channels: int = 3

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The size to which an image is resized, before anything is cut out."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            return self.resize
        short, long = sorted((height, width))
        longer = int(self.resize * long / short)
        return (self.resize, longer) if height <= width else (longer, self.resize)


class Pixels(nn.Module):
    """Images of any size, on a scale of 0 to 1, become what a network takes; grey ones get its channels.

    Args:
        form: what it takes.
    """

    mean_C: Tensor
    std_C: Tensor

    def __init__(self, form: ImageForm) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("mean_C", torch.tensor(form.mean), persistent=False)
        self.register_buffer("std_C", torch.tensor(form.std), persistent=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, channels, height, width).

        Raises:
            InputError: the images have another number of channels.
        """
        form = self.form
        if x_BCHW.shape[1] == 1 < form.channels:
            x_BCHW = x_BCHW.expand(-1, form.channels, -1, -1)
        if x_BCHW.shape[1] != form.channels:
            raise InputError(
                f"these images have {x_BCHW.shape[1]} channels, and the backbone takes {form.channels}: give grey or "
                "colour images, or another backbone"
            )
        height, width = x_BCHW.shape[2:]
        if (size := form.size(height, width)) != (height, width):
            smooth = form.mode != "nearest-exact"
            x_BCHW = interpolate(x_BCHW, size, mode=form.mode, antialias=smooth).clamp(0, 1)
        if form.crop is not None:
            x_BCHW = _middle(x_BCHW, *form.crop)
        return (x_BCHW * (1 if form.scale else 255) - self.mean_C[:, None, None]) / self.std_C[:, None, None]


def _middle(x_BCHW: Tensor, height: int, width: int) -> Tensor:
    """The middle of images; black borders where they are smaller than it."""
    missing = [max(0, size - there) for size, there in zip((height, width), x_BCHW.shape[2:], strict=True)]
    if any(missing):
        (top, left), (bottom, right) = ([math.ceil(m / 2) for m in missing], [m // 2 for m in missing])
        x_BCHW = pad(x_BCHW, (left, right, top, bottom))
    top, left = (x_BCHW.shape[2] - height) // 2, (x_BCHW.shape[3] - width) // 2
    return x_BCHW[:, :, top : top + height, left : left + width]
