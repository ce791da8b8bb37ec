"""Uploads that can be added up without being read: whole numbers of a fixed small step, whose sums are exact.

Secure aggregation adds masks to such numbers, which vanish in the sum over clients. The masks are random among all
64-bit numbers; here is what they are added to, and what is made of the sum. A simulation does the same without the
masks, so that it gives the numbers of a federation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from idiolect.core import keys, tree
from idiolect.core.errors import Diverged, InputError
from idiolect.core.method import Method, Up

STEP = 2.0**-30
"""All numbers are rounded to multiples of this, after they are multiplied by their weights."""
LEAST = 3
"""Clients of a sum: of two, each could subtract its own upload."""
_ROOM = 2.0**62  # what the sum over all clients must stay below, in steps; 64-bit numbers end at 2^63

Weighting = tuple[int | None, ...]
"""For each tensor of ``Up.value`` the number of the tensor of ``Up.weight`` by whose sum its sum is divided; None: its
plain sum is what the server needs."""


def weighting(method: Method, like: Up) -> Weighting:
    """How a method's server weighs uploads, found by what its ``combine`` makes of random ones.

    Args:
        method: any.
        like: an upload of its form.

    Raises:
        InputError: it needs something other than sums and means.
    """
    values, build_value = tree.flatten(like.value)
    weights, build_weight = tree.flatten(like.weight)
    if not values:
        return ()
    if method.combine is None:
        raise InputError("its server needs the upload of each client, not only their sum")

    def drawn(a: Tensor, place: int, kind: str) -> Tensor:
        return keys.normal(keys.key(place, kind), (LEAST, *a.shape), torch.float64)

    value_m = [drawn(a, k, "value") for k, a in enumerate(values)]
    weight_m = [1 + drawn(a, k, "weight").square() for k, a in enumerate(weights)]
    one = method.combine(Up(build_value(value_m), build_weight(weight_m)))
    found = tree.leaves(one.weight)
    if not all(torch.allclose(a.double(), w.sum(0)) for a, w in zip(found, weight_m, strict=True)):
        raise InputError("the weights that its combine returns are not sums")
    return tuple(_of(a, b.double(), weight_m) for a, b in zip(value_m, tree.leaves(one.value), strict=True))


def _of(value_m: Tensor, combined: Tensor, weight_m: Sequence[Tensor]) -> int | None:
    if torch.allclose(combined, value_m.sum(0)):
        return None
    for k, w in enumerate(weight_m):
        if w.shape == value_m.shape[: w.ndim]:
            share = _over(w / w.sum(0), value_m)
            if torch.allclose(combined, (share * value_m).sum(0)):
                return k
    raise InputError("its combine makes something other than sums, and means by one of its weights")


def encoded(up: Up, by: Weighting, clients: int) -> Up:
    """An upload as whole numbers: weights, and values times their weights, in steps.

    Raises:
        Diverged: a number is not finite, or so large that the sum over this many clients could overflow.
    """
    weights, build_weight = tree.flatten(up.weight)
    values, build_value = tree.flatten(up.value)
    whole = partial(_whole, most=_ROOM / clients)
    weighed = [
        v.double() if k is None else v.double() * _over(weights[k].double(), v)
        for v, k in zip(values, by, strict=True)
    ]  # fmt: skip
    return Up(build_value([whole(a) for a in weighed]), build_weight([whole(w.double()) for w in weights]))


def _whole(a: Tensor, most: float) -> Tensor:
    steps = (a / STEP).round()
    if not bool((steps.abs() < most).all()):  # NaN is not
        raise Diverged(f"the upload has a number that is not finite, or above {most * STEP:.3g} times its weight")
    return steps.to(torch.int64)


def added(ups: Sequence[Up]) -> Up:
    """The sum of uploads of whole numbers, modulo 2^64."""
    return functools.reduce(lambda a, b: tree.map(torch.add, a, b), ups)


def together(method: Method, ups: Sequence[Up]) -> Up:
    """The one upload that uploads of whole numbers amount to, for a method's server."""
    return opened(added(ups), weighting(method, ups[0]))


def opened(total: Up, by: Weighting) -> Up:
    """The one upload that a sum amounts to: means where the server needs means, with the sums of weights."""
    weights, build_weight = tree.flatten(total.weight)
    values, build_value = tree.flatten(total.value)
    real = [w.double() * STEP for w in weights]
    means = [
        v.double() * STEP if k is None else v.double() * STEP / _over(torch.where(real[k] > 0, real[k], 1), v)
        for v, k in zip(values, by, strict=True)
    ]  # fmt: skip
    usual: Callable[[Tensor], Tensor] = partial(Tensor.to, dtype=torch.get_default_dtype())
    return Up(build_value([usual(a) for a in means]), build_weight([usual(w) for w in real]))


def _over(weight: Tensor, value: Tensor) -> Tensor:
    return weight.reshape(*weight.shape, *[1] * (value.ndim - weight.ndim))
