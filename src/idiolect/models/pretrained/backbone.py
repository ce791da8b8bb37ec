"""A pretrained network without its last layers: raw samples in, features out."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from idiolect.core import tree
from idiolect.core.errors import InputError, option
from idiolect.models.pretrained.pixels import Pixels
from idiolect.models.pretrained.settings import Pooling

# B samples, L tokens or places, C channels, d features

Kind = Literal["images", "texts"]


class Backbone(nn.Module):
    """A pretrained network whose output is pooled to one row of features for each sample.

    Args:
        module: the network.
        pixels: what is done with images before; None for texts.
        pooling: see ``Pretrained``.
        first: class tokens and others that come before those of the places.
        about: what the network computes with its weights, as a text.
    """

    def __init__(self, module: nn.Module, pixels: Pixels | None, pooling: Pooling, first: int, about: str) -> None:
        super().__init__()
        self.module, self.pixels, self.pooling, self.first, self.about = module, pixels, pooling, first, about

    @cached_property
    def width(self) -> int:
        """d, the number of features."""
        with torch.no_grad():
            return int(self(self.example()).shape[1])

    def example(self) -> Tensor:
        """Two samples, as ``forward`` takes them."""
        if self.pixels is None:
            return torch.ones(2, 3, dtype=torch.int64)
        return torch.zeros(2, self.pixels.form.channels, 32, 32)

    @property
    def kind(self) -> Kind:
        """What a sample is."""
        return "texts" if self.pixels is None else "images"

    def forward(self, x_B: Tensor) -> Tensor:
        """Features (B, d) of images (B, C, H, W) on a scale of 0 to 1, or of texts (B, L).

        A text is the tokenizer's ids, each plus one; 0 stands for nothing and comes last.
        """
        # under vmap torch has rules for the parts of attention, and none for the whole
        with sdpa_kernel(SDPBackend.MATH) if tree.mapped(x_B) else nullcontext():
            return self._of_texts(x_B) if self.pixels is None else self._of_images(self.pixels(x_B))

    def _of_texts(self, x_BL: Tensor) -> Tensor:
        if tree.mapped(x_BL):
            raise InputError(
                "a pretrained backbone for texts cannot be computed for several clients together, because it looks at "
                f"the lengths of texts: choose {option('engine', 'processes')}"
            )
        if not torch.compiler.is_exporting():
            x_BL = x_BL[:, : max(1, int((x_BL != 0).sum(1).max()))]  # as wide as the longest text
        first_B1 = torch.ones_like(x_BL[:, :1])  # of a text without tokens one counts, so that it has features too
        real_BL = torch.cat([first_B1, (x_BL[:, 1:] > 0).long()], 1)
        ids_BL = (x_BL.long() - 1).clamp(min=0)
        z_BLd: Tensor = self.module(input_ids=ids_BL, attention_mask=real_BL).last_hidden_state
        if self.pooling == "cls":
            return z_BLd[:, 0]
        weight_BL = real_BL.to(z_BLd.dtype)
        return (z_BLd * weight_BL[..., None]).sum(1) / weight_BL.sum(1, keepdim=True)

    def _of_images(self, x_BCHW: Tensor) -> Tensor:
        output = self.module(x_BCHW)
        z: Tensor = getattr(output, "last_hidden_state", output)
        if z.ndim == 4:  # of a convolution
            return z.flatten(2).mean(2)
        if z.ndim == 2:
            return z
        return z[:, 0] if self.pooling == "cls" else z[:, self.first :].mean(1)

    def digest(self) -> str:
        """The SHA-256 of everything that the features depend on: weights, preprocessing, pooling."""
        form = self.pixels and self.pixels.form
        about = hashlib.sha256(repr((self.about, self.kind, form, self.pooling, self.first)).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            about.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            about.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return about.hexdigest()


def check_features(backbone: Backbone, what: str, fix: str) -> None:
    """Raise unless samples become rows of finite features.

    Args:
        backbone: which is tried.
        what: the model, for the message.
        fix: what to do, for the message.

    Raises:
        InputError: they do not.
    """
    try:
        with torch.no_grad():
            z_Bd = backbone(backbone.example())
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise InputError(f"{what} makes no features of a sample ({reason}): {fix}") from error
    if not isinstance(z_Bd, Tensor) or z_Bd.ndim != 2 or not z_Bd.isfinite().all():
        kind = tuple(z_Bd.shape) if isinstance(z_Bd, Tensor) else f"a {type(z_Bd).__name__}"
        raise InputError(f"{what} makes no features of a sample, but {kind}: {fix}")
