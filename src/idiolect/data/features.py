"""A federation whose samples are the features that a frozen backbone makes of them, each computed once."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import rich.console
import torch
from rich.progress import Progress
from torch import Tensor

from idiolect.core.inputs import is_integer
from idiolect.core.shared_memory import check as check_memory
from idiolect.data.datasets.dataset import Source
from idiolect.data.feature_cache import FeatureCache, digests, lengths
from idiolect.data.federated import FederatedData, RawSamples, room
from idiolect.data.normalisation import Normalise, moments

# R samples of all clients, U different ones, B batch, L tokens of a text, d features

log = logging.getLogger(__name__)

# Samples. On a CPU the maps of more images leave the cache: EfficientNet-Lite0 needs twice the time or more with 64.
_BATCH = 64 if torch.cuda.is_available() else 8
_TOKENS = 4096  # of a batch of texts, with padding
_SECONDS = 60.0  # after which what is done is kept, and said where nothing shows the progress


class Backbone(Protocol):
    """What makes features.

    Attributes:
        name: how the study names it.
        digest: of everything that features depend on beside the samples.
        width: d.
    """

    name: str
    digest: str
    width: int

    def __call__(self, x_B: Tensor) -> Tensor:
        """Features (B, d), float32, of samples as stored."""


class Features(NamedTuple):
    """The features of samples."""

    z_Ud: Tensor
    """Of the different ones, float32."""
    place_R: Tensor
    """For each sample its row in ``z_Ud``, int64."""
    keys_R: list[bytes]
    """The digest of each sample."""


def features_of(x_R: Tensor, backbone: Backbone, cache: FeatureCache | None) -> Features:
    """The features of samples as stored: equal ones are computed once, and those that are kept not at all.

    Args:
        x_R: the samples.
        backbone: makes the features.
        cache: keeps them; None keeps none.

    Raises:
        InputError: there is no room for the features, in memory or on the disk.
    """
    keys_R = digests(x_R)
    place: dict[bytes, int] = {}
    for key in keys_R:
        place.setdefault(key, len(place))
    check_memory(4 * backbone.width * (len(keys_R) + len(place)), "the features", "take fewer samples")
    z_Ud = torch.empty(len(place), backbone.width)
    missing = place.keys() - (cache.read(place, z_Ud) if cache else set())
    if missing:
        _fill(z_Ud, x_R, {place[key]: r for r, key in reversed([*enumerate(keys_R)]) if key in missing},
              [*place], backbone, cache)  # fmt: skip
    return Features(z_Ud, torch.tensor([place[key] for key in keys_R], dtype=torch.int64), keys_R)


def in_batches(x_R: Tensor, backbone: Backbone) -> Tensor:
    """The features (R, d) of a few samples as stored, without a look at which are equal or kept."""
    return torch.cat([backbone(_cut(x_B)) for x_B in torch.split(x_R, _BATCH)])


def with_features(
    data: FederatedData, backbone: Backbone, normalise: Normalise, folder: Path | None = None
) -> FederatedData:
    """The same clients with features (d,) as their samples.

    Equal samples are computed once, and what is computed is kept on disk, so that another study of the same samples
    finds it. What was done is kept from time to time, so that after a stop the rest is computed.

    Args:
        data: the federation.
        backbone: makes the features.
        normalise: how the network's inputs, the features, are normalised: see ``build``.
        folder: where features are kept; None takes the user's cache folder.

    Raises:
        InputError: there is no room for the features, in memory or on the disk.
    """
    z_Ud, place_R, keys_R = features_of(data.x_R, backbone, FeatureCache(backbone.digest, folder))
    z_Rd, file = room(z_Ud, len(place_R))
    torch.index_select(z_Ud, 0, place_R, out=z_Rd)
    source = Source(data.name, z_Rd, data.y_R, data.classes, data.class_names, None, None, len(z_Rd))
    mean, std = moments(source, torch.cat([*data.train[: data.trained]]).numpy(), normalise)
    samples = hashlib.sha256(b"".join(keys_R)).hexdigest()
    raw = RawSamples(data.inputs, samples, backbone.name, backbone.digest)
    return replace(data, x_R=z_Rd, file=file, mean=mean, std=std, encodings=(), sizes=0, raw=raw)


def _fill(
    z_Ud: Tensor, x_R: Tensor, row: dict[int, int], keys: list[bytes], backbone: Backbone, cache: FeatureCache | None
) -> None:
    """Compute the features of some samples, and keep them.

    Args:
        z_Ud: for the features of different samples.
        x_R: samples as stored.
        row: for the place in ``z_Ud`` of each sample to compute, its number in ``x_R``.
        keys: of the different samples.
        backbone: makes the features.
        cache: keeps them; None keeps none.
    """
    size = 4 * backbone.width * len(row)
    kept = cache if cache is not None and cache.check(size) else None
    where = "not kept, because IDIOLECT_FEATURES allows less on the disk" if cache else "not kept"
    log.warning(
        "computing features of %s samples by %s, %d numbers each: %s MB, %s",
        f"{len(row):,}", backbone.name, backbone.width, f"{size / 1e6:,.1f}",
        f"kept in {kept.folder}" if kept else where,
    )  # fmt: skip
    done: list[int] = []
    start = last = time.monotonic()
    console = rich.console.Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("Features", total=len(row))
        count = 0
        for places in _batches(x_R, row):
            x_B = x_R[torch.tensor([row[u] for u in places])]
            z_Ud[torch.tensor(places)] = backbone(_cut(x_B))
            done, count = done + places, count + len(places)
            progress.update(bar, completed=count)
            if (now := time.monotonic()) - last >= _SECONDS and count < len(row):
                last = now
                if kept:
                    kept.keep([keys[u] for u in done], z_Ud[torch.tensor(done)])
                    done = []
                if progress.disable:
                    left = (now - start) / count * (len(row) - count)
                    log.warning("features of %s of %s samples, %.0f s left", f"{count:,}", f"{len(row):,}", left)
    if kept and done:
        kept.keep([keys[u] for u in done], z_Ud[torch.tensor(done)])


def _batches(x_R: Tensor, row: dict[int, int]) -> Iterator[list[int]]:
    """Places of samples of similar length, the longest first, so that memory is enough from the start on."""
    order, start = [*row], 0
    if not is_integer(x_R):
        yield from (order[k : k + _BATCH] for k in range(0, len(order), _BATCH))
        return
    length = dict(zip(row, lengths(x_R[torch.tensor([*row.values()])]), strict=True))
    order.sort(key=lambda u: -length[u])
    while start < len(order):
        end = start + max(1, _TOKENS // max(1, length[order[start]]))
        yield order[start:end]
        start = end


def _cut(x_B: Tensor) -> Tensor:
    """Texts without the columns in which none has a token."""
    return x_B[:, : max([1, *lengths(x_B)])] if is_integer(x_B) else x_B
