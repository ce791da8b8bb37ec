"""Training images cropped and mirrored at random: a function of a key."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from idiolect.core import keys

_PAD = 4  # pixels


def crop_flip(x_B: Tensor, key: Tensor) -> Tensor:
    """8-bit images (B, C, H, W), moved by up to 4 pixels along each axis on a black ground; half of them mirrored.

    The same as torchvision's RandomCrop with a padding of 4, followed by its RandomHorizontalFlip. The draws of an
    image are a function of the key and of its place in the batch.
    """
    height, width = x_B.shape[2:]
    draw_B = keys.bits(key, len(x_B))
    down_B, right_B = (((draw_B >> low) & 0x7FFFFFFF) * (2 * _PAD + 1) >> 31 for low in (0, 31))
    row_BH = torch.arange(height) + down_B[:, None]
    column_W = torch.arange(width)
    column_BW = torch.where((draw_B < 0)[:, None], column_W.flip(0), column_W) + right_B[:, None]
    at_BHW = row_BH[:, :, None] * (width + 2 * _PAD) + column_BW[:, None]
    at_BCP = at_BHW.flatten(1)[:, None].expand(-1, x_B.shape[1], -1)  # of each pixel, among those of the padded image
    return pad(x_B, (_PAD,) * 4).flatten(2).gather(2, at_BCP).view(x_B.shape)
