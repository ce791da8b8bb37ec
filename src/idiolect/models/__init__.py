"""Networks in two parts, body and head: those of the papers, small ones, pretrained ones, and the user's own.

Adding a network here is adding a function (shape, classes, *, options) -> (body, head) to ``NETWORKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from idiolect.core import option_spec
from idiolect.core.errors import InputError, nearest
from idiolect.core.inputs import Form, Input, Inputs, inputs_of
from idiolect.core.network import Buffers, Network, Precision
from idiolect.core.option_spec import Spec
from idiolect.core.tree import Tree
from idiolect.models import own, pretrained
from idiolect.models.cnn import cifar_cnn, fedcr_cifar_cnn, fedcr_fmnist_cnn, fmnist_cnn, small_cnn, tiny_cnn
from idiolect.models.dense import fedcr_mlp, mlp
from idiolect.models.mobilenet import mobilenetv3_small
from idiolect.models.parts import Parts, Shape, with_vocabulary
from idiolect.models.resnet import resnet18, resnet18_cifar, wrn16_2
from idiolect.models.sensors import LEAST, har_cnn
from idiolect.models.text import char_lstm, embedding_mean, text_cnn

NETWORKS: dict[str, Callable[..., Parts]] = {
    f.__name__: f
    for f in (
        fmnist_cnn, cifar_cnn, fedcr_mlp, fedcr_fmnist_cnn, fedcr_cifar_cnn,
        resnet18, resnet18_cifar, wrn16_2, mobilenetv3_small, small_cnn, tiny_cnn, mlp, har_cnn,
        embedding_mean, text_cnn, char_lstm,
    )
}  # fmt: skip
_OF_IDS = ("embedding_mean", "text_cnn", "char_lstm")
_AUTO: dict[Shape, str] = {(1, 28, 28): "fmnist_cnn", (3, 32, 32): "cifar_cnn"}


def names() -> list[str]:
    """The networks that ``build`` knows, beside ``auto`` and import paths."""
    return list(NETWORKS)


def choose(model: Spec | str, form: Form) -> str:
    """The network that a name means, with its options as they are written; an import path means itself.

    Raises:
        InputError: unknown name.
    """
    spec = _resolve(model, inputs_of(form))
    return pretrained.text_of(spec) if pretrained.is_pretrained(spec) else str(spec)


def build(
    model: Spec | str, form: Form, classes: int, precision: Precision = "float32", samples: Tree | None = None,
    features: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Network:  # fmt: skip
    """A network by name and options; ``auto`` takes the papers' network for the shape.

    Every model has the option ``buffers``, which ``idiolect.core.network.Network`` explains. The option ``vocabulary``
    of a network that has it is one more than the largest id in the data, unless it is given.

    Args:
        model: such as ``wrn16_2:norm=batch,buffers=local``, or an import path (see ``idiolect.models.own``).
        form: of a sample: a shape, or what ``idiolect.core.inputs`` describes.
        classes: of the data.
        precision: of the products: see ``Network``.
        samples: some, as the network takes them, on which a network of one's own is tried; None takes synthetic ones.

        features: mean and standard deviation of a frozen backbone's features, by which what follows it takes them;
            None for as they are.

    Raises:
        InputError: unknown name or option, or a network that does not take samples of this shape.
    """
    inputs = inputs_of(form)
    spec = _resolve(model, inputs)
    name, what = spec.name, f"model {spec.name}"
    policy = option_spec.check(_for_all, {k: v for k, v in spec.options.items() if k == "buffers"}, what).get("buffers")
    options = {k: v for k, v in spec.options.items() if k != "buffers"}
    if pretrained.is_pretrained(spec):
        return pretrained.network(spec, policy, inputs, classes, precision, features)
    if name not in NETWORKS:
        return own.network(name, options, policy, inputs, classes, precision, samples)
    make, shape = NETWORKS[name], _shape(name, inputs)
    options = option_spec.check(make, with_vocabulary(make, options, inputs, what), what, beside=["buffers"])
    return Network(partial(make, shape, classes, **options), inputs if name in _OF_IDS else shape, policy, precision)


def beside(model: str, network: Network, classes: int) -> Network:
    """The network of a model that a method trains beside the clients' own: the same one where ``model`` is "".

    Raises:
        InputError: it is not one of the networks by name, or normalises by batches.
    """
    if not model:
        return network
    name = pretrained.spec_of(model).name
    if name not in NETWORKS:
        raise InputError(f"shared_model={model}: {nearest(name, NETWORKS)}; a shared model is one of idiolect's own")
    second = build(model, network.inputs, classes, network.precision)
    if second.buffers:
        raise InputError(f"shared_model={model} normalises by batches: choose mlp, or a network without buffers")
    return second


def _for_all(*, buffers: Buffers | None = None) -> None:
    """The options that every model has."""


def _shape(name: str, inputs: Inputs) -> Shape:
    """The shape of samples that are one tensor of numbers, or of ids where the network takes ids.

    Raises:
        InputError: they are not.
    """
    if isinstance(inputs, dict):
        raise InputError(
            f"model {name} takes samples of one tensor, and these have {', '.join(inputs)}: name a network of your own "
            "by its import path, whose body takes them by name"
        )
    if inputs.integer and name not in _OF_IDS:
        raise InputError(
            f"model {name} takes numbers, and these samples are ids, such as those of words: choose model auto, or "
            "make them floating-point numbers if they are amounts"
        )
    if not inputs.integer and name in _OF_IDS:
        raise InputError(f"model {name} takes ids, such as those of words, and these samples are numbers: choose model "
                         "auto, or say with text which column has texts")  # fmt: skip
    return inputs.shape


def _resolve(model: Spec | str, inputs: Inputs) -> Spec:
    spec = pretrained.spec_of(model) if isinstance(model, str) else model
    name = spec.name
    if pretrained.is_pretrained(spec):
        pretrained.settings_of(spec)
        return spec
    if name == "auto":
        return spec.model_copy(update={"name": _usual(inputs) if isinstance(inputs, Input) else "mlp"})
    if "." not in name and name not in NETWORKS:
        hint = nearest(name, ["auto", *NETWORKS])
        raise InputError(f"unknown model {name!r}; {hint}; name one of your own by its import path, my_package.my_net")
    return spec


def _usual(inputs: Input) -> str:
    shape = inputs.shape
    if inputs.integer:
        return "embedding_mean"
    if shape in _AUTO:
        return _AUTO[shape]
    if len(shape) == 2 and shape[1] >= LEAST:
        return "har_cnn"
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    return "resnet18" if min(shape[1:]) >= 64 else "small_cnn"
