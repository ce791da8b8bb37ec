"""Backbones of the package ``timm``, for images."""

from __future__ import annotations

import os
from typing import Any

from idiolect.core.errors import InputError
from idiolect.core.files import expanded_text
from idiolect.core.import_path import optional
from idiolect.core.randomness import seeded
from idiolect.models.pretrained.backbone import Backbone
from idiolect.models.pretrained.pixels import ImageForm, Pixels
from idiolect.models.pretrained.settings import Pretrained


def load(settings: Pretrained) -> Backbone:
    """Read a backbone by its name, with weights from a file, or from the hub.

    Raises:
        InputError: the library is not installed, there is no such backbone, or its weights are not its own.
    """
    what = settings.title
    timm = optional("timm", "timm", what)
    weights = None if settings.weights is None else expanded_text(settings.weights)
    if weights is not None and not os.path.isfile(weights):
        raise InputError(f"{what}: there is no file weights={settings.weights}: give one that is there")
    if settings.pooling == "cls":
        raise InputError(f"{what}: its features are pooled by timm: leave pooling out")
    kind: dict[str, Any] = {"checkpoint_path": weights} if weights else {"pretrained": True}
    try:
        with seeded(0):
            module = timm.create_model(settings.name, num_classes=0, **kind)
    except (RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        fix = "give its own weights" if weights else "check the name, or give its weights as a file with weights="
        raise InputError(f"{what} cannot be read ({reason}): {fix}") from error
    about = timm.data.resolve_model_data_config(module)
    channels, height, width = about["input_size"]
    mode = {"bilinear": "bilinear", "nearest": "nearest-exact"}.get(about["interpolation"], "bicubic")
    short = int(min(height, width) / about["crop_pct"])
    form = ImageForm(short, (height, width), mode, tuple(about["mean"]), tuple(about["std"]), True, channels)  # type: ignore[arg-type]
    return Backbone(module.eval(), Pixels(form), "mean", 0, settings.name)
