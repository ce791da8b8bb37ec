"""The features that a frozen backbone makes of a site's samples: computed once, and kept in the site's state folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from idiolect.core.errors import InputError, RunError
from idiolect.data.feature_cache import FeatureCache
from idiolect.federation.data.samples import SiteSamples
from idiolect.federation.messages import pack
from idiolect.federation.site.personal_state import MissingKey, Vault
from idiolect.models import pretrained
from idiolect.studies import Study

FOLDER = "features"
"""Of a state folder."""


class SiteFeatures:
    """Makes features of a site's samples.

    Args:
        root: the site's state folder.
        vault: writes and reads what is kept in it.
    """

    def __init__(self, root: Path, vault: Vault) -> None:
        self._folder, self._files = root / FOLDER, _SealedFiles(vault)
        self._last: tuple[str, Tensor] | None = None

    def of(self, study: Study, samples: SiteSamples) -> SiteSamples:
        """The samples with features in their place; unchanged if the study has no frozen backbone.

        Raises:
            InputError: the backbone cannot be read or does not take the samples, there is no room for the features, or
                those that are kept are encrypted and there is no key.
        """
        backbone = pretrained.frozen_backbone(study.model, study.precision)
        if backbone is None:
            return samples
        from idiolect.data.features import features_of  # only studies with a backbone need it

        backbone.check(samples.x_N)
        name = hashlib.sha256(backbone.digest.encode() + samples.x_N.contiguous().numpy().tobytes()).hexdigest()
        if self._last is None or self._last[0] != name:
            cache = FeatureCache(backbone.digest, self._folder, self._files)
            z_Ud, place_N, _ = features_of(samples.x_N, backbone, cache)
            self._last = name, z_Ud[place_N]
        return samples._replace(x_N=self._last[1], raw_N=samples.x_N)


class _SealedFiles:
    """Files that only this site can have written, encrypted if its state is."""

    suffix = ".features"

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def load(self, path: Path) -> Mapping[str, Tensor] | None:
        """The content of a file; None if it has changed or this site has not written it.

        Raises:
            InputError: it is encrypted, and there is no key.
        """
        try:
            return self._vault.load(path, {}, "it is computed again").arrays
        except MissingKey:
            raise
        except InputError:
            return None

    def save(self, path: Path, tensors: Mapping[str, Tensor]) -> bool:
        """Write a file; returns whether this worked."""
        try:
            self._vault.save(path, pack({}, tensors))
        except RunError:
            return False
        return True
