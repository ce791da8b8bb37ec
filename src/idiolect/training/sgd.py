"""Local SGD: the loop that every method trains with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idiolect.core import tree
from idiolect.core.method import SGD
from idiolect.core.tree import Tree
from idiolect.training.batches import Batch

P = TypeVar("P")
Loss = Callable[[P, Batch], tuple[Tensor, Tree]]


def sgd(loss: Loss[P], weights: P, batches: Sequence[Batch], rule: SGD) -> tuple[P, list[Tree]]:
    """Train ``weights`` over ``batches`` with a fresh optimiser; what is not in ``weights`` does not move.

    g <- clip(grad loss) + weight_decay w;  m <- momentum m + g;  w <- w - lr m   (torch.optim.SGD's convention)

    Args:
        loss: (weights, batch) -> (scalar, anything). The second part is returned per step, as it was before the step.
        weights: a tree; never changed in place.
        batches: one per step. A step whose rows are all padding changes nothing, momentum and decay included.
        rule: the rates.

    Returns:
        The trained weights, and what the loss saw in each step.
    """
    weights, _, seen = sgd_from(loss, weights, tree.zeros(weights), batches, rule)
    return weights, seen


def sgd_from(loss: Loss[P], weights: P, momentum: P, batches: Sequence[Batch], rule: SGD) -> tuple[P, P, list[Tree]]:
    """``sgd`` with an optimiser that goes on.

    Args:
        loss: as for ``sgd``, and so are ``weights``, ``batches`` and ``rule``.
        momentum: the buffers m, a tree like the weights; without momentum they come back as they are.

    Returns:
        The trained weights, the buffers, and what the loss saw in each step.
    """
    if not batches or not tree.leaves(weights):
        return weights, momentum, [tree.detach(loss(weights, b)[1]) for b in batches]
    if any(tree.mapped(b.used_B) for b in batches):
        return _mapped(loss, weights, momentum, batches, rule)
    flat, build = tree.flatten(weights)
    flat = [laid_out(w).requires_grad_() for w in flat]
    buffers: list[Tensor] = []
    if rule.momentum:
        buffers = tree.leaves(tree.map(lambda w, m: _laid_as(m, w).clone(), build(flat), momentum))
    groups = []
    for decay in {_decay(w, rule) for w in flat}:
        at = [i for i, w in enumerate(flat) if _decay(w, rule) == decay]
        groups.append((decay, at, [flat[i] for i in at], [buffers[i] for i in at if buffers]))
    seen = []
    for batch in batches:
        value, extra = loss(build(flat), batch)
        grads = list(torch.autograd.grad(value, flat, materialize_grads=True))
        with torch.no_grad():
            if rule.clip is not None:
                torch._foreach_mul_(grads, _shrink(grads, rule.clip))
            grads = [_laid_as(g, w) for g, w in zip(grads, flat, strict=True)]
            for decay, at, moving, moved in groups:
                torch._fused_sgd_(
                    moving, [grads[i] for i in at], moved,
                    weight_decay=decay, momentum=rule.momentum, lr=rule.lr,
                    dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
                )  # fmt: skip
        seen.append(tree.detach(extra))
    return build([w.detach() for w in flat]), build(buffers) if buffers else momentum, seen


def _mapped(loss: Loss[P], weights: P, momentum: P, batches: Sequence[Batch], rule: SGD) -> tuple[P, P, list[Tree]]:
    gradient = torch.func.grad(loss, has_aux=True)
    seen = []
    for batch in batches:
        g, extra = gradient(weights, batch)
        if rule.clip is not None:
            scale = _shrink(tree.leaves(g), rule.clip)
            g = tree.map(lambda a, scale=scale: a * scale, g)
        live = batch.used_B.sum() > 0
        new = tree.map(
            lambda m, a, w: torch.add(torch.add(a, w, alpha=_decay(w, rule)), m, alpha=rule.momentum),
            momentum,
            g,
            weights,
        )
        weights = tree.map(lambda w, m, live=live: torch.where(live, w.sub(m, alpha=rule.lr), w), weights, new)
        if rule.momentum:
            momentum = tree.map(lambda a, b, live=live: torch.where(live, a, b), new, momentum)
        seen.append(extra)
    return weights, momentum, seen


def _decay(w: Tensor, rule: SGD) -> float:
    return rule.weight_decay if rule.decay_biases or w.ndim > 1 else 0.0


def _laid_as(a: Tensor, w: Tensor) -> Tensor:
    """The same values, lying in memory as w does: the fused step walks memory."""
    return a if a.stride() == w.stride() else torch.empty_like(w).copy_(a)


def laid_out(w: Tensor) -> Tensor:
    """A copy of a weight without a graph, channels-last: a convolution of one input channel takes a third of the time.

    For a single client; torch.func.vmap knows no layouts.
    """
    return w.detach().clone(memory_format=torch.channels_last if w.ndim == 4 else torch.contiguous_format)


def _shrink(grads: Sequence[Tensor], norm: float) -> Tensor:
    size = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
    return (norm / (size + 1e-6)).clamp(max=1.0)  # torch.nn.utils.clip_grad_norm_'s constant


def mean(per_B: Tensor, used_B: Tensor) -> Tensor:
    """The mean over the rows of a batch that are not padding."""
    return per_B @ (used_B / used_B.sum().clamp(min=1))


def cross_entropy_mean(logit_BC: Tensor, y_B: Tensor, used_B: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the rows that are not padding."""
    return mean(cross_entropy(logit_BC, y_B, reduction="none"), used_B)
