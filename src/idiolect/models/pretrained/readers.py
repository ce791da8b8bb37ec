"""Reads backbones, each once in a process."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from idiolect.models.pretrained import hugging_face, own_backbone, timm_models
from idiolect.models.pretrained.backbone import Backbone, Kind
from idiolect.models.pretrained.settings import Pretrained, files_of

_READERS = {"hf": hugging_face.load, "timm": timm_models.load, "torch": own_backbone.load}


class WholeBackbone(NamedTuple):
    """A backbone with its weights."""

    backbone: Backbone
    digest: str
    """See ``Backbone.digest``."""


def read(settings: Pretrained) -> WholeBackbone:
    """A backbone with its weights, which nobody may change.

    Raises:
        InputError: it cannot be read.
    """
    return _read(settings.library, settings.name, settings.pooling, settings.weights, files_of(settings))


def kind_of(settings: Pretrained) -> Kind:
    """What a backbone takes, for texts without its weights.

    Raises:
        InputError: it cannot be read.
    """
    if settings.library == "hf" and _is_for_texts(settings.name, settings.weights, files_of(settings)):
        return "texts"
    return read(settings).backbone.kind


@lru_cache(maxsize=4)  # each network of a run asks
def _is_for_texts(name: str, weights: str | None, files: object) -> bool:
    return hugging_face.is_for_texts(Pretrained("hf", name, weights=weights))


@lru_cache(maxsize=1)  # several studies and networks of a process may use it
def _read(library: str, name: str, pooling: object, weights: str | None, files: object) -> WholeBackbone:
    settings = Pretrained(library, name, pooling=pooling, weights=weights)  # type: ignore[arg-type]
    backbone = _READERS[library](settings).requires_grad_(False)
    return WholeBackbone(backbone, backbone.digest())
