"""Whether a method has a global model: one that a client with nothing of its own can predict with."""

from __future__ import annotations

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.method import Data, Down, Method
from idiolect.core.tree import Tree
from idiolect.engines.threads import OneThread
from idiolect.training.batchnorm import WithStatistics

NO_GLOBAL = (
    "this method has no global model (before a site has a model of its own, what it receives does not change what it "
    "predicts)"
)
"""For people."""


def exists(method: Method, down: Down, fresh: Tree, data: Data) -> bool:
    """Whether what a client that has done nothing predicts depends on what it receives.

    It predicts the same samples after two messages. Of Ditto, for example, both predictions are those of the initial
    network, because only a client's own model predicts.

    Args:
        method: one whose ``personalise`` leaves clients as they are, but for the statistics of normalisation layers.
        down: a message of the form that the server sends.
        fresh: the state of a client that has done nothing.
        data: some samples.
    """

    def prediction(message: Down) -> Tensor:
        client = method.personalise(message, tree.copy(fresh), data, keys.key(0))
        return method.predict(message, client, data.x_R)

    try:
        with OneThread(), torch.no_grad():
            return not torch.equal(prediction(down), prediction(_other(down)))
    except (RuntimeError, ValueError):  # as of a matrix that is no covariance: these numbers are looked at
        return True


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
