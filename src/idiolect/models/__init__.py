"""Networks in two parts, body and head: those of the papers, small ones, pretrained ones, and the user's own.

Adding a network here is adding a function (shape, classes, *, options) -> (body, head) to ``NETWORKS``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from idiolect.core import option_spec
from idiolect.core.errors import InputError, nearest
from idiolect.core.network import Buffers, Network, Precision
from idiolect.core.option_spec import Spec
from idiolect.models import own, pretrained
from idiolect.models.cnn import cifar_cnn, fedcr_cifar_cnn, fedcr_fmnist_cnn, fmnist_cnn, small_cnn
from idiolect.models.dense import fedcr_mlp, mlp
from idiolect.models.mobilenet import mobilenetv3_small
from idiolect.models.parts import Parts, Shape
from idiolect.models.resnet import resnet18, resnet18_cifar, wrn16_2

NETWORKS: dict[str, Callable[..., Parts]] = {
    f.__name__: f
    for f in (
        fmnist_cnn, cifar_cnn, fedcr_mlp, fedcr_fmnist_cnn, fedcr_cifar_cnn,
        resnet18, resnet18_cifar, wrn16_2, mobilenetv3_small, small_cnn, mlp,
    )
}  # fmt: skip
_AUTO: dict[Shape, str] = {(1, 28, 28): "fmnist_cnn", (3, 32, 32): "cifar_cnn"}


def names() -> list[str]:
    """The networks that ``build`` knows, beside ``auto`` and import paths."""
    return list(NETWORKS)


def choose(model: Spec | str, shape: Shape) -> str:
    """The network that a name means, with its options as they are written; an import path means itself.

    Raises:
        InputError: unknown name.
    """
    spec = _resolve(model, shape)
    return pretrained.text_of(spec) if pretrained.is_pretrained(spec) else str(spec)


def build(model: Spec | str, shape: Shape, classes: int, precision: Precision = "float32") -> Network:
    """A network by name and options; ``auto`` takes the papers' network for the shape.

    Every model has the option ``buffers``, which ``idiolect.core.network.Network`` explains.

    Args:
        model: such as ``wrn16_2:norm=batch,buffers=local``, or an import path (see ``idiolect.models.own``).
        shape: of a sample.
        classes: of the data.
        precision: of the products: see ``Network``.

    Raises:
        InputError: unknown name or option, or a network that does not take samples of this shape.
    """
    spec = _resolve(model, shape)
    name, what = spec.name, f"model {spec.name}"
    policy = option_spec.check(_for_all, {k: v for k, v in spec.options.items() if k == "buffers"}, what).get("buffers")
    options = {k: v for k, v in spec.options.items() if k != "buffers"}
    if pretrained.is_pretrained(spec):
        return pretrained.network(spec, policy, shape, classes, precision)
    if name not in NETWORKS:
        return own.network(name, options, policy, shape, classes, precision)
    make = NETWORKS[name]
    return Network(
        partial(make, shape, classes, **option_spec.check(make, options, what, beside=["buffers"])),
        shape,
        policy,
        precision,
    )


def _for_all(*, buffers: Buffers | None = None) -> None:
    """The options that every model has."""


def _resolve(model: Spec | str, shape: Shape) -> Spec:
    spec = pretrained.spec_of(model) if isinstance(model, str) else model
    name = spec.name
    if pretrained.is_pretrained(spec):
        pretrained.settings_of(spec)
        return spec
    if name == "auto":
        return spec.model_copy(update={"name": _AUTO.get(shape) or _usual(shape)})
    if "." not in name and name not in NETWORKS:
        hint = nearest(name, ["auto", *NETWORKS])
        raise InputError(f"unknown model {name!r}; {hint}; name one of your own by its import path, my_package.my_net")
    return spec


def _usual(shape: Shape) -> str:
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    return "resnet18" if min(shape[1:]) >= 64 else "small_cnn"
