"""MobileNetV3-Small."""

from __future__ import annotations

from torch import Tensor, nn

from idiolect.models.parts import Norm, Parts, Shape, he, image, new_norm

_BLOCKS = (  # kernel, expanded channels, output channels, squeeze-and-excitation, hardswish, stride
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def mobilenetv3_small(shape: Shape, classes: int, *, norm: Norm = "group") -> Parts:
    """MobileNetV3-Small, d = 1,024; body 1,517,856 parameters for three channels.

    Of these 927,008 are convolutions and their normalisation, 590,848 the hidden layer 576 -> 1,024, which Table 8 of
    pFedFDA counts with the classifier. For images of 224x224; smaller ones shrink to 1x1.

    Args:
        shape: (channels, height, width), at least 32 a side.
        classes: of the data.
        norm: GroupNorm with 32 or somewhat more channels per group, or batch normalisation, which has as many
            parameters.

    Source: Howard et al., Searching for MobileNetV3 (2019), Table 2; pFedFDA, Table 8.
    Differs from source: no dropout before the head.
    """
    channels, _, _ = image("mobilenetv3_small", shape, least=32)
    width = 16
    body: list[nn.Module] = [*_conv(channels, width, 3, norm, stride=2), nn.Hardswish()]
    for kernel, middle, outputs, attends, hard, stride in _BLOCKS:
        body.append(_InvertedResidual(width, middle, outputs, kernel, stride, attends, hard, norm))
        width = outputs
    body += [*_conv(width, 576, 1, norm), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    hidden = nn.Linear(576, 1024)
    head = nn.Linear(1024, classes)
    for layer in (hidden, head):
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*he(nn.Sequential(*body)), hidden, nn.Hardswish()), head


def _conv(inputs: int, outputs: int, kernel: int, kind: Norm, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, new_norm(kind, outputs, eps=1e-3)]


class _InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by itself, weigh the channels, project by 1x1; plus x where shapes agree."""

    def __init__(
        self, inputs: int, middle: int, outputs: int, kernel: int, stride: int, attends: bool, hard: bool, kind: Norm
    ) -> None:
        super().__init__()

        def activation() -> nn.Module:
            return nn.Hardswish() if hard else nn.ReLU()

        layers: list[nn.Module] = []
        if middle != inputs:
            layers += [*_conv(inputs, middle, 1, kind), activation()]
        layers += [*_conv(middle, middle, kernel, kind, stride, groups=middle), activation()]
        if attends:
            layers.append(_SqueezeExcitation(middle))
        self.branch = nn.Sequential(*layers, *_conv(middle, outputs, 1, kind))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y if self.residual else y


class _SqueezeExcitation(nn.Module):
    """Each channel times a weight in [0, 1] that depends on the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        bottleneck = max(8, (channels + 16) // 32 * 8)  # a quarter, to the nearest multiple of 8
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, bottleneck, 1), nn.ReLU(),
            nn.Conv2d(bottleneck, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.weigh(x) * x
        return out
