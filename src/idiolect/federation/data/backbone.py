"""The pretrained backbone of a federation: server and sites have it by themselves and compare its digest."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from idiolect import models
from idiolect.core.errors import InputError
from idiolect.core.inputs import Inputs
from idiolect.deploy.schema import FeaturesPart
from idiolect.models import pretrained
from idiolect.studies import Study
from idiolect.studies.backbones import is_frozen


class Backbone(BaseModel):
    """What server and sites know of it in common; it is never sent.

    Attributes:
        name: as in the study.
        digest: SHA-256 of its weights and its preprocessing.
        features: how the features that it makes are normalised, if it is frozen; else None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    features: FeaturesPart | None = None

    @classmethod
    def of(cls, study: Study) -> Self | None:
        """The one that a study has on this machine; None if it has none.

        Raises:
            InputError: it cannot be read.
        """
        if not pretrained.is_pretrained(study.model):
            return None
        settings = pretrained.settings_of(pretrained.spec_of(study.model))
        return cls(name=f"{settings.library}:{settings.name}", digest=pretrained.digest_of(study.model))


def check(study: Study, digest: str) -> None:
    """Check that the backbone on this machine is the one with which a study began.

    Args:
        study: of which it is.
        digest: of that one; "" for none.

    Raises:
        InputError: it cannot be read, or is another one.
    """
    if (here := pretrained.digest_of(study.model)) != digest:
        raise InputError(
            f"{study.model}: its weights or its preprocessing are not those with which this study began (SHA-256 "
            f"{digest[:8] or 'none'}, here {here[:8] or 'none'}): use the same files at the server and at every site"
        )


def check_samples(study: Study, form: Inputs, outputs: int) -> None:
    """Raise InputError unless the study's network, or its frozen backbone, takes samples of this form."""
    if is_frozen(study):
        pretrained.check_inputs(pretrained.settings_of(pretrained.spec_of(study.model)), form)
    else:
        models.build(study.model, form, outputs)


def width_of(study: Study, channels: int) -> int:
    """The numbers that are normalised: the features that a frozen backbone makes, else so many channels or columns.

    Raises:
        InputError: the backbone cannot be read.
    """
    if not is_frozen(study):
        return channels
    backbone = pretrained.frozen_backbone(study.model, study.precision)
    assert backbone is not None
    return backbone.width
