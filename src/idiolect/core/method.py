"""The contract: a method is seven pure functions over three places (server, wire, client) and two messages.

A method is written for one client. Engines add the client axis, and no method knows which engine that is. Legend for
the suffixes used throughout: R rows of everybody, N rows of one client, B batch, S steps, K clients, m participants,
C classes, d features, V dimensions of a Gaussian code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.network import Network
from idiolect.core.tree import Tree

Info = dict[str, Tensor]
Augment = Literal["none", "crop_flip"]


class Down(NamedTuple):
    """Server to clients."""

    shared: Tree = ()
    """One copy for everyone: no client axis."""
    own: Tree = ()
    """One row per addressed client; () where a method has none."""


class Up(NamedTuple):
    """Client to server."""

    value: Tree = ()
    """A vector: increments, sums and what is learned. Clipping, noise and masking act here only."""
    weight: Tree = ()
    """What weighs the value: sample counts, class counts."""


class Data(NamedTuple):
    """One client's rows, as numbers of rows in the store of everyone's."""

    x_R: Tensor
    """Raw rows of everybody: uint8 images, or floats with NaN where a value is missing."""
    y_R: Tensor
    """Labels of everybody, int64."""
    row_N: Tensor
    """This client's row numbers; padding repeats any row."""
    real_N: Tensor
    """1 for a row, 0 for padding, which stands last."""


class Method(NamedTuple):
    """Seven pure functions.

    ``local``, ``adapt`` and ``predict`` map over clients; ``send`` and ``aggregate`` run on the host.
    """

    init: Callable[[Tensor], Tree]
    """(key) -> server"""
    enrol: Callable[[Tensor], Tree]
    """(key) -> client: where every client starts; the key is common to all, as in the papers."""
    send: Callable[[Tree, Tensor], Down]
    """(server, ids) -> Down: own rows for these clients only; unknown ids are welcome."""
    local: Callable[[Down, Tree, Data, Tensor], tuple[Tree, Up, Info]]
    """(Down, client, Data, key) -> (client, Up, info)"""
    aggregate: Callable[[Tree, Up, Tensor], tuple[Tree, Info]]
    """(server, Up stacked over ids, ids ascending) -> (server, info with a leading axis over ids)"""
    adapt: Callable[[Down, Tree, Data, Tensor], Tree]
    """(Down, client, Data, key) -> client: personalise without the server. May enrich the client's state."""
    predict: Callable[[Down, Tree, Tensor], Tensor]
    """(Down, client, raw x) -> log-probabilities (B, C), deterministic."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent as torch.optim.SGD defines it.

    ``clip`` bounds the global gradient norm. ``decay_biases=False`` exempts the weights of one dimension from decay.
    """

    lr: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 5e-4
    clip: float | None = None
    decay_biases: bool = True


@dataclass(frozen=True)
class Training:
    """How a client trains in one round.

    ``shuffle=False`` takes the rows in stored order, for comparisons with recorded rounds. ``augment="crop_flip"``: a
    method trains on images that are cropped and mirrored at random, anew in every step. ``drop_last``: an epoch leaves
    out the rows that do not fill a batch, other ones each time; a client of less than one batch keeps it.
    """

    epochs: int = 5
    batch_size: int = 50
    sgd: SGD = field(default_factory=SGD)
    shuffle: bool = True
    augment: Augment = "none"
    drop_last: bool = False


@dataclass(frozen=True)
class Task:
    """What a method is told about the problem.

    ``mean`` and ``std`` normalise rows per channel or feature: 8-bit images on a scale of 0 to 1, floats as they are. A
    missing value (NaN) of a row of floats becomes the mean.
    """

    network: Network
    classes: int
    clients: int
    training: Training = field(default_factory=Training)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def inputs(self, x_B: Tensor) -> Tensor:
        """Raw rows as the network takes them: floats, normalised, images channels-last."""
        if x_B.dtype != torch.uint8:
            return self._numbers(x_B.to(torch.get_default_dtype()))
        if x_B.ndim == 4 and not tree.mapped(x_B):
            # of one channel the bytes lie alike, but convolutions go by the strides; of more, floats move faster
            x_B = x_B.clone(memory_format=torch.channels_last) if x_B.shape[1] == 1 else x_B
            x_B = x_B.to(torch.get_default_dtype()).contiguous(memory_format=torch.channels_last)
            scale, shift = _whole(self.mean, self.std, x_B.shape[1:], x_B.dtype, x_B.device)
            return x_B.mul_(scale).add_(shift)
        x_B = x_B.to(torch.get_default_dtype())
        scale_C, shift_C = _scaling(self.mean, self.std, x_B.dtype, x_B.device)
        shape = (-1,) + (1,) * (x_B.ndim - 2)
        return x_B * scale_C.view(shape) + shift_C.view(shape)

    def _numbers(self, x_B: Tensor) -> Tensor:
        if self.mean == (0.0,) and self.std == (1.0,):
            return torch.nan_to_num(x_B, nan=0.0)
        shape = (-1,) + (1,) * (x_B.ndim - 2)
        mean, std = (tree.constant(v, x_B.dtype, x_B.device).view(shape) for v in (self.mean, self.std))
        z_B = (x_B - mean) / std
        return torch.nan_to_num(z_B, nan=0.0)


def _scaling(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Per channel what 8-bit values are multiplied by, and what is added then."""
    scale_C = tree.constant(tuple(1 / (255 * s) for s in std), dtype, device)
    return scale_C, tree.constant(tuple(-m / s for m, s in zip(mean, std, strict=True)), dtype, device)


@lru_cache(maxsize=8)
def _whole(
    mean: tuple[float, ...], std: tuple[float, ...], shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The same for every pixel, lying as images do: to broadcast a channel's number over pixels takes twice as long."""
    parts = _scaling(mean, std, dtype, device)
    with tree.unmapped():
        scale, shift = (a.view(1, -1, 1, 1).expand(1, *shape).clone(memory_format=torch.channels_last) for a in parts)
    return scale, shift


def unchanged(down: Down, client: Tree, data: Data, key: Tensor) -> Any:
    """The default ``adapt``: the client stays as it is."""
    return client
