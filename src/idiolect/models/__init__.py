"""Networks in two parts, body and head: those of the papers, and a small one for 8x8 digits.

Max-pooling stands before the activation wherever the papers put it after: for a monotone activation the function is
the same and a quarter of the elements pass through it. Adding a network is adding a function
(shape, classes) -> (body, head) to ``NETWORKS``.
"""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from idiolect.errors import InputError, nearest
from idiolect.network import Network

Shape = tuple[int, ...]
Parts = tuple[nn.Module, nn.Module]


def fmnist_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions (16, 32) and one layer of d = 128 for 28x28 grey images; backbone 115,776 parameters.

    Source: FedPAC, appendix B.1, with kernels and padding from its released code; pFedFDA takes it over (section 5.1;
    EMNIST) and counts its parameters in Table 8.
    """
    _needs("fmnist_cnn", shape, (1, 28, 28))
    body = nn.Sequential(
        *_conv(1, 16, 5), *_conv(16, 32, 5, padding=1),
        nn.Flatten(), nn.Linear(800, 128), nn.LeakyReLU(),
    )  # fmt: skip
    return body, nn.Linear(128, classes)


def cifar_cnn(shape: Shape, classes: int) -> Parts:
    """Three convolutions (16, 32, 64) and one layer of d = 128 for 32x32 colour images; backbone 106,400 parameters.

    Source: FedPAC, appendix B.1, with kernels and padding from its released code; pFedFDA takes it over (section 5.1)
    and counts its parameters in Table 8.
    """
    _needs("cifar_cnn", shape, (3, 32, 32))
    body = nn.Sequential(
        *_conv(3, 16, 5), *_conv(16, 32, 5, padding=1), *_conv(32, 64, 3, padding=1),
        nn.Flatten(), nn.Linear(576, 128), nn.LeakyReLU(),
    )  # fmt: skip
    return body, nn.Linear(128, classes)


def fedcr_mlp(shape: Shape, classes: int) -> Parts:
    """Two layers of 1,024 for 28x28 grey images (FedCR's network for EMNIST-L); body 1,853,440 parameters.

    Source: FedCR, appendix A.1.2, Table 7.
    """
    _needs("fedcr_mlp", shape, (1, 28, 28))
    return nn.Sequential(nn.Flatten(), *_dense(784, 1024), *_dense(1024, 1024)), nn.Linear(1024, classes)


def fedcr_fmnist_cnn(shape: Shape, classes: int) -> Parts:
    """Convolutions of 4 and 12 channels, then two layers of 1,024; body 1,248,548 parameters.

    Source: FedCR's released code; the paper's Table 5 (appendix A.1.2) gives 64 channels, whose sizes cannot hold at
    28x28.
    """
    _needs("fedcr_fmnist_cnn", shape, (1, 28, 28))
    convs = (*_conv(1, 4, 5, slope=0.0), *_conv(4, 12, 5, slope=0.0))
    return nn.Sequential(*convs, nn.Flatten(), *_dense(192, 1024), *_dense(1024, 1024)), nn.Linear(1024, classes)


def fedcr_cifar_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions of 64 channels, then two layers of 1,024 for 32x32 colour images; body 2,796,352 parameters.

    Source: FedCR, appendix A.1.2, Table 5.
    """
    _needs("fedcr_cifar_cnn", shape, (3, 32, 32))
    convs = (*_conv(3, 64, 5, slope=0.0), *_conv(64, 64, 5, slope=0.0))
    return nn.Sequential(*convs, nn.Flatten(), *_dense(1600, 1024), *_dense(1024, 1024)), nn.Linear(1024, classes)


def small_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions (16, 32) and one layer of d = 64, for small images such as 8x8 digits."""
    channels, height, width = _image("small_cnn", shape)
    if min(height, width) < 4:
        raise InputError(f"model small_cnn needs images of at least 4x4, these are {height}x{width}: choose model mlp")
    flat = 32 * (height // 4) * (width // 4)
    convs = (*_conv(channels, 16, 3, padding=1), *_conv(16, 32, 3, padding=1))
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(flat, 64), nn.LeakyReLU()), nn.Linear(64, classes)


def mlp(shape: Shape, classes: int) -> Parts:
    """One hidden layer of d = 64, for any shape."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.LeakyReLU()), nn.Linear(64, classes)


NETWORKS = {
    f.__name__: f for f in (fmnist_cnn, cifar_cnn, fedcr_mlp, fedcr_fmnist_cnn, fedcr_cifar_cnn, small_cnn, mlp)
}
_AUTO: dict[Shape, str] = {(1, 28, 28): "fmnist_cnn", (3, 32, 32): "cifar_cnn"}


def names() -> list[str]:
    """The networks that ``build`` knows, beside ``auto``."""
    return list(NETWORKS)


def choose(name: str, shape: Shape) -> str:
    """The network that a name stands for.

    Raises:
        InputError: unknown name.
    """
    if name == "auto":
        return _AUTO.get(shape, "small_cnn" if len(shape) == 3 and min(shape[1:]) >= 4 else "mlp")
    if name not in NETWORKS:
        raise InputError(f"unknown model {name!r}; {nearest(name, ['auto', *NETWORKS])}")
    return name


def build(name: str, shape: Shape, classes: int) -> Network:
    """A network by name; ``auto`` takes the papers' network for the shape.

    Raises:
        InputError: unknown name, or a network that does not take images of this shape.
    """
    name = choose(name, shape)
    return Network(partial(NETWORKS[name], shape, classes), shape)


def _conv(inputs: int, outputs: int, kernel: int, padding: int = 0, slope: float = 0.01) -> tuple[nn.Module, ...]:
    activation = nn.LeakyReLU(slope) if slope else nn.ReLU()
    return nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.MaxPool2d(2), activation


def _dense(inputs: int, outputs: int) -> Parts:
    return nn.Linear(inputs, outputs), nn.ReLU()


def _image(name: str, shape: Shape) -> Shape:
    if len(shape) != 3:
        raise InputError(f"model {name} needs images, these rows have shape {shape}: choose model mlp")
    return shape


def _needs(name: str, shape: Shape, wanted: Shape) -> None:
    if shape != wanted:
        raise InputError(f"model {name} takes rows of shape {wanted}, these have {shape}: choose model auto")
