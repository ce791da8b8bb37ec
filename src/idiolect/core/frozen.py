"""Frozen weights: one copy on a machine, which all networks and worker processes that have the same ones share.

Worker processes build a network again. They get a handle to the file in which the weights of the first network stand,
and map it, so that four workers with a pretrained network hold it once.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from idiolect.core import shared_memory, tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.shared_memory import File

log = logging.getLogger(__name__)

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux alone has it, and descriptors as files


class Handle(NamedTuple):
    """Where other processes of this machine find frozen weights."""

    digest: str
    path: str
    """Of the descriptor; "" if there is none."""
    identity: tuple[str, int, int, int]
    """Of the machine's start and of the file."""
    like: dict[str, Tensor]
    """Their form, without content."""


class Frozen:
    """The frozen weights of a network by name, as ``body.0.weight``.

    Attributes:
        tensors: the weights, one after another in one file if that is possible.
        digest: SHA-256 over names, types, shapes and bytes.
    """

    def __init__(self, tensors: dict[str, Tensor], digest: str, file: File | None) -> None:
        self.tensors, self.digest, self._file = tensors, digest, file

    @property
    def handle(self) -> Handle:
        """For other processes."""
        like = {name: torch.empty(1, *a.shape, dtype=a.dtype, device="meta") for name, a in self.tensors.items()}
        path, identity = "", ("", 0, 0, 0)
        if self._file is not None and _BOOT.exists():
            path, identity = f"/proc/{os.getpid()}/fd/{self._file.fileno()}", _identity(self._file.fileno())
        return Handle(self.digest, path, identity, like)


_HELD: WeakValueDictionary[str, Frozen] = WeakValueDictionary()


def frozen(parts: Mapping[str, nn.Module]) -> Frozen | None:
    """The frozen weights of some modules, which from now on use the copy that all share; None if there are none.

    Args:
        parts: modules by the name that stands before their weights' names.
    """
    slots = [
        (module, name, f"{part}.{path}.{name}".replace("..", "."))
        for part, root in parts.items() for path, module in root.named_modules()
        for name, p in module._parameters.items() if p is not None and not p.requires_grad
    ]  # fmt: skip
    if not slots:
        return None
    own = {key: module._parameters[name].detach() for module, name, key in slots}
    digest = digest_of(own)
    held = _HELD.get(digest) or _shared(own, digest)
    _HELD[digest] = held
    for module, name, key in slots:
        parameter = module._parameters[name]
        assert parameter is not None
        parameter.data = held.tensors[key]  # the same object: whoever else has it does not keep a second copy
    return held


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors."""
    hasher = hashlib.sha256()
    for name, a in tensors.items():
        hasher.update(f"{name} {a.dtype} {tuple(a.shape)}".encode())
        hasher.update(a.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def adopt(handle: Handle | None) -> Frozen | None:
    """The weights of another process, mapped; None if they cannot be, so that this process has its own copy.

    A network that is built with these weights afterwards uses them, as long as what this returns is kept.
    """
    if handle is None:
        return None
    if (held := _HELD.get(handle.digest)) or not handle.path:
        return held
    with suppress(OSError):
        descriptor = os.open(handle.path, os.O_RDONLY)
        file = File(descriptor)
        if _identity(descriptor) == handle.identity:
            mapped = shared_memory.mapped(descriptor, handle.like, 1)
            held = Frozen(tree.map(lambda a: a[0], mapped), handle.digest, file)
            _HELD[handle.digest] = held
            return held
    return None


def check(digest: str, here: str) -> None:
    """Check that frozen weights are those with which a run began.

    Raises:
        InputError: they are not.
    """
    if digest != here:
        raise InputError(
            "the frozen weights of the network are not those with which this began "
            f"(SHA-256 {_short(digest)}, here {_short(here)}): use the same weights, or start anew"
        )


def _short(digest: str) -> str:
    return f"{digest[:8]}..." if digest else "none"


def _shared(own: dict[str, Tensor], digest: str) -> Frozen:
    try:
        rows, file = shared_memory.shared({name: a[None] for name, a in own.items()}, 1)
    except RunError as error:
        log.info("other processes cannot share the frozen weights: %s", error)
        return Frozen(own, digest, None)
    return Frozen(tree.map(lambda room, a: room[0].copy_(a), rows, own), digest, file)


def _identity(descriptor: int) -> tuple[str, int, int, int]:
    about = os.fstat(descriptor)
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    return boot, about.st_dev, about.st_ino, about.st_size


def rebuilt(handle: Handle | None, make: Any, *arguments: Any) -> Any:
    """What ``make`` makes in another process, with the frozen weights of the first one.

    Raises:
        InputError: they are other weights here.
    """
    keep = adopt(handle)
    network = make(*arguments)
    check(handle.digest if handle else "", network.frozen_digest)
    del keep
    return network
