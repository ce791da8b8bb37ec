"""The server's step that most methods share."""

from __future__ import annotations

from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Info, Up
from idiolect.core.tree import Tree


def combine_mean(up: Up) -> Up:
    """The ``combine`` that goes with ``add_mean``: the mean of some uploads, with the sum of their weights."""
    return Up(tree.mean(up.value, up.weight), up.weight.sum())


def add_mean(server: Tree, up: Up, ids: Tensor) -> tuple[Tree, Info]:
    """The ``aggregate`` of methods that average: server + sum_i w_i u_i / sum_i w_i, for uploads u_i of weights w_i.

    Source: FedAvg (McMahan et al., AISTATS 2017), Algorithm 1, where u_i is the increment of the client's weights.
    """
    return tree.add(server, tree.mean(up.value, up.weight)), {}
