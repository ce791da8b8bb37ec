"""Checks of what a method's functions return at a client."""

from __future__ import annotations

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import CodeError, Diverged
from idiolect.core.method import Up
from idiolect.core.tree import Tree


def not_of_local(answer: object) -> str:
    """What is wrong with what ``local`` returned; empty if nothing is."""
    if type(answer) is not tuple or len(answer) != 3:
        kind = f"a tuple of {len(answer)}" if type(answer) is tuple else f"a {type(answer).__name__}"
        return f"it returns {kind}; info is a dictionary of tensors by metric, {{}} where there is none"
    _, up, info = answer
    if not isinstance(up, Up):
        return f"the second value is a {type(up).__name__}"
    if not isinstance(info, dict):
        return f"info is a {type(info).__name__}, not a dictionary of tensors by metric"
    other = next((name for name, value in info.items() if not isinstance(value, Tensor)), None)
    return "" if other is None else f"info[{other!r}] is a {type(info[other]).__name__}, not a tensor"


def check_state(where: str, function: str, state: Tree, before: Tree) -> None:
    """Raise CodeError if a client's new state has another form than the state that it had."""
    if (what := tree.other_form(state, before)) is not None:
        fix = "return the state alone, as local's first value"
        if function == "local":
            fix = "let init_client return a state of the form that local returns"
        wrong = f"{function} does not return the client's state in the form that it got ({what})"
        raise CodeError(f"{where}: {wrong}: {fix}")


def refusal(where: str, answer: tuple[Tree, Up, Tree], *, can_refuse: bool) -> Up | None:
    """What a client uploads for a training that is not finite, where a robust rule or privacy refuses it.

    So one client's training counts for nothing, in place of ending the run of all.

    Args:
        where: it happened.
        answer: the client's state, its upload and its info.
        can_refuse: whether there is a rule or privacy.

    Returns:
        An upload without a finite number; None if the answer is finite.

    Raises:
        Diverged: the answer is not finite, and nothing refuses it.
    """
    named, up = dict(zip(("client", "up", "info"), answer, strict=True)), answer[1]
    if tree.not_finite(named) is None:
        return None
    if not can_refuse or not any(a.is_floating_point() for a in tree.leaves(up.value)):
        check_finite(where, named)
    nothing = tree.map(lambda a: torch.full_like(a, torch.nan) if a.is_floating_point() else a, up.value)
    return up._replace(value=nothing)


def check_finite(where: str, result: Tree) -> None:
    """Raise Diverged if a number is not finite."""
    if (path := tree.not_finite(result)) is not None:
        what = f"training diverged ({path} is not a finite number)"
        raise Diverged(f"{where}: {what}; lower the learning rate or strengthen the method's repair")
