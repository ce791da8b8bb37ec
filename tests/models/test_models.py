"""Sizes as published, and the same functions as published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, leaky_relu, linear, max_pool2d, relu

from idiolect import models
from idiolect.core import keys, tree
from idiolect.core.errors import InputError
from idiolect.core.network import Model
from idiolect.core.option_spec import Spec

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
        ("tiny_cnn", GREY, [0, 0], 0.01),
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


def published_table() -> list[tuple[str, tuple[int, ...], int, int, int, int, float]]:
    """pFedFDA, Table 8: backbone, linear classifier, Gaussian, overhead in percent."""
    return [
        ("fmnist_cnn", GREY, 62, 115_776, 7_998, 16_192, 6.620),
        ("cifar_cnn", COLOUR, 100, 106_400, 12_900, 21_056, 6.837),
        ("resnet18:shared_affine=true", (3, 64, 64), 200, 11_167_212, 102_600, 233_728, 1.164),
        ("mobilenetv3_small", (3, 224, 224), 1000, 927_008, 1_615_848, 1_548_800, -2.637),
        ("mobilenetv3_small:norm=batch,buffers=local", (3, 224, 224), 1000, 927_008, 1_615_848, 1_548_800, -2.637),
    ]


@pytest.mark.parametrize(("model", "shape", "classes", "body", "linear", "gaussian", "overhead"), published_table())
def test_what_the_communication_table_counts(
    model: str, shape: tuple[int, ...], classes: int, body: int, linear: int, gaussian: int, overhead: float
) -> None:
    network = models.build(model, shape, classes)
    weights, d = network.init(keys.key(0)), network.width
    hidden = 576 * 1024 + 1024 if model.startswith("mobilenet") else 0  # counted there as a part of the classifier
    assert size(weights.body) - hidden == body
    assert size(weights.head) + hidden == linear
    assert classes * d + d * (d + 1) // 2 == gaussian
    assert round(100 * (gaussian - linear) / (body + linear), 3) == overhead


@pytest.mark.parametrize("norm", ["", ":norm=batch,buffers=local"])
@pytest.mark.parametrize(
    ("model", "body", "d"),
    [("resnet18", 11_176_512, 512), ("resnet18_cifar", 11_168_832, 512), ("wrn16_2", 690_384, 128)],
)
def test_sizes_of_residual_networks(model: str, body: int, d: int, norm: str) -> None:
    network = models.build(model + norm, COLOUR, 10)
    weights = network.init(keys.key(0))
    assert size(weights.body) == body
    assert size(weights.head) == 10 * (d + 1)
    assert network.width == d


class Reader:
    """A network's weights, taken one layer after the other, and the layers by their definition."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.left = list(weights.values())

    def conv(self, x: Tensor, stride: int = 1) -> Tensor:
        w = self.left.pop(0)
        return conv2d(x, w, stride=stride, padding=w.shape[-1] // 2)

    def norm(self, x: Tensor) -> Tensor:
        w, b = self.left.pop(0), self.left.pop(0)
        n, c, h, k = x.shape
        per = min(c, 32)
        split = x.reshape(n, c // per, per * h * k)
        split = (split - split.mean(2, keepdim=True)) / (split.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
        w, b = (a.view(-1, 1).expand(-1, c // len(a)).flatten().view(1, c, 1, 1) for a in (w, b))
        return split.view(n, c, h, k) * w + b


def random(part: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scales and shifts that differ, too."""
    draw = torch.Generator().manual_seed(1)
    return {k: w + 0.1 * torch.randn(w.shape, generator=draw) for k, w in part.items()}


def resnet(weights: dict[str, Tensor], x: Tensor, large: bool) -> Tensor:
    r = Reader(weights)
    x = relu(r.norm(r.conv(x, 2 if large else 1)))
    x = max_pool2d(x, 3, 2, 1) if large else x
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = r.norm(r.conv(relu(r.norm(r.conv(x, stride)))))
            x = relu(y + (r.norm(r.conv(x, stride)) if stride == 2 else x))
    assert not r.left
    return x.mean((2, 3))


def wide_resnet(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    r = Reader(weights)
    x = r.conv(x)
    for stage in range(3):
        for block in range(2):
            stride = 2 if stage and not block else 1
            a = relu(r.norm(x))
            y = r.conv(relu(r.norm(r.conv(a, stride))))
            x = y + (x if block else r.conv(a, stride))
    out = relu(r.norm(x)).mean((2, 3))
    assert not r.left
    return out


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("resnet18", (3, 40, 36)),
        ("resnet18:shared_affine=true", (1, 32, 32)),
        ("resnet18_cifar", (1, 28, 28)),
        ("resnet18_cifar:shared_affine=true", (2, 9, 8)),
        ("wrn16_2", (3, 32, 32)),
        ("wrn16_2", (1, 8, 11)),
    ],
)
def test_residual_networks_by_definition(model: str, shape: tuple[int, ...]) -> None:
    network = models.build(model, shape, 5)
    body = random(network.init(keys.key(0)).body)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    want = wide_resnet(body, x) if model == "wrn16_2" else resnet(body, x, not model.startswith("resnet18_cifar"))
    torch.testing.assert_close(network.features(body, x), want, rtol=1e-3, atol=1e-4)


def test_mobilenet_by_definition() -> None:
    """The blocks of the paper's Table 2, and the width that each squeezes to."""
    network = models.build("mobilenetv3_small:norm=batch,buffers=frozen", (3, 64, 64), 7)
    body = random(network.init(keys.key(0)).body)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    left = list(body.values())

    def normed(x: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
        w, scale, shift = (left.pop(0) for _ in range(3))
        y = conv2d(x, w, stride=stride, padding=w.shape[-1] // 2, groups=groups) / (1 + 1e-3) ** 0.5
        return y * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)

    def hardswish(x: Tensor) -> Tensor:
        return x * (x + 3).clamp(0, 6) / 6

    want = hardswish(normed(x, 2))
    squeezed = {16: 8, 96: 24, 240: 64, 120: 32, 144: 40, 288: 72, 576: 144}
    rows = [(16, 1, "relu", 2), (72, 0, "relu", 2), (88, 0, "relu", 1), (96, 1, "hs", 2), (240, 1, "hs", 1),
            (240, 1, "hs", 1), (120, 1, "hs", 1), (144, 1, "hs", 1), (288, 1, "hs", 2), (576, 1, "hs", 1),
            (576, 1, "hs", 1)]  # fmt: skip
    for expanded, attends, name, stride in rows:
        act = relu if name == "relu" else hardswish
        y = want if expanded == want.shape[1] else act(normed(want))
        y = act(normed(y, stride, groups=expanded))
        if attends:
            a, a0, b, b0 = (left.pop(0) for _ in range(4))
            assert a.shape[0] == squeezed[expanded]
            s = conv2d(relu(conv2d(y.mean((2, 3), keepdim=True), a, a0)), b, b0)
            y = y * ((s + 3).clamp(0, 6) / 6)
        y = normed(y)
        want = want + y if stride == 1 and want.shape == y.shape else y
    want = hardswish(normed(want)).mean((2, 3))
    want = hardswish(linear(want, left.pop(0), left.pop(0)))
    assert not left
    torch.testing.assert_close(network.features(body, x), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 50, 33)])
def test_every_image_size_from_32(shape: tuple[int, ...]) -> None:
    for model in ("resnet18", "mobilenetv3_small", "mobilenetv3_small:norm=batch,buffers=local"):
        network = models.build(model, shape, 4)
        logit = network(network.init(keys.key(0)), torch.zeros(1, *shape))
        assert logit.shape == (1, 4)
        assert torch.isfinite(logit).all()


@pytest.mark.parametrize(("model", "layers", "hidden"), [("mlp:layers=3,hidden=7", 3, 7), ("mlp", 1, 64)])
def test_mlp_options(model: str, layers: int, hidden: int) -> None:
    network = models.build(model, (20,), 4)
    weights = network.init(keys.key(0))
    assert network.width == hidden
    assert len(weights.body) == 2 * layers
    x = torch.randn(3, 20)
    torch.testing.assert_close(network(weights, x), published(weights, x, [], 0.01))


def test_specs_and_texts_are_alike() -> None:
    spec = Spec(name="wrn16_2", options={"norm": "batch", "buffers": "local"})
    one, two = (models.build(m, COLOUR, 10) for m in (spec, "wrn16_2:norm=batch,buffers=local"))
    assert one.buffers == two.buffers == "local"
    assert models.choose(spec, COLOUR) == str(spec)
    assert models.choose("auto:hidden=8", (20,)) == "mlp:hidden=8"
    assert models.build("auto:hidden=8", (20,), 3).width == 8
    assert [models.choose("auto", s) for s in ((3, 64, 64), (1, 96, 70))] == ["resnet18", "resnet18"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("wrn16_2:nrm=batch", r"model wrn16_2 has no option 'nrm'; did you mean 'norm'\? Known: norm, buffers"),
        ("wrn16_2:bufers=local", r"no option 'bufers'; did you mean 'buffers'"),
        ("wrn16_2:norm=layer", r"model wrn16_2: norm='layer' is not valid.*'group' or 'batch'"),
        ("wrn16_2:buffers=mean", r"model wrn16_2: buffers='mean' is not valid.*'aggregate', 'local' or 'frozen'"),
        ("wrn16_2:norm=batch", r"buffers \(body\.\S+running_mean\).*aggregate, local or frozen.*GroupNorm"),
        ("wrn16_2:buffers=local", r"has no buffers: leave it out"),
        ("resnet18_cifar:norm=batch,shared_affine=true,buffers=local", r"shared_affine goes with norm=group"),
        ("mlp:hidden=0", r"hidden=0 is not valid"),
        ("resnet18", r"resnet18 needs images of at least 32x32, these are 28x28"),
    ],
)
def test_options_are_checked(model: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.build(model, GREY, 10)


def test_networks_map_over_clients() -> None:
    network = models.build("wrn16_2:norm=batch,buffers=frozen", (1, 8, 8), 3)
    each = [network.init(keys.key(s)) for s in range(2)]
    x = torch.randn(4, 1, 8, 8)
    many = torch.func.vmap(lambda m: network(m, x))(tree.stack(each))
    for one, m in zip(many, each, strict=True):
        torch.testing.assert_close(one, network(m, x), rtol=1e-4, atol=1e-5)
