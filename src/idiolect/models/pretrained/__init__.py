"""Backbones that others have trained: read by well-kept libraries, and frozen, adapted or trained on."""

from __future__ import annotations

from functools import partial

from idiolect.core.network import Buffers, Network, Precision
from idiolect.core.option_spec import Spec
from idiolect.models.parts import Shape
from idiolect.models.pretrained.features import FrozenBackbone, frozen_backbone
from idiolect.models.pretrained.networks import check_shape, on_features, on_samples
from idiolect.models.pretrained.settings import is_pretrained, settings_of, spec_of, text_of

__all__ = ["FrozenBackbone", "frozen_backbone", "is_pretrained", "network", "settings_of", "spec_of", "text_of"]


def network(spec: Spec, buffers: Buffers | None, shape: Shape, classes: int, precision: Precision) -> Network:
    """The network of a pretrained model.

    Args:
        spec: the model.
        buffers: the policy.
        shape: of a sample: (d,) where the samples are a frozen backbone's features.
        classes: of the data.
        precision: of the products.

    Raises:
        InputError: an option is not possible, or the backbone does not take the samples.
    """
    settings = settings_of(spec)
    if settings.adapt == "frozen" and len(shape) == 1:
        return Network(partial(on_features, shape[0], classes, *settings.body), shape, buffers, precision)
    check_shape(settings, shape, is_ids=False)
    return Network(partial(on_samples, settings, classes), shape, buffers or "frozen", precision)
