"""The sums of a round's uploads that follow from what a method declares of each part.

A reduction accumulates in float64, in a tree of additions that depends on the places of the participants alone. So
neither the engine, nor the number of workers, nor the order in which uploads arrive changes a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError, nearest
from idiolect.core.reduce import Each, Increment, Mean, spread
from idiolect.core.tree import Tree

# m participants, B numbers of a block

_BLOCK = 2**16  # numbers


class Up(NamedTuple):
    """Client to server."""

    value: Tree = ()
    """A vector: increments, sums and what is learned. Clipping, noise and compression act here only."""
    weight: Tree = ()
    """What weighs the value: numbers of samples, of all or of each class."""


class Reduced(NamedTuple):
    """A round's uploads as ``aggregate`` gets them."""

    value: Tree = ()
    """As ``Up.value``: means and sums without an axis of clients, parts of ``Each`` stacked (m, ...)."""
    weight: Tree = ()
    """As ``Up.weight``: the sums over the participants."""
    weight_m: Tree = ()
    """The weights of each participant, stacked (m, ...), where a part is of ``Each``; else ()."""


class Sums(NamedTuple):
    """The sums over some participants: weights times values, and weights, leaf by leaf, in float64."""

    value: tuple[Tensor, ...]
    """Of the leaves of ``Up.value`` that are means or sums."""
    weight: tuple[Tensor, ...]


class Reduction:
    """A declaration laid over the form of an upload.

    Args:
        declared: ``Method.reduce``: a tree of rules with the structure of ``Up.value``; a rule in place of a part of it
            holds for the whole part.
        like: an upload of this form; of its tensors only shapes and types are looked at.

    Raises:
        InputError: it does not fit the upload; the sentence says where.
    """

    def __init__(self, declared: Tree, like: Up) -> None:
        self._values, self._value = tree.flatten(like.value)
        self._weights, self._weight = tree.flatten(like.weight)
        for path, leaf in tree.named(like).items():
            if not isinstance(leaf, Tensor):
                raise InputError(f"the upload's {path} is a {type(leaf).__name__}: make it a tensor, torch.tensor(...)")
        names = list(tree.named(like.weight))
        self._rules = list(spread(declared, like.value))
        self._by: list[int | None] = []
        for rule, path, value in zip(self._rules, tree.named(like.value), self._values, strict=True):
            self._by.append(_weight_of(rule, path, value, names, self._weights) if isinstance(rule, Mean) else None)

    @property
    def needs_each(self) -> bool:
        """Whether a part of the upload is of ``Each``."""
        return any(isinstance(rule, Each) for rule in self._rules)

    @property
    def counts_clients(self) -> bool:
        """Whether every weight of a mean is one number for each client."""
        return all(self._weights[k].ndim == 0 for k in self._by if k is not None)

    @property
    def measured(self) -> set[int]:
        """The places of the leaves of ``Up.weight`` that are measurements, and do not count samples."""
        rules = zip(self._by, self._rules, strict=True)
        return {k for k, rule in rules if k is not None and isinstance(rule, Mean) and rule.measured}

    @property
    def increments(self) -> list[int]:
        """The places of the leaves of ``Up.value`` that a server's optimiser may step."""
        return [k for k, rule in enumerate(self._rules) if isinstance(rule, Increment)]

    def one(self, up: Up) -> Sums:
        """The sums of a single upload.

        Raises:
            ValueError: it has another structure than the first one.
        """
        tree.map(lambda a, b: a, Up(self._value(self._values), self._weight(self._weights)), up)
        many: Sums = self.of(tree.map(lambda a: a[None], up))
        return many

    def of(self, up_m: Up) -> Sums:
        """The sums of stacked uploads.

        Raises:
            ValueError: a weight is negative.
        """
        weights = tree.leaves(up_m.weight)
        if any(bool((w < 0).any()) for w in weights):
            raise ValueError("a weight is negative: weigh by numbers of samples, or by 1")
        values = zip(tree.leaves(up_m.value), self._rules, self._by, strict=True)
        return Sums(
            tuple(_sum(a, None if k is None else weights[k]) for a, rule, k in values if not isinstance(rule, Each)),
            tuple(_sum(w) for w in weights),
        )

    def reduced(self, sums: Sums, up_m: Up | None = None, *, count: float | None = None) -> Reduced:
        """What ``aggregate`` gets.

        Args:
            sums: over all participants.
            up_m: their uploads, stacked, where a part is of ``Each``.
            count: divides every mean in place of the sum of its weights.
        """
        every = tree.leaves(up_m.value) if up_m is not None else []
        total, leaves = list(sums.value), list[Tensor]()
        for place, (rule, k, like) in enumerate(zip(self._rules, self._by, self._values, strict=True)):
            if isinstance(rule, Each):
                leaves.append(every[place])
                continue
            value = total.pop(0)
            if k is not None:
                by = sums.weight[k] if count is None else torch.full_like(sums.weight[k], count)
                value = value / over(torch.where(by > 0, by, 1), value)
            leaves.append(value.to(_type(like, mean=k is not None)))
        weights = [w.to(like.dtype) for w, like in zip(sums.weight, self._weights, strict=True)]
        own = up_m.weight if up_m is not None and self.needs_each else ()
        return Reduced(self._value(leaves), self._weight(weights), own)

    def present(self, up_m: Up) -> list[Tensor | None]:
        """For each leaf of stacked values, which numbers count: those whose weight is not 0; None where all do."""
        weights = tree.leaves(up_m.weight)
        values = zip(tree.leaves(up_m.value), self._by, strict=True)
        return [None if k is None else (over(weights[k], a) > 0).expand_as(a) for a, k in values]


