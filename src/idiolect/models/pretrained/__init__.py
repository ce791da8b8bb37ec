"""Backbones that others have trained: read by well-kept libraries, and frozen, adapted or trained on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from idiolect.core.inputs import Input, Inputs
from idiolect.core.network import Buffers, Network, Precision
from idiolect.core.option_spec import Spec
from idiolect.models.pretrained.features import FrozenBackbone, frozen_backbone
from idiolect.models.pretrained.networks import check_inputs, on_features, on_samples
from idiolect.models.pretrained.readers import read
from idiolect.models.pretrained.settings import code_of, is_pretrained, settings_of, spec_of, text_of
from idiolect.models.pretrained.tokenizers import tokenizer_of

__all__ = [
    "FrozenBackbone",
    "check_inputs",
    "code_of",
    "digest_of",
    "frozen_backbone",
    "is_pretrained",
    "network",
    "settings_of",
    "spec_of",
    "text_of",
    "tokenizer_of",
]


def digest_of(model: str) -> str:
    """The SHA-256 of a model's backbone and its preprocessing; "" if it has none.

    Raises:
        InputError: the backbone cannot be read.
    """
    return read(settings_of(spec_of(model))).digest if is_pretrained(model) else ""


def network(
    spec: Spec, buffers: Buffers | None, inputs: Inputs, classes: int, precision: Precision,
    features: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Network:  # fmt: skip
    """The network of a pretrained model.

    Args:
        spec: the model.
        buffers: the policy.
        inputs: the form of a sample: numbers (d,) where the samples are a frozen backbone's features.
        classes: of the data.
        precision: of the products.
        features: mean and standard deviation of a frozen backbone's features; None takes them as they are.

    Raises:
        InputError: an option is not possible, or the backbone does not take the samples.
    """
    settings = settings_of(spec)
    if isinstance(inputs, Input) and settings.adapt == "frozen" and len(inputs.shape) == 1 and not inputs.integer:
        return Network(partial(on_features, inputs.shape[0], classes, *settings.body), inputs, buffers, precision)
    check_inputs(settings, inputs)
    result = Network(partial(on_samples, settings, classes, features), inputs, buffers or "frozen", precision)
    assert result.width  # methods ask for it, and within a map over clients nothing can be built to measure it
    return result
