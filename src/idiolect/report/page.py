"""One HTML file for each report, which contains all it needs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import vl_convert
from markupsafe import Markup

from idiolect.core import files
from idiolect.core.errors import InputError, listed
from idiolect.data.datasets import cache as kept
from idiolect.report import by_label, defences
from idiolect.report.by_client import shown
from idiolect.report.common_clients import counted, whose
from idiolect.report.compare import Comparison, comparisons, p_text, too_few
from idiolect.report.figures import Figure, figures, palette, sensitivity
from idiolect.report.figures.view import View
from idiolect.report.formatting import divided, plain
from idiolect.report.merge import distinct
from idiolect.report.notes import notes, said
from idiolect.report.rows import is_best, new_clients, summary
from idiolect.report.tables import as_csv, as_latex, columns_of, legend, new_clients_caption, score_text, worst
from idiolect.report.templates import file_text, templates
from idiolect.runs.folder import PAGE_FILE
from idiolect.runs.reader import Run

_SAID = 20  # shifts
FIT = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}


def write(runs: list[Path], out: Path) -> Path:
    """Write one page about one or several runs; the file is written whole or not at all.

    Raises:
        InputError: no run is given, or a run folder cannot be read.
        RunError: the file cannot be written.
    """
    if not runs:
        raise InputError("a report needs at least one run folder: give one")
    return draw(distinct([Path(r) for r in runs]), Path(out))


class Head(NamedTuple):
    """The part of a page above its runs: a title, a table of texts, some of them numbers, and notes."""

    title: str
    columns: dict[str, bool]
    """Header: whether its texts are numbers."""
    rows: list[tuple[str, ...]]
    notes: list[str]
    copied: tuple[tuple[str, str], ...] = ()
    """The table in formats to copy: name, text."""


def draw(runs: list[Run], out: Path, head: Head | None = None) -> Path:
    """Write one page about runs that have been read.

    Raises:
        InputError: ``out`` is a folder.
        RunError: the file cannot be written.
    """
    page = _page(runs, head)
    if out.is_dir():
        raise InputError(f"{out} is a folder: name a file, for example {out / PAGE_FILE}")
    files.write(out, page)
    return out


def _page(runs: list[Run], head: Head | None = None) -> str:
    colours = palette(runs)
    specs: dict[str, Any] = {}
    curves = sensitivity(runs, colours)
    within = [curves if len(runs) == 1 else [] for _ in runs]
    sections = [
        _section(run, f"run{i}", colours, specs, more)
        for i, (run, more) in enumerate(zip(runs, within, strict=True), 1)
    ]
    specs |= placed("all", curves if len(runs) > 1 else [])
    return render_page(
        "page.html",
        specs,
        title=head.title if head else _title(runs),
        head=head,
        sections=sections,
        comparison=_comparison(runs, colours) if len(runs) > 1 else None,
        compared_scores=_scores_of(runs),
        curves=curves,
        p_text=p_text,
        too_few=too_few,
        protocol=" ".join(dict.fromkeys(protocol_of(run) for run in runs)),
    )


def _scores_of(runs: list[Run]) -> str:
    """The names of the runs' scores with their units, each once."""
    text = ", ".join(dict.fromkeys(run.score.axis for run in runs))
    return text[:1].upper() + text[1:]


def _title(runs: list[Run]) -> str:
    return " and ".join(run.name for run in runs) if len(runs) <= 2 else f"{len(runs)} runs compared"


def render_page(template: str, specs: dict[str, Any], **content: Any) -> str:
    """A page that contains all it needs: style, scripts, and the figures' specifications by the id of their place."""
    scripts = [_bundle(), file_text("page.js")]
    return (
        templates()
        .get_template(template)
        .render(
            css=Markup(file_text("page.css")),
            specs=Markup(_json({name: spec if "facet" in spec else spec | FIT for name, spec in specs.items()})),
            scripts=[Markup(s) for s in scripts],
            hashes=[base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts],
            **content,
        )
    )


def placed(anchor: str, figures_: list[Figure]) -> dict[str, Any]:
    """The specifications of figures by the id of their place."""
    return {f"{anchor}-{figure.name}": figure.spec | {"description": figure.title} for figure in figures_}


def _section(
    run: Run, anchor: str, colours: dict[str, str], specs: dict[str, Any], more: list[Figure]
) -> dict[str, Any]:
    rows = summary(run)
    drawn, missing = figures(run, colours)
    drawn += more
    pairs = comparisons(run)
    specs |= placed(anchor, drawn)
    return {
        "anchor": anchor,
        "run": run,
        "facts": _facts(run),
        "protocol": protocol_of(run),
        "legend": legend(run),
        "rows": rows,
        "columns": columns_of(run),
        "best": [row for row in rows if is_best(row, rows)],
        "colours": colours,
        "copied": [("LaTeX", as_latex(rows, columns_of(run), notes(run))), ("CSV", as_csv(rows))],
        "compared": pairs,
        "versus": _versus(run, pairs),
        "worst": worst(counted(run)["client"].nunique()),
        "clients": shown(run, View(run, rows, colours).sample),
        "by_label": by_label.shown(run),
        "new_clients": new_clients(run),
        "new_clients_caption": new_clients_caption(run),
        "figures": drawn,
        "said": said(run),
        "notes": stopped(run) + missing,
    }


