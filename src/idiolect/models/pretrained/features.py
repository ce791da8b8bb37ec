"""A frozen backbone as a function from samples as stored to features."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from idiolect.core.inputs import Input, form_of
from idiolect.core.network import Precision
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree
from idiolect.models.pretrained.networks import check_inputs
from idiolect.models.pretrained.readers import read
from idiolect.models.pretrained.settings import Pretrained, is_pretrained, settings_of, spec_of


class FrozenBackbone:
    """A backbone that computes features, on a GPU if there is one.

    Args:
        settings: which.
        precision: of its products: see ``Network``.

    Attributes:
        name: as in the study.
        digest: of everything that features depend on beside the samples.
        width: the number of features.

    Raises:
        InputError: it cannot be read.
    """

    def __init__(self, settings: Pretrained, precision: Precision) -> None:
        self.settings, self.name = settings, settings.title.removeprefix("model ")
        self._backbone, weights = read(settings)
        self._half = precision == "bf16"
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.digest = hashlib.sha256(f"2 {weights} {precision} {self._device.type}".encode()).hexdigest()
        self.width = self._backbone.width

    def check(self, x_R: Tree) -> None:
        """Raise InputError unless samples are of the kind that the backbone takes."""
        numbers = isinstance(x_R, Tensor) and x_R.is_floating_point()
        check_inputs(self.settings, Input((0,)) if numbers else form_of(x_R))

    def __call__(self, x_B: Tensor) -> Tensor:
        """Features (B, d), float32, of samples as stored."""
        x_B = x_B.to(self._device)
        if x_B.ndim == 4:  # with this layout a convolutional network takes two thirds of the time on a CPU
            x_B = x_B.contiguous(memory_format=torch.channels_last)
        backbone = self._backbone.to(self._device)
        with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            z_Bd: Tensor = backbone(x_B.float() / 255 if x_B.dtype == torch.uint8 else x_B)
        return z_Bd.float().cpu()


def frozen_backbone(model: str | Spec, precision: Precision) -> FrozenBackbone | None:
    """The backbone that makes a federation's features; None if a model has none, or trains it.

    Raises:
        InputError: the model's options are not possible, or the backbone cannot be read.
    """
    spec = spec_of(model) if isinstance(model, str) else model
    if not is_pretrained(spec) or (settings := settings_of(spec)).adapt != "frozen":
        return None
    return FrozenBackbone(settings, precision)
