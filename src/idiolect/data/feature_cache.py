"""Features that a backbone has made of samples, kept on disk: each sample by the digest of its bytes."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.inputs import is_integer
from idiolect.data.datasets import cache

# R samples, L tokens of a text, d features

log = logging.getLogger(__name__)

_USUAL = 10e9  # bytes
_WIDTH = 16  # bytes of a sample's digest


def digests(x_R: Tensor) -> list[bytes]:
    """A digest of each sample. That of a text does not depend on how far it is padded with zeros at the end."""
    rows = x_R.numpy()
    if is_integer(x_R):
        ids = rows.astype("<i8").reshape(len(rows), -1)
        return [_digest(row[:length].tobytes()) for row, length in zip(ids, lengths(x_R), strict=True)]
    return [_digest(np.ascontiguousarray(row).data) for row in rows]


def lengths(x_R: Tensor) -> list[int]:
    """The tokens of each text, without the zeros at its end; of anything else the numbers in a sample."""
    if not is_integer(x_R):
        return [x_R[0].numel() if len(x_R) else 0] * len(x_R)
    flat = x_R.reshape(len(x_R), -1)
    ends: list[int] = ((flat != 0) * torch.arange(1, flat.shape[1] + 1)).amax(1).tolist()
    return ends


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_WIDTH).digest()


class Files(Protocol):
    """Writes and reads files of named tensors.

    Attributes:
        suffix: of their names.
    """

    suffix: str

    def load(self, path: Path) -> Mapping[str, Tensor] | None:
        """The content of a file; None if it has changed since it was written."""

    def save(self, path: Path, tensors: Mapping[str, Tensor]) -> bool:
        """Write a file, whole or not at all, for this user alone; returns whether this worked."""


class PlainFiles:
    """Files with a check sum, in the clear."""

    suffix = ".safetensors"

    def load(self, path: Path) -> Mapping[str, Tensor] | None:
        """The content of a file, mapped; None if its check sum is wrong."""
        entry = cache.load(path)
        return entry and entry.tensors

    def save(self, path: Path, tensors: Mapping[str, Tensor]) -> bool:
        """Write a file; returns whether this worked."""
        return cache.save(path, tensors, {}, mode=0o600)


class FeatureCache:
    """The features of one backbone on disk, in files that are never changed.

    Args:
        backbone: the digest of everything that features depend on beside the samples.
        folder: where; None takes the user's cache folder.
        files: writes and reads them.
    """

    def __init__(self, backbone: str, folder: Path | None = None, files: Files | None = None) -> None:
        usual = cache.place("features/any")
        self.folder = folder if folder is not None or usual is None else usual.parent
        self._is_usual, self._files, self._begins = folder is None, files or PlainFiles(), f"{backbone[:24]}-"

    def read(self, want: Mapping[bytes, int], z_Ud: Tensor) -> set[bytes]:
        """Write the features that are kept into the rows of ``z_Ud`` that ``want`` gives, and say which these are."""
        there: set[bytes] = set()
        if self.folder is None:
            return there
        for path in sorted(self.folder.glob(f"{self._begins}*{self._files.suffix}")):
            tensors = self._files.load(path)
            if tensors is None or not _sound(tensors, z_Ud):
                log.warning("%s is damaged: its features are computed again", path)
                with suppress(OSError):
                    path.unlink()
                continue
            keys = tensors["digest"].numpy().view(f"V{_WIDTH}")[:, 0].tolist()
            pairs = [(want[key], k) for k, key in enumerate(keys) if key in want and key not in there]
            if pairs:
                to, at = torch.tensor(pairs).T
                z_Ud[to] = tensors["z"][at]
                there |= {keys[k] for _, k in pairs}
                with suppress(OSError):
                    os.utime(path)  # the files that nobody has read for longest are removed first
        return there

    def check(self, size: int) -> bool:
        """Whether so many bytes may be kept.

        Raises:
            InputError: they may, but the disk has no room for them.
        """
        if self.folder is None or size > _most():
            return False
        above = next((folder for folder in (self.folder, *self.folder.parents) if folder.exists()), self.folder)
        try:
            free = shutil.disk_usage(above).free
        except OSError:
            return True  # a system that does not say
        if free < size * 1.02 + 1e6:
            elsewhere = "set XDG_CACHE_HOME to a folder with room, or " if self._is_usual else "or "
            raise InputError(
                f"the features take {size / 1e6:,.0f} MB and {self.folder} has room for {free / 1e6:,.0f} MB: make "
                f"room, {elsewhere}set IDIOLECT_FEATURES=0, which keeps no features"
            )
        return True

    def keep(self, keys: Sequence[bytes], z_Nd: Tensor) -> None:
        """Write features into a new file; where this fails, a warning says so."""
        if self.folder is None:
            return
        digest_N = torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).view(len(keys), _WIDTH)
        path = self.folder / f"{self._begins}{_digest(b''.join(keys)).hex()[:16]}{self._files.suffix}"
        if self._files.save(path, {"digest": digest_N, "z": z_Nd.contiguous()}):
            cache.trim(path, "", _most())
        else:
            log.warning("features cannot be kept in %s, and the next run computes them again: make room", self.folder)


def _sound(tensors: Mapping[str, Tensor], z_Ud: Tensor) -> bool:
    digest, z = tensors.get("digest"), tensors.get("z")
    return (
        digest is not None and z is not None and digest.dtype == torch.uint8 and digest.ndim == z.ndim == 2
        and digest.shape == (len(z), _WIDTH) and z.shape[1] == z_Ud.shape[1] and z.dtype == z_Ud.dtype
    )  # fmt: skip


def _most() -> float:
    """Bytes that the features of all backbones may take on disk."""
    text = os.environ.get("IDIOLECT_FEATURES")
    try:
        return _USUAL if text is None else float(text)
    except ValueError:
        raise InputError(f"IDIOLECT_FEATURES={text} is not a number of bytes: write one, as 20e9, or 0") from None
