"""The shift of a spec, and the clients that get it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from idiolect.core.errors import InputError, nearest
from idiolect.core.option_spec import Spec, check, public_functions
from idiolect.data.shifts import transforms
from idiolect.data.shifts.transforms import Shifted

SHIFTS: dict[str, Callable[..., Shifted]] = dict(sorted(public_functions(transforms).items()))


def shift_of(spec: Spec) -> tuple[Callable[..., Shifted], dict[str, Any]]:
    """The function of a shift, and its checked options without ``clients``.

    Raises:
        InputError: unknown name or option.
    """
    if spec.name not in SHIFTS:
        raise InputError(f"unknown shift {spec.name!r}; {nearest(spec.name, SHIFTS)}")
    own = {k: v for k, v in spec.options.items() if k != "clients"}
    return SHIFTS[spec.name], check(SHIFTS[spec.name], own, f"shift {spec.name}", beside=["clients"])


def members(value: object, clients: int, what: str) -> frozenset[int]:
    """The client numbers for ``all``, ``half``, ``0-4+8``, a number or a list of numbers.

    Raises:
        InputError: it cannot be read, or there is no such client; ``what`` names the setting.
    """
    clients_: Iterable[int]
    if value == "all":
        clients_ = range(clients)
    elif value == "half":
        clients_ = range((clients + 1) // 2)
    elif isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        clients_ = value
    else:
        clients_ = _ranges(str(value), clients, what)
    numbers = frozenset(clients_)
    for number in sorted(numbers):
        if not 0 <= number < clients:
            raise InputError(f"{what}: there is no client {number}; the {clients} clients are 0 to {clients - 1}")
    return numbers


def _ranges(text: str, clients: int, what: str) -> list[int]:
    numbers: list[int] = []
    for piece in text.split("+"):
        first, dash, last = (part.strip() for part in piece.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
            given = "clients, which says none" if text == "None" else f"clients={text!r}"
            raise InputError(f"{what}: cannot read {given}; write all, half, 0-4, 0-4+8 or a list of numbers")
        low, high = map(int, ends)
        numbers += range(low, high + 1) if high < clients else [high]
    return numbers
