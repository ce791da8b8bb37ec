"""Several models of one site as one method."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from idiolect.core.method import Data, Down, Method
from idiolect.core.tree import Tree
from idiolect.deploy.harm import Judge, Name


def blended(methods: Mapping[Name, Method], weights: Mapping[Name, float], judge: Judge) -> Method:
    """The method whose client has the states of several.

    Args:
        methods: the methods of the models, by name; they receive the same message.
        weights: how much each counts.
        judge: says what they predict together.
    """
    names = sorted(weights)

    def personalise(down: Down, client: Tree, data: Data, key: Tensor) -> Tree:
        return {name: methods[name].personalise(down, client, data, key) for name in names}

    def predict(down: Down, client: Tree, x_B: Tensor) -> Tensor:
        return judge.blend(weights, {name: methods[name].predict(down, client[name], x_B) for name in names})

    return methods[names[0]]._replace(personalise=personalise, predict=predict)
