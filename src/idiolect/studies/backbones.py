"""A study on the features of a frozen backbone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from idiolect.core.errors import InputError
from idiolect.core.inputs import Input
from idiolect.data import FederatedData, Normalise
from idiolect.data.text.encoders import Encoder
from idiolect.models import pretrained
from idiolect.studies.class_weights import objective_of

if TYPE_CHECKING:
    from idiolect.studies.config import Study


def on_backbone(study: Study, federation: FederatedData) -> FederatedData:
    """The federation with the features of the study's backbone; unchanged if it has none that is frozen.

    Raises:
        InputError: the backbone cannot be read or does not take the samples, or a setting does not go with features.
    """
    if not pretrained.is_pretrained(study.model):
        return federation
    _check_tokens(study, federation)
    for use in study.methods:
        check_augment(study.of(use), federation)
    backbone = pretrained.frozen_backbone(study.model, study.precision)
    if backbone is None:  # it normalises images itself, within the network
        one = (0.0,) * len(federation.mean), (1.0,) * len(federation.std)
        return replace(federation, mean=one[0], std=one[1])
    from idiolect.data.features import with_features  # only studies with a backbone need it

    check_frozen(study)
    backbone.check(federation.x_R)
    return with_features(federation, backbone, study.normalise)


def normalise_of(study: Study) -> Normalise:
    """How samples, or a frozen backbone's features, are normalised: not at all where the network's backbone does it."""
    return "none" if pretrained.is_pretrained(study.model) and not is_frozen(study) else study.normalise


def encoder_of(study: Study) -> str | Encoder | None:
    """What divides a study's texts: the tokenizer of its backbone, or what the study says.

    Raises:
        InputError: it says something although the backbone has a tokenizer, or that cannot be read.
    """
    if study.text is None or not pretrained.is_pretrained(study.model):
        return study.tokens
    if study.tokens is not None:
        raise InputError(f"tokens={study.tokens}: {study.model} has a tokenizer of its own: leave tokens out")
    return pretrained.tokenizer_of(study.model)


def _check_tokens(study: Study, federation: FederatedData) -> None:
    """Raise InputError unless texts were divided by the backbone's own tokenizer."""
    if not isinstance(federation.inputs, Input) or not federation.inputs.integer:
        return
    own = pretrained.tokenizer_of(study.model)
    if federation.tokens is None or federation.tokens.encoder != own:
        by = "ids of your own" if federation.tokens is None else f"ids of {federation.tokens.encoder.name}"
        raise InputError(
            f"these samples are {by}, and {own.name} divides texts itself: read them with tokens={own.name!r}"
        )


def is_frozen(study: Study) -> bool:
    """Whether the study learns on the features of a frozen backbone."""
    spec = pretrained.spec_of(study.model)
    return pretrained.is_pretrained(spec) and pretrained.settings_of(spec).adapt == "frozen"


def check_frozen(study: Study) -> None:
    """Raise InputError if a setting does not go with features that are computed once."""
    if study.augment != "none":
        raise InputError(
            f"augment={study.augment} does not go with adapt=frozen, which computes the features of a sample once: "
            "leave augment out, or write adapt=full"
        )
    if study.normalise == "symmetric":
        raise InputError("normalise=symmetric is for images, and features are numbers: take training")


def check_task(study: Study, federation: FederatedData) -> None:
    """Check that a study's task fits samples as they are; a frozen backbone's weights are not needed for that.

    Raises:
        InputError: the network, the augmentation or the class weights do not fit them.
    """
    if not is_frozen(study):
        study.task_of(federation)
        return
    check_augment(study, federation)
    objective_of(study.class_weights, federation)
    pretrained.check_inputs(pretrained.settings_of(pretrained.spec_of(study.model)), federation.inputs)


def check_augment(study: Study, federation: FederatedData) -> None:
    """Raise InputError unless the samples can be changed at random in each step, if the study asks for that."""
    if study.augment == "none":
        return
    if is_frozen(study):
        check_frozen(study)
    if not federation.has_images:
        raise InputError(f"augment={study.augment} is for images, and these samples are numbers: leave it out")
