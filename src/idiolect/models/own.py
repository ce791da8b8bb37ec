"""A network of your own, by import path.

The path names a function (shape, classes, options) -> (body, head), or a pair of modules (body, head). With a pair, all
training starts from its weights, for every seed. Where a sample has several tensors, ``shape`` is a dict of their
shapes by name, and the body is called with the tensors as keyword arguments.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from idiolect.core import keys, option_spec, tree
from idiolect.core.errors import InputError
from idiolect.core.import_path import by_path
from idiolect.core.inputs import Inputs, shapes, synthetic
from idiolect.core.network import Buffers, Network, Precision
from idiolect.core.randomness import seeded
from idiolect.core.tree import Tree
from idiolect.models.parts import Parts, with_vocabulary

_TRIED = 3


def network(
    path: str, options: Mapping[str, Any], buffers: Buffers | None, inputs: Inputs, classes: int, precision: Precision,
    samples: Tree | None = None,
) -> Network:  # fmt: skip
    """The network at an import path, built once and tried on some samples.

    Args:
        path: such as ``my_package.nets.hospital``; found from the current folder, or installed.
        options: of the function, checked where it annotates them.
        buffers: the policy.
        inputs: the form of a sample.
        classes: of the data.
        precision: of the products.
        samples: some, as the network takes them; None takes synthetic ones.

    Raises:
        InputError: there is nothing at the path, or not a network that fits these data.
    """
    what = f"model {path}"
    with seeded(0):
        target = by_path(path, "model")
        if callable(target) and not isinstance(target, nn.Module):
            options = _options_of(target, with_vocabulary(target, options, inputs, what), what)
        elif not _are_modules(target):
            raise InputError(
                f"{what} is of type {type(target).__name__}: "
                "name a function (shape, classes) -> (body, head), or a pair of torch modules"
            )
        elif options:
            raise InputError(f"{what} is a pair of modules, which has no option {next(iter(options))!r}: leave it out")
        make = partial(_parts, path, shapes(inputs), classes, dict(options))
        torch.manual_seed(0)
        parts = make()
        _sound(parts, what)
        torch.manual_seed(0)
        _same(parts, make(), what)
    result = Network(make, inputs, buffers, precision)
    _try(result, what, classes, samples if samples is not None else synthetic(inputs, _TRIED, keys.key(0, "rows")))
    return result


def _parts(path: str, shape: Any, classes: int, options: Mapping[str, Any]) -> Parts:
    """Body and head, built again in every process that needs them."""
    target = by_path(path, "model")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element")  # refused in one sentence by _try
            pair = target(shape, classes, **options) if callable(target) else copy.deepcopy(target)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"model {path} cannot be built ({_text_of(error)}): fix it") from error
    if not _are_modules(pair):
        raise InputError(f"model {path} gives {_kind(pair)}: it should give a pair of torch modules, (body, head)")
    body, head = pair
    return body.to(torch.get_default_dtype()), head.to(torch.get_default_dtype())


def _options_of(make: Callable[..., Any], options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The options, converted and checked: what the function takes after shape and classes, by position or by name."""
    try:
        every = list(inspect.signature(make, eval_str=True).parameters.values())
    except NameError:  # annotations that only a type checker can resolve
        every = [p.replace(annotation=p.empty) for p in inspect.signature(make).parameters.values()]
    except ValueError:
        raise InputError(f"{what} does not say what it takes: name a function (shape, classes) of your own") from None
    if any(p.kind is p.VAR_KEYWORD for p in every):
        return dict(options)
    own = [p for p in every[2:] if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]

    def schema() -> None: ...

    schema.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY, annotation=Any if p.annotation is p.empty else p.annotation) for p in own]
    )
    return option_spec.check(schema, options, what, beside=["buffers"])


def _are_modules(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(m, nn.Module) for m in value)


def _sound(parts: Parts, what: str) -> None:
    """Raise if a size is not known, or if body and head share a weight that trains."""
    owner: dict[int, str] = {}
    for part, module in zip(("body", "head"), parts, strict=True):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if is_lazy(tensor):
                raise InputError(f"{what}: the size of {part}.{name} is not known yet: give lazy layers their sizes")
        for name, p in module.named_parameters():
            where = f"{part}.{name}"
            if p.requires_grad and owner.setdefault(id(p), where) != where:
                raise InputError(
                    f"{what}: body and head share {where}, and may train apart: give each weights of its own, or set "
                    "its requires_grad to False"
                )


def _same(parts: Parts, twin: Parts, what: str) -> None:
    """Raise unless two builds after the same seed hold the same numbers."""
    for part, module, other in zip(("body", "head"), parts, twin, strict=True):
        tensors, others = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (module, other))
        for name in sorted(tensors.keys() | others.keys()):
            one, two = tensors.get(name), others.get(name)
            if one is None or two is None or not torch.equal(one.nan_to_num(), two.nan_to_num()):
                raise InputError(
                    f"{what}: {part}.{name} differs each time it is built, with the same seed too: draw with torch, "
                    "whose seed is set, and not with numpy or random"
                )


def _try(network: Network, what: str, classes: int, x_B: Tree) -> None:
    """Raise unless samples pass through body and head, twice alike, and a sample alone as among others."""
    model = network.init(keys.key(0))

    def run(part: str, forward: Callable[[], Tensor], inputs: str) -> Any:
        try:
            with torch.no_grad():
                return forward()
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"{what}: its {part} fails on {inputs} ({_text_of(error)}): fix it") from error

    def predict(x_B: Tree) -> tuple[Tensor, Tensor]:
        count = len(tree.leaves(x_B)[0])
        samples = f"{count} sample{'s' * (count > 1)}"
        z_Bd = run("body", lambda: network.features(model.body, x_B), f"{samples} of shape {network.shape}")
        if not isinstance(z_Bd, Tensor) or z_Bd.ndim != 2 or len(z_Bd) != count or not z_Bd.shape[1]:
            raise InputError(
                f"{what}: from {samples} its body makes {_kind(z_Bd)}: make it ({count}, d) with d of at least 1, "
                "as nn.Flatten() does"
            )
        logit_BC = run("head", lambda: network.logits(model.head, z_Bd), f"features of shape {tuple(z_Bd.shape)}")
        if not isinstance(logit_BC, Tensor) or logit_BC.shape != (count, classes):
            raise InputError(
                f"{what}: from {samples} its head makes {_kind(logit_BC)}: make it ({count}, {classes}), one number "
                "per class"
            )
        for part, output in (("body", z_Bd), ("head", logit_BC)):
            if not output.isfinite().all():
                raise InputError(f"{what}: its {part} makes numbers that are not finite from {samples}: fix it")
        return z_Bd, logit_BC

    outputs = predict(x_B)
    if not all(map(torch.equal, outputs, predict(x_B))):
        raise InputError(f"{what} gives another result for the same samples each time: remove what it draws or counts")
    single = predict(tree.rows(x_B, slice(1)))
    if network.buffers in (None, "frozen") and not all(map(_close, outputs, single)):
        raise InputError(
            f"{what} gives another result for a sample alone than for the same sample among others: predict every "
            "sample by itself"
        )


def _close(output_B: Tensor, single_B: Tensor) -> bool:
    """Whether the first sample's result is that one, up to rounding."""
    return torch.allclose(output_B[:1], single_B, rtol=0, atol=1e-3 * float(output_B.abs().max()))


def _kind(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
