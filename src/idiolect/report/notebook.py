"""Tables as a notebook shows them: HTML without scripts, on the notebook's own background, light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from idiolect.report.templates import templates


class Block(NamedTuple):
    """A table of texts.

    Attributes:
        title: what it shows.
        columns: header: whether its texts are numbers.
        rows: a text for each column; the first names the row.
        best: the numbers of the rows that are in bold.
        is_folded: whether it is shut until somebody opens it.
    """

    title: str
    columns: Mapping[str, bool]
    rows: Sequence[Sequence[str]]
    best: Sequence[int] = ()
    is_folded: bool = False


def facts(title: str, lines: Sequence[tuple[str, str]], *, is_folded: bool = False) -> Block:
    """A table of names and texts, without headers."""
    return Block(title, {}, lines, (), is_folded)


def html(*blocks: Block, notes: Sequence[str] = (), below: Sequence[str] = ()) -> str:
    """Tables, notes in a list, and quiet sentences below them."""
    return str(templates().get_template("notebook.html").render(blocks=blocks, notes=notes, below=below))
