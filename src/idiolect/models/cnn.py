"""The papers' convolutional networks, and a small one for small images.

Max-pooling comes before the activation where the papers put it after. For a monotone activation the result is the same,
and only a quarter of the elements pass through the activation.
"""

from __future__ import annotations

from torch import nn

from idiolect.models.parts import Parts, Shape, dense, image, needs


def fmnist_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions (16, 32) and one layer of d = 128 for 28x28 grey images; backbone 115,776 parameters.

    Source: FedPAC, appendix B.1, with kernels and padding from its released code; pFedFDA uses it too (section 5.1;
    EMNIST) and counts its parameters in Table 8.
    """
    needs("fmnist_cnn", shape, (1, 28, 28))
    body = nn.Sequential(
        *_conv(1, 16, 5), *_conv(16, 32, 5, padding=1),
        nn.Flatten(), nn.Linear(800, 128), nn.LeakyReLU(),
    )  # fmt: skip
    return body, nn.Linear(128, classes)


def cifar_cnn(shape: Shape, classes: int) -> Parts:
    """Three convolutions (16, 32, 64) and one layer of d = 128 for 32x32 colour images; backbone 106,400 parameters.

    Source: FedPAC, appendix B.1, with kernels and padding from its released code; pFedFDA uses it too (section 5.1) and
    counts its parameters in Table 8.
    """
    needs("cifar_cnn", shape, (3, 32, 32))
    body = nn.Sequential(
        *_conv(3, 16, 5), *_conv(16, 32, 5, padding=1), *_conv(32, 64, 3, padding=1),
        nn.Flatten(), nn.Linear(576, 128), nn.LeakyReLU(),
    )  # fmt: skip
    return body, nn.Linear(128, classes)


def fedcr_fmnist_cnn(shape: Shape, classes: int) -> Parts:
    """Convolutions of 4 and 12 channels, then two layers of 1,024; body 1,248,548 parameters.

    Source: FedCR's released code; the paper's Table 5 (appendix A.1.2) gives 64 channels, with sizes that are
    impossible at 28x28.
    """
    needs("fedcr_fmnist_cnn", shape, (1, 28, 28))
    convs = (*_conv(1, 4, 5, slope=0.0), *_conv(4, 12, 5, slope=0.0))
    return nn.Sequential(*convs, nn.Flatten(), *dense(192, 1024), *dense(1024, 1024)), nn.Linear(1024, classes)


def fedcr_cifar_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions of 64 channels, then two layers of 1,024 for 32x32 colour images; body 2,796,352 parameters.

    Source: FedCR, appendix A.1.2, Table 5.
    """
    needs("fedcr_cifar_cnn", shape, (3, 32, 32))
    convs = (*_conv(3, 64, 5, slope=0.0), *_conv(64, 64, 5, slope=0.0))
    return nn.Sequential(*convs, nn.Flatten(), *dense(1600, 1024), *dense(1024, 1024)), nn.Linear(1024, classes)


def small_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions (16, 32) and one layer of d = 64, for small images such as 8x8 digits."""
    channels, height, width = image("small_cnn", shape, least=4)
    flat = 32 * (height // 4) * (width // 4)
    convs = (*_conv(channels, 16, 3, padding=1), *_conv(16, 32, 3, padding=1))
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(flat, 64), nn.LeakyReLU()), nn.Linear(64, classes)


def tiny_cnn(shape: Shape, classes: int) -> Parts:
    """Two convolutions (6, 12) and one layer of d = 14 for 28x28 grey images; body 4,670 parameters.

    For privacy, whose noise grows with what is sent.
    """
    needs("tiny_cnn", shape, (1, 28, 28))
    return nn.Sequential(
        *_conv(1, 6, 5), *_conv(6, 12, 5), nn.Flatten(), nn.Linear(192, 14), nn.LeakyReLU()
    ), nn.Linear(14, classes)  # fmt: skip


def _conv(inputs: int, outputs: int, kernel: int, padding: int = 0, slope: float = 0.01) -> tuple[nn.Module, ...]:
    activation = nn.LeakyReLU(slope) if slope else nn.ReLU()
    return nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.MaxPool2d(2), activation
