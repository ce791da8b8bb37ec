"""Networks of linear layers."""

from __future__ import annotations

import math

from pydantic import PositiveInt
from torch import nn

from idiolect.models.parts import Parts, Shape, dense, needs


def fedcr_mlp(shape: Shape, classes: int) -> Parts:
    """Two layers of 1,024 for 28x28 grey images (FedCR's network for EMNIST-L); body 1,853,440 parameters.

    Source: FedCR, appendix A.1.2, Table 7.
    """
    needs("fedcr_mlp", shape, (1, 28, 28))
    return nn.Sequential(nn.Flatten(), *dense(784, 1024), *dense(1024, 1024)), nn.Linear(1024, classes)


def mlp(shape: Shape, classes: int, *, hidden: PositiveInt = 64, layers: PositiveInt = 1) -> Parts:
    """Hidden layers of equal width d, one of d = 64 by default, for samples of any shape.

    Args:
        shape: of a sample.
        classes: of the data.
        hidden: d, the units of each layer.
        layers: how many.
    """
    width = math.prod(shape)
    body: list[nn.Module] = [nn.Flatten()]
    for _ in range(layers):
        body += [nn.Linear(width, hidden), nn.LeakyReLU()]
        width = hidden
    return nn.Sequential(*body), nn.Linear(hidden, classes)
