"""Randomness as data: every draw is a pure function of a key, and a key of (seed, round, client, purpose).

A counter-based generator (the finaliser of splitmix64 over key and position; Steele, Lea & Flood, OOPSLA 2014), written
in tensor operations, so that it maps over clients and gives the same bits in every process. A prefix of a longer draw
is the shorter draw: padding cannot change a result.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

_STEP = -7046029254386353131  # 0x9E3779B97F4A7C15, the golden ratio
_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def number(seed: int, *path: int | str) -> int:
    """A 63-bit number from a seed and a path of names and numbers, for a key or for a host generator."""
    text = "/".join([str(seed), *(str(p) for p in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def key(seed: int, *path: int | str) -> Tensor:
    """The key of a seed and a path, for example ``key(seed, round, client, "local")``: an int64 scalar."""
    return torch.full((), number(seed, *path), dtype=torch.int64)  # no copy where it is made on a device


def start(seed: int) -> Tensor:
    """The key of the first states, the server's and every client's: under one seed all methods start from one model."""
    return key(seed, "init")


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for draws made before mapping, on the host."""
    return np.random.default_rng(number(seed, *path))


def fold(key: Tensor, purpose: str | int | Tensor) -> Tensor:
    """A new key for a purpose or a step, independent of its parent; maps over clients."""
    return _mix(key ^ (number(0, purpose) if isinstance(purpose, str) else purpose * 2 + 1))


def members(key: Tensor, count: int) -> list[Tensor]:
    """Keys of several models: the first is the key itself, so that it starts like the model of every other method."""
    return [key, *(fold(key, m) for m in range(1, count))]


def _mix(x: Tensor) -> Tensor:
    x = x + _STEP  # the rest in place: a long draw costs memory traffic
    x.bitwise_xor_((x >> 30).bitwise_and_(0x3FFFFFFFF)).mul_(_MIX[0])
    x.bitwise_xor_((x >> 27).bitwise_and_(0x1FFFFFFFFF)).mul_(_MIX[1])
    return x.bitwise_xor_((x >> 31).bitwise_and_(0x1FFFFFFFF))


def bits(key: Tensor, count: int) -> Tensor:
    """``count`` pseudo-random int64 values; of several keys (m, 1) as many of each."""
    return _mix(key + _STEP * torch.arange(count, device=key.device))


def normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal draws (Box and Muller), in float32 or float64: torch's default unless told."""
    dtype = dtype or torch.get_default_dtype()
    count = math.prod(shape)
    x = bits(key, (count + 1) // 2)
    scale = 2.0**-31
    first = (x & 0x7FFFFFFF).to(dtype).add_(1).mul_(scale)  # in (0, 1]
    angle = (x >> 32).bitwise_and_(0x7FFFFFFF).to(dtype).mul_(2 * math.pi * scale)
    radius = first.log_().mul_(-2).sqrt_()
    pairs = torch.complex(radius * torch.cos(angle), radius * torch.sin(angle))  # a stack takes twice the time
    return torch.view_as_real(pairs).flatten()[:count].reshape(shape)


def order(key: Tensor, real_N: Tensor) -> Tensor:
    """A random order of a client's samples, padding last: positions (N,); of several keys (m, 1) one order of each."""
    draw_N = bits(key, real_N.shape[0]) & 0x7FFFFFFFFFFFFFFE
    return torch.argsort(torch.where(real_N > 0, draw_N, 0x7FFFFFFFFFFFFFFF), stable=True)
