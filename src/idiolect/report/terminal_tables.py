"""The tables of a run for a terminal: they leave columns out, or fold, so that no number is cut."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table

from idiolect.core.errors import printable
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.objectives import ACCURACY, SCORES, Score
from idiolect.core.terminal import Text
from idiolect.report.rows import NewClients, Row, finished, is_best
from idiolect.report.tables import COLUMNS, Column

_USUAL = Protocol()
_PAGE_ONLY = ("per_client", "per_sample", "calibration_error", "brier", "rounds", "seeds")
_WIDTH = 80  # of a table in a terminal that is wide enough
_SHORTEST, _NAME, _HEAD = 8, 20, 14  # the room for names in the first column, and for a condition above a column
_BETWEEN = 2  # columns of the terminal that each column of the table takes beside its text
_SPARED = ("seconds", "bytes_per_round", "std", "worst_decile", "versus_fedavg")  # to make room, in this order
_USUAL_FIELDS = (*(column.field for column in COLUMNS), *SCORES)


class Fitted(Table):
    """A table that is made anew for a terminal with less room than usual."""

    make: Callable[[int], Table] | None = None
    """Makes the table for so many columns of the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = self.make is not None and options.max_width < _WIDTH
        yield from Table.__rich_console__(
            self.make(options.max_width) if self.make and narrow else self, console, options
        )


def _fitted(make: Callable[[int], Fitted]) -> Fitted:
    table = make(_WIDTH)
    table.make = make
    return table


def _empty(caption: str) -> Fitted:
    return Fitted(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False, caption=caption,
        caption_justify="left",
    )  # fmt: skip


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _first(names: Sequence[str]) -> int:
    """The room that the first column needs: longer names are folded."""
    return max(_SHORTEST, min(_NAME, _widest(names)))


def _lines(column: Column) -> list[str]:
    """The header of a column in a terminal."""
    text = column.header.replace(" per round", "")
    if column.field in _USUAL_FIELDS:
        return text.split(" ", 1)
    return textwrap.wrap(text, 10, break_long_words=False)


def _needed(rows: Sequence[Row], columns: Sequence[Column]) -> int:
    """The room that the methods with these columns need."""
    wide = [_widest([*_lines(c), *(c.text(row) for row in rows)]) + _BETWEEN for c in columns]
    return _first([row.title for row in rows]) + sum(wide)


def _fitting(rows: Sequence[Row], columns: Sequence[Column], room: int) -> list[Column]:
    """The columns that fit beside the methods, if those that can be spared are left out, and then the last measures."""
    left = list(columns)
    candidates = [*_SPARED, *reversed([c.field for c in columns if c.field not in _USUAL_FIELDS])]
    while _needed(rows, left) > room and candidates:
        field = candidates.pop(0)
        left = [column for column in left if column.field != field]
    return left


