"""Samples as the features of a frozen backbone, computed once for all that a site does with them."""

from __future__ import annotations

from torch import Tensor

from idiolect.core.tree import Tree
from idiolect.deploy.bundle import Bundle
from idiolect.deploy.samples import Samples
from idiolect.models import pretrained


def on_features(bundle: Bundle, samples: Samples) -> tuple[Bundle, Samples]:
    """The bundle whose network takes features, and the samples as such; both unchanged without a frozen backbone.

    Samples that are features already stay as they are. Equal ones are computed once, and how far this is is shown.

    Raises:
        InputError: the backbone cannot be read, or is not that of the bundle.
    """
    if bundle.about.network.features is None:
        return bundle, samples
    x_N = samples.x_N
    assert isinstance(x_N, Tensor)
    if not x_N.is_floating_point():
        from idiolect.data.features import features_of  # only models with a backbone need it

        z_Ud, place_N, _ = features_of(x_N, backbone_of(bundle), None)
        x_N = z_Ud[place_N]
    return bundle.on_features(), samples._replace(x_N=x_N)


def some_features(bundle: Bundle, x_B: Tree) -> Tree:
    """What the network of ``bundle.on_features()`` takes, of a few samples as stored.

    Raises:
        InputError: as ``on_features``.
    """
    from idiolect.data.features import in_batches

    assert isinstance(x_B, Tensor)
    return in_batches(x_B, backbone_of(bundle))


def backbone_of(bundle: Bundle) -> pretrained.FrozenBackbone:
    """The frozen backbone of a bundle.

    Raises:
        InputError: it cannot be read, or is another one.
    """
    assert bundle.task  # which compares the backbone with that of the bundle
    backbone = pretrained.frozen_backbone(bundle.about.network.model, "float32")
    assert backbone is not None
    return backbone
