"""Clients that join after training: who they are, and the shifts that they are measured under."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from idiolect.core.errors import InputError, nearest
from idiolect.core.option_spec import Spec
from idiolect.data.partitions import Split
from idiolect.data.shifts import KINDS, shift_of

log = logging.getLogger(__name__)


def new_last(split: Split, new_clients: str | int | None) -> tuple[list[int], int]:
    """The clients with those at the end that do not train, and the number of these."""
    count = len(split.train)
    if new_clients is None:
        return list(range(count)), 0
    text, names = str(new_clients).strip(), list(split.names or ())
    if text.isdecimal() or (text.removesuffix("%").replace(".", "", 1).isdecimal() and text.endswith("%")):
        new = round(count * float(text[:-1]) / 100) if text.endswith("%") else int(text)
        chosen = list(range(count - new, count))
        if text in names:
            log.warning("new_clients=%s is the last %s clients; the one named %s is written %s+", *[text] * 4)
    else:
        asked = [name.strip() for name in text.removesuffix("+").split("+")]
        if unknown := [name for name in asked if name not in names]:
            hint = nearest(unknown[0], names) if names else "these clients have no names: give a number or a share"
            raise InputError(f"new_clients={text}: there is no client {unknown[0]!r}; {hint}")
        chosen = sorted({names.index(name) for name in asked})
    if not 0 < len(chosen) < count:
        raise InputError(
            f"new_clients={text} leaves no client to train or none to join: of {count}, 1 to {count - 1} fit"
        )
    return [k for k in range(count) if k not in set(chosen)] + chosen, len(chosen)


def ordered(split: Split, order: Sequence[int]) -> Split:
    """The same clients in another order."""
    names = None if split.names is None else tuple(split.names[k] for k in order)
    return Split([split.train[k] for k in order], [split.test[k] for k in order], names, split.shared)


def conditions_of(specs: Iterable[Spec]) -> list[Spec]:
    """The shifts that new clients are measured under, ``corrupt:kind=each`` written out.

    Raises:
        InputError: unknown name or option, or clients named, since each condition is everybody's.
    """
    found = []
    for spec in specs:
        each = spec.name == "corrupt" and spec.options.get("kind") == "each"
        kinds = [{"kind": kind} for kind in KINDS] if each else [{}]
        found += [Spec(name=spec.name, options=spec.options | kind) for kind in kinds]
    for spec in found:
        shift_of(spec)
        if "clients" in spec.options:
            raise InputError(f"new_shifts {spec}: every new client is measured so; leave out clients")
    return found
