"""How a server reduces each part of a round's uploads: what a method declares.

A declaration has the structure of ``Up.value``; a rule in place of a part holds for the whole part. For example, where
a client sends ``Shared(body, mean_Cd, cov)`` with the weights ``Counts(n, n_C)``::

    Shared(body=reduce.increment("n"), mean_Cd=reduce.mean("n_C"), cov=reduce.mean("n"))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.tree import Tree

# m participants


@dataclass(frozen=True)
class Mean:
    """sum_i w_i u_i / sum_i w_i over the participants i, and 0 where the weights sum to 0.

    ``by`` is the path of w in ``Up.weight``, such as "n"; it is left out where ``Up.weight`` is one tensor. The shape
    of w is the shape of u, or the first axes of it: one number for each client, for each class (C,), for each cluster.
    ``measured`` says that w is a measurement and counts no samples, so that nobody can hold it against their number.
    ``exact`` says that the server needs u as it was sent: see ``needs_exact``.
    """

    by: str = ""
    measured: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Increment(Mean):
    """A mean of increments of weights, which the server adds to its own; a server's optimiser may step it."""


@dataclass(frozen=True)
class Sum:
    """sum_i u_i over the participants i; ``exact`` as for ``Mean``."""

    exact: bool = False


@dataclass(frozen=True)
class Each:
    """The upload of each participant, stacked (m, ...) in the order of ``ids``.

    ``whole`` says that these are weights of models, and no increments of them: see ``sends_models``.
    """

    whole: bool = False


Rule = Mean | Sum | Each


def mean(by: str = "", *, measured: bool = False, exact: bool = False) -> Any:
    """Declare a part to be reduced to its weighted mean over the participants: see ``Mean``."""
    return Mean(by, measured, exact)


def increment(by: str = "", *, measured: bool = False) -> Any:
    """Declare a part to be a mean increment of weights, which the server adds to its own: see ``Increment``."""
    return Increment(by, measured)


def sum(*, exact: bool = False) -> Any:
    """Declare a part to be reduced to its sum over the participants."""
    return Sum(exact)


def each(*, whole: bool = False) -> Any:
    """Declare a part of which the server needs the upload of each participant."""
    return Each(whole)


def rules(declared: Tree) -> list[Rule]:
    """The rules of a declaration."""
    return tree.leaves(declared)  # type: ignore[return-value]


def needs_each(declared: Tree) -> bool:
    """Whether a server needs the upload of each participant, and not only sums over them."""
    return any(isinstance(rule, Each) for rule in rules(declared))


def needs_exact(declared: Tree) -> bool:
    """Whether a server needs parts of the uploads as they were sent.

    Of means and mean squares, for example, it makes a variance: scaled, noisy or each with a median of its own they no
    longer belong together. So privacy, robust rules and steps that change uploads are refused.
    """
    return any(isinstance(rule, Mean | Sum) and rule.exact for rule in rules(declared))


def sends_models(declared: Tree) -> bool:
    """Whether clients send models as they are, of which a clip or the largest numbers alone would leave nothing."""
    return any(isinstance(rule, Each) and rule.whole for rule in rules(declared))


def within(declared: Tree, part: str) -> Tree:
    """The declaration where the weights have moved to a part of ``Up.weight``.

    >>> within(mean("n"), "method"), within(mean(), "method"), within(sum(), "method")
    (Mean(by='method/n', measured=False, exact=False), Mean(by='method', measured=False, exact=False), Sum(exact=False))
    """

    def moved(rule: Rule) -> Rule:
        return replace(rule, by=f"{part}/{rule.by}".rstrip("/")) if isinstance(rule, Mean) else rule

    return tree.map(moved, declared)


def spread(declared: Tree, value: Tree, path: str = "") -> Iterator[Rule]:
    """The rule of each leaf of a value, in order.

    Raises:
        InputError: the declaration has another structure.
    """
    where = f"the part {path!r} of the upload" if path else "the upload"
    if isinstance(declared, Mean | Sum | Each):
        yield from [declared] * len(tree.leaves(value))
        return
    if callable(declared):
        raise InputError(f"reduce has a function for {where}: call it, as in reduce.increment()")
    if not isinstance(declared, tuple | dict):
        raise InputError(f"reduce has {declared!r} for {where}: write reduce.mean(), or another rule")
    ours, theirs = children(declared), children(value)
    if type(declared) is not type(value) or ours is None or theirs is None or [*ours] != [*theirs]:
        raise InputError(f"reduce has {_form(declared)} for {where}, which is {_form(value)}: give them one structure")
    for name, rule in ours.items():
        yield from spread(rule, theirs[name], f"{path}/{name}".lstrip("/"))


def children(node: Tree) -> dict[str, Tree] | None:
    """The parts of a tree by name; None for a leaf."""
    if isinstance(node, dict):
        return dict(node)
    if isinstance(node, tuple):
        return dict(zip(getattr(node, "_fields", map(str, range(len(node)))), node, strict=True))
    return None


def _form(node: Tree) -> str:
    """A tree's structure in words."""
    names = children(node)
    if names is None:
        return "one tensor" if isinstance(node, Tensor) else f"a {type(node).__name__}"
    kind = "" if type(node) in (tuple, dict) else type(node).__name__
    return f"{kind}({', '.join(names)})"
