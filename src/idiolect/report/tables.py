"""One row per method, in several formats."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.terminal import Text
from idiolect.report.formatting import short
from idiolect.runs.reader import Run, once

_USUAL = Protocol()


class Row(NamedTuple):
    """A method in the last evaluated round of each of its seeds.

    K clients. Means over clients are taken within a seed, then averaged over seeds. ``None``: nothing is recorded.
    """

    label: str
    title: str
    accuracy: float | None
    """Mean test accuracy, over clients or over test samples as the run's protocol says, 0..1."""
    per_client: float | None
    """Mean over clients, 0..1."""
    per_sample: float | None
    """Mean over test samples, 0..1."""
    std: float | None
    """Standard deviation over clients (divided by K), 0..1."""
    worst_decile: float | None
    """Mean accuracy of the worst K // 10 clients, at least one, 0..1."""
    versus_fedavg: float | None
    """Accuracy minus that of FedAvg, in points (-100..100)."""
    bytes_per_round: float | None
    """Bytes down and up, mean per participating client and round."""
    seconds: float | None
    """Seconds of the server, and of the clients' work divided by the workers, for all rounds and seeds together."""
    rounds: int
    """The last evaluated round; the earliest of them if seeds differ; 0 without records."""
    seeds: int
    """How many seeds have records."""
    seed_std: float | None
    """Standard deviation of the accuracy over seeds (divided by seeds - 1), 0..1; None for one seed."""
    calibration_error: float | None = None
    """Expected calibration error, mean over clients, 0..1."""
    brier: float | None = None
    """Brier score, mean over clients, 0..2."""
    diverged: int | None = None
    """The round in which training diverged, the earliest of the seeds; such a method has no accuracy."""


