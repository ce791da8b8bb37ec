"""Whether a method has a global model: one that a client with nothing of its own can predict with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.method import Data, Down, Method
from idiolect.core.tree import Tree
from idiolect.engines.threads import OneThread
from idiolect.simulation.rounds import first_state
from idiolect.training.batchnorm import WithStatistics

if TYPE_CHECKING:
    from idiolect.deploy.bundle import Bundle

NO_GLOBAL = (
    "this method has no global model (before a site has a model of its own, all or a part of what it predicts with is "
    "untrained)"
)
"""For people."""


def exists(bundle: Bundle) -> bool:
    """Whether a client that has done nothing predicts with what it receives, and with nothing that is untrained.

    Of FedPer, for example, it predicts with the body that it receives and a random head.
    """
    key = bundle.about.key
    states = [bundle.fresh, first_state(bundle.method, key.seed + 1, key.client)]
    return receives(bundle) and not is_random(bundle.received, bundle.message, states, bundle.synthetic(8))


def receives(bundle: Bundle) -> bool:
    """Whether what a client that has done nothing predicts depends on what it receives; see ``changes``."""
    return changes(bundle.received, bundle.message, bundle.fresh, bundle.synthetic(8))


def changes(method: Method, down: Down, fresh: Tree, data: Data) -> bool:
    """Whether what a client that has done nothing predicts depends on what it receives.

    It predicts the same samples after two messages. Of Ditto, for example, both predictions are those of the initial
    network, because only a client's own model predicts.

    Args:
        method: one whose ``personalise`` leaves clients as they are, but for the statistics of normalisation layers.
        down: a message of the form that the server sends.
        fresh: the state of a client that has done nothing.
        data: some samples.
    """
    return _same(method, [(down, fresh), (_other(down), fresh)], data) is not True


def is_random(method: Method, down: Down, states: Sequence[Tree], data: Data) -> bool:
    """Whether clients that have done nothing predict otherwise if their states were drawn with another seed.

    Args:
        method: as for ``changes``, and so are ``down`` and ``data``.
        down: a message.
        states: of two clients that have done nothing, drawn with two seeds.
        data: some samples.
    """
    return _same(method, [(down, state) for state in states], data) is False


def _same(method: Method, clients: list[tuple[Down, Tree]], data: Data) -> bool | None:
    """Whether two clients, each a message and a state, predict the same; None if that is not known."""

    def prediction(message: Down, state: Tree) -> Tensor:
        client = method.personalise(message, tree.copy(state), data, keys.key(0))
        return method.predict(message, client, data.x_R)

    try:
        with OneThread(), torch.no_grad():
            one, other = (prediction(*client) for client in clients)
            return torch.equal(one, other)
    except (RuntimeError, ValueError):  # as of a matrix that is no covariance: these numbers are looked at
        return None


def _other(down: Down) -> Down:
    """A message with larger numbers, so that counts and variances stay positive.

    Statistics of normalisation layers stay, because they say nothing of which weights predict.
    """
    draw = torch.Generator().manual_seed(0)

    def larger(leaf: Tensor) -> Tensor:
        return leaf + torch.rand(leaf.shape, generator=draw).to(leaf) if leaf.is_floating_point() else leaf

    if isinstance(down.shared, WithStatistics):
        shared = down.shared._replace(method=tree.map(larger, down.shared.method))
        return Down(shared, tree.map(larger, down.own))
    return tree.map(larger, down)