def _versus(run: Run, pairs: list[Comparison]) -> str:
    """How the best method is compared, in words."""
    if not pairs:
        return ""
    best, seeds = pairs[0], len({s for c in pairs for s in c.p_values})
    level = "seeds and clients" if seeds > 1 else "clients, so it says nothing about other seeds"
    p = "p: Wilcoxon's signed-rank test over clients, two-sided, not corrected for the number of methods"
    p += "; for several seeds twice their mean, because the seeds have the same clients" if seeds > 1 else ""
    harm = "" if best.harmed is None else f" {run.titles[best.method]} itself harms {best.harmed}."
    how = f", in{run.score.points}" if run.score.is_share else "; less is better"
    few = next((f" {text}" for text in map(too_few, pairs) if text), "")
    return (
        f"Difference: {run.score.name} of {run.titles[best.method]} minus the other's{how}, with a 95 % interval by a "
        f"bootstrap over {level}. Better, worse, equal: for how many clients {run.titles[best.method]} is, by their "
        f"means over seeds. {p}. Harmed: clients for which the other method is worse than training alone.{harm}{few}"
    )


def protocol_of(run: Run) -> str:
    """What the accuracy is, in sentences."""
    networks = "" if run.precision == "float32" else f" Networks computed in {run.precision}."
    never = "never the best round on the test samples"
    what = f"{'validation ' * (run.part == 'validation')}{run.score.name}".capitalize()
    return f"{what}: {run.said(whose(run))}; {never}.{networks} {defences.honest(run)}".rstrip()


def _facts(run: Run) -> list[tuple[str, str]]:
    """The facts about a run, in words."""
    clients, names = run.manifest["clients"], run.manifest["class_names"]
    count = {part: sum(sum(c.get(part, ())) for c in clients) for part in ("train", "validation", "test")}
    parts = [f"{count['train']:,} training", *(f"{n:,} {part}" for part, n in list(count.items())[1:] if n)]
    rows = f"{', '.join(parts[:-1])} and {parts[-1]} samples" if parts[1:] else f"{parts[0]} samples"
    shifts = {plain(s): n for s, n in Counter(run.shifts.values()).items() if s}
    texts = [f"{shift} on {n} of {len(clients)} clients" for shift, n in shifts.items()]
    if len(texts) > _SAID:
        examples = ", ".join([*list(shifts)[:3], "..."])
        texts = [f"{len(shifts)} different ones on {sum(shifts.values())} of {len(clients)} clients: {examples}"]
    seeds = run.study["seeds"]
    target = f"{len(names)} classes" if run.task == "classification" else f"predicts {listed(run.manifest['targets'])}"
    if run.task == "multilabel":
        target = f"{len(run.manifest['targets'])} labels, of which a sample can have several"
    return [
        ("Data set", f"{plain(run.manifest['dataset'])}: {target}, {rows}"),
        ("Clients", _clients(run)),
        (
            "Partition",
            divided(run.study["partition"], "name" in clients[0], run.manifest.get("official_split"), run.task),
        ),
        ("Shifts", ", ".join(texts) or "none"),
        ("Rounds", str(run.study["rounds"])),
        ("Seeds", ", ".join(map(str, seeds)) if isinstance(seeds, (list, tuple)) else str(seeds)),
        *defences.facts(run),
    ]


def _clients(run: Run) -> str:
    count = len(run.manifest["clients"])
    new = sum(not condition for condition in run.new_clients.values())
    return f"{count - new} that train, {new} new" if new else str(count)


def stopped(run: Run) -> list[str]:
    """A sentence for each method and seed that has no result of the study's last round."""
    notes = []
    for label, title in run.titles.items():
        mine = run.scores[run.scores["method"] == label]
        if diverged := [d for d in run.diverged if d.method == label]:
            without = "so the method has no final results"
            notes += [f"{title}, seed {d.seed}: diverged in round {d.round}, {without} ({d.said})." for d in diverged]
            continue
        if mine.empty:
            notes.append(f"{title} has no results.")
        for seed, rounds in mine.groupby("seed")["round"].max().items():
            if rounds < int(run.study["rounds"]) and (label, seed) not in run.stopped:
                last = f"the last evaluation is in round {rounds} of {run.study['rounds']}"
                which = "from that round" if run.protocol.round == "last" else "from the best round so far"
                notes.append(f"{title}, seed {seed}: {last}; its numbers are {which}.")
    return notes


def _comparison(runs: list[Run], colours: dict[str, str]) -> list[dict[str, Any]]:
    """Score per method (rows) and run (columns)."""
    tables = [{row.label: row for row in summary(run)} for run in runs]
    lines = []
    for label, colour in colours.items():
        cells_of = [(table.get(label), list(table.values())) for table in tables]
        title = next(row.title for row, _ in cells_of if row)
        cells = [
            {"text": score_text(row), "value": row.score, "best": is_best(row, rows)}
            if row
            else {"text": "-", "value": None, "best": False}
            for row, rows in cells_of
        ]
        lines.append({"title": title, "colour": colour, "cells": cells})
    return lines


def _json(value: object) -> str:
    """JSON that cannot end the script element that contains it."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; making it takes seconds, so it is cached on disk."""
    at = kept.place(f"vega-{version('vl-convert-python')}")
    if at and (entry := kept.load(at)) and set(entry.tensors) == {"code"}:
        return entry.tensors["code"].numpy().tobytes().decode()
    code: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if "</script" in code.lower() or "<!--" in code:
        raise RuntimeError("the Vega bundle cannot be put into a script element")
    if at:
        kept.save(at, {"code": torch.frombuffer(bytearray(code.encode()), dtype=torch.uint8)}, {})
    return code