@once
def summary(run: Run) -> list[Row]:
    """One row per method of the run, in the study's order."""
    ends = {label: run.final[run.final["method"] == label] for label in run.titles}
    fedavg = run.find("fedavg")
    base = _mean(per_seed(run, ends[fedavg])) if fedavg else None
    wire = run.records[(run.records["stage"] == "wire") & run.records["metric"].isin(["bytes_down", "bytes_up"])]
    calibration, brier = run.last_of("calibration_error"), run.last_of("brier")
    rows = []
    for label, title in run.titles.items():
        end, sent = ends[label], wire[wire["method"] == label]
        seconds = run.timings.loc[run.timings["method"] == label, "seconds"]
        seeds = [seed for _, seed in end.groupby("seed")]
        each = per_seed(run, end)
        accuracy = _mean(each)
        exchanges = len(sent.drop_duplicates(["seed", "round", "client"]))
        rows.append(
            Row(
                label,
                title,
                accuracy,
                _over_clients(end),
                _per_sample(run, end),
                _mean([s["value"].std(ddof=0) for s in seeds]),
                _mean([s["value"].nsmallest(max(1, len(s) // 10)).mean() for s in seeds]),
                None if accuracy is None or base is None else 100 * (accuracy - base),
                float(sent["value"].sum()) / exchanges if exchanges else None,
                float(seconds.sum()) if len(seconds) else None,
                _evaluated(run, label),
                len(seeds),
                float(np.std(each, ddof=1)) if len(each) > 1 else None,
                _over_clients(calibration[calibration["method"] == label]),
                _over_clients(brier[brier["method"] == label]),
                min((d.round for d in run.diverged if d.method == label), default=None),
            )
        )
    return rows


def _evaluated(run: Run, label: str) -> int:
    rounds = run.accuracy[run.accuracy["method"] == label].groupby("seed")["round"].max()
    return int(rounds.min()) if len(rounds) else 0


class NewClients(NamedTuple):
    """New clients under one condition, or the clients that trained."""

    who: str
    accuracy: dict[str, float | None]
    """Per method: mean over clients of test accuracy, 0..1, averaged over seeds."""
    per_sample: dict[str, float | None]
    """The same, weighted by the clients' test samples."""


def new_clients(run: Run) -> list[NewClients]:
    """The accuracy of new clients under each condition; empty if there are none."""
    if not run.new_clients:
        return []
    frame = run.settled(run.select("new", "accuracy"))
    condition = frame["client"].map(run.new_clients)

    def row(who: str, part: pd.DataFrame) -> NewClients:
        mine = {label: part[part["method"] == label] for label in run.titles}
        return NewClients(
            who,
            {k: _over_clients(end) for k, end in mine.items()},
            {k: _per_sample(run, end) for k, end in mine.items()},
        )

    conditions = list(dict.fromkeys(run.new_clients.values()))
    return [
        row("clients that trained", run.final),
        *(row(f"new clients, {short(c)}" if c else "new clients", frame[condition == c]) for c in conditions),
    ]


def accuracies(run: Run) -> pd.Series[float]:
    """The protocol's accuracy (0..1) by method and seed, in the study's order."""
    keys: list[tuple[str, int]] = []
    values: list[float] = []
    for label in run.titles:
        end = run.final[run.final["method"] == label]
        keys += [(label, seed) for seed in sorted(end["seed"].unique().tolist())]
        values += per_seed(run, end)
    index = pd.MultiIndex.from_tuples(keys, names=["method", "seed"])
    return pd.Series(np.array(values, float), index=index, name="accuracy")


def client_accuracies(run: Run) -> pd.DataFrame:
    """The same of every client: a row for each, by name or number; a column for each method and seed."""
    names = {c["id"]: c.get("name") or c["id"] for c in run.manifest["clients"]}
    wide = run.final.pivot(index="client", columns=["method", "seed"], values="value")
    return wide.reindex(columns=accuracies(run).index).rename(index=names)


def per_seed(run: Run, end: pd.DataFrame) -> list[float]:
    """The mean of a method's final values for each seed, over clients or test samples as the run's protocol says."""
    return (
        _each(run, end) if run.protocol.weighting == "sample" else [s["value"].mean() for _, s in end.groupby("seed")]
    )


def _each(run: Run, end: pd.DataFrame) -> list[float]:
    weights = end["client"].map(run.test_rows)
    return [float(np.average(s["value"], weights=weights[s.index])) for _, s in end.groupby("seed")]


def _per_sample(run: Run, end: pd.DataFrame) -> float | None:
    return _mean(_each(run, end))


def _over_clients(end: pd.DataFrame) -> float | None:
    """The mean over clients, averaged over seeds."""
    return _mean([s["value"].mean() for _, s in end.groupby("seed")])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


class Column(NamedTuple):
    """A column of the table: the field it shows, its header, its text."""

    field: str
    header: str
    text: Callable[[Row], str]


def _number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else format(value, form)


def _percent(field: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = getattr(row, field)
        return _number(None if value is None else 100 * value)

    return text


def accuracy_text(row: Row) -> str:
    """Accuracy in per cent, with the standard deviation over seeds, or the round in which training diverged.

    >>> accuracy_text(Row("a", "A", 0.5, 0.5, 0.5, 0.1, 0.4, None, None, None, 9, 2, 0.0123))
    '50.00 ± 1.23'
    """
    if row.diverged is not None:
        return f"diverged in round {row.diverged}"
    spread = "" if row.seed_std is None else f" ± {100 * row.seed_std:.2f}"
    return "-" if row.accuracy is None else f"{100 * row.accuracy:.2f}{spread}"


COLUMNS = (
    Column("accuracy", "Accuracy %", accuracy_text),
    Column("per_client", "Per client %", _percent("per_client")),
    Column("per_sample", "Per sample %", _percent("per_sample")),
    Column("std", "Client std", _percent("std")),
    Column("worst_decile", "Worst tenth", _percent("worst_decile")),
    Column("versus_fedavg", "vs FedAvg", lambda row: _number(row.versus_fedavg, "+.1f")),
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

LEGEND = (
    "± standard deviation over seeds. Per client, per sample: the mean over clients and over test samples. Client std: "
    "standard deviation over clients, in points. Worst tenth: mean accuracy of the worst tenth of clients; with fewer "
    "than 20 clients that of the worst client. ECE, Brier: expected calibration error (0 to 1, 15 bins) and Brier "
    "score (0 to 2), means over clients, less is better. Bytes per round: down and up, per participating client. "
    "Time: all rounds and seeds together."
)


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


def finished(rows: Sequence[Row]) -> list[Row]:
    """The methods that can be compared: those with results in the latest round that any method reached."""
    latest = max((r.rounds for r in rows if r.accuracy is not None), default=0)
    return [r for r in rows if r.accuracy is not None and r.rounds == latest]


def is_best(row: Row, rows: Sequence[Row]) -> bool:
    """Whether no method that can be compared has a higher accuracy."""
    accuracies = [r.accuracy or 0 for r in finished(rows)]
    return row in finished(rows) and row.accuracy == max(accuracies)


def worst(clients: int) -> str:
    """The name of the worst tenth for so many clients: a tenth of their number, at least one client."""
    return "worst tenth" if clients >= 20 else "worst client"


def columns_of(run: Run) -> tuple[Column, ...]:
    """The table's columns, with the header for so many clients."""
    header = worst(run.final["client"].nunique()).capitalize()
    return tuple(c._replace(header=header) if c.field == "worst_decile" else c for c in COLUMNS)


_TERMINAL = ("accuracy", "std", "worst_decile", "versus_fedavg", "bytes_per_round", "seconds")


def render(
    rows: Sequence[Row], protocol: Protocol = _USUAL, columns: Sequence[Column] = COLUMNS, more: str = ""
) -> Table:
    """The table for a terminal of 80 columns, the best accuracy in bold; the page and ``--json`` have more columns.

    ``more`` is added to what is said below the table.
    """
    columns = [column for column in columns if column.field in _TERMINAL]
    rounds = max((row.rounds for row in finished(rows)), default=0)
    caption = (
        f"Test accuracy after {rounds} round{'' if rounds == 1 else 's'}: {protocol}"
        f"{'; ± standard deviation over seeds' if any(row.seed_std is not None for row in rows) else ''}. "
        f"Bytes: down and up, per client and round. {more}"
    ).rstrip()
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
        show_edge=False,
        caption=caption,
        caption_justify="left",
    )
    table.add_column("Method", overflow="fold", min_width=8)
    for column in columns:
        table.add_column(column.header.replace(" per round", "").replace(" ", "\n", 1), justify="right", no_wrap=True)
    for row in rows:
        bold = "bold" if is_best(row, rows) else ""
        cells = [Text(column.text(row), bold if column.field == "accuracy" else "") for column in columns]
        table.add_row(Text(row.title, bold), *cells)
    return table


def render_new_clients(rows: Sequence[NewClients], titles: Mapping[str, str]) -> Table:
    """New clients beside those that trained, for a terminal: a line for each condition, a column for each method."""
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False, caption_justify="left",
        caption="Test accuracy (%) of new clients, which took no part in training: mean over clients.",
    )  # fmt: skip
    table.add_column("Who", overflow="fold", min_width=12)
    for title in titles.values():
        table.add_column(Text(title), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.who), *(_number(None if a is None else 100 * a) for a in row.accuracy.values()))
    return table


def as_markdown(rows: Sequence[Row]) -> str:
    """The table in GitHub's Markdown; the best accuracy in bold."""
    lines = ["| Method | " + " | ".join(c.header for c in COLUMNS) + " |", "| :-- |" + " --: |" * len(COLUMNS)]
    for row in rows:
        cells = [column.text(row) for column in COLUMNS]
        if is_best(row, rows):
            cells[0] = f"**{cells[0]}**"
        title = row.title.replace("\\", "\\\\").replace("|", "\\|")
        lines.append("| " + " | ".join([title, *cells]) + " |")
    return "\n".join(lines) + "\n"


_TEX = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
})  # fmt: skip


def as_latex(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> str:
    """The table in LaTeX, for the package booktabs; the best accuracy in bold."""
    lines = []
    for row in rows:
        cells = [_tex_number(column.text(row)) for column in columns]
        if is_best(row, rows):
            cells[0] = rf"\textbf{{{cells[0]}}}"
        lines.append([row.title.translate(_TEX), *cells])
    return _tabular({"Method": False} | {column.header: True for column in columns}, lines)


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
    aligned = "".join("r" if number else "l" for number in columns.values())
    head = [header.translate(_TEX) for header in columns]
    body = [" & ".join(cells) + r" \\" for cells in (head, *lines)]
    parts = [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", body[0], r"\midrule", *body[1:]]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}"]) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """The fields of ``Row`` as comma-separated values: full digits, shares 0..1, empty if there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows)
    return text.getvalue()
