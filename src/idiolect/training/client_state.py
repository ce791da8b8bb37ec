"""The state that stays at a client, and how a client without one gets it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Data, Down, Local, Personalise
from idiolect.core.tree import Tree


class Personal(NamedTuple):
    """A client's state, and whether it comes from training."""

    value: Tree
    """What the client keeps."""
    trained: Tensor
    """0 until the client's first round, then 1."""

    @property
    def switch(self) -> str:
        """The flag by which engines group clients."""
        return "trained"


def stateless(key: Tensor, id: Tensor) -> tuple[()]:
    """The ``init_client`` of methods whose clients keep nothing."""
    return ()


def untrained(value: Tree) -> Personal:
    """A client's state before its first round."""
    return Personal(value, torch.zeros(()))


def trained(value: Tree) -> Personal:
    """A client's state after a round."""
    return Personal(value, torch.ones(()))


def own_or(client: Personal, common: Tree) -> Tree:
    """The client's own value if it has trained, else the common one: two trees of one structure."""
    return tree.when(client.trained, lambda: client.value, lambda: common)


def joins_by_training(local: Local[Personal]) -> Personalise[Personal]:
    """The ``personalise`` of methods whose clients keep weights of their own.

    A client that has trained stays as it is. A client that has not (a new one, or one that was never drawn) does the
    local work of one round with the message it has, and sends nothing.
    """

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        state: Personal = tree.when(client.trained, lambda: client, lambda: local(down, client, data, key)[0])
        return state

    return personalise
