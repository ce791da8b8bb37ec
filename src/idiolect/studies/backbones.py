"""A study on the features of a frozen backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idiolect.core.errors import InputError
from idiolect.data import FederatedData
from idiolect.models import pretrained
from idiolect.training import Preprocessing

if TYPE_CHECKING:
    from idiolect.studies.config import Study


def on_backbone(study: Study, federation: FederatedData) -> FederatedData:
    """The federation with the features of the study's backbone; unchanged if it has none that is frozen.

    Raises:
        InputError: the backbone cannot be read or does not take the samples, or a setting does not go with features.
    """
    if not pretrained.is_pretrained(study.model):
        return federation
    for use in study.methods:
        check_augment(study.of(use), federation)
    backbone = pretrained.frozen_backbone(study.model, study.precision)
    if backbone is None:
        return federation
    from idiolect.data.features import with_features  # only studies with a backbone need it

    backbone.check(federation.x_R)
    return with_features(federation, backbone, study.normalise)


def preprocessing_of(study: Study, federation: FederatedData) -> Preprocessing:
    """What turns samples into what the network takes: a backbone normalises images itself."""
    own = pretrained.is_pretrained(study.model) and federation.raw is None
    return Preprocessing() if own else federation.preprocessing


def check_augment(study: Study, federation: FederatedData) -> None:
    """Raise InputError unless the samples can be changed at random in each step, if the study asks for that."""
    if study.augment == "none":
        return
    spec = pretrained.spec_of(study.model)
    if pretrained.is_pretrained(spec) and pretrained.settings_of(spec).adapt == "frozen":
        raise InputError(
            f"augment={study.augment} does not go with adapt=frozen, which computes the features of a sample once: "
            "leave augment out, or write adapt=full"
        )
    if not federation.has_images:
        raise InputError(f"augment={study.augment} is for images, and these samples are numbers: leave it out")
