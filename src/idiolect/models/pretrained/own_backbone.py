"""Backbones of one's own, by the import path of a function that makes the network with its weights."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from torch import nn

from idiolect.core.errors import InputError
from idiolect.core.import_path import by_path
from idiolect.core.randomness import seeded
from idiolect.models.pretrained.backbone import Backbone, check_features
from idiolect.models.pretrained.pixels import ImageForm, Pixels
from idiolect.models.pretrained.settings import Pretrained


def load(settings: Pretrained) -> Backbone:
    """Call the function at an import path, which returns a module from images to features.

    The module takes images (B, C, H, W) on a scale of 0 to 1 and makes (B, d), or (B, d, h, w), of which the mean over
    places is taken. With an attribute ``input_size``, (C, H, W), images are brought to this size before.

    Raises:
        InputError: there is no such function, it fails, or it does not return such a module.
    """
    what = settings.title
    if settings.pooling is not None or settings.weights is not None:
        name = "pooling" if settings.pooling is not None else "weights"
        raise InputError(f"{what} is code of your own: leave {name} out, and do the same in that code")
    with seeded(0):
        make = by_path(settings.name, "model")
        try:
            module = make()
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(f"{what} cannot be built ({reason}): name a function without arguments") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"{what} gives a {type(module).__name__}: let the function return a torch module")
    backbone = Backbone(module.eval(), Pixels(_form(module, what)), "mean", 0, f"{settings.name} {_source(make)}")
    check_features(backbone, what, "fix it, or set its input_size to the (channels, height, width) that it takes")
    return backbone


def _form(module: nn.Module, what: str) -> ImageForm:
    """What is done with images before the module.

    Raises:
        InputError: ``input_size`` is not a size.
    """
    size = getattr(module, "input_size", None)
    if size is None:
        return ImageForm(None, None, "bicubic", (0.0,) * 3, (1.0,) * 3)
    try:
        channels, height, width = map(int, size)
    except (TypeError, ValueError):
        channels = height = width = 0
    if channels not in (1, 3) or min(height, width) < 1:
        raise InputError(f"{what}: its input_size is {size}: write (channels, height, width), with 1 or 3 channels")
    return ImageForm((height, width), None, "bicubic", (0.0,) * channels, (1.0,) * channels, True, channels)


def _source(make: object) -> str:
    """SHA-256 of the file that defines a function; "" if there is none."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(make))  # type: ignore[arg-type]
    except TypeError:
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
