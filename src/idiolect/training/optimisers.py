"""The optimisers of local training: their state, and one step of each, in place for one client or mapped over many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.optim.adam import adam as torch_adam
from torch.optim.sgd import sgd as torch_sgd

from idiolect.core import tree
from idiolect.core.method import SGD, AdamW, Optimiser
from idiolect.core.tree import Tree

P = TypeVar("P")


class AdamState(NamedTuple):
    """What Adam and AdamW keep from step to step."""

    mean: Tree
    """m, the running mean of the gradients: a tree like the weights."""
    square: Tree
    """v, the running mean of their squares: the same."""
    steps: Tensor
    """How many steps were taken, float32 as torch's fused step needs it."""


def optimiser_state(rule: Optimiser, weights: Tree) -> Tree:
    """The state before the first step: for SGD the momentum, a tree like the weights; else an ``AdamState``."""
    if isinstance(rule, SGD):
        return tree.zeros(weights) if rule.momentum else tree.map(lambda w: w.new_zeros(()).expand(w.shape), weights)
    return AdamState(tree.zeros(weights), tree.zeros(weights), torch.zeros((), dtype=torch.float32))


def in_place(
    rule: Optimiser, flat: Sequence[Tensor], state: Tree, build: Callable[[Sequence[Tensor]], Tree]
) -> tuple[Callable[[Sequence[Tensor], float], None], Callable[[], Tree]]:
    """For one client: a function that moves the weights, and one that returns the state.

    The first one takes the gradients and the factor of the learning rate in this step.

    Gradients must have the memory layout of their weights, because torch's fused steps go through memory in order.

    Args:
        rule: the optimiser.
        flat: the weights, which change.
        state: where the optimiser starts, never changed in place.
        build: makes a tree like the weights.
    """

    def copies(part: Tree) -> list[Tensor]:
        return [in_layout_of(a, w).clone() for a, w in zip(tree.leaves(part), flat, strict=True)]

    groups = [(d, [_decay(w, rule) == d for w in flat]) for d in {_decay(w, rule) for w in flat}]
    options: dict[str, Any] = {"maximize": False, "fused": True}
    if isinstance(rule, SGD):
        buffers: list[Any] = copies(state) if rule.momentum else [None] * len(flat)
        options |= {"momentum": rule.momentum, "dampening": 0.0, "nesterov": False}
        moving = [(d, at, _select(flat, at), _select(buffers, at)) for d, at in groups]

        def sgd_step(grads: Sequence[Tensor], rate: float) -> None:
            for decay, at, weights, momentum in moving:
                torch_sgd(weights, _select(grads, at), momentum, lr=rule.lr * rate, weight_decay=decay, **options)

        return sgd_step, lambda: build(buffers) if rule.momentum else state

    mean, square = copies(state.mean), copies(state.square)
    steps = [state.steps.clone() for _ in flat]  # torch counts the steps of each weight
    options |= {"beta1": rule.betas[0], "beta2": rule.betas[1], "eps": rule.eps, "amsgrad": False}
    options["decoupled_weight_decay"] = isinstance(rule, AdamW)
    parts = [(d, at, [_select(part, at) for part in (flat, mean, square, steps)]) for d, at in groups]

    def adam_step(grads: Sequence[Tensor], rate: float) -> None:
        for decay, at, (weights, m, v, count) in parts:
            some = _select(grads, at)
            torch_adam(weights, some, m, v, [], count, lr=rule.lr * rate, weight_decay=decay, **options)

    return adam_step, lambda: AdamState(build(mean), build(square), steps[0])


def mapped_step(
    rule: Optimiser, weights: P, state: Tree, gradient: P, live: Tensor, rate: float | Tensor
) -> tuple[P, Tree]:
    """For clients that are mapped: the weights and the state after a step; unchanged where ``live`` is false.

    ``rate`` is the factor of the learning rate in this step.
    """
    lr, kept = rule.lr * rate, weights
    if isinstance(rule, AdamW):
        kept, slope = tree.map(lambda w: w - lr * _decay(w, rule) * w, weights), gradient
    else:
        slope = tree.map(lambda g, w: torch.add(g, w, alpha=_decay(w, rule)), gradient, weights)
    if isinstance(rule, SGD):
        new: Tree = tree.map(lambda m, g: torch.add(g, m, alpha=rule.momentum), state, slope)
        end = tree.map(lambda w, m: w - lr * m if isinstance(lr, Tensor) else w.sub(m, alpha=lr), weights, new)
        return _where(live, end, weights), _where(live, new, state) if rule.momentum else state
    b1, b2 = rule.betas
    mean = tree.map(lambda m, g: m.lerp(g, 1 - b1), state.mean, slope)
    square = tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.square, slope)
    new = AdamState(mean, square, state.steps + 1)
    lr, correction = lr / _bias(b1, new.steps), _bias(b2, new.steps)
    end = tree.map(lambda w, m, v: w - lr * m / ((v / correction).sqrt() + rule.eps), kept, mean, square)
    return _where(live, end, weights), _where(live, new, state)


def _bias(beta: float, steps: Tensor) -> Tensor:
    """1 - beta^steps, exact to the last digits also where it is small."""
    return -torch.expm1(steps.to(torch.get_default_dtype()) * (math.log(beta) if beta else -math.inf))


def _where(live: Tensor, new: P, old: P) -> P:
    return tree.map(lambda a, b: torch.where(live, a, b), new, old)


def _select(every: Sequence[Any], at: Sequence[bool]) -> list[Any]:
    return [one for one, is_member in zip(every, at, strict=True) if is_member]


def _decay(w: Tensor, rule: Optimiser) -> float:
    return rule.weight_decay if rule.decay_biases or w.ndim > 1 else 0.0


def in_layout_of(a: Tensor, w: Tensor) -> Tensor:
    """The same values in the memory layout of w."""
    return a if a.stride() == w.stride() else torch.empty_like(w).copy_(a)
