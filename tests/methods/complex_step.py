"""Gradients in numpy without formulas of their own, exact to rounding: f(x + ih) = f(x) + ih f'(x) for tiny h.

A loss is written once, for complex numbers: what compares or takes a maximum looks at the real part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Params = dict[str, np.ndarray]
_STEP = 1e-30


def gradient_of(loss: Callable[[Params, np.ndarray], Any], moving: Any) -> Callable[[Params, np.ndarray], Params]:
    """The gradient of a loss of (parameters, rows) in the parameters that are named."""

    def gradient(p: Params, rows: np.ndarray) -> Params:
        out = {}
        for name in moving:
            slope = np.zeros(p[name].shape)
            for at in np.ndindex(p[name].shape):
                moved = p[name].astype(complex)
                moved[at] += 1j * _STEP
                slope[at] = np.imag(loss(p | {name: moved}, rows)) / _STEP
            out[name] = slope
        return out

    return gradient


def relu(a: Any, slope: float = 0.0) -> Any:
    return np.where(np.real(a) > 0, a, slope * a)


def log_softmax(a: Any) -> Any:
    """Over the last axis."""
    a = a - np.real(a).max(-1, keepdims=True)
    return a - np.log(np.exp(a).sum(-1, keepdims=True))


def errors(logit: Any, y: np.ndarray) -> Any:
    """Cross-entropy of each row."""
    return -log_softmax(logit)[np.arange(len(y)), y]


def layer_norm(a: Any, scale: Any, shift: Any) -> Any:
    """Over the last axis, with the biased variance."""
    centred = a - a.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
