"""One row per method, in several formats."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from idiolect.core.errors import InputError, nearest
from idiolect.core.objectives import ACCURACY, Score, number
from idiolect.report.common_clients import counted
from idiolect.report.measures import OF_NUMBERS, header, requested
from idiolect.report.rows import OF_CLASSES, Row, is_best, summary, unlike_trained
from idiolect.runs.reader import Run


class Column(NamedTuple):
    """A column of the table: the field or the measure it shows, its header, its text."""

    field: str
    header: str
    text: Callable[[Row], str]

    def value(self, row: Row) -> object:
        """What it shows of a row, as it is."""
        if self.field == row.by.metric:
            return row.score
        return row.measures[self.field] if self.field in row.measures else getattr(row, self.field)


def _number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def _score(field: str, digits: int = 1) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        return row.by.text(getattr(row, field), digits)

    return text


def _change(row: Row) -> str:
    return "-" if row.versus_fedavg is None else row.by.change(row.versus_fedavg, ".1f")


def score_text(row: Row) -> str:
    """The score, with the standard deviation over seeds, or the round in which training diverged.

    >>> score_text(Row("a", "A", 0.5, 0.5, 0.5, 0.1, 0.4, None, None, None, 9, 2, 0.0123))
    '50.00 ± 1.23'
    """
    if row.diverged is not None:
        return f"diverged in round {row.diverged}"
    spread = "" if row.seed_std is None else f" ± {row.by.text(row.seed_std)}"
    return "-" if row.score is None else f"{row.by.text(row.score)}{spread}"


_VALIDATION = Column("validation", "Validation %", _score("validation", 2))
COLUMNS = (
    Column("accuracy", "Accuracy %", score_text),
    Column("per_client", "Per client %", _score("per_client")),
    Column("per_sample", "Per sample %", _score("per_sample")),
    Column("std", "Client std", _score("std")),
    Column("worst_decile", "Worst tenth", _score("worst_decile")),
    Column("versus_fedavg", "vs FedAvg", _change),
    Column("calibration_error", "ECE", lambda row: _number(row.calibration_error, ".3f")),
    Column("brier", "Brier", lambda row: _number(row.brier, ".3f")),
    Column(
        "bytes_per_round",
        "Bytes per round",
        lambda row: "-" if row.bytes_per_round is None else size(row.bytes_per_round),
    ),
    Column("seconds", "Time", lambda row: "-" if row.seconds is None else duration(row.seconds)),
    Column("rounds", "Rounds", lambda row: str(row.rounds or "-")),
    Column("seeds", "Seeds", lambda row: str(row.seeds or "-")),
)

_OF_ALL = (
    "± standard deviation over seeds. Validation: the score on the samples that were kept for validation. Per client, "
    "per sample: the mean over clients and over samples. Client std: standard deviation over clients{points}. Worst "
    "tenth: mean score of the worst tenth of clients; with fewer than 20 clients that of the worst client. {more} "
    "Bytes per round: down and up, per participating client. Time: all rounds and seeds together."
)


def legend(run: Run) -> str:
    """What the columns are."""
    if run.task == "multilabel":
        more = (
            "Micro F1: of all labels together, macro F1: mean over the labels that samples have or that are predicted. "
            "Subset accuracy: the share of samples whose labels are all right. Other measures: means over the labels "
            "that some of a client's test samples have and others have not."
        )
        return _OF_ALL.format(points=", in points", more=more)
    if run.task == "regression":
        more = "MSE, MAE: mean squared and absolute errors, in the units of the target, less is better. R2: at most 1."
        return _OF_ALL.format(points="", more=more)
    more = (
        "ECE, Brier: expected calibration error (0 to 1, 15 bins) and Brier score (0 to 2), means over clients, less "
        "is better."
    )
    return _OF_ALL.format(points=", in points", more=more)


def size(count: float) -> str:
    """A number of bytes, to three digits, in powers of 1000.

    >>> [size(n) for n in (0, 999, 999.7, 236_400, 1_234_567, 999_999)]
    ['0 B', '999 B', '1 kB', '236 kB', '1.23 MB', '1 MB']
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}"


def duration(seconds: float) -> str:
    """A time for people.

    >>> [duration(s) for s in (0.42, 48, 1800, 9000)]
    ['0.4 s', '48 s', '30 min', '2.5 h']
    """
    if seconds < 119.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 119.5 * 60 else f"{seconds / 3600:.1f} h"


def worst(clients: int) -> str:
    """The name of the worst tenth for so many clients: a tenth of their number, at least one client."""
    return "worst tenth" if clients >= 20 else "worst client"


