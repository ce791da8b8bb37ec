"""What stays at a client, and how a client that has none yet gets it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Data, Down, Local, Personalise
from idiolect.core.tree import Tree


class Personal(NamedTuple):
    """A client's state, and whether it comes from training: 0 until the client's first round."""

    value: Tree
    trained: Tensor

    @property
    def switch(self) -> str:
        """The flag by which engines put clients together."""
        return "trained"


def untrained(value: Tree) -> Personal:
    """Where a client starts."""
    return Personal(value, torch.zeros(()))


def trained(value: Tree) -> Personal:
    """After a round."""
    return Personal(value, torch.ones(()))


def own_or(client: Personal, common: Tree) -> Tree:
    """What a client that has trained keeps, and for another what all may start from: like trees."""
    return tree.when(client.trained, lambda: client.value, lambda: common)


def joins_by_training(local: Local[Personal]) -> Personalise[Personal]:
    """The ``personalise`` of methods whose clients keep weights of their own.

    Who has trained stays as it is; who has not, a new client or one never drawn, does the local work of one round
    with the message at hand and sends nothing.
    """

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        kept: Personal = tree.when(client.trained, lambda: client, lambda: local(down, client, data, key)[0])
        return kept

    return personalise
