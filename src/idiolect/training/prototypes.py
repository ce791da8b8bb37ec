"""Prototypes: a client's mean feature of each of its classes. A server trains on pairs of these and their classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idiolect.core import keys
from idiolect.core.method import Up
from idiolect.core.reduction import Reduced
from idiolect.statistics.moments import weights_by_class
from idiolect.training.batches import Batch

# P pairs of a prototype and its class


class Pairs(NamedTuple):
    """What is said of a client's prototypes (C, d), beside them: the weight of its upload."""

    known_C: Tensor
    """1 for the classes that it has."""
    place_C: Tensor
    """A random number in 0..1 for each of these, by which the server orders the pairs of all clients."""


def prototypes(
    z_Nd: Tensor,
    y_N: Tensor,
    plan: Sequence[Batch],
    classes: int,
    mean_over: Literal["samples", "batches"] = "samples",
) -> tuple[Tensor, Tensor]:
    """The mean feature of each class (C, d), 0 for a class without samples, and 1 for the classes that have some (C,).

    Args:
        z_Nd: features of a client's samples.
        y_N: their labels.
        plan: the batches of one epoch: their samples count.
        classes: C.
        mean_over: the samples of a class, or the batches that have some, each with its own mean.
    """
    sum_Cd, count_C = torch.zeros(classes, z_Nd.shape[1]).to(z_Nd), torch.zeros(classes).to(z_Nd)
    for batch in plan:
        hot_BC = weights_by_class(y_N[batch.at_B], batch.used_B, classes).to(z_Nd.dtype)
        n_C = hot_BC.sum(0)
        batch_Cd = hot_BC.T @ z_Nd[batch.at_B]
        if mean_over == "batches":
            batch_Cd, n_C = batch_Cd / n_C.clamp(min=1)[:, None], (n_C > 0).to(n_C.dtype)
        sum_Cd, count_C = sum_Cd + batch_Cd, count_C + n_C
    return sum_Cd / count_C.clamp(min=1)[:, None], (count_C > 0).to(count_C.dtype)


def upload(mean_Cd: Tensor, known_C: Tensor, key: Tensor) -> Up:
    """A client's prototypes as it sends them; they are to be reduced by ``reduce.each()``."""
    draw_C = (keys.bits(keys.fold(key, "place"), len(known_C)) & (2**24 - 1)).to(known_C.dtype) / 2**24
    return Up(mean_Cd, Pairs(known_C, draw_C * known_C))


def pairs(up: Reduced, *, shuffle: bool) -> tuple[Tensor, Tensor]:
    """The prototypes (P, d) of all participants and their classes (P,).

    Their order is the clients' draws, which no numbering of the clients changes; else that of participants, and then of
    classes.
    """
    known_mC, place_mC = up.weight_m
    client_P, class_P = known_mC.nonzero(as_tuple=True)
    if shuffle:
        order_P = place_mC[client_P, class_P].argsort(stable=True)
        client_P, class_P = client_P[order_P], class_P[order_P]
    return up.value[client_P, class_P], class_P


def batches_of_pairs(count: int, size: int, passes: int) -> list[Batch]:
    """Batches of so many pairs in their order, an incomplete last one too, in each of some passes."""
    starts = [(p, s) for p in range(passes) for s in range(0, count, size)]
    parts = [torch.arange(start, min(start + size, count)) for _, start in starts]
    return [Batch(at_B, torch.ones(len(at_B)), step) for step, at_B in enumerate(parts)]
