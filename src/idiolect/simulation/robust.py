"""What a server does against hostile uploads before its method sees them: robust rules on the stacked values.

A rule takes the values of a round's uploads, a tree whose leaves are (m, ...), and returns values that the method
aggregates as if the clients had sent them. Weights (numbers of samples) are kept. Uploads with a number that is not
finite are refused before.

Each row gets the robust estimate, so that a mean over clients becomes this estimate and a sum becomes m times it. A
client that sends 0 for a number, as for a class that it does not have, keeps its 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field
from torch import Tensor

from idiolect.core import option_spec, tree
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree
from idiolect.simulation.uploads import parts

# m participants

_SILENT = 1e-9  # of a tensor's largest number: what an absent class leaves by rounding is below


Present = Sequence[Tensor | None]


class Rule(Protocol):
    """A robust rule."""

    needs_sums: ClassVar[bool]
    """Whether it is only for methods whose server needs sums or means: all clients' values become nearly one."""

    def __call__(self, value: Tree, present: Present) -> tuple[Tree, Tensor]:
        """The new values, and for each client the least factor by which a part of its value was scaled (m,).

        Args:
            value: stacked.
            present: for each of its leaves which numbers count, the same shape; None where all do.
        """


@dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """The mean of each number over clients without its ceil(share m) largest and its as many smallest values.

    Only the clients that send something other than 0 for a number count, s of them; where s is not more than twice what
    is cut, everybody's number becomes 0. So as long as no more than ceil(share m) clients attack, each result lies
    within the range of what honest clients sent.

    Source: Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, Definition
    2.
    Differs from source: zeros do not count. The source has no classes that clients lack; its mean would move the
    statistics of a rare class hardly at all.
    """

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    needs_sums: ClassVar[bool] = True

    def __call__(self, value: Tree, present: Present) -> tuple[Tree, Tensor]:
        """The values of all clients after the rule."""
        return _each(self._one, value, present)

    def _one(self, a_m: Tensor, present_m: Tensor) -> Tensor:
        m = len(a_m)
        cut = min(math.ceil(self.share * m - 1e-9), (m - 1) // 2)
        across = (m, *[1] * (a_m.ndim - 1))
        largest_m = a_m.abs().reshape(m, -1).amax(1).view(across)
        counts = present_m & (a_m.abs() > _SILENT * largest_m)
        order_m = torch.where(counts, a_m, torch.inf).sort(0).values
        rank = torch.arange(m).view(across)
        middle = (rank >= cut) & (rank < counts.sum(0) - cut)
        mean = torch.where(middle, order_m, 0).sum(0) / middle.sum(0).clamp(min=1)
        return torch.where(counts, mean, 0)


@dataclass(frozen=True, kw_only=True)
class Median:
    """The median of each number over the clients whose weight is not 0; of an even number the mean of the middle two.

    Zeros count: statistics of a class that fewer than half of the participants have do not move.

    Source: Yin et al., ICML 2018, Definition 1.
    """

    needs_sums: ClassVar[bool] = True

    def __call__(self, value: Tree, present: Present) -> tuple[Tree, Tensor]:
        """The values of all clients after the rule."""
        return _each(self._one, value, present)

    def _one(self, a_m: Tensor, present_m: Tensor) -> Tensor:
        order_m, count = torch.where(present_m, a_m, torch.inf).sort(0).values, present_m.sum(0, keepdim=True)
        low, high = (order_m.gather(0, k.clamp(min=0)) for k in ((count - 1) // 2, count // 2))
        return torch.where(count > 0, (low + high) / 2, 0).expand_as(a_m).clone()


@dataclass(frozen=True, kw_only=True)
class NormBound:
    """Scales each part of an upload down to ``multiple`` times the median of its norm over the clients.

    The parts are those of the message: the increment of the body, the class means, the covariance, ... Each is bounded
    by itself, because statistics that are sums may be a thousand times larger than weights.

    Source: Sun et al., Can You Really Backdoor Federated Learning?, 2019, section 4.
    Differs from source: the bound follows the median norm and is no fixed number; it is for each part.
    """

    multiple: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    needs_sums: ClassVar[bool] = False

    def __call__(self, value: Tree, present: Present) -> tuple[Tree, Tensor]:
        """The values of all clients after the rule."""
        flat, build = tree.flatten(value)
        least_m = torch.ones(len(flat[0]), dtype=torch.float64)
        for leaves in parts(value):
            square_m = sum(flat[k].double().reshape(len(least_m), -1).square().sum(1) for k in leaves)
            norm_m = torch.as_tensor(square_m).sqrt()
            largest = self.multiple * norm_m.quantile(0.5)
            factor_m = torch.where(norm_m > largest, largest / norm_m.clamp(min=1e-300), 1.0)
            least_m = torch.minimum(least_m, factor_m)
            for k in leaves:
                flat[k] = flat[k] * factor_m.to(flat[k].dtype).view(-1, *[1] * (flat[k].ndim - 1))
        return build(flat), least_m


def _each(one: Callable[[Tensor, Tensor], Tensor], value: Tree, present: Present) -> tuple[Tree, Tensor]:
    flat, build = tree.flatten(value)
    masks = [torch.ones_like(a, dtype=torch.bool) if p is None else p for a, p in zip(flat, present, strict=True)]
    return build([one(a, p) for a, p in zip(flat, masks, strict=True)]), torch.ones(len(flat[0]))


RULES: dict[str, Callable[..., Any]] = {"trimmed_mean": TrimmedMean, "median": Median, "norm_bound": NormBound}


def rule_of(spec: Spec) -> Rule:
    """The rule for a spec such as ``trimmed_mean:share=0.2``.

    Raises:
        InputError: unknown name or option, or a value out of range.
    """
    rule: Rule = option_spec.made(spec, RULES, "robust")
    return rule
