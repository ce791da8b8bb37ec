"""Which samples each client has, and under which shifts: ``shifted`` does what this plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data.new_clients import conditions_of
from idiolect.data.partitions import Rows, Split
from idiolect.data.shifts import Shifted, members, shift_of

# N samples of one client


class Step(NamedTuple):
    """One shift of some clients."""

    function: Callable[..., Shifted]
    options: dict[str, Any]
    members: frozenset[int]
    text: str


class View(NamedTuple):
    """A client's samples under one condition, with its shifts; each shift has the path of its random draws.

    Shifts are computed for all samples of the client, so that ``keep`` does not change a sample's look.
    """

    client: int
    condition: str
    steps: tuple[tuple[tuple[int | str, ...], Step], ...]
    row_N: Rows
    """All of them, in the source."""
    at_N: Rows
    """Places in ``row_N`` of the samples that are kept, training samples first."""


def _step(spec: Spec, clients: int) -> Step:
    function, options = shift_of(spec)
    who = members(spec.options.get("clients", "all"), clients, f"shift {spec.name}")
    return Step(function, options, who, str(spec))


def views_of(whole: Split, split: Split, new: int, shifts: Sequence[Spec], new_shifts: Sequence[Spec]) -> list[View]:
    """Every client, then the new ones once more for each further condition."""
    count = len(split.train)
    steps = [_step(spec, count) for spec in shifts]
    if new_shifts and not new:
        raise InputError("new_shifts needs new clients, and there are none: give new_clients too")

    def of_client(k: int) -> View:
        mine = tuple(((i,), s) for i, s in enumerate(steps) if k in s.members)
        train_N, row_N = whole.train[k], np.concatenate([whole.train[k], whole.test[k]])
        at_N = np.arange(len(row_N))
        if split.train[k] is not train_N:  # keep leaves some out
            order_N = np.argsort(train_N, kind="stable")
            kept_N = order_N[np.searchsorted(train_N, split.train[k], sorter=order_N)]
            at_N = np.concatenate([kept_N, at_N[len(train_N) :]])
        return View(k, "", mine, row_N, at_N)

    plain = [of_client(k) for k in range(count)]
    joining = frozenset(range(count - new, count))
    conditions = [_step(spec, count)._replace(members=joining) for spec in conditions_of(new_shifts)]
    return plain + [
        view._replace(condition=more.text, steps=(*view.steps, (("new", j), more)))
        for j, more in enumerate(conditions)
        for view in plain[count - new :]
    ]
