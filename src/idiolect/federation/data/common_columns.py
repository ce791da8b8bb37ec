"""The columns that all sites have, as all together need them, and how large their numbers are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from idiolect.core.errors import InputError, listed, option
from idiolect.data.custom.columns import in_order
from idiolect.data.datasets.dataset import Encoding
from idiolect.deploy import units
from idiolect.deploy.schema import Scale

if TYPE_CHECKING:
    from idiolect.federation.data.agreement import Offer


def columns_of(offers: Mapping[str, Offer]) -> tuple[Encoding, ...]:
    """The columns that every site has, in the order of the first site, each as all sites together need it."""
    by_name: dict[str, dict[str, Encoding]] = {}
    for site, offer in offers.items():
        for column in offer.columns:
            by_name.setdefault(column.name, {})[site] = column
    common = [_common_encoding(name, by) for name, by in by_name.items() if len(by) == len(offers)]
    columns = tuple(column for column in common if column.features)
    if not columns:
        sites = listed([f"{site}: {listed([c.name for c in offer.columns], 5)}" for site, offer in offers.items()], 5)
        raise InputError(f"the sites have no column in common besides the target ({sites}): give them the same names")
    return columns


def scales_of(columns: Sequence[Encoding], offers: Mapping[str, Offer], site: str | None = None) -> tuple[Scale, ...]:
    """How large the numbers of each column are over all sites; ``site`` is the one that an error is about, if given.

    Raises:
        InputError: those of some sites look like another unit.
    """
    known, scales, clashes = by_column(offers), [], []
    for column in columns:
        by = known.get(column.name, {})
        scales.append(units.common_scale(list(by.values())))
        if (far := units.apart(column.name, by, site)) is not None:
            clashes.append((column.name, far))
    if clashes:
        name, (sites, *_) = clashes[0]
        every = "; ".join(f"column {name!r} looks like another unit: {far}" for name, far in clashes[:3])
        raise InputError(
            f"{every}: convert it, or give {option('as_is', name)} at {', '.join(sites)} if the numbers are right"
        )
    return tuple(scales)


def by_column(offers: Mapping[str, Offer]) -> dict[str, dict[str, Scale]]:
    """What each site says of the numbers of each column: scales by column and site."""
    found: dict[str, dict[str, Scale]] = {}
    for site, offer in offers.items():
        for column, scale in zip(offer.columns, offer.scales, strict=False):
            if column.kind == "number":
                found.setdefault(column.name, {})[site] = scale
    return found


def _common_encoding(name: str, by: Mapping[str, Encoding]) -> Encoding:
    empty_one = [column for column in by.values() if column.kind == "number" and not column.features]
    kinds = {column.kind for column in by.values() if column not in empty_one}
    if len(kinds) > 1:
        text, number = (next(s for s, c in by.items() if c.kind == kind and c.features) for kind in ("text", "number"))
        raise InputError(
            f"column {name!r} has texts at {text} and numbers at {number}: make it one of the two, or drop it"
        )
    gaps = any(column.gaps for column in by.values())
    if kinds == {"text"}:
        texts = tuple(in_order({text for column in by.values() for text in column.texts}))
        if len(texts) == 1 and not gaps:
            return Encoding(name, value=False)
        return Encoding(name, "text", texts, gaps=gaps)
    shifts = [column.shift for column in by.values() if column.shift]
    return Encoding(
        name,
        value=any(column.value for column in by.values()),
        gaps=gaps,
        shift=statistics.median(shifts) if shifts else 0.0,
        scaled=any(column.scaled for column in by.values() if column not in empty_one),
    )
