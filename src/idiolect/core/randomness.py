"""Random layers: dropout and the like draw in gradient steps alone, and from the step's key.

A step's draws are a function of (seed, round, client, step, call), so that they are the same on every engine and after
a resume. Predictions, and passes that take statistics, draw nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from threading import RLock, local
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from idiolect.core import keys, tree
from idiolect.core.errors import InputError, option
from idiolect.core.tree import Tree

_STEP = local()
_SEEDING = RLock()
_RANGE = 2**31  # of a draw


class Draws:
    """The random draws of one gradient step.

    Args:
        key: of all steps.
        step: the number of this one.
    """

    def __init__(self, key: Tensor, step: int | Tensor) -> None:
        self._key, self._step = key, step
        self.calls = 0
        """How many there were."""

    @cached_property
    def _own(self) -> Tensor:
        return keys.fold(keys.fold(self._key, "layers"), self._step)  # most networks never ask

    def next(self) -> Tensor:
        """The key of the next call."""
        self.calls += 1
        return keys.fold(self._own, self.calls)


@contextmanager
def drawing(key: Tensor, step: int | Tensor) -> Iterator[None]:
    """Inside the block, which is one gradient step, a network's passes with gradients draw by a key and the step."""
    before, _STEP.draws = getattr(_STEP, "draws", None), Draws(key, step)
    try:
        yield
    finally:
        _STEP.draws = before


def draws_of_step() -> Draws | None:
    """The draws of the gradient step that this thread is in; None outside of one, and in a pass without gradients."""
    return getattr(_STEP, "draws", None) if torch.is_grad_enabled() else None


class ByKey(TorchFunctionMode):
    """Inside, torch's dropout functions draw from keys; all else that is random still draws as torch does."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch in place of each of its functions."""
        if (ours := _BY_KEY.get(function)) is not None:
            return ours(self._draws, *args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _kept(draws: Draws, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
    """1 for a place that stays, 0 for one that is dropped with probability p."""
    count = math.prod(shape)
    draw = keys.bits(draws.next(), (count + 1) // 2)  # two draws of each: a prefix stays a prefix
    pairs = torch.stack([draw & (_RANGE - 1), (draw >> 32) & (_RANGE - 1)], -1).flatten()[:count]
    return (pairs >= round(p * _RANGE)).to(like.dtype).view(shape)


def _check(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _dropout(draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    _check(p)
    if not training or p == 0:
        return input
    return input * (_kept(draws, tuple(input.shape), p, input) / (1 - p) if p < 1 else torch.zeros_like(input))


def _channels(plain: int) -> Callable[..., Tensor]:
    """Dropout of whole channels; ``plain`` is the number of axes of samples without the axis of the batch."""

    def dropout(draws: Draws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        _check(p)
        if not training or p == 0:
            return input
        lead = tuple(input.shape[: 1 if input.ndim == plain else 2])
        kept = _kept(draws, lead, p, input) / (1 - p) if p < 1 else input.new_zeros(lead)
        return input * kept.view(*lead, *(1,) * (input.ndim - len(lead)))

    return dropout


_SATURATED = -1.7580993408473766  # what SELU's negative side tends to, at which dropped units are set


def _alpha(channels: bool) -> Callable[..., Tensor]:
    """Dropout that keeps mean and variance after SELU (Klambauer et al., NeurIPS 2017, section 3)."""

    def dropout(draws: Draws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
        _check(p)
        if not training or p == 0:
            return input
        if p == 1:
            return input * 0
        lead = tuple(input.shape[:2]) if channels else tuple(input.shape)
        kept = _kept(draws, lead, p, input).view(*lead, *(1,) * (input.ndim - len(lead)))
        scale = 1 / math.sqrt((1 - p) * (1 + p * _SATURATED**2))
        return scale * (input * kept + _SATURATED * (1 - kept)) - scale * p * _SATURATED

    return dropout


def _attention(
    draws: Draws, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention whose weights are dropped by a key; without dropout torch's own."""
    if dropout_p == 0:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    score = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(score.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        score = score.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else score + attn_mask
    dropped: Tensor = _dropout(draws, score.softmax(-1), dropout_p) @ value
    return dropped


_BY_KEY: dict[Any, Callable[..., Tensor]] = {
    functional.dropout: _dropout,
    functional.dropout1d: _channels(2),
    functional.dropout2d: _channels(3),
    functional.dropout3d: _channels(4),
    functional.alpha_dropout: _alpha(channels=False),
    functional.feature_alpha_dropout: _alpha(channels=True),
    functional.scaled_dot_product_attention: _attention,
}


class Randomness:
    """What is random in a module's passes of training: nothing, torch's dropout functions, or more.

    Args:
        training: runs the module as in training, on a sample.
        sample: makes one. Both are called once, when this is first used.
    """

    def __init__(self, training: Callable[[Tree], object], sample: Callable[[], Tree]) -> None:
        self._training, self._sample = training, sample

    @cached_property
    def kinds(self) -> tuple[bool, bool]:
        """Whether the module draws at all, and whether it draws from torch's generator although keys are given.

        One that fails on such a sample may do both.
        """
        try:
            return self._look()
        except Exception:  # noqa: BLE001  of the user's own network, which fails for good where it is used
            return True, True

    def _look(self) -> tuple[bool, bool]:
        with tree.unmapped(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            draws, sample = Draws(torch.zeros((), dtype=torch.int64), 0), self._sample()
            before = torch.random.get_rng_state()
            with ByKey(draws):
                self._training(sample)
            by_torch = not torch.equal(before, torch.random.get_rng_state())
        return bool(draws.calls or by_torch), by_torch

    def inside(self, draws: Draws, inputs: Tree) -> AbstractContextManager[object]:
        """A block in which the module draws by keys; torch's generator is seeded by one if the module uses that.

        ``inputs`` are what the module computes with.

        Raises:
            InputError: the module uses torch's generator, and clients are mapped.
        """
        draws_at_all, by_torch = self.kinds
        if not draws_at_all:
            return nullcontext()
        if not by_torch:
            return ByKey(draws)
        if tree.mapped(inputs):
            raise InputError(
                "the network draws at random otherwise than by torch's dropout functions, which the vectorised engine "
                f"cannot do for each client: choose {option('engine', 'processes')}"
            )
        return _seeded(draws)


@contextmanager
def _seeded(draws: Draws) -> Iterator[None]:
    with seeded(int(draws.next())), ByKey(draws):
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside the block, torch's own generator has this seed; afterwards it is as before. One thread at a time."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also notes a traceback for every kind of device
        yield
