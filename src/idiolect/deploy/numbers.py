"""Numbers that a bundle predicts: their units, how far its models were from them, and intervals."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from idiolect.core.errors import InputError, listed
from idiolect.data.targets import Targets
from idiolect.deploy.groups import scores_of
from idiolect.deploy.schema import About, ErrorsPart, TargetPart
from idiolect.statistics import conformal

# N samples, D numbers of the target

log = logging.getLogger(__name__)


def targets_of(targets: Targets | None) -> tuple[TargetPart, ...]:
    """The numbers that are predicted; () for classes and labels."""
    if targets is None or targets.task != "regression":
        return ()
    parts = zip(targets.names, targets.mean, targets.std, strict=True)
    return tuple(TargetPart(name=name, mean=mean, std=std) for name, mean, std in parts)


def scaled(value_ND: Tensor, targets: Sequence[TargetPart]) -> Tensor:
    """What networks learn of numbers in the units of the data (N, D), float64."""
    mean_D, std_D = moments(targets)
    return (value_ND.double() - mean_D) / std_D


def unscaled(scaled_ND: Tensor, targets: Sequence[TargetPart]) -> Tensor:
    """What a network's predictions (N, D) are in the units of the data, float64."""
    mean_D, std_D = moments(targets)
    return scaled_ND.double() * std_D + mean_D


def moments(targets: Sequence[TargetPart]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (D,) in training, float64."""
    pairs = torch.tensor([(target.mean, target.std) for target in targets], dtype=torch.float64)
    return pairs[:, 0], pairs[:, 1]


def errors_of(error_ND: Tensor, group_N: Tensor | None) -> tuple[ErrorsPart, ...]:
    """How large errors are, by number of the target."""
    parts = []
    for error_N in error_ND.double().T:
        sizes, weights = scores_of(error_N.abs(), group_N)
        parts.append(ErrorsPart(std=float(error_N.square().mean().sqrt()), sizes=sizes, weights=weights))
    return tuple(parts)


def half_widths(about: About, level: float) -> list[float]:
    """Half the width of the intervals at a level, for each number; infinite where the site had too few samples.

    Of labels how far the probability of each may be from 1 where a sample has it, and from 0 where it has not.

    The prediction plus and minus this holds the number for the share ``level`` of samples like the site's own: split
    conformal prediction with the absolute errors of all folds; see ``idiolect.statistics.conformal``.

    Raises:
        InputError: the level is not between 0 and 1, or the bundle has no errors of a site.
    """
    if not 0 < level < 1:
        raise InputError(f"level={level:g} is not between 0 and 1: give the share of intervals that hold the number")
    if about.site is None or not about.site.errors:
        raise InputError(
            "this bundle was made without samples, which a level needs: join with it first, or leave it out"
        )
    half_D = [conformal.quantile(part.sizes, level, part.weights) for part in about.site.errors]
    names = [target.name for target in about.targets] or about.labels
    if wide := [name for name, half in zip(names, half_D, strict=True) if half == torch.inf]:
        grouped = bool(about.site.errors[0].weights)
        what = "intervals of %s that hold %g%% are infinite, because they take"
        if about.labels:
            what = "whether samples have %s is undecided for all of them at a level of %g%%, because it takes"
        log.warning(
            f"{what} the errors of %d %s or more, and the site had fewer: give a lower level, or "
            "join again with more samples",
            listed(wide, 5), 100 * level, conformal.least(level), "groups" if grouped else "samples",
        )  # fmt: skip
    return half_D