def render(
    rows: Sequence[Row],
    protocol: Protocol | str = _USUAL,
    columns: Sequence[Column] = COLUMNS,
    more: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """The table for a terminal of 80 columns, the best accuracy in bold; the page and ``--json`` have more columns.

    In a narrower terminal it has fewer columns. ``more`` is added to what is said below the table, and each of the
    ``notes`` gets a line of its own there.
    """
    return _fitted(partial(_methods, rows, protocol, columns, more, notes))


def _methods(
    rows: Sequence[Row], protocol: Protocol | str, columns: Sequence[Column], more: str, notes: Sequence[str], room: int
) -> Fitted:
    every = [column for column in columns if column.field not in _PAGE_ONLY]
    usual, columns = _fitting(rows, every, _WIDTH), _fitting(rows, every, room)
    absent = [c.header for c in every if c not in columns and (c in usual or c.field not in _USUAL_FIELDS)]
    if absent:
        more = f"{more} There is no room for {', '.join(absent)}: see the page.".strip()
    if any(column.field == "bytes_per_round" for column in columns):
        more = f"Bytes: down and up, per client and round. {more}"
    rounds, part = max((row.rounds for row in finished(rows)), default=0), _part_of(rows)
    most = "up to " * any(row.stopped is not None for row in finished(rows))
    after = f" after {most}{rounds} round{'' if rounds == 1 else 's'}" if rounds else ""
    name = rows[0].by.name if rows else "score"
    caption = (
        f"{part} {name}{after}: {protocol}"
        f"{'; ± standard deviation over seeds' if any(row.seed_std is not None for row in rows) else ''}. {more}"
    ).rstrip()
    table = _empty(escape(printable("\n".join([caption, *notes]))))
    fits = _needed(rows, columns) <= room
    table.add_column("Method", overflow="fold", min_width=_SHORTEST if fits else 1)
    for column in columns:
        # where not even the score fits, it is folded between its numbers
        table.add_column("\n".join(_lines(column)), justify="right", no_wrap=fits, overflow="fold")
    for row in rows:
        bold = "bold" if is_best(row, rows) else ""
        cells = [Text(column.text(row), bold if column.field == row.by.metric else "") for column in columns]
        table.add_row(Text(row.title, bold), *cells)
    return table


def _part_of(rows: Sequence[Row]) -> str:
    return rows[0].measured.capitalize() if rows else "Test"


class _Grid(NamedTuple):
    """Texts with a name for each line and a head for each column."""

    corner: str
    names: Sequence[str]
    heads: Sequence[Sequence[str]]
    """Of each column, the lines of its head."""
    texts: Sequence[Sequence[str]]
    """Of each line, a text for each column."""

    def widths(self) -> list[int]:
        columns = zip(self.heads, zip(*self.texts, strict=True), strict=True)
        return [_widest([*head, *texts]) + _BETWEEN for head, texts in columns]

    def side_by_side(self, room: int) -> int:
        """How many columns stand side by side in so much room; at least one."""
        room, widths = room - _first([self.corner, *self.names]), self.widths()
        return len(widths) if sum(widths) <= room else max(1, room // max(widths))

    def lines(self, room: int) -> int:
        """About how many lines it takes, folded."""
        return -(-len(self.heads) // self.side_by_side(room)) * (len(self.names) + max(map(len, self.heads)) + 1)


def render_new_clients(
    rows: Sequence[NewClients], titles: Mapping[str, str], score: Score = ACCURACY, more: str = ""
) -> Table:
    """New clients beside those that trained, for a terminal: a line for each condition, a column for each method.

    Where so many columns have no room, it has a line for each method and a column for each condition. Where these have
    none either, the columns are folded: what has no room beside the first ones stands below them. ``more`` is added to
    what is said below the table, as ``unlike_trained``.
    """
    about = f"Test {score.axis} of new clients, which took no part in training: mean over clients."
    texts = [[score.text(value, 1) for value in row.score.values()] for row in rows]
    names, who = list(titles.values()), [row.who for row in rows]
    by_method = _Grid("Method", names, [textwrap.wrap(w, _HEAD) for w in who], list(zip(*texts, strict=True)))
    by_condition = _Grid("Who", who, [textwrap.wrap(name, _NAME) for name in names], texts)
    return _fitted(partial(_folded, (by_condition, by_method), escape(printable(f"{about} {more}".rstrip()))))


def _folded(grids: Sequence[_Grid], caption: str, room: int) -> Fitted:
    """The first of the grids that fits, or the one that takes the fewest lines, folded."""
    whole = [grid for grid in grids if grid.side_by_side(room) == len(grid.heads)]
    grid = whole[0] if whole else min(grids, key=lambda grid: grid.lines(room))
    count, table = grid.side_by_side(room), _empty(caption)
    heads = [Text("\n".join(head)) for head in grid.heads]
    table.add_column(grid.corner, overflow="fold", min_width=_SHORTEST)
    for head in heads[:count]:
        table.add_column(head, justify="right", no_wrap=True)
    for start in range(0, len(heads), count):
        if start:
            table.add_section()
            table.add_row("", *(Text(head.plain, "bold") for head in heads[start : start + count]))
        for name, texts in zip(grid.names, grid.texts, strict=True):
            table.add_row(Text(name), *texts[start : start + count])
    return table
