"""Who sees what of a site, read off the messages of a method's round on synthetic samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.reduce import needs_each, needs_exact
from idiolect.core.reduction import Reduction, reduced
from idiolect.methods import profile
from idiolect.methods.profile import Anatomy, MessageForm


class Exposure(NamedTuple):
    """Who sees what of one site in a round."""

    server: MessageForm
    """What the server sees of it: ``Up.value``."""
    counts: MessageForm
    """And ``Up.weight``, which says how many samples a value is worth."""
    sums: bool
    """Whether secure aggregation leaves the server nothing but sums over sites."""
    others: MessageForm
    """What every other site gets in the next round, the same for all, made of the sites' uploads."""
    other: MessageForm
    """What a site gets besides, for it alone."""
    alone: tuple[str, ...]
    """Parts of these two that can hold what a single other site sent."""
    stays: MessageForm
    """What the site keeps to itself from round to round, besides its samples."""
    private: bool
    """Whether the server can add noise that hides one site in what it sends on."""
    robust: bool
    """Whether the server can take a trimmed mean or a median over sites in place of its mean."""


def of(name: str, options: dict[str, Any], known: Anatomy) -> Exposure:
    """The exposure of a site by a method with these options, whose anatomy is known.

    Raises:
        InputError: unknown method or option.
        RunError: the method raised.
    """
    round = profile.small_round(name, options)
    sums, exact = not needs_each(round.method.reduce), needs_exact(round.method.reduce)
    private = sums and not exact and Reduction(round.method.reduce, round.trial.ups[0]).counts_clients
    return Exposure(
        known.up_value, known.up_weight, sums, known.down_shared, known.down_own, tuple(alone(round)), known.client,
        private, sums and not exact,
    )  # fmt: skip


def alone(round: profile.Round) -> Iterator[str]:
    """The parts of the next message to a site of which a number depends on the upload of exactly one other site."""
    method, server, up_m = round.method, round.trial.server, tree.stack(round.trial.ups)
    if not tree.leaves(up_m.value):
        return
    ids = torch.arange(len(round.trial.ups))

    def sent(row: int | None) -> dict[str, Tensor]:
        up = up_m if row is None else up_m._replace(value=_moved(up_m.value, row))
        down = method.send(method.aggregate(server, reduced(method.reduce, up), ids)[0], ids)
        shared = {path: a.expand(len(ids), *a.shape) for path, a in tree.named(down.shared).items()}
        return shared | {f"own/{path}": a for path, a in tree.named(down.own).items()}

    with profile.precision(torch.float64):
        usual, others = sent(None), [sent(j) for j in ids.tolist()]
    parts = []
    for path, a_m in usual.items():
        by_jm = torch.stack([other[path] != a_m for other in others])
        single = [((by_jm[:, i].sum(0) == 1) & ~by_jm[i, i]).any() for i in ids.tolist()]
        if a_m.is_floating_point() and any(single):
            parts.append(path.removeprefix("own/").split("/")[0])
    yield from dict.fromkeys(parts)


def _moved(value: Any, row: int) -> Any:
    def one(a: Tensor) -> Tensor:
        noise = keys.normal(keys.key(5, row), tuple(a.shape[1:]), a.dtype) * (a.abs().mean() + 1e-6)
        return a.index_add(0, torch.tensor([row]), noise[None])

    return tree.map(one, value)
