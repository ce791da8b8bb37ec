"""New clients, which do not train: who they are, and the shifts under which they are measured."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from idiolect.core.errors import InputError, nearest
from idiolect.core.option_spec import PLUS, Spec, split_names
from idiolect.data.partitions import Split
from idiolect.data.shifts import KINDS, shift_of

log = logging.getLogger(__name__)


def new_last(split: Split, new_clients: str | int | None) -> tuple[list[int], int]:
    """The clients with the new ones last, and the number of new ones."""
    count = len(split.train)
    if new_clients is None:
        return list(range(count)), 0
    text, names = str(new_clients).strip(), list(split.names or ())
    if text.isdecimal() or (text.removesuffix("%").replace(".", "", 1).isdecimal() and text.endswith("%")):
        new = round(count * float(text[:-1]) / 100) if text.endswith("%") else int(text)
        newcomers = list(range(count - new, count))
        if text in names:
            log.warning(
                "new_clients=%s means the last %s clients; for the client with the name %s write %s+", *[text] * 4
            )
    else:
        pieces = split_names(text, names)
        pieces = pieces[:-1] if pieces[1:] and not pieces[-1] else pieces  # the plus of 7+
        if unknown := [name for name in pieces if name not in names]:
            hint = nearest(unknown[0], names) if names else "these clients have no names: give a number or a share"
            joined = f"; {PLUS}" if "+" in text else ""
            raise InputError(f"new_clients={text}: there is no client {unknown[0]!r}; {hint}{joined}")
        if pieces == [text] and set(apart := text.split("+")) <= set(names) and len(apart) > 1:
            log.warning(
                "new_clients=%s means the client with this name; for %s write %s",
                text, " and ".join(apart), "+".join(f'"{name}"' for name in apart),
            )  # fmt: skip
        newcomers = sorted({names.index(name) for name in pieces})
    if not 0 < len(newcomers) < count:
        raise InputError(
            f"new_clients={text} leaves no clients that train, or no new ones: of {count}, 1 to {count - 1} can be new"
        )
    return [k for k in range(count) if k not in set(newcomers)] + newcomers, len(newcomers)


def ordered(split: Split, order: Sequence[int]) -> Split:
    """The same clients in another order."""
    names = None if split.names is None else tuple(split.names[k] for k in order)
    train, test, left = ([part[k] for k in order] if part else [] for part in (split.train, split.test, split.left))
    return Split(train, test, names, split.shared, left)


def conditions_of(specs: Iterable[Spec]) -> list[Spec]:
    """The shifts under which new clients are measured, with ``corrupt:kind=each`` as one shift for each kind.

    Raises:
        InputError: unknown name or option, or the option ``clients``, because each condition is for all new clients.
    """
    conditions = []
    for spec in specs:
        each = spec.name == "corrupt" and spec.options.get("kind") == "each"
        kinds = [{"kind": kind} for kind in KINDS] if each else [{}]
        conditions += [Spec(name=spec.name, options=spec.options | kind) for kind in kinds]
    for spec in conditions:
        shift_of(spec)
        if "clients" in spec.options:
            raise InputError(f"new_shifts {spec}: this is done to every new client; leave out clients")
    return conditions
