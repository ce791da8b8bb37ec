"""What the people at sites should look at once their samples are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from idiolect.core.errors import listed
from idiolect.data.custom import dates
from idiolect.data.custom.columns import in_order
from idiolect.data.datasets.dataset import Encoding
from idiolect.deploy import units
from idiolect.deploy.schema import Inputs
from idiolect.federation.data.agreement import Offer
from idiolect.federation.data.common_columns import by_column


def remarks(inputs: Inputs, offers: Mapping[str, Offer]) -> list[str]:
    """Sentences about what sites should look at: columns that one lacks, classes that only one has, hidden gaps."""
    features, sentences = {column.name for column in inputs.columns}, list[str]()
    lacking: dict[tuple[str, ...], list[str]] = {}
    names_of = {site: [column.name for column in offer.columns] for site, offer in offers.items()}
    known = {site: {*names, *map(dates.base_of, names)} for site, names in names_of.items()}
    for name in dict.fromkeys(name for names in names_of.values() for name in _written(names)):
        without = tuple(site for site, names in known.items() if name not in names)
        if without and name not in features:
            lacking.setdefault(without, []).append(name)
    for without, absent in lacking.items():
        written = dates.as_written(absent)
        names = absent if any(known[site].intersection(written) for site in without) else written
        sentences.append(
            f"column{'s' if len(names) > 1 else ''} {listed(map(repr, names), 40)} {'are' if len(names) > 1 else 'is'} "
            f"not used, because {listed(without, 5)} {'have' if len(without) > 1 else 'has'} none of this name"
        )
    for site, offer in offers.items():
        others = {name for other, one in offers.items() if other != site for name in one.classes}
        if len(offers) > 1 and not offer.targets and not others & set(offer.classes):
            sentences.append(
                f"no class of {site} ({listed(offer.classes, 5)}) is one of another site's "
                f"({listed(in_order(others), 5)}): if they mean the same, write them in one way"
            )
    return sentences + hidden_gaps(inputs.columns, offers)


def _written(names: Sequence[str]) -> list[str]:
    """The names of a site's columns without those of the parts that an empty column would have as dates."""
    every = set(names)
    return [name for name in names if dates.base_of(name) not in every]


def hidden_gaps(columns: Sequence[Encoding], offers: Mapping[str, Offer]) -> list[str]:
    """Sentences about sites where 0 may stand for a missing value."""
    scales = by_column(offers)
    return [
        f"column {column.name!r} at {site} is 0 in most rows, and hardly ever at the other sites: if 0 stands for a "
        "missing value, leave these cells empty there"
        for column in columns
        for site in units.hidden_gaps(scales.get(column.name, {}))
    ]
