"""Which of its metrics a method wants drawn, and how: the table ``REPORTS`` of its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from idiolect.core.errors import InputError


@dataclass(frozen=True)
class ClientValue:
    """A number of each client, drawn as one dot per client, by kind of shift where there are several.

    ``local`` reports it as a scalar, or ``aggregate`` as a vector (m,). The value of a client's last round is drawn.
    """

    name: str
    """What it is called, in the plural, such as ``local weights (beta)``: the first words of the caption."""
    symbol: str
    """What it is called in a heading and on the axis, such as ``β``."""
    meaning: str
    """What it is, for the axis, such as ``weight of the local estimate``."""
    shows: str
    """What can be read off the figure, for its heading, such as ``how far each client trusts its own statistics``."""
    ends: str
    """What the lowest and the highest number mean, as a sentence without its full stop."""
    limits: tuple[pydantic.FiniteFloat, pydantic.FiniteFloat] | None = None
    """The lowest and the highest number that there can be, for the axis; None takes those that there are."""
    kind: Literal["client"] = "client"


@dataclass(frozen=True)
class PairValue:
    """A number of each pair of participants, drawn as a matrix at a few rounds; ``aggregate`` reports it, (m, m)."""

    name: str
    """What it is called, in the plural, such as ``combination weights``: the first words of the caption."""
    shows: str
    """What can be read off the figure, for its heading, such as ``whose heads each client combines``."""
    colours: str
    """What rows and colours are, as a sentence without its full stop."""
    row: str = "client"
    """What the client of a row does, such as ``receives a combined head``."""
    column: str = "other client"
    """What the client of a column does, such as ``gives its head``."""
    value: str = "value"
    """What one number is called."""
    own: str = ""
    """For rows of shares that add up to 1: a heading about the diagonal, with ``{}`` for its mean in per cent, such as
    ``a client's own head carries {} of its combined head``."""
    kind: Literal["pair"] = "pair"


Report = Annotated[ClientValue | PairValue, pydantic.Field(discriminator="kind")]
_TABLE = pydantic.TypeAdapter(dict[str, Report])


def to_json(reports: Mapping[str, Report]) -> dict[str, Any]:
    """A table by metric, as it is stored in a run folder's manifest."""
    table_: dict[str, Any] = _TABLE.dump_python(dict(reports), mode="json")
    return table_


def from_json(table: Mapping[str, Any]) -> dict[str, Report]:
    """A manifest's table by metric."""
    return _TABLE.validate_python(table)


def check(table: Mapping[str, object]) -> None:
    """Raise InputError if a table has anything but reports whose fields have the right types."""
    for metric, report in table.items():
        if not isinstance(report, ClientValue | PairValue):
            raise InputError(f"REPORTS[{metric!r}] is {report!r}: write a ClientValue or a PairValue")
        try:
            from_json({metric: vars(report)})
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            raise InputError(f"REPORTS[{metric!r}]: {first['loc'][-1]}: {first['msg'].lower()}") from None
