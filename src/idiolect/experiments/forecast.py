"""What a recipe would run, and how long that takes here, by what its methods take on made-up rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Group
from rich.table import Table

from idiolect import data, methods
from idiolect.data import FederatedData
from idiolect.engines import Job, begin
from idiolect.engines.processes import cores
from idiolect.engines.site import Site
from idiolect.engines.threads import OneThread
from idiolect.errors import InputError
from idiolect.experiments.recipes import Cell, Recipe
from idiolect.experiments.reproduce import Part, diverged, parts
from idiolect.experiments.store import seconds_of_rounds
from idiolect.experiments.study import Study
from idiolect.method import Down
from idiolect.report.tables import duration
from idiolect.terminal import Text

_ROWS, _TESTED = 100, 32  # made-up rows that a method is timed on


class Planned(NamedTuple):
    """One run that cells ask for."""

    name: str
    """The cells' conditions."""
    method: str
    seed: int
    rounds: int
    done: int
    """Rounds on disk."""
    seconds: float | None
    """That the rest would take; None where it cannot be said."""
    folder: str
    note: str
    """What would keep it from running."""


def forecast(
    cells: Sequence[Cell],
    out: Path,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    workers: int | None = None,
) -> list[Planned]:
    """The runs of some cells, each once.

    A run that has begun is judged by its own rounds so far, another by its method on made-up rows, one round of one
    client on one core; workers share a round evenly.
    """
    several = workers or cores()
    speeds: dict[Any, tuple[float, float]] = {}
    found: dict[Path, Planned] = {}
    for c in cells:
        if c.study is None:
            found[Path(c.slug)] = Planned(c.slug, "", 0, 0, 0, 0.0 if c.value else None, "", c.absent or "computed")
        for part in parts(c, out, rounds=rounds, seeds=seeds):
            if part.folder not in found:
                try:
                    found[part.folder] = _planned(part, several, speeds)
                except InputError as error:  # a broken folder, or another study's: the others run
                    found[part.folder] = _named(part, 0, None, str(error))
    return list(found.values())


def _planned(part: Part, workers: int, speeds: dict[Any, tuple[float, float]]) -> Planned:
    study, done = part.study, part.done
    use, seconds, note = study.methods[0], 0.0, ""
    if diverged(part.folder):
        note = f"{use.label} diverged with seed {study.seeds[0]}, and is not tried again until {part.folder} is deleted"
    elif done < study.rounds:
        if done:
            seconds = float(np.mean(seconds_of_rounds(part.folder))) * (study.rounds - done)
        else:
            about = data.describe(str(study.dataset))
            like = (use.name, str(use.options), study.model, str(about["shape"]), about["classes"], study.local_epochs)
            if like not in speeds:
                speeds[like] = _speed(study, about)
            seconds = _cost(study, about, *speeds[like]) / workers
        if not data.at_hand(str(study.dataset), study.data_dir):
            note = "its data are not on this machine and would be fetched"
    return _named(part, done, seconds, note)


def _named(part: Part, done: int, seconds: float | None, note: str) -> Planned:
    study, folder = part.study, str(part.folder)
    return Planned(study.name, study.methods[0].label, study.seeds[0], study.rounds, done, seconds, folder, note)


def _cost(study: Study, about: dict[str, Any], training: float, measuring: float) -> float:
    """Seconds of one core, by the seconds of one training row for a round and of one row for an evaluation."""
    clients = study.clients or 100
    rows = _training_rows(study, about, clients)
    taking_part = max(1, round(study.participation * clients))
    evaluations = study.rounds // study.evaluation + bool(study.rounds % study.evaluation)
    return study.rounds * taking_part * rows * training + evaluations * clients * rows * measuring


def _training_rows(study: Study, about: dict[str, Any], clients: int) -> float:
    """Of a client on average, without reading the data."""
    total = about["rows"]
    options = study.partition.options
    if study.sizes:
        rows = sum(study.sizes) / len(study.sizes)
    elif study.partition.name in ("dominant", "pathological"):
        rows = 600.0
    else:
        of_all = min(options.get("rows") or total / clients, total / clients)
        rows = of_all * (1 - options.get("test_fraction", 0.2))
    if study.keep is not None:
        rows = min(rows, study.keep) if isinstance(study.keep, int) else rows * study.keep
    return float(rows)


def _speed(study: Study, about: dict[str, Any]) -> tuple[float, float]:
    """Seconds per training row of ``local`` and of an evaluation, on one core."""
    shape, classes = tuple(about["shape"]), int(about["classes"])
    count = _ROWS + _TESTED
    draw = torch.Generator().manual_seed(0)
    rows = torch.arange(2 * count).view(2, count)
    made_up = FederatedData(
        name="random", x_R=torch.randint(256, (2 * count, *shape), dtype=torch.uint8, generator=draw),
        y_R=torch.arange(2 * count) % classes, classes=classes,
        train=tuple(r[:_ROWS] for r in rows), test=tuple(r[_ROWS:] for r in rows),
        class_names=tuple(map(str, range(classes))), mean=(0.5,) * shape[0], std=(0.3,) * shape[0], shifts=("", ""),
    )  # fmt: skip
    use = study.methods[0]
    site = Site(Job(use.label, partial(methods.build, use.name, use.options, study.task(made_up)), made_up, 0))
    state = begin(site.method, 2, 0)
    sent = site.method.send(state.server, torch.tensor([0]))
    own = Down(sent.shared, sent.own)

    def timed(stage: Any) -> float:
        best = float("inf")
        for number in (1, 2):
            start = time.perf_counter()
            site.run(stage, number, [0], own, [state.clients[0]])
            best = min(best, time.perf_counter() - start)
        return best / _ROWS

    with OneThread():
        return timed("local"), timed("evaluate")


def render(recipe: Recipe, rows: Sequence[Planned]) -> Group:
    """The plan for a terminal."""
    trained = [r for r in rows if r.rounds]
    left = [r.seconds for r in trained if r.seconds]
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for header in ("cells", "method"):
        shown.add_column(header, overflow="fold")
    for header in ("seed", "rounds", "time"):
        shown.add_column(header, justify="right", no_wrap=True)
    for r in trained:
        rounds = f"{r.done} of {r.rounds}" if r.done else str(r.rounds)
        took = "done" if r.done >= r.rounds else "-" if r.seconds is None else duration(r.seconds)
        shown.add_row(*map(Text, (r.name, r.method, str(r.seed), rounds, took)))
    many = "1 run" if len(trained) == 1 else f"{len(trained)} runs"
    none = "Nothing can run yet." if any(r.seconds is None for r in trained) else "Nothing is left to run."
    below = [f"{many}, about {duration(sum(left))} on this machine." if left else none]
    if computed := sum(r.note == "computed" for r in rows):
        below.append(f"{computed} cells are computed without training.")
    below += [f"Note: {n.rstrip('.')}." for n in dict.fromkeys(r.note for r in rows) if n and n != "computed"]
    below += [f"Assumed: {a}" for a in recipe.assumed]
    head = Text(f"{recipe.name}: {recipe.title}\n")
    return Group(head, *([shown] if trained else []), Text("\n".join(["", *below])))
