"""Validation samples: the part of each client's training samples that is measured and not trained on."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core import keys
from idiolect.core.errors import InputError, listed
from idiolect.data.partitions.allocation import shares_of_classes
from idiolect.data.partitions.apart import Splitting, last_ones
from idiolect.data.sides import set_aside

# N training samples of one client, C classes of them

log = logging.getLogger(__name__)

_NAMED = 5  # clients that a sentence lists


def held_out(label_N: NDArray[np.int64], share: float, seed: int, client: int) -> NDArray[np.int64]:
    """The places of a client's validation samples among its training samples, ascending.

    There are round(share * N) of them, at least one if N > 1. They are divided among the classes in proportion to
    their samples, by largest remainders, equal ones at random. A class keeps at least one sample for training, so there
    are fewer validation samples where classes have too few. Only if every class has a single sample, one of them is
    taken all the same. The draw depends on seed and client alone.

    Args:
        label_N: the labels of the training samples.
        share: of the samples, 0..1.
        seed: of the data.
        client: its number.
    """
    size = len(label_N)
    if size < 2:
        return np.zeros(0, np.int64)
    rng = keys.generator(seed, client, "validation")
    order_N = rng.permutation(size)
    count = max(1, round(share * size))
    _, class_N, size_C = np.unique(label_N, return_inverse=True, return_counts=True)
    part_C = shares_of_classes(size_C, count, size_C - 1, rng.permutation(len(size_C)))
    if not part_C.any():
        return order_N[:1]
    of_class = [order_N[class_N[order_N] == c][:part] for c, part in enumerate(part_C)]
    return np.sort(np.concatenate(of_class))


def _count(share: float, size: int) -> int:
    return max(1, round(share * size)) if size > 1 else 0


def check_share(share: float, size: int, client: str, *, rest: int | None = None, gap: int = 0) -> None:
    """Check that a share leaves a client something to train on.

    Args:
        share: of its training samples.
        size: their number.
        client: who it is, for the message.
        rest: how many samples are left to train on; None where only those of the share are taken away.
        gap: how many before each are used for neither.

    Raises:
        InputError: it leaves nothing.
    """
    rest = size - round(share * size) if rest is None else rest
    if size > 1 and rest < 1:
        besides = f", with gap={gap}," if gap else ""
        raise InputError(
            f"validation={share:g}{besides} leaves {client} none of its {size} samples to train on: give a smaller "
            f"share, as validation=0.2{', or a smaller gap' if gap else ''}"
        )


def validating(
    train: Sequence[Tensor], y_R: Tensor, trained: int, share: float, seed: int, names: Sequence[str] = (), *,
    group_R: Tensor | None = None, way: Splitting = Splitting(), place_R: Tensor | None = None,  # noqa: B008  immutable
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Each client's training samples in two parts: those for training, and those for validation.

    Args:
        train: the numbers of each client's training samples.
        y_R: the labels of all samples.
        trained: how many clients train; the others, which are new, have no validation samples.
        share: of the training samples.
        seed: of the data.
        names: the clients' names, if they have some.
        group_R: which samples belong together; a group is on one side, at all clients.
        way: whether each client's last samples are for validation, after a gap, and not any.
        place_R: each sample's place in its client's order, where the last samples are for validation.

    Raises:
        InputError: the share leaves a client without training samples, or gives no client a validation sample.
    """
    rest, parts, without = list[Tensor](), list[Tensor](), list[str]()
    by_groups = None
    if group_R is not None:
        rows_K = [row_N.numpy() for row_N in train[:trained]]
        counts = [_count(share, len(rows)) for rows in rows_K]
        by_groups = set_aside(rows_K, group_R.numpy(), counts, keys.generator(seed, "validation groups"))
    for k, row_N in enumerate(train):
        name = names[k] if names else str(k)
        is_held_N, is_left_N = torch.zeros(2, len(row_N), dtype=torch.bool)
        if k < trained:
            size, client = len(row_N), f"client {name}"
            check_share(share, size, client)
            if by_groups is not None:
                is_held_N = torch.from_numpy(by_groups[k])
            elif place_R is not None:
                held = last_ones(way, place_R[row_N].numpy(), y_R[row_N].numpy(), _count(share, size))
                is_held_N, is_left_N = map(torch.from_numpy, held)
                check_share(share, size, client, rest=int((~(is_held_N | is_left_N)).sum()), gap=way.gap)
            else:
                is_held_N[torch.from_numpy(held_out(y_R[row_N].numpy(), share, seed, k))] = True
            if not is_held_N.any():
                without.append(name)
        rest.append(row_N[~(is_held_N | is_left_N)])
        parts.append(row_N[is_held_N])
    enough = "two samples" if group_R is None else "two groups"
    if way.each_class:
        enough = f"{way.gap + 2} samples of a class"
    if len(without) == trained:
        raise InputError(
            f"validation={share:g} gives no client a validation sample, because none has {enough} to train on: "
            "leave validation out, or take larger clients"
        )
    if without:
        log.warning(
            "%d of %d clients have fewer than %s to train on, so they have no validation sample and do not count in "
            "the mean over these: %s", len(without), trained, enough, listed(without, _NAMED),
        )  # fmt: skip
    return rest, parts
