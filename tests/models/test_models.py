"""Sizes as published, and the same functions as published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu, linear, max_pool2d, relu

from idiolect import keys, models
from idiolect.errors import InputError
from idiolect.network import Model

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
PUBLISHED = [  # body and whole network, from layer sizes in the papers and the released code
    ("fmnist_cnn", GREY, 10, 115_776, 117_066),
    ("fmnist_cnn", GREY, 62, 115_776, 123_774),
    ("cifar_cnn", COLOUR, 10, 106_400, 107_690),
    ("cifar_cnn", COLOUR, 100, 106_400, 119_300),
    ("fedcr_mlp", GREY, 10, 1_853_440, 1_863_690),
    ("fedcr_fmnist_cnn", GREY, 10, 1_248_548, 1_258_798),
    ("fedcr_cifar_cnn", COLOUR, 10, 2_796_352, 2_806_602),
    ("fedcr_cifar_cnn", COLOUR, 100, 2_796_352, 2_898_852),
]


def size(part: dict[str, Tensor]) -> int:
    return sum(a.numel() for a in part.values())


@pytest.mark.parametrize(("name", "shape", "classes", "body", "total"), PUBLISHED)
def test_sizes(name: str, shape: tuple[int, ...], classes: int, body: int, total: int) -> None:
    network = models.build(name, shape, classes)
    model = network.init(keys.key(0))
    assert size(model.body) == body
    assert size(model.body) + size(model.head) == total
    assert network.width == (1024 if name.startswith("fedcr") else 128)


def published(model: Model, x: Tensor, paddings: list[int], slope: float, pooled_first: bool = False) -> Tensor:
    """Convolution, activation, pooling; then dense layers; then the head."""
    layers = [(model.body[k], model.body[k.replace("weight", "bias")]) for k in model.body if k.endswith("weight")]

    def act(a: Tensor) -> Tensor:
        return leaky_relu(a, slope) if slope else relu(a)

    for (weight, bias), padding in zip(layers, paddings, strict=False):
        x = max_pool2d(act(conv2d(x, weight, bias, padding=padding)), 2)
    x = x.flatten(1)
    for weight, bias in layers[len(paddings) :]:
        x = act(linear(x, weight, bias))
    return linear(x, model.head["weight"], model.head["bias"])


@pytest.mark.parametrize(
    ("name", "shape", "paddings", "slope"),
    [
        ("fmnist_cnn", GREY, [0, 1], 0.01),
        ("cifar_cnn", COLOUR, [0, 1, 1], 0.01),
        ("fedcr_mlp", GREY, [], 0.0),
        ("fedcr_fmnist_cnn", GREY, [0, 0], 0.0),
        ("fedcr_cifar_cnn", COLOUR, [0, 0], 0.0),
        ("small_cnn", (1, 8, 8), [1, 1], 0.01),
        ("small_cnn", (3, 9, 13), [1, 1], 0.01),
        ("mlp", (2, 5), [], 0.01),
    ],
)
def test_pooling_first_is_the_published_function(
    name: str, shape: tuple[int, ...], paddings: list[int], slope: float
) -> None:
    network = models.build(name, shape, 7)
    model = network.init(keys.key(3))
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(model, x), published(model, x, paddings, slope), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "want"),
    [(GREY, "fmnist_cnn"), (COLOUR, "cifar_cnn"), ((1, 8, 8), "small_cnn"), ((1, 3, 9), "mlp"), ((20,), "mlp")],
)
def test_auto(shape: tuple[int, ...], want: str) -> None:
    auto, named = (models.build(n, shape, 3).init(keys.key(0)) for n in ("auto", want))
    assert {k: v.shape for k, v in auto.body.items()} == {k: v.shape for k, v in named.body.items()}


def test_what_cannot_be_built() -> None:
    with pytest.raises(InputError, match="unknown model 'cifar_cn'; did you mean 'cifar_cnn'"):
        models.build("cifar_cn", COLOUR, 10)
    for name, wrong in (("fmnist_cnn", COLOUR), ("cifar_cnn", GREY), ("fedcr_mlp", COLOUR), ("small_cnn", (1, 3, 9))):
        with pytest.raises(InputError, match=f"{name}.*choose model"):
            models.build(name, wrong, 10)
    with pytest.raises(InputError, match="needs images"):
        models.build("small_cnn", (20,), 10)
    assert set(models.names()) == set(models.NETWORKS)
