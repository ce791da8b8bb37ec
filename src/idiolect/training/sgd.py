"""Local training: stochastic gradient steps on a loss, by the optimiser of the task. Every method trains with this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idiolect.core import tree
from idiolect.core.method import Optimiser
from idiolect.core.randomness import drawing
from idiolect.core.tree import Tree
from idiolect.training.batches import Batch
from idiolect.training.optimisers import in_layout_of, in_place, mapped_step, optimiser_state

P = TypeVar("P")
Loss = Callable[[P, Batch], tuple[Tensor, Tree]]
_NOTED = local()


def sgd(loss: Loss[P], weights: P, batches: Sequence[Batch], rule: Optimiser) -> tuple[P, list[Tree]]:
    """Train ``weights`` over ``batches`` with a fresh optimiser; what is not in ``weights`` does not move.

    g <- clip(grad loss) + weight_decay w, and then
    SGD:   m <- momentum m + g;   w <- w - lr m                                 (as torch.optim.SGD)
    Adam:  m <- b1 m + (1 - b1) g;   v <- b2 v + (1 - b2) g^2;
           w <- w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)          (as torch.optim.Adam, in step t)
    AdamW: g <- clip(grad loss);   w <- (1 - lr weight_decay) w, and then Adam's  (as torch.optim.AdamW)

    where lr is the rule's times the batch's ``rate``.

    Args:
        loss: (weights, batch) -> (scalar, anything). The second part is returned per step, as it was before the step.
        weights: a tree; never changed in place.
        batches: one per step. A step with nothing but padding changes nothing and is not counted.
        rule: the optimiser.

    Returns:
        The trained weights, and what the loss saw in each step.
    """
    weights, _, extras = sgd_from(loss, weights, optimiser_state(rule, weights), batches, rule)
    return weights, extras


def sgd_from(
    loss: Loss[P], weights: P, state: Tree, batches: Sequence[Batch], rule: Optimiser
) -> tuple[P, Tree, list[Tree]]:
    """``sgd`` with an optimiser that continues from a state.

    Args:
        loss: as for ``sgd``, and so are ``weights``, ``batches`` and ``rule``.
        state: of the optimiser, as ``optimiser_state`` or the call before returned it. SGD's is the momentum, a tree
            like the weights; with a momentum of 0 it is returned unchanged.

    Returns:
        The trained weights, the state, and what the loss saw in each step.
    """
    trained, state, extras = _steps(loss, weights, state, batches, rule)
    if (ends := getattr(_NOTED, "ends", None)) is not None:
        ends += zip(tree.leaves(weights), tree.leaves(trained), strict=True)
    return trained, state, extras


@contextmanager
def noting_ends() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Inside the block, the list that this yields gets each weight that this thread trains: its start, and its end."""
    before, _NOTED.ends = getattr(_NOTED, "ends", None), list[tuple[Tensor, Tensor]]()
    try:
        yield _NOTED.ends
    finally:
        _NOTED.ends = before


def _steps(
    loss: Loss[P], weights: P, state: Tree, batches: Sequence[Batch], rule: Optimiser
) -> tuple[P, Tree, list[Tree]]:
    if not batches or not tree.leaves(weights):
        return weights, state, [tree.detach(loss(weights, b)[1]) for b in batches]
    if any(tree.mapped((b.used_B, b.rate) if isinstance(b.rate, Tensor) else b.used_B) for b in batches):
        return _mapped_sgd(loss, weights, state, batches, rule)
    flat, build = tree.flatten(weights)
    flat = [layout_copy(w).requires_grad_() for w in flat]
    step, state_now = in_place(rule, flat, state, build)
    extras = []
    for batch in batches:
        with drawing(batch.key, batch.step):
            value, extra = loss(build(flat), batch)
        grads = list(torch.autograd.grad(value, flat, materialize_grads=True))
        with torch.no_grad():
            if rule.clip is not None and (scale := _shrink(grads, rule.clip)) != 1:
                torch._foreach_mul_(grads, scale)
            step([in_layout_of(g, w) for g, w in zip(grads, flat, strict=True)], float(batch.rate))
        extras.append(tree.detach(extra))
    return build([w.detach() for w in flat]), state_now(), extras


def _mapped_sgd(
    loss: Loss[P], weights: P, state: Tree, batches: Sequence[Batch], rule: Optimiser
) -> tuple[P, Tree, list[Tree]]:
    gradient = torch.func.grad(loss, has_aux=True)
    extras = []
    for batch in batches:
        with drawing(batch.key, batch.step):
            g, extra = gradient(weights, batch)
        if rule.clip is not None:
            scale = _shrink(tree.leaves(g), rule.clip)
            g = tree.map(lambda a, scale=scale: a * scale, g)
        weights, state = mapped_step(rule, weights, state, g, batch.used_B.sum() > 0, batch.rate)
        extras.append(extra)
    return weights, state, extras


def layout_copy(w: Tensor) -> Tensor:
    """A copy of a weight without a graph, channels-last: a convolution of one input channel takes a third of the time.

    For a single client; torch.func.vmap has no memory layouts.
    """
    return w.detach().clone(memory_format=torch.channels_last if w.ndim == 4 else torch.contiguous_format)


def _shrink(grads: Sequence[Tensor], norm: float) -> Tensor:
    size = torch.stack([torch.dot(g, g) for g in map(torch.flatten, grads)]).sum().sqrt()
    return (norm / (size + 1e-6)).clamp(max=1.0)  # torch.nn.utils.clip_grad_norm_'s constant


def mean(per_B: Tensor, used_B: Tensor) -> Tensor:
    """The mean over the samples of a batch that are not padding."""
    return per_B @ (used_B / used_B.sum().clamp(min=1))


def cross_entropy_mean(logit_BC: Tensor, y_B: Tensor, used_B: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the samples that are not padding."""
    return mean(cross_entropy(logit_BC, y_B, reduction="none"), used_B)
