"""Networks on a pretrained backbone, or on the features that it has made."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idiolect.core.errors import InputError
from idiolect.core.inputs import Inputs
from idiolect.models.parts import Parts, dense
from idiolect.models.pretrained.adapters import add_adapters
from idiolect.models.pretrained.backbone import Backbone
from idiolect.models.pretrained.readers import kind_of, read
from idiolect.models.pretrained.settings import LoRA, Pretrained

# B samples, d features

Moments = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation of each feature."""


class OnFeatures(nn.Module):
    """What is learnt between features and head, by itself or behind the backbone that makes the features.

    Its weights have the same names in both cases, so that what was learnt on stored features goes with the backbone.

    Args:
        width: d.
        kind: "identity", "linear", or "mlp", a linear layer and its ReLU.
        units: of the layer; 0 for "identity".
        backbone: None where the samples are features.
        is_frozen: whether the backbone makes the same features in each step, without dropout and gradients.
        moments: mean and standard deviation of the backbone's features, by which they are normalised.
    """

    mean_d: Tensor
    std_d: Tensor

    def __init__(
        self, width: int, kind: str, units: int, backbone: Backbone | None = None, *, is_frozen: bool = True,
        moments: Moments | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: tuple[nn.Module, ...] = ()
        if kind == "linear":
            layers = (nn.Linear(width, units),)
        elif kind == "mlp":
            layers = dense(width, units)
        self.body = nn.Sequential(*layers)
        self.is_frozen, self.width = is_frozen, units or width
        self.backbone = backbone
        if backbone is not None:
            mean_d, std_d = ([0.0], [1.0]) if moments is None else moments
            self.register_buffer("mean_d", torch.tensor(mean_d))
            self.register_buffer("std_d", torch.tensor(std_d))

    def forward(self, x_B: Tensor) -> Tensor:
        """(B, d) -> (B, units), or of samples where there is a backbone."""
        if self.backbone is None:
            return self.body(x_B)  # type: ignore[no-any-return]
        if not self.is_frozen:
            return self.body((self.backbone(x_B) - self.mean_d) / self.std_d)  # type: ignore[no-any-return]
        with torch.no_grad():
            z_Bd = (self.backbone.eval()(x_B) - self.mean_d) / self.std_d  # in a gradient step too
        return self.body(z_Bd)  # type: ignore[no-any-return]


def on_features(width: int, classes: int, kind: str, units: int) -> Parts:
    """Body and linear head on features (d,): see ``OnFeatures``."""
    body = OnFeatures(width, kind, units)
    return body, nn.Linear(body.width, classes)


def on_samples(settings: Pretrained, classes: int, moments: Moments | None = None) -> Parts:
    """Body and linear head on samples as they are; the body begins with the backbone.

    Raises:
        InputError: the backbone cannot be read.
    """
    backbone = read(settings).backbone
    if settings.adapt == "full":
        backbone = copy.deepcopy(backbone)
        for parameter in _used(backbone):
            parameter.requires_grad_()
    else:
        # the frozen weights themselves are not copied, so that all networks of the process have the same ones
        constants = [*backbone.parameters(), *backbone.buffers()]
        backbone = copy.deepcopy(backbone, {id(tensor): tensor for tensor in constants})
    if isinstance(settings.adapt, LoRA):
        add_adapters(backbone, settings.adapt, settings.title)
    body = OnFeatures(backbone.width, *settings.body, backbone, is_frozen=settings.adapt == "frozen", moments=moments)
    return body, nn.Linear(body.width, classes)


def _used(backbone: Backbone) -> list[nn.Parameter]:
    """The weights on which features depend; the others, such as those of a pooling that is not used, stay frozen."""
    every = [*backbone.parameters()]
    with torch.enable_grad():
        for parameter in every:
            parameter.requires_grad_()
        grads = torch.autograd.grad(backbone(backbone.example()).sum(), every, allow_unused=True)
    backbone.requires_grad_(False)
    return [parameter for parameter, grad in zip(every, grads, strict=True) if grad is not None]


def check_inputs(settings: Pretrained, inputs: Inputs) -> None:
    """Raise InputError unless samples of this form are what the backbone takes."""
    kind = kind_of(settings)
    if isinstance(inputs, dict):
        what = "several tensors"
    else:
        what = "texts" if inputs.integer else "images" if len(inputs.shape) == 3 else "numbers"
    if what != kind:
        raise InputError(f"{settings.title} takes {kind}, and these samples are {what}: choose another model")