def columns_of(run: Run) -> tuple[Column, ...]:
    """The table's columns, with the header for so many clients, and those of the measures beside the score."""
    headers = {"worst_decile": worst(counted(run)["client"].nunique()).capitalize()}
    usual = [c._replace(header=headers.get(c.field, c.header)) for c in COLUMNS]
    validation = _VALIDATION
    if run.task != "classification":
        usual = [_of_score(c, run.score) for c in usual if c.field not in OF_CLASSES]
        validation = _VALIDATION._replace(header=f"Validation {run.score.header}")
    if run.part == "validation":
        first, *rest = usual
        return first._replace(header=validation.header), *(c for c in rest if c.field not in OF_CLASSES)
    if any(row.validation is not None for row in summary(run)):
        usual.insert(1, validation)
    place = [c.field for c in usual].index("versus_fedavg") + 1
    return (*usual[:place], *(Column(m, header(m), _measure(m)) for m in requested(run)), *usual[place:])


def _of_score(column: Column, score: Score) -> Column:
    """A usual column where the score is no accuracy."""
    if column.field == "accuracy":
        return column._replace(field=score.metric, header=score.header)
    return column._replace(header=column.header.replace(" %", f" {score.header}"))


def _measure(name: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = row.measures.get(name)
        if value is None:
            return "-"
        return number(value) if name in OF_NUMBERS else _number(100 * value)

    return text


def fields_of(run: Run) -> tuple[Column, ...]:
    """What table.csv has: every field of ``Row``, and the measures beside the score."""
    columns = {column.field: column for column in columns_of(run)}
    return tuple(columns.get(name, Column(name, name, str)) for name in fields(requested(run), run.score))


def fields(measures: Iterable[str], score: Score) -> list[str]:
    """The names of the columns of table.csv."""
    left_out = ("measures", *(() if score.is_accuracy else OF_CLASSES))
    return [*score.named({name: None for name in Row._fields if name not in left_out}), *measures]


_SHORT = {
    "worst_decile": "worst", "versus_fedavg": "vs_fedavg", "calibration_error": "ece", "bytes_per_round": "bytes",
    "seconds": "time",
}  # fmt: skip


def chosen(columns: Sequence[Column], names: Sequence[str]) -> Sequence[Column]:
    """The columns with these names, in this order; all if there are none. Label and title are always there.

    A column is called as its field, or shorter: ``worst``, ``vs_fedavg``, ``ece``, ``bytes``, ``time``.

    Raises:
        InputError: there is no such column.
    """
    if not names:
        return columns
    by_name = {_SHORT.get(column.field, column.field): column for column in columns}
    by_field = {column.field: column for column in columns} | by_name
    for name in names:
        if name not in by_field:
            raise InputError(f"there is no column {name!r}; {nearest(name, list(by_name))}")
    first = [column for column in columns if column.field in ("label", "title")]
    return [*first, *(column for column in dict.fromkeys(by_field[n] for n in names) if column not in first)]


def new_clients_caption(run: Run) -> str:
    """What the table of new clients has."""
    unlike = unlike_trained(run)
    return f"{run.score.axis.capitalize()} of new clients, which took no part in training{unlike and f'. {unlike}'}"


_TEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
})  # fmt: skip


def as_latex(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS, notes: Sequence[str] = ()) -> str:
    """The table in LaTeX, for the package booktabs; the best accuracy in bold, and the notes in small type below."""
    lines = []
    for row in rows:
        cells = [_tex_number(column.text(row)) for column in columns]
        if is_best(row, rows):
            cells[0] = rf"\textbf{{{cells[0]}}}"
        lines.append([row.title.translate(_TEX), *cells])
    table = _tabular({"Method": False} | {column.header: True for column in columns}, lines)
    below = r" \\ ".join(note.translate(_TEX) for note in notes)
    return table + (rf"\par\smallskip{{\footnotesize {below}\par}}" + "\n" if below else "")


def latex(columns: Mapping[str, bool], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts in LaTeX, for the package booktabs.

    Args:
        columns: header: whether its texts are numbers.
        rows: a text for each column.
    """
    numbers = columns.values()
    lines = [[_tex_number(t) if n else t.translate(_TEX) for t, n in zip(row, numbers, strict=True)] for row in rows]
    return _tabular(columns, lines)


def _tex_number(text: str) -> str:
    return "--" if text == "-" else re.sub(r"(?<!\w)-(?=[\d.])|(?<=\de)-(?=\d)", "$-$", text.translate(_TEX))


def _tabular(columns: Mapping[str, bool], lines: Iterable[Sequence[str]]) -> str:
    alignment = "".join("r" if number else "l" for number in columns.values())
    head = [header.translate(_TEX) for header in columns]
    body = [" & ".join(cells) + r" \\" for cells in (head, *lines)]
    parts = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", body[0], r"\midrule", *body[1:]]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(rows: Sequence[Row], names: Sequence[str] = ()) -> str:
    """The fields of ``Row`` and its measures as comma-separated values: full digits, shares 0..1, empty if none.

    ``names`` chooses some of them.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    measures = dict.fromkeys(measure for row in rows for measure in row.measures)
    names = names or fields(measures, rows[0].by if rows else ACCURACY)
    writer.writerow(names)
    writer.writerows([Column(name, name, str).value(row) for name in names] for row in rows)
    return text.getvalue()
