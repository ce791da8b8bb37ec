"""Residual networks: ResNet-18 in its two sizes, and WideResNet-16-2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from idiolect.core.errors import InputError
from idiolect.models.parts import Norm, Parts, Shape, SharedAffineGroupNorm, he, image, new_norm

Normalise = Callable[[int], nn.Module]


def resnet18(shape: Shape, classes: int, *, norm: Norm = "group", shared_affine: bool = False) -> Parts:
    """ResNet-18 for images of about 64x64, d = 512; body 11,176,512 parameters for three channels.

    A 7x7 convolution of stride 2 and max-pooling, four stages of two basic blocks with 64, 128, 256 and 512 channels,
    and the mean over positions.

    Args:
        shape: (channels, height, width), at least 32 a side.
        classes: of the data.
        norm: GroupNorm with 32 channels per group, or batch normalisation, which has as many parameters.
        shared_affine: GroupNorm with one scale and shift per group: 11,167,212 parameters, as Table 8 of pFedFDA
            counts and its released code has them.

    Source: He et al., Deep residual learning (2016); pFedFDA, section 5.1 (Tiny-ImageNet).
    Differs from source: the released code uses the 32 as the number of groups.
    """
    channels, _, _ = image("resnet18", shape, least=32)
    new = _normaliser("resnet18", norm, shared_affine)
    stem = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), new(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return _basic_stages(stem, new), nn.Linear(512, classes)


def resnet18_cifar(shape: Shape, classes: int, *, norm: Norm = "group", shared_affine: bool = False) -> Parts:
    """ResNet-18 for images of 28x28 or 32x32, d = 512; body 11,168,832 parameters for three channels.

    As ``resnet18``, but it starts with a 3x3 convolution of stride 1 and no pooling.

    Args:
        shape: (channels, height, width), at least 8 a side.
        classes: of the data.
        norm: GroupNorm with 32 channels per group, or batch normalisation, which has as many parameters.
        shared_affine: GroupNorm with one scale and shift per group.

    Source: FedLDA, whose text says no more than ResNet-18; the start is the usual one for such images.
    """
    channels, _, _ = image("resnet18_cifar", shape, least=8)
    new = _normaliser("resnet18_cifar", norm, shared_affine)
    stem = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), new(64), nn.ReLU()]
    return _basic_stages(stem, new), nn.Linear(512, classes)


def wrn16_2(shape: Shape, classes: int, *, norm: Norm = "group") -> Parts:
    """WideResNet-16-2 for images of 28x28 or 32x32, d = 128; body 690,384 parameters for three channels.

    A 3x3 convolution, three stages of two pre-activated blocks with 32, 64 and 128 channels, and the mean over
    positions.

    Args:
        shape: (channels, height, width), at least 8 a side.
        classes: of the data.
        norm: GroupNorm with 32 channels per group (16 in the first layer, which has no more), or batch
            normalisation, which has as many parameters.

    Source: Zagoruyko and Komodakis, Wide residual networks (2016); FedLDA.
    """
    channels, _, _ = image("wrn16_2", shape, least=8)
    new = _normaliser("wrn16_2", norm, False)
    body: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 1, 1, bias=False)]
    width = 16
    for outputs, stride in ((32, 1), (64, 2), (128, 2)):
        body += [_PreActivation(width, outputs, stride, new), _PreActivation(outputs, outputs, 1, new)]
        width = outputs
    body += [new(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return he(nn.Sequential(*body)), nn.Linear(width, classes)


def _normaliser(name: str, kind: Norm, shared_affine: bool) -> Normalise:
    if shared_affine and kind != "group":
        raise InputError(f"model {name}: shared_affine goes with norm=group, not with norm={kind}: leave one out")
    return SharedAffineGroupNorm if shared_affine else partial(new_norm, kind)


def _basic_stages(stem: list[nn.Module], new: Normalise) -> nn.Module:
    body, width = list(stem), 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        body += [_Basic(width, outputs, stride, new), _Basic(outputs, outputs, 1, new)]
        width = outputs
    return he(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten()))


class _Basic(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + x), with x through a 1x1 convolution where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, new: Normalise) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), new(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), new(outputs),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), new(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.branch(x) + self.shortcut(x))


class _PreActivation(nn.Module):
    """conv(relu(norm(conv(a)))) + x with a = relu(norm(x)); where the shape changes, a 1x1 convolution of a is x."""

    def __init__(self, inputs: int, outputs: int, stride: int, new: Normalise) -> None:
        super().__init__()
        self.start = nn.Sequential(new(inputs), nn.ReLU())
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), new(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
        )  # fmt: skip
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        a = self.start(x)
        skip: Tensor = self.shortcut(a) if self.shortcut else x
        out: Tensor = self.branch(a) + skip
        return out
