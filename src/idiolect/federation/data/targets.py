"""Targets that are numbers: how sites agree on what is predicted, and by which mean and standard deviation."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from idiolect.core.errors import InputError, listed, option
from idiolect.data.custom.columns import in_order
from idiolect.data.custom.target import numbers
from idiolect.data.targets import Targets
from idiolect.deploy import units
from idiolect.deploy.schema import TargetPart

if TYPE_CHECKING:
    from idiolect.federation.data.agreement import Offer, Sums

# N samples of a site, D numbers of a target

log = logging.getLogger(__name__)

_LEAST = 1e-6  # of the mean: a standard deviation below may be rounding of the sums


def values_of(frames: Sequence[pd.DataFrame], columns: Sequence[str], where: str) -> Tensor:
    """The numbers (N, D) of a site's samples, float64.

    Args:
        frames: its tables, one after another.
        columns: of the target, by the names that the sites agree on.
        where: the file, for messages.

    Raises:
        InputError: one is missing or infinite, or is a text.
    """
    by_column = [
        np.concatenate([numbers(frame[column], f"target {column!r} of {where}") for frame in frames])
        for column in columns
    ]
    return torch.from_numpy(np.stack(by_column, 1))


def common_names(offers: Mapping[str, Offer]) -> tuple[str, ...]:
    """The names of the numbers that all sites predict, or of all their labels; () where they have classes.

    Raises:
        InputError: sites have other ones, or numbers that look like those of another unit.
    """
    (first, one), *_ = offers.items()
    if any(other.labels != one.labels for other in offers.values()):
        raise InputError(f"some sites have several labels and others not: give what {first} has at all of them")
    if one.labels:
        every = {name for other in offers.values() for name in other.targets}
        return tuple(one.targets) if every == set(one.targets) else tuple(in_order(every))
    for site, other in offers.items():
        if other.targets != one.targets:
            raise InputError(
                f"{first} predicts {_said(one.targets)} and {site} {_said(other.targets)}: the columns of the target "
                f"need the same names at all sites, in one order; each site gives them with {option('target')}"
            )
    for name in one.targets:
        scales = {
            site: scale
            for site, offer in offers.items()
            for target, scale in zip(offer.targets, offer.target_scales, strict=False)
            if target == name
        }
        if (far := units.apart(name, scales)) is not None:
            raise InputError(
                f"target {name!r} looks like another unit: {far}: convert it, or give {option('as_is', name)} at "
                f"{', '.join(far.sites)} if the numbers are right"
            )
    return tuple(one.targets)


def parts_of(names: Sequence[str], sums: Sequence[Sums], *, labels: bool = False) -> tuple[TargetPart, ...]:
    """The numbers that are predicted, with the mean and standard deviation over the training samples of all sites.

    Labels stay as they are; those that all training samples have, or none, are said.

    Args:
        names: of the numbers, or labels.
        sums: what each site says (``Sums``).
        labels: whether they are labels.

    Raises:
        InputError: a number is the same in all of them, or nearly so beside its size.
    """
    if not names:
        return ()
    count, parts = sum(int(one.train_C.sum()) for one in sums), []
    mean_D = torch.stack([one.target_sum_D for one in sums]).sum(0) / count
    if labels:
        if alike := [name for name, share in zip(names, mean_D.tolist(), strict=True) if share in (0, 1)]:
            log.warning("all training samples, or none, have %s: nothing can be learnt of it", listed(alike, 5))
        return tuple(TargetPart(name=name, mean=0.0, std=1.0) for name in names)
    variance_D = torch.stack([one.target_square_D for one in sums]).sum(0) / count - mean_D.square()
    for name, mean, variance in zip(names, mean_D.tolist(), variance_D.tolist(), strict=True):
        std = math.sqrt(max(variance, 0.0))
        if std <= _LEAST * abs(mean):
            raise InputError(
                f"target {name} is the same number in all training samples of all sites, or differs by less than a "
                f"millionth of its mean of {mean:.6g}: take another target, or subtract a number from it at every site"
            )
        parts.append(TargetPart(name=name, mean=mean, std=std))
    return tuple(parts)


def counts_of(sums: Sequence[Sums], *, labels: bool = False) -> tuple[tuple[int, ...], ...]:
    """Training samples of all sites by class (1, C); without and with each label, (L, 2)."""
    count_C = torch.stack([one.train_C for one in sums]).sum(0)
    if not labels:
        return (tuple(count_C.tolist()),)
    having_L = torch.stack([one.target_sum_D for one in sums]).sum(0).long().tolist()
    return tuple((int(count_C.sum()) - having, having) for having in having_L)


def targets_of(parts: Sequence[TargetPart], value_RD: Tensor, *, labels: bool = False) -> Targets | None:
    """Numbers with the agreed mean and standard deviation, or labels; None where there are classes."""
    if not parts:
        return None
    names, mean, std = zip(*((part.name, part.mean, part.std) for part in parts), strict=True)
    return Targets(value_RD, names, mean, std, "multilabel" if labels else "regression")


def _said(names: Sequence[str]) -> str:
    return listed(map(repr, names), 5) if names else "classes"
