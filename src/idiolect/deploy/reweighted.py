"""A model whose classes have become more or less frequent since it was made."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from idiolect.core.method import Down, Method
from idiolect.core.tree import Tree


def reweighted(method: Method, shift: Sequence[float]) -> Method:
    """The method that predicts p(c | x) exp(shift_c), normalised: Bayes' rule where only p(c) changed.

    Args:
        method: how the model predicts.
        shift: log of the new proportion of each class over the old one.
    """

    def predict(down: Down, client: Tree, x_B: Tensor) -> Tensor:
        logp_BC = method.predict(down, client, x_B)
        return torch.log_softmax(logp_BC + torch.tensor(shift, dtype=logp_BC.dtype), 1)

    return method._replace(predict=predict)
