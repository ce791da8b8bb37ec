"""Local SGD: the loop that every method trains with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idiolect import tree
from idiolect.method import SGD
from idiolect.training.batches import Batch
from idiolect.tree import Tree

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
    if any(tree.mapped(b.used_B) for b in batches):
        return _mapped(loss, weights, batches, rule)
    flat, build = tree.flatten(weights)
    flat = [_leaf(w) for w in flat]
    buffers = [torch.zeros_like(w) for w in flat] if rule.momentum else []
    seen = []
    for batch in batches:
        value, extra = loss(build(flat), batch)
        grads = list(torch.autograd.grad(value, flat, materialize_grads=True))
        with torch.no_grad():
            if rule.clip is not None:
                torch._foreach_mul_(grads, _shrink(grads, rule.clip))
            # the fused step walks memory, so a gradient must lie as its weight does
            pairs = zip(grads, flat, strict=True)
            grads = [g if g.stride() == w.stride() else torch.empty_like(w).copy_(g) for g, w in pairs]
            torch._fused_sgd_(
                flat, grads, buffers, weight_decay=rule.weight_decay, momentum=rule.momentum, lr=rule.lr,
                dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
            )  # fmt: skip
        seen.append(tree.detach(extra))
    return build([w.detach() for w in flat]), seen


def _mapped(loss: Loss[P], weights: P, batches: Sequence[Batch], rule: SGD) -> tuple[P, list[Tree]]:
    gradient = torch.func.grad(loss, has_aux=True)
    momentum = tree.map(torch.zeros_like, weights)
    seen = []
    for batch in batches:
        g, extra = gradient(weights, batch)
        if rule.clip is not None:
            scale = _shrink(tree.leaves(g), rule.clip)
            g = tree.map(lambda a, scale=scale: a * scale, g)
        live = batch.used_B.sum() > 0
        new = tree.map(lambda m, a, w: rule.momentum * m + a + rule.weight_decay * w, momentum, g, weights)
        weights = tree.map(lambda w, m, live=live: torch.where(live, w - rule.lr * m, w), weights, new)
        momentum = tree.map(lambda a, b, live=live: torch.where(live, a, b), new, momentum)
        seen.append(extra)
    return weights, seen


def _leaf(w: Tensor) -> Tensor:
    layout = torch.channels_last if w.ndim == 4 else torch.contiguous_format
    return w.detach().clone(memory_format=layout).requires_grad_()


def _shrink(grads: Sequence[Tensor], norm: float) -> Tensor:
    size = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
    return (norm / (size + 1e-6)).clamp(max=1.0)  # torch.nn.utils.clip_grad_norm_'s constant


def mean(per_B: Tensor, used_B: Tensor) -> Tensor:
    """The mean over the rows of a batch that are not padding."""
    return (per_B * used_B).sum() / used_B.sum().clamp(min=1)


def cross_entropy_mean(logit_BC: Tensor, y_B: Tensor, used_B: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the rows that are not padding."""
    return mean(cross_entropy(logit_BC, y_B, reduction="none"), used_B)