def over(weight: Tensor, value: Tensor) -> Tensor:
    """A weight with axes of length 1 behind, so that it multiplies a value whose shape begins with the weight's."""
    return weight.reshape((*weight.shape, *[1] * (value.ndim - weight.ndim)))


def _type(like: Tensor, *, mean: bool) -> torch.dtype:
    return torch.get_default_dtype() if mean and not like.is_floating_point() else like.dtype


def _sum(a_m: Tensor, weight_m: Tensor | None = None) -> Tensor:
    """The weighted sum over the first axis, in float64 and in new memory.

    Block by block: the processor's cache holds a block, and no copy of all uploads in float64 is made.
    """
    flat_mP = a_m.reshape(len(a_m), -1)
    if weight_m is not None and weight_m.ndim > 1:
        weight_m = over(weight_m, a_m).expand_as(a_m).reshape(len(a_m), -1)
    sum_P, wide = torch.empty(flat_mP.shape[1], dtype=torch.float64), max(1, _BLOCK // len(a_m))
    for start in range(0, len(sum_P), wide):
        block = slice(start, start + wide)
        block_mB = flat_mP[:, block].double()
        if weight_m is not None:
            block_mB = block_mB * (weight_m[:, block] if weight_m.ndim > 1 else weight_m[:, None]).double()
        sum_P[block] = _added(block_mB)
    return sum_P.view(a_m.shape[1:])


def _added(a_m: Tensor) -> Tensor:
    """The sum over the first axis, in the tree of additions of ``Additions``."""
    while len(a_m) > 1:
        pairs = len(a_m) // 2
        half_m = a_m[0 : 2 * pairs : 2] + a_m[1 : 2 * pairs : 2]
        a_m = torch.cat([half_m, a_m[2 * pairs :]]) if len(a_m) % 2 else half_m
    return a_m[0]


def _weight_of(rule: Mean, path: str, value: Tensor, names: Sequence[str], weights: Sequence[Tensor]) -> int:
    """Which leaf of ``Up.weight`` weighs a leaf of the value."""
    part = f"the part {path!r} of the upload" if path else "the upload"
    if rule.by not in names:
        if not names:
            raise InputError(f"reduce weighs {part}, and the upload has no weight: return Up(value, weight)")
        if not rule.by:
            raise InputError(f"reduce weighs {part} by a weight that it does not name: name one of {', '.join(names)}")
        known = nearest(rule.by, names) if names != [""] else "the weight is one tensor: leave the name out"
        raise InputError(f"reduce weighs {part} by {rule.by!r}, which is no tensor of Up.weight; {known}")
    k = list(names).index(rule.by)
    if weights[k].shape != value.shape[: weights[k].ndim]:
        shapes = f"{tuple(weights[k].shape)}, and {part} has {tuple(value.shape)}"
        raise InputError(
            f"the weight {rule.by or 'of the upload'} has the shape {shapes}: a weight has the shape of what it "
            "weighs, or the first axes of it"
        )
    return k


def reduced(declared: Tree, up_m: Up) -> Reduced:
    """What ``aggregate`` gets of stacked uploads.

    Raises:
        InputError: the declaration does not fit them.
    """
    reduction = Reduction(declared, tree.rows(up_m, 0))
    return reduction.reduced(reduction.of(up_m), up_m)


class Branch(NamedTuple):
    """The sums over the places k 2^level to (k + 1) 2^level - 1."""

    level: int
    k: int
    sums: Sums
    like: Up
    """The form of an upload: tensors without content."""


class Additions:
    """The tree of additions over the places 0 to count - 1 of a round's participants.

    A branch of level l + 1 is the sum of two branches of level l that stand side by side, or the last one alone where
    there is no other. Branches may be added anywhere, in any order, and the rest of the tree elsewhere.

    Args:
        count: participants that were asked; some may never come.
    """

    def __init__(self, count: int) -> None:
        self._count, self._height = count, max(0, count - 1).bit_length()
        self._branches: dict[tuple[int, int], Branch] = {}

    @staticmethod
    def root(count: int, sums: Sums, like: Up) -> Branch:
        """The whole tree of so many participants, where somebody else has added them up."""
        return Branch(Additions(count)._height, 0, sums, like)

    def add(self, branch: Branch) -> None:
        """Add a branch, whose tensors may be changed in place."""
        level, k = branch.level, branch.k
        while level < self._height:
            alone = k % 2 == 0 and (k + 1) << level >= self._count
            other = None if alone else self._branches.pop((level, k ^ 1), None)
            if other is None and not alone:
                break
            if other is not None:
                tree.map(Tensor.add_, branch.sums, other.sums)
            level, k = level + 1, k // 2
        self._branches[level, k] = branch._replace(level=level, k=k)

    def take(self, level: int = 0) -> tuple[Branch, ...]:
        """Remove and return the branches of this level or a higher one, and the whole tree's."""
        of = [at for at in self._branches if at[0] >= min(level, self._height)]
        return tuple(self._branches.pop(at) for at in sorted(of))

    def total(self) -> Branch | None:
        """The sum of all places that came; None if none did."""
        for level in range(self._height):
            for at in sorted(at for at in self._branches if at[0] == level):
                if at not in self._branches:
                    continue
                branch, other = self._branches.pop(at), self._branches.pop((level, at[1] ^ 1), None)
                if other is not None:
                    tree.map(Tensor.add_, branch.sums, other.sums)
                self._branches[level + 1, at[1] // 2] = branch._replace(level=level + 1, k=at[1] // 2)
        return next(iter(self._branches.values()), None)
